"""What is hidden in sealed ledgers moves from outcome records into indexes beside the ledgers, so that the store need
not remember it (DESIGN §5.6).

    judge the frames ─▶ an index beside each ledger ─▶ one apply: the record names the indexes, outcomes go
                                                       ─▶ the other outcomes go, in slices ─▶ memory forgets them

It concerns the ledgers from the oldest on that are sealed at a recorded length and are below the horizon of readers:
every transaction in them is decided, and memory knows what to hide of it. An outcome may go once the last frame of its
transaction is in an indexed ledger, and none of its operation records is left here.

The outcomes of an open ledger wait until it is full. It is rolled before that if they are many; in an idle
segment, already if there are some.

An index is judged from memory, where an outcome stays until its record is known to be gone. An index that was written
and is not named says nothing, and goes with its ledger. So this may stop anywhere and be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from metastore.api import MetadataStore
from metastore.slices import slices
from metastore.txn import paths
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metastore.types import Batch, Record
from metatxn.wire.frames import RawFrame
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.ledger.hidden_index import HiddenIndex, HiddenReason, HiddenTransaction
from participants.ledger.storage import LedgerError, LedgerStorage
from participants.segment.segment import Segment
from participants.segment.trimming import delete_outcomes, stored_segment
from participants.segment.upkeep import until_done

INDEXED_AT_ONCE = 2
"""The number of ledgers of a broker that are read for this at the same time."""
READ_BYTES = 256 << 10
"""The size of one step on the event loop."""
OUTCOMES_PER_APPLY = 40
"""The outcomes that are deleted at once: each is a check and a deletion, so this stays below etcd's limit of 128
operations per transaction."""


IDLE_MS = 60_000
"""After this time without an append a segment is idle."""
FEW_OUTCOMES = 16
"""The open ledger of an idle segment is rolled at this many outcomes."""
MANY_OUTCOMES = 1_000
"""With this many outcomes an open ledger is rolled as if it were full."""


@dataclass(frozen=True, slots=True)
class IndexingContext:
    """The indexing of a segment. `at_once` limits the work of all segments of a broker."""

    store: MetadataStore
    storage: LedgerStorage
    at_once: asyncio.Semaphore


def indexing_limit() -> asyncio.Semaphore:
    """The limit for a broker."""
    return asyncio.Semaphore(INDEXED_AT_ONCE)


async def tend(segment: Segment, context: IndexingContext) -> None:
    """Roll the open ledger if it has many outcomes, and index what can be indexed. Called again and again."""
    _roll_for_outcomes(segment)
    await index_hidden(segment, context)


def _roll_for_outcomes(segment: Segment) -> None:
    if segment.ledgers.open is None:
        return
    closed = max((ledger.id for ledger in segment.ledgers.sealed), default=0)
    waiting = sum(Position.parse(each.highest).ledger > closed for each in segment.buffer.outcomes().values())
    idle_s = asyncio.get_running_loop().time() - segment.appended_at
    if waiting >= MANY_OUTCOMES or (waiting >= FEW_OUTCOMES and idle_s >= IDLE_MS / 1000):
        segment.roll()


async def index_hidden(segment: Segment, context: IndexingContext) -> None:
    """Index what can be indexed, unless no outcome could go for it. Returns when that is done, or the segment is
    lost."""
    run = decided_run(segment)
    if not run or not obsolete_outcomes(segment, run[-1]):
        return
    written: dict[int, WrittenIndex] = {}
    for ledger in run:
        if segment.hidden.is_indexed(ledger.id):
            continue
        time = asyncio.get_running_loop().time
        if not segment.damaged.may_read(ledger.id, time()):
            break
        try:
            written[ledger.id] = await _index(segment, context, ledger)
        except LedgerError as error:
            # There is no space, or it cannot be read: this is asked for again, and what is before it can go. That a
            # ledger is missing which was trimmed or dropped meanwhile is not damage.
            if any(each.id == ledger.id for each in segment.ledgers.sealed):
                segment.damaged.failed(ledger.id, error, time())
            break
        segment.damaged.read(ledger.id)
    indexed = list(takewhile(lambda each: each.id in written or segment.hidden.is_indexed(each.id), run))
    if indexed:
        once = lambda: _record(segment, context.store, indexed[-1], written)  # noqa: E731
        await until_done(segment, once, "delete the outcomes of indexed ledgers again")


def decided_run(segment: Segment) -> list[LedgerRecord]:
    """The ledgers from the oldest on that are sealed at a recorded length, and whose transactions are all decided and
    released here."""
    horizon = segment.buffer.max_read_position
    return list(takewhile(lambda each: each.last is not None and each.last <= horizon, segment.record.ledgers))


def obsolete_outcomes(segment: Segment, last: LedgerRecord) -> list[TxnId]:
    """The transactions whose outcomes may go once everything up to the ledger `last` is indexed. One that is still
    tracked may have operation records."""
    end = _end_of(segment, last)
    return [
        txn_id
        for txn_id, outcome in segment.buffer.outcomes().items()
        if Position.parse(outcome.highest) < end and segment.buffer.get(txn_id) is None
    ]


def _end_of(segment: Segment, ledger: LedgerRecord) -> Position:
    """Where the next ledger begins. The last frame of a transaction may be after the last entry of a closed ledger, or
    in one that is not there any more: its append was undone, because the disk was full."""
    later = [each.id for each in segment.record.ledgers if each.id > ledger.id]
    return Position(min(later, default=ledger.id + 1), 0)


# -- the index of a ledger -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrittenIndex:
    """The generation of an index that was written, or 0 if nothing is hidden, which needs no index; and how much it
    hides."""

    generation: int = 0
    hidden_bytes: int = 0


async def _index(segment: Segment, context: IndexingContext, ledger: LedgerRecord) -> WrittenIndex:
    """Write the index of a ledger."""
    assert ledger.entries is not None
    if not any(Position.parse(each.highest).ledger >= ledger.id for each in segment.buffer.outcomes().values()):
        return WrittenIndex()
    async with context.at_once:
        found = await _hidden_frames(segment, ledger)
    if not found:
        return WrittenIndex()
    transactions = tuple(
        HiddenTransaction(txn_id, reason, tuple(_ranges(found[txn_id, reason].entries)))
        for txn_id, reason in sorted(found)
    )
    generation = segment.ownership.generation
    await context.storage.write_hidden(segment.id, generation, HiddenIndex(ledger.id, ledger.entries, transactions))
    return WrittenIndex(generation, sum(each.size for each in found.values()))


@dataclass(slots=True)
class _Hidden:
    """The hidden entries of a transaction, and their size in bytes."""

    entries: list[int] = field(default_factory=list)
    size: int = 0


async def _hidden_frames(segment: Segment, ledger: LedgerRecord) -> Mapping[tuple[TxnId, HiddenReason], _Hidden]:
    """The entries that are hidden in a ledger, as far as they can still be read."""
    assert ledger.last is not None
    found: dict[tuple[TxnId, HiddenReason], _Hidden] = {}
    at = max(Position(ledger.id, -1), segment.ledgers.start)
    while frames := await segment.ledgers.read(at, ledger.last, READ_BYTES):
        for frame in frames:
            if (reason := _reason(segment, frame)) is not None and frame.txn_id is not None:
                of_transaction = found.setdefault((frame.txn_id, reason), _Hidden())
                of_transaction.entries.append(frame.position.entry)
                of_transaction.size += len(frame.data)
        at = frames[-1].position
    return found


def _reason(segment: Segment, frame: RawFrame) -> HiddenReason | None:
    if frame.txn_id is None or not segment.buffer.hides(frame.txn_id, frame.writer):
        return None
    whole = segment.buffer.hides(frame.txn_id, None)
    return HiddenReason.ABORTED if whole else HiddenReason.VOID_WRITERS


def _ranges(entries: list[int]) -> list[tuple[int, int]]:
    """The ranges of these entries, which are in order."""
    ranges: list[tuple[int, int]] = []
    for entry in entries:
        if ranges and entry == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], entry)
        else:
            ranges.append((entry, entry))
    return ranges


# -- the store -------------------------------------------------------------------------------------------------


async def _record(
    segment: Segment, store: MetadataStore, last: LedgerRecord, written: Mapping[int, WrittenIndex]
) -> None:
    """Name the indexes up to the ledger `last`, and delete the outcomes that nothing needs any more. Memory forgets
    them at the end, and knows the indexes before that: until then both say the same."""
    check = segment.ownership.check
    obsolete = obsolete_outcomes(segment, last)
    outcomes = await _stored_outcomes(segment, store, obsolete)
    stored = await stored_segment(segment, store)
    record = SegmentRecord.decode(stored.value)
    named = _with_indexes(record, written)
    assert all(each.hidden is not None for each in named.ledgers if each.id <= last.id), "its outcomes are needed"
    batch = store.batch().check(check)
    if named != record:
        batch.replace(stored, named.encode())
    first, *others = list(slices(store, outcomes, OUTCOMES_PER_APPLY, Batch.remove)) or [[]]
    applied = await delete_outcomes(batch, first, store)
    segment.recorded(named, stored.version if named == record or applied is None else applied.revision)
    for some in others:
        await delete_outcomes(store.batch().check(check), some, store)
    segment.buffer.drop([txn_id for txn_id in obsolete if segment.buffer.get(txn_id) is None])


async def _stored_outcomes(segment: Segment, store: MetadataStore, txn_ids: list[TxnId]) -> list[Record]:
    """The outcomes that are there: an earlier attempt, or a trim, may have deleted some."""
    found = await store.get_each([paths.outcome(segment.id, txn_id) for txn_id in txn_ids])
    return [record for record in found.values() if record is not None]


def _with_indexes(record: SegmentRecord, written: Mapping[int, WrittenIndex]) -> SegmentRecord:
    def with_index(ledger: LedgerRecord) -> LedgerRecord:
        index = written.get(ledger.id)
        if index is None or ledger.hidden is not None:
            return ledger
        return ledger.model_copy(update={"hidden": index.generation, "hidden_bytes": index.hidden_bytes or None})

    return record.model_copy(update={"ledgers": tuple(map(with_index, record.ledgers))})
