"""What is still known of a segment that was removed from its topic (DESIGN §5.14): its children name the position of
its last entry. So a reader that has read up to there goes on in them, and any other one has missed something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from metastore.api import MetadataStore
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.topics import TopicRecord
from metatxn.wire import errors
from metatxn.wire.names import SegmentParts
from metatxn.wire.position import Position


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """A removed segment. `end` is the position of its last entry; None if its children were removed as well, so that it
    is not known. `children` have taken over from it, or if they are gone, those that have taken over from them.

    `last_parents` are the removed segments that are parents of the segments left in its hash range. If any of its
    descendants was removed, one of these is among them."""

    id: str
    end: Position | None
    children: tuple[str, ...]
    last_parents: frozenset[str]

    def is_passed(self, place: Position) -> bool:
        """Whether a reader at this place had certainly read all of it."""
        return self.end is not None and place >= self.end

    def trimmed(self) -> errors.MetatxnError:
        """The error for a reader that had not read all of it."""
        return errors.PositionTrimmed(
            f"segment {self.id} was removed, because all of its entries were trimmed",
            action="Continue in the segments that have taken over from it.",
            segment=self.id,
            children=list(self.children),
        )

    def sealed(self) -> errors.MetatxnError:
        """The error for a writer."""
        return errors.SegmentSealed(
            f"segment {self.id} was removed after it had been sealed",
            action="Write to the segments that have taken over from it.",
            segment=self.id,
            children=list(self.children),
        )


async def removed_segment(store: MetadataStore, topic: TopicRecord, segment_id: str) -> RemovedSegment | None:
    """What is known of a removed segment; None if the topic never had it, or still has it. Raises the store's
    errors."""
    if not topic.had(segment_id):
        return None
    name = SegmentParts.parse(segment_id)
    heirs = {paths.segment(each): each for each in topic.segments if SegmentParts.parse(each).overlaps(name)}
    found = (await store.get_many(list(heirs))).records
    parents_of = {
        heirs[key]: _ends(SegmentRecord.decode(stored.value)) for key, stored in found.items() if stored is not None
    }
    ends = {heir: parents[segment_id] for heir, parents in parents_of.items() if segment_id in parents}
    end = next(iter(ends.values()), None)
    children = tuple(each for each in topic.segments if each in (ends or heirs.values()))
    last_parents = frozenset(chain.from_iterable(parents_of.values()))
    return RemovedSegment(segment_id, Position.parse(end) if end is not None else None, children, last_parents)


def _ends(record: SegmentRecord) -> Mapping[str, str]:
    return record.removed_parents or {}
