"""Reading an owned segment: up to its horizon, up to its durable end, or as of a revision (DESIGN §7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import gc_horizon
from metastore.types import Revision
from metatxn.wire import errors
from metatxn.wire.frames import RawFrame
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.ledger.chain import READ_BYTES
from participants.ledger.hidden_index import HiddenRanges
from participants.ledger.storage import LedgerError, ReadableLedger
from participants.segment.owned import OwnedSegment
from participants.txn.buffer import Decision

T = TypeVar("T")
LOOKED_AT_ONCE = 1_000
"""The number of entries in one step of the search for the last visible one."""
STALE_READ_S = 5.0
"""The maximum age of a read from a broker that has lost its segment and does not know it yet."""


@dataclass(slots=True)
class Page:
    """Visible frames. The next page begins after `next`. `end` means that nothing more was readable when this page was
    read."""

    frames: list[RawFrame]
    next: Position
    end: bool
    revision: Revision | None = None


class Run(NamedTuple):
    """Entries that follow each other. `decided` says whether their transactions were decided at or before a revision;
    None means that they are outside transactions."""

    first: Position
    last: Position
    decided: bool | None


@dataclass(frozen=True, slots=True)
class CutPage:
    """A part of a cut. The next page begins after `next`. `end` means that nothing after it was decided at or before
    the revision."""

    runs: list[Run]
    next: Position
    end: bool


class _AsOf(NamedTuple):
    revision: Revision
    frames: list[RawFrame]
    decided: dict[TxnId, Decision | None]
    end: Position


class LeftOut(Exception):
    """An entry is not in the form of its ledger that counts now."""


class SegmentReader:
    """The reader of an owned segment. Used only from the event loop of its process."""

    def __init__(self, segment: OwnedSegment, *, shared: bool) -> None:
        """`shared` means that another broker may have taken over the ledgers without this one knowing it."""
        self._segment = segment
        self._last_visible: Position | None = None
        self._looked_up_to = Position(0, -1)
        self._shared = shared
        self._owned_at = asyncio.get_running_loop().time()

    async def read_committed(self, after: Position, max_bytes: int) -> Page:
        """The entries up to the current horizon. What is hidden by then stays hidden."""
        hides: Callable[[RawFrame], bool] | None = None
        while hides is None:
            horizon = self._segment.buffer.max_read_position
            found = await self._read(after, horizon, max_bytes)
            hides = await self._judge(after, found)
        visible = [frame for frame in found if not hides(frame)]
        await self.assert_owned(STALE_READ_S)
        return self._page(visible, found, after, horizon)

    async def read_uncommitted(self, after: Position, max_bytes: int) -> Page:
        """Every durable entry, whatever the state of its transaction."""
        end = self._segment.buffer.last_durable
        found = await self._read(after, end, max_bytes)
        await self.assert_owned(STALE_READ_S)
        return self._page(found, found, after, end)

    async def read_snapshot(self, after: Position, max_bytes: int, revision: Revision | None) -> Page:
        """The entries of every transaction that was decided at or before `revision`, and of none that was decided later
        (DESIGN §7).

        Raises INVALID_ARGUMENT for a future revision, and for one so old that headers decided after it may already have
        been collected; and POSITION_TRIMMED for one before the last compaction (DESIGN §5.19).
        """
        hides: Callable[[RawFrame], bool] | None = None
        while hides is None:
            found = await self._read_as_of(after, max_bytes, revision)
            hides = await self._judge(after, found.frames)
        visible = [frame for frame in found.frames if _in_snapshot(frame, found.decided, hides)]
        page = self._page(visible, found.frames, after, found.end)
        page.revision = found.revision
        return page

    async def read_cut(self, after: Position, revision: Revision) -> CutPage:
        """Which of the next entries belong to transactions that were decided at or before `revision`, whatever the
        decision was. Raises as `read_snapshot`."""
        found = await self._read_as_of(after, READ_BYTES, revision)
        page = self._page([], found.frames, after, found.end)
        return CutPage(runs_of(found.frames, found.decided), page.next, page.end)

    async def _read_as_of(self, after: Position, max_bytes: int, revision: Revision | None) -> _AsOf:
        """The frames after a position, up to the last one that can be of a transaction that was decided at or before
        `revision`, and what was decided of them by then. Raises as `read_snapshot`."""
        revision = await self._catch_up(revision)
        end = self._segment.buffer.last_durable
        found = await self._read(after, end, max_bytes)
        decided = await self._decided_by(revision, {f.txn_id for f in found if f.txn_id is not None})
        if (horizon := await gc_horizon(self._segment.store)) > revision:
            raise errors.InvalidArgument(
                f"revision: {revision} is too old, because decisions up to {horizon} have been collected",
                action="Use a newer revision.",
                field="revision",
            )
        if revision < self._segment.compacted_at:
            raise errors.PositionTrimmed(
                f"segment {self._segment.id} was compacted at revision {self._segment.compacted_at}: what was replaced "
                f"by then is gone for a snapshot at revision {revision}",
                action="Use a newer revision.",
                segment=self._segment.id,
                first_position=str(self._segment.ledgers.start.next),
                compacted_revision=self._segment.compacted_at,
            )
        await self.assert_owned(0)  # at the end of what was read, so nothing decided by then is after it
        self._segment.assert_serving()  # only the owner knows everything that must be hidden
        self._assert_untrimmed(after)
        if (up_to := max(self._segment.trims_in_flight, default=after)) > after:
            raise self._perhaps_trimmed(up_to)  # a hold that was taken meanwhile keeps nothing of it
        return _AsOf(revision, found, decided, end)

    async def last_visible(self) -> Position | None:
        """The last entry that `read_committed` returns now, or None: not one of or after an open transaction, nor of an
        aborted one (scenario 97).

        The search goes backwards, in growing steps, down to the result of the last search: what is visible at or below
        a horizon stays visible, unless compaction leaves it out. If the result was left out, the search begins anew: a
        reader that reads up to it would wait forever. Raises STORE_UNAVAILABLE and the store's errors.
        """
        while True:
            try:
                while (found := await self._find_last_visible()) and self._segment.ledgers.is_left_out(found):
                    self._last_visible, self._looked_up_to = None, Position(0, -1)
            except errors.PositionTrimmed:
                continue
            else:
                await self.assert_owned(STALE_READ_S)
                return found

    async def _find_last_visible(self) -> Position | None:
        horizon = self._segment.buffer.max_read_position
        found, before, step = None, self._segment.ledgers.last_before(horizon.next), 1
        while found is None and before is not None and before > max(self._looked_up_to, self._segment.ledgers.start):
            first = Position(before.ledger, max(before.entry - step + 1, 0))
            found = await self._last_visible_within(first.before, before)
            before, step = self._segment.ledgers.last_before(first), min(2 * step, LOOKED_AT_ONCE)
        if horizon > self._looked_up_to:
            self._last_visible, self._looked_up_to = found or self._last_visible, horizon
        is_there = self._last_visible is not None and self._last_visible > self._segment.ledgers.start
        return self._last_visible if is_there else None

    async def _last_visible_within(self, after: Position, up_to: Position) -> Position | None:
        found, at = None, max(after, self._segment.ledgers.start)
        while frames := await self._read(at, up_to, READ_BYTES):
            if (hides := await self._judge(at, frames)) is None:
                continue
            at = frames[-1].position
            found = next((f.position for f in reversed(frames) if not hides(f)), found)
        return found

    async def position_at(self, at_ms: int) -> Position:
        """The position of the first entry that was published at `at_ms` or later, or of the next one to come.

        Entries lie in the order in which this segment's owners published them, so it is found by bisection of the
        ledgers, and then of one ledger, with one read for each step: 16 for a full ledger, and 10 for a thousand
        ledgers. An entry that was left out of its ledger is not found. It is as exact as the clocks of these owners
        agree. Raises STORE_UNAVAILABLE and the store's errors.
        """
        while True:
            try:
                found = await self._find_position_at(at_ms)
            except (errors.PositionTrimmed, LeftOut):
                continue
            await self.assert_owned(STALE_READ_S)
            return found

    async def _find_position_at(self, at_ms: int) -> Position:
        chain, start = self._segment.ledgers, self._segment.ledgers.start
        # What is below the start is trimmed, and not dropped yet.
        kept = [
            (each, start.entry + 1 if each.id == start.ledger else 0)
            for each in chain.ledgers
            if each.id >= start.ledger
        ]
        ledgers = [(ledger, first) for ledger, first in kept if first <= ledger.last_kept]

        async def ends_before(number: int) -> bool:
            ledger, _ = ledgers[number]
            return await self._published_ms(ledger, ledger.last_kept) < at_ms

        number = await _bisected(0, len(ledgers), ends_before)
        if number == len(ledgers):
            return chain.last_durable.next
        ledger, first = ledgers[number]

        async def is_before(entry: int) -> bool:
            return await self._published_ms(ledger, entry) < at_ms

        return Position(ledger.id, ledger.first_kept(await _bisected(first, ledger.last_kept, is_before)))

    async def position_before(self, before: Position, entries: int) -> Position:
        """The position of the first of the last `entries` entries below `before` that can be read: those that were left
        out of their ledger do not count. If there are none, where reading begins. Raises STORE_UNAVAILABLE and the
        store's errors."""
        await self.assert_owned(STALE_READ_S)
        return self._segment.ledgers.entries_before(before, entries)

    async def _published_ms(self, ledger: ReadableLedger, entry: int) -> int:
        """When the first entry from this one on was published; there is one."""
        return (await self.frame_at(Position(ledger.id, ledger.first_kept(entry)))).publish_ms

    async def frame_at(self, position: Position) -> RawFrame:
        """The frame of an entry, whatever the state of its transaction. Raises `LeftOut`, POSITION_TRIMMED and
        STORE_UNAVAILABLE."""
        frames = await self._read(position.before, position, 1)
        if not frames:
            raise LeftOut
        return frames[0]

    async def frame_up_to_start(self) -> RawFrame | None:
        """The last entry of its ledger that exists, at the place where reading begins or before it. None if there is
        none. Raises POSITION_TRIMMED and STORE_UNAVAILABLE."""

        async def read() -> list[RawFrame]:
            chain = self._segment.ledgers
            ledger = next(each for each in chain.ledgers if each.id == chain.start.ledger)
            kept = ledger.kept_below(chain.start.entry + 1)
            return await ledger.read(kept, 1) if kept >= 0 else []

        frames = await self._from_storage(self._segment.ledgers.start, read)
        return frames[0] if frames else None

    async def assert_owned(self, max_age_s: float = 0) -> None:
        """Check that this broker was the owner at most `max_age_s` ago. A broker that was frozen serves its old end
        until it hears that it was deposed, so it must not refuse a later position before it has checked that it still
        is the owner. Local files cannot be taken from it, so they need no read of the store.

        Raises STORE_UNAVAILABLE (deposed) and the store's errors.
        """
        now = asyncio.get_running_loop().time()
        if not self._shared or (max_age_s and now - self._owned_at <= max_age_s):
            return
        owner = await self._segment.store.get(self._segment.ownership.check.key)
        if owner is None or owner.version != self._segment.ownership.check.version:
            self._segment.lose("another generation owns it now")
            raise self._segment.not_serving()
        self._owned_at = now

    async def _read(self, after: Position, up_to: Position, max_bytes: int) -> list[RawFrame]:
        return await self._from_storage(after, lambda: self._segment.ledgers.read(after, up_to, max_bytes))

    async def _judge(self, after: Position, frames: list[RawFrame]) -> Callable[[RawFrame], bool] | None:
        """Whether a frame at or below the horizon must be skipped, for the frames of a page, which are of one ledger.
        None if that ledger was dropped since they were read, and its index with it: then they must be read again.

        The index of the ledger says so, and so do the outcomes. They move from the outcomes into the index in one step
        of the event loop, so both are asked in one step: the caller awaits nothing before it has judged.
        """
        buffer, hidden = self._segment.buffer, self._segment.hidden
        index: HiddenRanges | None = None
        if frames:
            ledger = frames[0].position.ledger

            async def load() -> HiddenRanges | None:
                return await hidden.load(ledger) if self._is_listed(ledger) else None

            if hidden.within(ledger) is None:
                index = await self._from_storage(after, load)
            self._assert_untrimmed(after)
            if not self._is_listed(ledger):
                return None
            index = index if index is not None else hidden.within(ledger)

        def hides(frame: RawFrame) -> bool:
            if frame.txn_id is None:
                return False
            assert index is not None
            return frame.position.entry in index or buffer.hides(frame.txn_id, frame.writer)

        return hides

    def _is_listed(self, ledger: int) -> bool:
        return any(each.id == ledger for each in self._segment.ledgers.ledgers)

    async def _from_storage(self, after: Position, read: Callable[[], Awaitable[T]]) -> T:
        self._assert_untrimmed(after)
        ledgers = self._segment.ledgers
        try:
            found = await read()
        except LedgerError as error:
            self._assert_untrimmed(after)
            if self._segment.ledgers is not ledgers:
                return await self._from_storage(after, read)  # another form of the ledger counts by now (DESIGN §5.18)
            raise errors.StoreUnavailable(
                f"segment {self._segment.id} cannot be read: {error}",
                action="Try again. If the error persists, an operator must check the broker's storage.",
                segment=self._segment.id,
            ) from error
        self._assert_untrimmed(after)  # a trim in between has deleted what was to be hidden there (DESIGN §5.6)
        return found

    def _assert_untrimmed(self, after: Position) -> None:
        trimmed = self._segment.ledgers.trimmed
        if trimmed is not None and after < trimmed:
            raise errors.PositionTrimmed(
                f"entries of segment {self._segment.id} up to {trimmed} were trimmed, and {after} is before that",
                segment=self._segment.id,
                first_position=str(trimmed.next),
            )
        unknown = self._segment.unknown_trim
        if unknown is not None and after < unknown.up_to:
            raise self._perhaps_trimmed(unknown.up_to)

    def _perhaps_trimmed(self, up_to: Position) -> errors.MetatxnError:
        return errors.StoreUnavailable(
            f"it is not known yet whether segment {self._segment.id} was trimmed up to {up_to}",
            action="Try again. The broker asks the metadata store until it knows.",
            segment=self._segment.id,
        )

    async def _catch_up(self, revision: Revision | None) -> Revision:
        """Close and drain everything that was decided at or before `revision`; None means now."""
        if revision is None:
            revision = await self._segment.store.current_revision()
        elif revision > self._segment.mirror.revision and revision > await self._segment.store.current_revision():
            raise errors.InvalidArgument(f"revision: {revision} is in the future", field="revision")
        undecided = self._segment.buffer.undecided()
        headers = await self._segment.mirror.read([transaction.txn_id for transaction in undecided])
        for transaction in undecided:
            record = headers[transaction.txn_id]
            if record is not None and not record.first:
                self._segment.decide(transaction, Decision(Header.decode(record.value)))
        while any(t.decision is not None and not t.released for t in self._segment.buffer.tracked()):
            self._segment.assert_serving()
            await self._segment.changed.wait()
        return revision

    async def _decided_by(self, revision: Revision, txn_ids: set[TxnId]) -> dict[TxnId, Decision | None]:
        """The decision of each transaction at or before `revision`, or None if there was none."""
        judged: dict[TxnId, Decision | None] = {}
        unknown: list[TxnId] = []
        for txn_id in txn_ids:
            final = self._segment.mirror.final(txn_id)
            if final is None:
                unknown.append(txn_id)
            else:
                judged[txn_id] = Decision(final[0]) if final[1] <= revision else None
        for txn_id, record in (await self._segment.mirror.read(unknown)).items():
            if record is None:
                judged[txn_id] = Decision(None)
            elif record.first or record.version > revision:
                judged[txn_id] = None
            else:
                judged[txn_id] = Decision(Header.decode(record.value))
        return judged

    def _page(self, visible: list[RawFrame], found: list[RawFrame], after: Position, end: Position) -> Page:
        reached = found[-1].position if found else max(after, end)
        return Page(visible, reached, end=not found or reached >= end)


