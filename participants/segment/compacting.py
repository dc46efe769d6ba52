"""Compaction: in the sealed ledgers of a keyed topic, the latest visible message of each key stays (DESIGN §5.19).

    a part not compacted yet: key ─▶ its latest place, of some keys
        ─▶ from the oldest ledger on: which entries are needed ─▶ a form of the ledger with these (see `rewriting`)
                                                           ─▶ the record says through where it was compacted

An entry stays as a whole: if it has a message without a key, one whose key has no later message in that part, or one
that can only be read uncommitted and that no index hides yet. The part is in ledgers whose transactions
are all decided and released here, so nothing in it can still be aborted, and nothing before it be committed.

A message that deletes a key may go once it is old and no message before it has the key any more, which would come back.
So the ledgers are rewritten from the oldest on, and the keys that are left are remembered in a filter of fixed size.
What the filter wrongly takes for known only stays longer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import structlog

from metastore.errors import CheckFailed, MetastoreError
from metastore.txn import paths
from metastore.txn.records.segments import Compaction, LedgerRecord, SegmentRecord
from metastore.types import Revision
from metatxn.wire import errors
from metatxn.wire.frames import RawFrame
from metatxn.wire.position import Position
from participants.ledger.storage import LedgerError, SealedLedger
from participants.messages.payloads import keyed, message_count
from participants.messages.pieces import in_turns
from participants.segment.indexing import decided_run
from participants.segment.rewriting import (
    CheckLost,
    Naming,
    RewritingContext,
    delete_former,
    rewrite,
    sealed_ledger,
    tells_first_offset,
)
from participants.segment.segment import Cleanup, Segment
from participants.segment.trimming import stored_segment

log = structlog.get_logger()
DIRTY_PARTS = 4
"""A segment is compacted once what was not compacted yet is this fraction (1/n) of what was. So the work for a byte is
bounded, and so is what a reader of the latest values reads in vain."""
KEYS_PER_PASS = 200_000
"""The most keys in memory, give or take an entry. With more keys in it, what was not compacted yet takes several
passes."""
LEFT_OUT_PARTS = 16
"""A ledger is rewritten only if this fraction (1/n) of its bytes is left out."""
READ_BYTES = 256 << 10
"""The size of one step on the event loop."""
FILTER_BYTES = 1 << 20
_KEY_BYTES = 16


async def compact(segment: Segment, context: RewritingContext, now_ms: int) -> None:
    """Make one pass, if the policy wants it and one is due. Whatever fails is tried again by the next one. Returns when
    it is done, or the segment is lost."""
    cleanup, run = segment.cleanup, due(segment)
    if cleanup is None or not run or context.limit.at_once.locked():
        return
    async with context.limit.at_once:
        try:
            await _Pass(segment, cleanup, context, now_ms, run).run()
            await delete_former(segment, context)
        except (CheckLost, LedgerError, MetastoreError, errors.MetatxnError) as error:
            log.info("not compacted, which will be tried again", segment=segment.id, error=str(error))


def due(segment: Segment) -> list[LedgerRecord]:
    """The ledgers that a pass reads, from the oldest on, or none."""
    run = [each for each in decided_run(segment) if not each.former]
    if len(run) < len(decided_run(segment)):
        return []  # the former forms go first
    through = compacted_through(segment.record)
    dirty = sum(each.bytes or 0 for each in run if each.last is not None and each.last > through)
    clean = sum(each.bytes or 0 for each in run if each.last is not None and each.last <= through)
    return run if dirty and DIRTY_PARTS * dirty >= clean else []


def compacted_through(record: SegmentRecord) -> Position:
    return Position.parse(record.compaction.through) if record.compaction is not None else Position(0, -1)


class _Filter:
    """A filter of the keys that were seen: a key that it denies was certainly not. `salt` makes it err differently each
    time."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._bits = bytearray(FILTER_BYTES)

    def add(self, key: bytes) -> None:
        place = self._place(key)
        self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, key: bytes) -> bool:
        place = self._place(key)
        return bool(self._bits[place >> 3] & 1 << (place & 7))

    def _place(self, key: bytes) -> int:
        digest = blake2b(key, digest_size=8, key=self._salt).digest()
        return int.from_bytes(digest, "little") % (8 * len(self._bits))


@dataclass(slots=True)
class _Messages:
    """The messages of an entry: for each one with a key its index, the hash of the key, and whether it deletes it."""

    frame: RawFrame
    keyed: list[tuple[int, bytes, bool]]

    @property
    def all_keyed(self) -> bool:
        return len(self.keyed) == message_count(self.frame) > 0


