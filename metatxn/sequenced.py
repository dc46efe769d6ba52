"""Delivery of messages that a program has numbered itself, so that it may send them again after a restart.

The entries of the second run contain other messages than those of the first one. So each has the sequence of its last
message, and is appended only behind what the producer is known to have appended before (`Behind`, DESIGN §5.13):

    send, in the order of sequences ──▶ lane of a segment, one entry in flight ──▶ appended behind the last one
                                             ▲                                  │
                                             └── without what is there already ◀┴── refused: other entries are there

A message is there already if its sequence is at most that of an entry that covers its hash, because nothing is sent
after a message that was left out: after the first failure the producer takes nothing more.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Any

from metatxn.delivery import Batching, Flight, Lane, Link, OrderedDelivery
from metatxn.outgoing import MessageFormat, Outgoing, Queued
from metatxn.topics import Layout
from metatxn.wire.broker import hash_of_key
from metatxn.wire.errors import InvalidArgument, MetatxnError
from metatxn.wire.frames import NO_SEQUENCE, Behind, Entry
from metatxn.wire.names import number_of_segment
from metatxn.wire.record_batches import Codec


class SequencedFormat(MessageFormat):
    """Messages without a key are routed by their sequence, so that a later run sends them to the same place."""

    def __init__(self, producer: str, compression: Codec | None) -> None:
        super().__init__(compression)
        self._producer = producer

    def hashed(self, item: Queued) -> str:
        assert isinstance(item, Outgoing)
        return f"{self._producer}/{item.sequence}" if item.key is None else item.key

    def split(self, item: Queued, layout: Layout) -> tuple[tuple[str, Queued], ...]:
        return ((layout.segment_of(self.hashed(item)), item),)


@dataclass(slots=True)
class _Known:
    """What a segment has said about the entries of this producer, its own and those of the segments from which it took
    over: by number of the segment and hash range their sequences and positions, in order."""

    behind: Behind = field(default_factory=Behind)
    told: dict[tuple[int, int, int], list[tuple[int, str]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, segment: str, appended: list[dict[str, Any]]) -> _Known:
        known, own, inherited = cls(), NO_SEQUENCE, NO_SEQUENCE
        for part in appended:
            if part["segment"] == segment:
                own = max(own, part["sequence"])
            else:
                inherited = max(inherited, part["sequence"])
            number = number_of_segment(part["segment"])
            for low, high in part["ranges"]:
                known.told.setdefault((number, low, high), []).append((part["sequence"], part["position"]))
        for entries in known.told.values():
            entries.sort()
        known.behind = Behind(own, inherited)
        return known

    def position_of(self, sequence: int, hash_value: int) -> str | None:
        """The position of the entry with a message, if it is there; or of the first later one that is remembered.

        A child may have a lower sequence than what it took over for a part of its hashes: there its entry has nothing
        of this part. So the first entry counts, and the segments that have told of a hash follow each other."""
        found = [
            (number, *entries[bisect_left(entries, (sequence, ""))])
            for (number, low, high), entries in self.told.items()
            if low <= hash_value <= high and sequence <= entries[-1][0]
        ]
        return min(found)[-1] if found else None


class SequencedDelivery(OrderedDelivery[Queued]):
    """The delivery of a sequenced producer, all of it outside transactions."""

    def __init__(self, link: Link, topic: str, name: str, batching: Batching, compression: Codec | None = None) -> None:
        form = SequencedFormat(name, compression)
        super().__init__(link, topic, form, batching, failure_is_final=True)
        self._producer = name
        self._hashed = form.hashed
        self._known: dict[str, _Known] = {}
        """What is known, by segment."""
        self._put_last = NO_SEQUENCE

    def _add(self, item: Queued, txn_id: str | None) -> None:
        if item.sequence <= self._put_last:
            failure = InvalidArgument(
                f"sequence: {item.sequence} was sent after {self._put_last}",
                action="Open another producer of this name, and send in the order of the sequences.",
                field="sequence",
            )
            self._failures.setdefault(txn_id, failure)
            self._format.done([item], failure)
            return
        self._put_last = item.sequence
        super()._add(item, txn_id)

    def _fits_beside(self, lane: Lane[Queued]) -> bool:
        return False

    async def _post_next(self, lane: Lane[Queued]) -> None:
        self._leave_out(lane)
        await super()._post_next(lane)

    def _take(self, lane: Lane[Queued]) -> Flight[Queued]:
        flight = super()._take(lane)
        flight.sequence = flight.items[-1].sequence
        return flight

    def _entry(self, lane: Lane[Queued], flight: Flight[Queued]) -> Entry:
        known = self._known.setdefault(lane.segment, _Known())
        return replace(super()._entry(lane, flight), behind=known.behind)

    async def _post(self, lane: Lane[Queued], flight: Flight[Queued]) -> str | MetatxnError | None:
        outcome = await super()._post(lane, flight)
        if isinstance(outcome, str):
            known = self._known[lane.segment]
            known.behind = known.behind._replace(own=flight.sequence)
        elif outcome is not None and "appended" in outcome.members:
            self._known[lane.segment] = _Known.parse(lane.segment, outcome.members["appended"])
            return None
        return outcome

    def _leave_out(self, lane: Lane[Queued]) -> None:
        """Leave out the messages that are there already: they are done."""
        known = self._known.get(lane.segment)
        if known is None or not known.told:
            return
        places = [(item, known.position_of(item.sequence, hash_of_key(self._hashed(item)))) for item in lane.items]
        size = sum(self._format.size(item) for item, position in places if position is not None)
        lane.items.clear()
        lane.items.extend(item for item, position in places if position is None)
        lane.size -= size
        self._release(size)
        for item, position in places:
            if position is not None:
                self._format.done([item], position)

    def _in_order(self, moving: list[tuple[Queued, str | None]]) -> list[tuple[Queued, str | None]]:
        return sorted(moving, key=lambda each: each[0].sequence)