def runs_of(frames: Sequence[RawFrame], decided: Mapping[TxnId, Decision | None]) -> list[Run]:
    """The runs of these entries, in their order."""
    runs: list[Run] = []
    for frame in frames:
        known = None if frame.txn_id is None else decided[frame.txn_id] is not None
        if runs and runs[-1].decided is known:
            runs[-1] = runs[-1]._replace(last=frame.position)
        else:
            runs.append(Run(frame.position, frame.position, known))
    return runs


def _in_snapshot(frame: RawFrame, decided: dict[TxnId, Decision | None], hides: Callable[[RawFrame], bool]) -> bool:
    txn_id = frame.txn_id
    if txn_id is None:
        return True
    decision = decided[txn_id]
    if decision is None:
        return False
    if decision.header is None:
        return not hides(frame)
    if decision.header.state is not TxnState.COMMITTED:
        return False
    counted, writer = decision.header.writers, frame.writer
    return counted is None or writer is None or writer in counted


async def _bisected(first: int, end: int, is_before: Callable[[int], Awaitable[bool]]) -> int:
    """The first number from `first` on that is not before, or `end`; every number before that one is."""
    while first < end:
        middle = (first + end) // 2
        if await is_before(middle):
            first = middle + 1
        else:
            end = middle
    return first
