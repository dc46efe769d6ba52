"""The limit of what subscriptions have not acknowledged (DESIGN §6).

    records of all segments, cursors of all subscriptions ─▶ the backlog of each subscription ─▶ hold, or evict

Every owner finds the backlog of the whole topic in the store. What is in open ledgers is known to their owners only;
these are closed while they are small and young compared with the bound. Aborted messages do not count as far as they
are known, and neither does what was trimmed.

Over the bound, each owner refuses new messages for its segments (`producer_hold`), or takes the oldest closed ledgers
for acknowledged on the subscriptions that are over it (`evict`), as with a TTL. The next pass looks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from metastore.txn import paths
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metastore.txn.records.subscriptions import MarkDelete
from metastore.types import Record
from metatxn.wire.policies import UNLIMITED, EffectivePolicy
from metatxn.wire.position import Position
from participants.broker.broker import Broker
from participants.segment.publishing import Hold
from participants.segment.segment import Segment
from participants.subscription.definitions import Definition, Definitions
from participants.subscription.places import Place
from participants.subscription.segment_subscriptions import subscriptions_of


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """What a subscription has not acknowledged of a ledger. `last` and `age_ms`, the latest publish time in it and in
    all before it, are None of an open one, and as long as the time is unknown."""

    segment: str
    size_bytes: int
    last: Position | None = None
    age_ms: int | None = None


class Backlogs:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def look(
        self, policy: EffectivePolicy, segments: Sequence[Segment], records: Mapping[str, SegmentRecord], now_ms: int
    ) -> None:
        """Hold or evict, for these segments of a topic, which are served here. `records` are all of the topic. Raises
        the store's and the storage's errors, and STORE_UNAVAILABLE."""
        held: Hold | None = None
        for segment in segments:
            if segment.attached is not None:
                await segment.attached.settle()
        for definition, marks in (await self._marks(segments[0].record.topic, list(records))).items():
            row = list(_backlog(records, marks, {segment.id: segment for segment in segments}))
            if policy.backlog.value == "evict":
                await _evict(definition, segments, evicted(policy, row, now_ms))
            elif (reason := _over(policy, row, now_ms)) is not None:
                held = held or Hold(definition.name, reason)
        for segment in segments:
            segment.publisher.hold = held

    async def _marks(self, topic: str, segment_ids: Sequence[str]) -> dict[Definition, dict[str, Place]]:
        """The place before which everything is durably acknowledged, by subscription and segment."""
        store = self._broker.store
        definitions = [each for each in await Definitions(store).of_topic(topic) if not each.record.deleted]
        found = await store.get_each([_key(each, segment) for each in definitions for segment in segment_ids])
        return {
            each: {segment: _mark(found[_key(each, segment)], each.start_on(segment)) for segment in segment_ids}
            for each in definitions
        }


def _key(definition: Definition, segment: str) -> str:
    return paths.cursor_mark(segment, definition.name, definition.record.incarnation)


def _mark(stored: Record | None, start: Place) -> Place:
    return Place.parse(MarkDelete.decode(stored.value).before) if stored is not None else start


def release(segments: Sequence[Segment]) -> None:
    """Lift the limit: no policy limits the backlog any more."""
    for segment in segments:
        segment.publisher.hold = None


# -- what is waiting -------------------------------------------------------------------------------------------


def _backlog(
    records: Mapping[str, SegmentRecord], marks: Mapping[str, Place], served: Mapping[str, Segment]
) -> Iterator[Unacknowledged]:
    for segment_id, record in records.items():
        trimmed = record.trimmed_up_to
        start = max(marks[segment_id], Place.behind(trimmed)) if trimmed is not None else marks[segment_id]
        yield from _of_closed(segment_id, record, start)
        if (segment := served.get(segment_id)) is not None and segment.ledgers.open is not None:
            ledger = segment.ledgers.open
            first = _first_after(ledger.id, start)
            if first < ledger.entries:
                yield Unacknowledged(segment_id, ledger.bytes_of(first, ledger.entries - 1))


def _of_closed(segment_id: str, record: SegmentRecord, start: Place) -> Iterator[Unacknowledged]:
    age_ms = 0
    for ledger in record.ledgers:
        if not ledger.entries or ledger.bytes is None:
            continue
        known = ledger.last_ms is not None
        age_ms = max(age_ms, ledger.last_ms or 0)
        first = _first_after(ledger.id, start)
        if first < ledger.entries:
            yield Unacknowledged(
                segment_id, _visible(ledger, first), ledger.last if known else None, age_ms if known else None
            )


def _first_after(ledger: int, start: Place) -> int:
    """The first entry of a ledger that is not before this place. It may be after its last one."""
    if start.ledger == ledger:
        return start.entry
    return 0 if start.ledger < ledger else 1 << 62


def _visible(ledger: LedgerRecord, first: int) -> int:
    """About the size of the entries from this one on, without those that are hidden."""
    assert ledger.entries is not None and ledger.bytes is not None
    return (ledger.bytes - (ledger.hidden_bytes or 0)) * (ledger.entries - first) // ledger.entries


# -- what follows from it --------------------------------------------------------------------------------------


def _over(policy: EffectivePolicy, row: Sequence[Unacknowledged], now_ms: int) -> str | None:
    """Why new messages are refused, or None."""
    size, most_bytes, most_ms = sum(each.size_bytes for each in row), *_bounds(policy)
    if most_bytes is not None and size >= most_bytes:
        return f"{size} bytes, and the policy allows {most_bytes}"
    old = [each.age_ms for each in row if each.age_ms is not None]
    if most_ms is not None and old and min(old) + most_ms < now_ms:
        return f"messages that are {now_ms - min(old)} ms old, and the policy allows {most_ms}"
    return None


def evicted(policy: EffectivePolicy, row: Sequence[Unacknowledged], now_ms: int) -> dict[str, Position]:
    """The last entry that is counted as acknowledged, by segment, so that the rest is within the limit. Every owner
    finds the same, from the oldest ledger on."""
    left, most_bytes, most_ms = sum(each.size_bytes for each in row), *_bounds(policy)
    found: dict[str, Position] = {}
    closed = [(each.age_ms, each.segment, each.last, each) for each in row if each.age_ms is not None and each.last]
    for age_ms, segment, last, each in sorted(closed, key=lambda found: found[:3]):
        too_old = most_ms is not None and age_ms + most_ms < now_ms
        if not too_old and (most_bytes is None or left <= most_bytes):
            break
        left -= each.size_bytes
        found[segment] = last
    return found


def _bounds(policy: EffectivePolicy) -> tuple[int | None, int | None]:
    """The limits in bytes and in milliseconds; None if there is none."""
    size, age = policy.backlog_bytes.value, policy.backlog_ms.value
    return None if size == UNLIMITED else size, None if age == UNLIMITED else age


async def _evict(definition: Definition, segments: Sequence[Segment], ends: Mapping[str, Position]) -> None:
    for segment in segments:
        if segment.id in ends and not segment.lost:
            part = await subscriptions_of(segment).get(definition)
            await part.expire(Place.behind(min(ends[segment.id], segment.buffer.max_read_position)))
