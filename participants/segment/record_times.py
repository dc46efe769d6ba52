"""Where the records of a time are, by the timestamps that their producers gave them (DESIGN §5.20).

The timestamps of records have no order, so they are searched: ledger by ledger, entry by entry. No record of a ledger
is newer than its `latest_record_ms`, so only ledgers that may have one are read, and what was read of the last few of
them is remembered. The timestamps of the open ledger are in memory.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from metatxn.wire import errors
from metatxn.wire.frames import Entry
from metatxn.wire.position import Position
from metatxn.wire.record_batches import decode_columns
from participants.ledger.form import Form
from participants.ledger.offsets import first_offset, latest_record_ms
from participants.ledger.storage import ReadableLedger, SealedLedger
from participants.segment.owned import OwnedSegment
from participants.segment.reading import STALE_READ_S, LeftOut, SegmentReader

READ_BYTES = 1 << 20
REMEMBERED_LEDGERS = 4
_NEVER = -1


_Name = tuple[int, Form | None]


class FoundRecord(NamedTuple):
    offset: int
    timestamp_ms: int


class RecordTimes:
    """The timestamps in a segment. Used only from the event loop of its process. Its methods raise STORE_UNAVAILABLE
    and the store's errors."""

    def __init__(self, segment: OwnedSegment, reader: SegmentReader) -> None:
        self._segment = segment
        self._reader = reader
        self._read: OrderedDict[_Name, array[int]] = OrderedDict()
        self._latest: dict[_Name, int] = {}
        """The latest timestamp of each ledger that was read, in the form in which it was read."""
        self._reading = asyncio.Lock()

    async def first_from(self, at_ms: int) -> FoundRecord | None:
        """The first durable record with this timestamp or a later one, whatever the state of its transaction."""
        at = self._segment.ledgers.start
        while (place := await self._next(at, at_ms)) is not None:
            found = await self._record_in(place, at_ms)
            if found is not None:
                await self._reader.assert_owned(STALE_READ_S)
                return found
            at = place
        await self._reader.assert_owned(STALE_READ_S)
        return None

    async def latest(self) -> FoundRecord | None:
        """The first record with the latest timestamp of all."""
        while True:
            ledgers, latest_ms, bounds = self._segment.ledgers, _NEVER, self._bounds()
            for ledger in sorted(ledgers.ledgers, key=lambda each: bounds[each.id], reverse=True):
                if bounds[ledger.id] <= latest_ms:
                    break
                latest_ms = max(latest_ms, *await self._times(ledger), _NEVER)
            found = await self.first_from(latest_ms) if latest_ms > _NEVER else None
            if found is not None or self._segment.ledgers is ledgers:
                return found  # otherwise it was perhaps left out meanwhile

    async def _next(self, after: Position, at_ms: int) -> Position | None:
        """The first entry after `after` whose batch says that it has such a record."""
        after, bounds = max(after, self._segment.ledgers.start), self._bounds()
        for ledger in self._segment.ledgers.ledgers:
            first = after.entry + 1 if ledger.id == after.ledger else 0
            if ledger.id < after.ledger or bounds[ledger.id] < at_ms:
                continue
            times = await self._times(ledger)
            found = next((entry for entry in range(first, len(times)) if times[entry] >= at_ms), None)
            if found is not None:
                return Position(ledger.id, found)
        return None

    async def _record_in(self, place: Position, at_ms: int) -> FoundRecord | None:
        try:
            frame = await self._reader.frame_at(place)
        except (errors.PositionTrimmed, LeftOut):  # meanwhile
            self._segment.assert_serving()
            return None
        first = first_offset(frame)
        found = (FoundRecord(first + number, ms) for number, ms in enumerate(_times_in(frame)) if ms >= at_ms)
        return next(found, None)

    def _bounds(self) -> dict[int, float]:
        """A time for each ledger. No record of the ledger is newer."""
        recorded = {each.id: each.latest_record_ms for each in self._segment.record.ledgers}
        return {each.id: self._bound(each, recorded.get(each.id)) for each in self._segment.ledgers.ledgers}

    def _bound(self, ledger: ReadableLedger, recorded: int | None) -> float:
        offsets = self._segment.open_offsets
        if offsets is not None and ledger.id == offsets.ledger:
            return max(offsets.times, default=_NEVER)
        if (known := self._latest.get(_name(ledger))) is not None:
            return known
        return float("inf") if recorded is None else recorded

    async def _times(self, ledger: ReadableLedger) -> Sequence[int]:
        """The latest timestamp in each durable entry of the ledger."""
        offsets, durable = self._segment.open_offsets, self._segment.buffer.last_durable
        if offsets is not None and ledger.id == offsets.ledger:
            return offsets.times[: durable.entry + 1] if durable.ledger == ledger.id else ()
        name = _name(ledger)
        async with self._reading:
            if name not in self._read:
                times = await self._times_in_storage(ledger)
                listed = set(map(_name, self._segment.ledgers.ledgers))
                self._latest = {each: ms for each, ms in self._latest.items() if each in listed}
                self._latest[name] = max(times, default=_NEVER)
                self._read[name] = times
                if len(self._read) > REMEMBERED_LEDGERS:
                    self._read.popitem(last=False)
            self._read.move_to_end(name)
            return self._read[name]

    async def _times_in_storage(self, ledger: ReadableLedger) -> array[int]:
        """`_NEVER` stands for an entry that is not there."""
        times = array("q", [_NEVER] * ledger.entries)
        at, end = Position(ledger.id, -1), Position(ledger.id, ledger.entries - 1)
        while at < end:
            try:
                page = await self._reader.read_uncommitted(max(at, self._segment.ledgers.start), READ_BYTES)
            except errors.PositionTrimmed:
                self._segment.assert_serving()
                continue
            for frame in page.frames:
                if frame.position.ledger == ledger.id:
                    times[frame.position.entry] = latest_record_ms(frame.payload)
            at = page.next
        return times


def _name(ledger: ReadableLedger) -> _Name:
    return ledger.id, ledger.form if isinstance(ledger, SealedLedger) else None


def _times_in(batch: Entry) -> Sequence[int]:
    """The timestamps of the records of a batch, or the latest one if they cannot be read."""
    try:
        return decode_columns(batch.payload, batch.count).times_ms
    except ValueError:
        return [latest_record_ms(batch.payload)]
