"""A topic takes from one exclusive producer at a time: once a claim was answered, nothing is taken that is sent under
an earlier epoch; and in each segment the entries of an epoch stand together, behind those of all earlier ones."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    writes = {write.id: write for write in history.writes}
    for topic in {claim.topic for claim in history.claims}:
        claims = [claim for claim in history.claims if claim.topic == topic]
        for segment in history.layouts[topic]:
            pages = [read for read in history.final_reads if read.isolation == "read_uncommitted"]
            frames = [seen for page in pages if page.segment == segment for seen in page.frames]
            for seen in frames:
                late = [claim for claim in claims if seen.id in writes and claim.answered < writes[seen.id].begun]
                if 0 < seen.amount < max((claim.epoch for claim in late), default=0):
                    yield f"{seen} was taken under epoch {seen.amount}, and sent when one of {late} had been answered"
            yield from _mixed(segment, [max(0, seen.amount) for seen in sorted(frames, key=lambda each: each.position)])


def _mixed(segment: str, epochs: list[int]) -> Iterable[str]:
    highest, last = 0, 0
    for epoch in epochs:
        if epoch and (epoch < highest or (epoch == highest and last != epoch)):
            yield f"in {segment} entries of epoch {epoch} stand behind others that came after them: {epochs}"
            return
        highest, last = max(highest, epoch), epoch