class _Pass:
    def __init__(
        self,
        segment: Segment,
        cleanup: Cleanup,
        context: RewritingContext,
        now_ms: int,
        run: Sequence[LedgerRecord],
    ) -> None:
        self._segment = segment
        self._cleanup = cleanup
        self._context = context
        self._old_ms = now_ms - cleanup.delete_retention_ms
        self._run = run
        self._latest: dict[bytes, tuple[int, int, int]] = {}
        """The place (ledger, entry, index) of the latest message of each key, as far as it is in the part."""
        self._through = Position(0, -1)
        self._left = _Filter(b"0")
        self._keeps_deletions = True
        self._revision: Revision = 0

    async def run(self) -> None:
        # Everything in the ledgers was decided before they were chosen.
        self._revision = await self._context.store.current_revision()
        self._left = _Filter(str(self._revision).encode())
        self._keeps_deletions = await self._parents_have_entries()
        await self._find_latest()
        for record in self._run:
            if record.id > self._through.ledger:
                break
            ledger = sealed_ledger(self._segment, record.id)
            if ledger is None or self._segment.lost:
                return
            await self._compact(ledger, indexed=record.hidden is not None)
        await self._record_through()

    async def _parents_have_entries(self) -> bool:
        """Whether a key that is deleted here may have a value in a parent, which would come back."""
        keys = [paths.segment(parent) for parent in self._segment.record.parents]
        for stored in (await self._context.store.get_each(keys)).values():
            if stored is not None and SegmentRecord.decode(stored.value).state != "deleted":
                return True
        return False

    async def _find_latest(self) -> None:
        after, end = compacted_through(self._segment.record), self._run[-1].last
        assert end is not None
        self._through = end
        async for entry in self._visible(after, end):
            position = entry.frame.position
            for index, key, _ in entry.keyed:
                self._latest[key] = (position.ledger, position.entry, index)
            if len(self._latest) >= KEYS_PER_PASS:
                self._through = position
                break
        await self._find_latest_in_batches(after)

    async def _find_latest_in_batches(self, end: Position) -> None:
        """Also remember the keys of entries with several messages in what was compacted before. Such an entry goes once
        all of its messages are replaced, and what replaced some of them may have been read by an earlier pass. A single
        message that was left by that pass is the latest one there."""
        found: dict[bytes, tuple[int, int, int]] = {}
        async for entry in self._visible(Position(0, -1), end):
            position, several = entry.frame.position, message_count(entry.frame) > 1
            for index, key, _ in entry.keyed:
                if key not in self._latest and (several or key in found):
                    found[key] = (position.ledger, position.entry, index)
            if len(self._latest) + len(found) >= KEYS_PER_PASS:
                break  # what is not remembered only stays longer
        self._latest |= found

    async def _visible(self, after: Position, end: Position) -> AsyncIterator[_Messages]:
        """The visible entries after `after`, up to and including `end`. Raises `errors.MetatxnError`."""
        at, more = max(after, self._segment.ledgers.start), True
        while more and at < end:
            page = await self._segment.reader.read_committed(at, READ_BYTES)
            for frame in page.frames:
                if frame.position > end:
                    return
                found: list[tuple[int, bytes, bool]] = []
                async for piece in in_turns(keyed(frame)):
                    found += [(index, _hash(key), deletes) for index, key, deletes in piece]
                yield _Messages(frame, found)
            await self._context.limit.pace(sum(len(frame.data) for frame in page.frames))
            at, more = page.next, not page.end

    async def _compact(self, ledger: SealedLedger, *, indexed: bool) -> None:
        """Rewrite one ledger, if that is worth it."""
        visible: set[int] = set()
        gone: list[int] = []
        of_gone: list[bytes] = []
        told = tells_first_offset(self._segment.record, ledger)
        async for entry in self._visible(ledger.first.before, ledger.last):
            number = entry.frame.position.entry
            visible.add(number)
            values = [key for _, key, deletes in entry.keyed if not deletes]
            if self._is_needed(entry) or number == told:
                for key in values:
                    self._left.add(key)
            else:
                gone.append(number)
                of_gone += values
        if indexed:
            gone += [each for each in range(ledger.entries) if each not in visible and each != told]
        freed = sum(ledger.bytes_of(each, each) for each in gone)
        if not freed or LEFT_OUT_PARTS * freed < ledger.size_bytes:
            for key in of_gone:
                self._left.add(key)
            return
        left_out = set(gone)
        kept = [each for each in range(ledger.entries) if ledger.bytes_of(each, each) and each not in left_out]
        naming = Naming(self._leaves_out, self._cleanup.checks)
        await rewrite(self._segment, self._context, ledger, kept, naming)
        if self._segment.attached is not None:
            self._segment.attached.left_out(committed=True)

    def _is_needed(self, entry: _Messages) -> bool:
        return (
            entry.frame.position > self._through
            or not entry.all_keyed
            or any(self._is_latest(entry.frame, *message) for message in entry.keyed)
        )

    def _is_latest(self, frame: RawFrame, index: int, key: bytes, deletes: bool) -> bool:
        """Whether a message must stay for its own sake."""
        latest = self._latest.get(key)
        if latest is not None and (frame.position.ledger, frame.position.entry, index) < latest:
            return False
        return not (deletes and frame.publish_ms < self._old_ms and not self._keeps_deletions and key not in self._left)

    def _leaves_out(self, record: SegmentRecord) -> SegmentRecord:
        """The record as of the apply that names a form: readers of earlier snapshots are refused from then on."""
        before = record.compaction or Compaction(through=str(Position(0, -1)), revision=0)
        compaction = before.model_copy(update={"revision": max(before.revision, self._revision)})
        return record.model_copy(update={"compaction": compaction})

    async def _record_through(self) -> None:
        store = self._context.store
        stored = await stored_segment(self._segment, store)
        record = SegmentRecord.decode(stored.value)
        before = record.compaction.revision if record.compaction is not None else 0
        compaction = Compaction(through=str(self._through), revision=before)
        record = record.model_copy(update={"compaction": compaction})
        batch = store.batch().check(self._segment.ownership.check, *self._cleanup.checks)
        try:
            applied = await store.apply(batch.replace(stored, record.encode()))
        except CheckFailed as lost:
            if lost.check == self._segment.ownership.check:
                self._segment.deposed_by(lost)
            raise
        self._segment.recorded(record, applied.revision)


def _hash(key: str) -> bytes:
    return blake2b(key.encode(errors="surrogatepass"), digest_size=_KEY_BYTES).digest()
