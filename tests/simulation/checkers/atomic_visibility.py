"""All or nothing: of each transaction a segment shows every entry that counts, at once, or none.

Once it was shown, nothing below is added: anyone who has read up to a place never misses what appears there later. So
all reads of one segment are parts of one list, and that list is what everybody sees in the end."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    final: dict[str, set[tuple[tuple[int, int], str]]] = {}
    for read in history.final_reads_committed():
        final.setdefault(read.segment, set()).update((seen.position, seen.id) for seen in read.frames)
    latest = history.latest_by_key()
    for read in history.reads:
        expected = {entry for entry in final.get(read.segment, ()) if read.after < entry[0] <= read.next}
        got = {(seen.position, seen.id) for seen in read.frames}
        missing = sorted(expected - got)
        replaced = {
            (seen.position, seen.id)
            for seen in read.frames
            if latest.get((read.segment, seen.key), (0, -1)) > seen.position
        }
        gone = got - expected - replaced
        extra = sorted(entry for entry in gone if not history.is_trimmed(read.segment, entry[0]))
        if missing or extra:
            yield (
                f"{read.client} read {read.segment} from {read.after} to {read.next} at {read.at_revision}: "
                f"missing {missing}, never seen again {extra}"
            )
