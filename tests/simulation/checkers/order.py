"""The entries of a key are in the order in which they were written: what was sent when another one had been
acknowledged stands behind it, also across splits and merges. A page shows what lies between its two places."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History, Write


def check(history: History) -> Iterable[str]:
    for read in history.committed_reads():
        positions = [seen.position for seen in read.frames]
        if positions != sorted(positions):
            yield f"{read.client} read {read.segment} out of order: {positions}"
        if any(not read.after < position <= read.next for position in positions):
            yield f"{read.client} read {read.segment} from {read.after} to {read.next} and got {positions}"
    writes = {write.id: write for write in history.writes}
    for topic, segments in history.layouts.items():
        by_key: dict[str, list[Write]] = {}
        for segment in segments:
            for read in history.final_reads_committed():
                if read.segment == segment:
                    for seen in read.frames:
                        if seen.id in writes:
                            by_key.setdefault(seen.key, []).append(writes[seen.id])
        for key, ordered in by_key.items():
            yield from _overtaken(topic, key, ordered)


def _overtaken(topic: str, key: str, ordered: list[Write]) -> Iterable[str]:
    latest: Write | None = None
    for write in ordered:
        if latest is not None and write.ended is not None and write.ended < latest.begun:
            yield f"{topic}, {key}: {write} stands behind {latest}, which was sent later"
        if latest is None or write.begun > latest.begun:
            latest = write
