"""All or nothing: of each transaction a segment shows every entry that counts, at once, or none.

Once it was shown, nothing below is added: whoever has read up to a place never misses what appears there later. So all
reads of one segment are parts of one list, and that list is what everybody sees in the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    final: dict[str, dict[tuple[int, int], str]] = {}
    for read in history.final_reads:
        if read.isolation == "read_committed":
            final.setdefault(read.segment, {}).update({seen.position: seen.id for seen in read.frames})
    for read in history.reads:
        expected = {
            position: name
            for position, name in final.get(read.segment, {}).items()
            if read.after < position <= read.next
        }
        got = {
            seen.position: seen.id
            for seen in read.frames
            if seen.position in expected or not history.is_trimmed(read.segment, seen.position)
        }
        if got != expected:
            missing = sorted(set(expected.items()) - set(got.items()))
            extra = sorted(set(got.items()) - set(expected.items()))
            yield (
                f"{read.client} read {read.segment} from {read.after} to {read.next} at {read.at_revision}: "
                f"missing {missing}, never seen again {extra}"
            )
