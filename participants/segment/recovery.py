"""Opening a segment: take it, seal what an earlier owner left, start a new ledger, and rebuild the state in memory.

Recovery reads; it does not replay (DESIGN §5.9). Its cost depends on what is open, on the outcome records, and on the
length of the last ledger, not on the history of transactions. The order matters:

1. Ownership is taken by a compare-and-set at the next generation (the storage is already ours, because we hold its
   lock).
2. The old ledger is sealed at its recovered length, and a new one is started under the number of this generation, which
   is above the numbers of all earlier ledgers, so that a position is never reused. One checked apply records the seal
   and plans the new ledger before it is created; another one lists it, once 4 is done.
3. This segment's operation records are read, by index, *after* 1: none can be added under an older generation any
   more.
4. Pins and dedup are built from the frames after the lowest `after`. An intent without a frame pins nothing. Dedup
   begins with its last snapshot, or with what the parents left, and continues with the frames of the later ledgers.
   Then there is a new snapshot, which the second apply of 2 makes the one that counts.
5. Only then are the headers first followed and then read, so that no decision can fall in between. A decision that came
   before the frames were known would find nothing to hide.
6. The cursors and pending acks of the subscriptions are read, also by index, and also followed before they are read.
7. Which producer has the topic to itself is read after 1, so that a later claim finds this owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed, StoreTooNew
from metastore.incarnation import recovered_ms
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.laws.remedies import RECOVER
from metastore.txn.records.operations import Outcome, WriteOp, decode_op
from metastore.txn.records.processes import VersionRecord
from metastore.txn.records.segments import LedgerRecord, OwnerRecord, SegmentRecord
from metastore.txn.records.transactions import Header
from metastore.types import Absent, AtVersion, Check, Record
from metastore.versions import SPEAKS, ClusterVersion, Feature, too_new
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.ledger.chain import READ_BYTES, LedgerChain
from participants.ledger.directories import segment_directory
from participants.ledger.form import Form
from participants.ledger.offsets import end_offset
from participants.ledger.storage import LedgerStorage, SealedLedger
from participants.ledger.watermark import Watermark
from participants.segment.compacting import compact
from participants.segment.dedup import Scope
from participants.segment.dedup_snapshot import chunks_of, delete_stale, inherit, restore, write_snapshot
from participants.segment.dropping import drop_empty
from participants.segment.hidden import HiddenCache, HiddenEntries
from participants.segment.indexing import IndexingContext, indexing_limit, tend
from participants.segment.owned import Ownership
from participants.segment.rewriting import RewritingContext, RewritingLimit, rewrite_hidden
from participants.segment.rolling import DEFAULT_MAX_LEDGER_BYTES, plan_ledger, roll, without_planned
from participants.segment.segment import Attached, Segment
from participants.segment.trimming import delete_trimmed, without_trimmed
from participants.txn.buffer import Decision, OpenBuffer
from participants.txn.header_mirror import HeaderMirror
from participants.txn.memory_buffer import open_memory_buffer
from participants.txn.shared_materializing import SharedMaterializing

Operations = dict[TxnId, list[WriteOp]]


class SegmentUnavailable(Exception):
    """This broker cannot serve the segment: it was deleted, or its data is in another storage."""


class OwnedElsewhere(SegmentUnavailable):
    """Another running broker owns it."""


class SegmentDeleted(SegmentUnavailable):
    """There is nothing to open, and never will be: segment ids are not reused."""


@dataclass(frozen=True, slots=True)
class SegmentContext:
    """What is needed to open a segment: the broker's identity, its store, its storage, and so on."""

    broker: str
    url: str
    storage: LedgerStorage
    store: MetadataStore
    mirror: HeaderMirror
    materializing: SharedMaterializing
    clock: Clock
    metrics: BrokerMetrics
    attach: Callable[[Segment], Attached]
    max_ledger_bytes: int = DEFAULT_MAX_LEDGER_BYTES
    open_buffer: OpenBuffer = open_memory_buffer
    watermark: Watermark = field(default_factory=Watermark)
    hidden: HiddenCache = field(default_factory=HiddenCache)
    indexing: asyncio.Semaphore = field(default_factory=indexing_limit)
    rewriting: RewritingLimit = field(default_factory=RewritingLimit)
    listeners: dict[str, str] = field(default_factory=dict)
    version: ClusterVersion = field(default_factory=ClusterVersion)


async def open_segment(segment_id: str, context: SegmentContext) -> Segment:
    """Open a segment. Raises `SegmentUnavailable`; `LedgerError` if the data is damaged, missing or short (it never
    recovers as empty); `CheckFailed` if another broker was faster; and the store's errors. The call can be repeated
    safely."""
    while (claimed := await _claim(segment_id, context)) is None:
        pass  # each time another process has started meanwhile
    stored, record, ownership = claimed
    sealed, record = await _seal_ledgers(segment_id, record, context)
    record = await without_planned(segment_id, record, context.storage)
    open_ledger = None
    if record.state == "active":
        number = ownership.generation
        stored = await plan_ledger(number, stored, record, store=context.store, check=ownership.check)
        open_ledger = await context.storage.create(segment_id, number)
        ledger = LedgerRecord(id=number, storage=context.storage.storage_id)
        record = record.model_copy(update={"ledgers": (*record.ledgers, ledger)})
    ledgers = LedgerChain(sealed, open_ledger, record.trimmed_up_to)
    segment = Segment(
        segment_id,
        record,
        ownership,
        ledgers,
        context.open_buffer(segment_id, ledgers.last_durable),
        store=context.store,
        mirror=context.mirror,
        materializing=context.materializing,
        clock=context.clock,
        metrics=context.metrics,
        hidden=HiddenEntries(segment_id, context.storage, context.hidden),
        max_ledger_bytes=context.max_ledger_bytes,
        shared=not context.storage.exclusive,
    )
    segment.publisher.watermark = context.watermark
    segment.on_full = partial(roll, segment, context.store, context.storage)
    rewriting = RewritingContext(context.store, context.storage, context.rewriting, context.metrics)
    indexing = IndexingContext(context.store, context.storage, context.indexing)

    async def index() -> None:
        if context.version.allows(Feature.HIDDEN_INDEXES):
            await tend(segment, indexing)

    async def rewrite() -> None:
        if context.version.allows(Feature.REWRITING):
            await rewrite_hidden(segment, rewriting)
            await compact(segment, rewriting, context.clock())
            await drop_empty(segment, rewriting)

    segment.on_tend = index
    segment.on_rewrite = rewrite
    segment.attached = context.attach(segment)
    try:
        await _recover_outcomes(segment, context)
        operations = await _operations(segment, context)
        record = without_trimmed(await _recover_dedup(segment, record, operations, context))
        batch = context.store.batch().check(ownership.check).replace(stored, record.encode())
        segment.recorded(record, (await context.store.apply(batch)).revision)
        await delete_trimmed(segment, context.store, context.storage)
        await delete_stale(context.store, segment_id, ownership.check, record.dedup)
        await _recover_transactions(segment, operations, context)
        await segment.attached.recover()
        await segment.publisher.admission.learn()  # after the ownership was taken (DESIGN §5.23)
        segment.advanced()
    except BaseException:
        # A half-open segment must not act on decisions. Its ledger may be recorded; then the next opening seals it.
        await segment.close()
        raise
    return segment


async def _claim(segment_id: str, context: SegmentContext) -> tuple[Record, SegmentRecord, Ownership] | None:
    """Take the segment. Returns None if the record of the cluster version was written since it was read."""
    segment_key, owner_key = paths.segment(segment_id), paths.segment_owner(segment_id)
    snapshot = await context.store.get_many([segment_key, owner_key, paths.VERSION, paths.INCARNATION])
    segment_record, owner_record = snapshot.records[segment_key], snapshot.records[owner_key]
    version = spoken(snapshot.records[paths.VERSION])
    if segment_record is None:
        raise SegmentDeleted(f"segment {segment_id} was deleted, and nothing is left of it")  # ids are never reused
    record = SegmentRecord.decode(segment_record.value)
    if record.state == "deleted":
        raise SegmentDeleted(f"segment {segment_id} was deleted")
    elsewhere = {record.storage, *(ledger.storage for ledger in record.ledgers)} - {context.storage.storage_id}
    if elsewhere:
        raise SegmentUnavailable(f"segment {segment_id} lies in storage {', '.join(elsewhere)}")
    await _refuse_unknown_ledgers(segment_id, record, context.storage)
    owner = OwnerRecord.decode(owner_record.value) if owner_record else None
    if owner is not None and await _is_another_that_lives(owner, context):
        raise OwnedElsewhere(f"segment {segment_id} is owned by {owner.url}")
    # A restored store may have forgotten generations: as other counters that it does not know, they begin above those.
    last = owner.generation if owner is not None else recovered_ms(snapshot.records[paths.INCARNATION])
    generation = max(last, record.newest_ledger) + 1
    value = OwnerRecord(
        broker=context.broker, url=context.url, generation=generation, listeners=context.listeners or None
    ).encode()
    # The planned ledger of an earlier opening must not be deleted if it was recorded after the record was read.
    batch = context.store.batch().check(AtVersion(segment_key, segment_record.version)).check(version)
    if owner_record:
        batch.replace(owner_record, value)
    else:
        batch.create(owner_key, value)
    try:
        applied = await context.store.apply(batch)
    except CheckFailed as lost:
        if lost.check == version:
            return None
        raise
    former = owner.broker if owner is not None and owner.broker != context.broker else ""
    return segment_record, record, Ownership(generation, AtVersion(owner_key, applied.revision), former or None)


def spoken(stored: Record | None) -> Check:
    """A check that the cluster version is still the one that was read. A process that was frozen while it was raised
    takes no segment whose forms it does not know. Raises `StoreTooNew`."""
    if stored is None:
        return Absent(paths.VERSION)
    version = VersionRecord.decode(stored.value).version
    if version > SPEAKS:
        raise StoreTooNew(too_new(version))
    return AtVersion(paths.VERSION, stored.version)


async def _refuse_unknown_ledgers(segment_id: str, record: SegmentRecord, storage: LedgerStorage) -> None:
    """Raises if the storage has ledgers that the record does not know. A ledger's number is recorded before it is in
    the storage. The record may be older than that of an opening in progress elsewhere; then the next attempt finds a
    newer one."""
    unknown = await storage.numbers(segment_directory(segment_id), above=record.newest_ledger)
    if unknown:
        named = ", ".join(map(str, unknown))
        raise SegmentUnavailable(
            f"the store does not know ledger {named} of segment {segment_id}: was it restored? {RECOVER}"
        )


async def _is_another_that_lives(owner: OwnerRecord, context: SegmentContext) -> bool:
    """Whether the owner is another running broker. This is for speed, not for safety: two brokers that take the segment
    from each other in turn do no harm, but no work either. A storage that only this process has open is taken from
    whatever owner the record names."""
    if context.storage.exclusive or owner.broker in ("", context.broker):
        return False
    return await context.store.get(paths.broker_process(owner.broker)) is not None


async def _seal_ledgers(
    segment_id: str, record: SegmentRecord, context: SegmentContext
) -> tuple[list[SealedLedger], SegmentRecord]:
    """Seal all ledgers at their final length. Empty ones are trimmed, because their positions are only bounds; but a
    sealed segment keeps its last one, which is its end. The last frame of a ledger that was not sealed tells where its
    offsets end; it was never rewritten, so this frame is there."""
    sealed: list[SealedLedger] = []
    recorded: list[LedgerRecord] = []
    empty: list[LedgerRecord] = []
    next_offset = record.next_offset
    for ledger in record.ledgers:
        if ledger.entries is None:
            found = await context.storage.seal(segment_id, ledger.id)
            if next_offset is not None:
                ledger = ledger.model_copy(update={"first_offset": next_offset})
                next_offset = await end_offset(found, next_offset)
        else:
            form = Form(*ledger.form) if ledger.form is not None else None
            found = await context.storage.open_sealed(segment_id, ledger.id, ledger.entries, form)
        if found.entries or (record.state == "sealed" and ledger is record.ledgers[-1]):
            sealed.append(found)
            recorded.append(ledger.model_copy(update={"entries": found.entries, "bytes": found.size_bytes}))
        else:
            empty.append(ledger)
    trimmed = (*record.trimmed, *empty)
    return sealed, record.model_copy(
        update={"ledgers": tuple(recorded), "trimmed": trimmed, "next_offset": next_offset}
    )


async def _recover_outcomes(segment: Segment, context: SegmentContext) -> None:
    outcomes = await context.store.scan(paths.outcomes(segment.id))
    for record in outcomes.records:
        txn_id = TxnId.parse(record.key.rpartition("/")[2])
        segment.buffer.restore_outcome(txn_id, Outcome.decode(record.value))


async def _recover_dedup(
    segment: Segment, record: SegmentRecord, operations: Operations, context: SegmentContext
) -> SegmentRecord:
    """Build the table from the last snapshot and the frames after it. Returns the record with a snapshot of both."""
    snapshot = record.dedup
    if snapshot is None:
        await inherit(context.store, record, segment.dedup)
        if record.parents:  # which can be removed from now on
            name = f"{segment.ownership.generation}-inherited"
            chunks = chunks_of(segment.dedup)
            snapshot = await write_snapshot(context.store, segment.id, segment.ownership.check, name, chunks, 0)
            record = record.model_copy(update={"dedup": snapshot})
    else:
        await restore(context.store, segment.id, record, snapshot, segment.dedup)
    through = snapshot.through if snapshot else 0
    remembers_more = await _read_frames(segment, operations, through, context)
    sealed = segment.ledgers.sealed
    if not sealed or sealed[-1].id <= through:
        return record
    if snapshot is not None and not remembers_more:
        snapshot = snapshot.model_copy(update={"through": sealed[-1].id})
    else:
        name = f"{segment.ownership.generation}-opened"
        check = segment.ownership.check
        chunks = chunks_of(segment.dedup)
        snapshot = await write_snapshot(context.store, segment.id, check, name, chunks, sealed[-1].id)
    return record.model_copy(update={"dedup": snapshot})


async def _recover_transactions(segment: Segment, operations: Operations, context: SegmentContext) -> None:
    """Follow and decide the transactions that have operations here, and those whose sequences are remembered, which are
    forgotten at the decision."""
    undecided = list(operations)
    only_remembered = [txn_id for txn_id in segment.dedup.transactions if txn_id not in operations]
    for txn_id, record in (await context.mirror.read(only_remembered)).items():
        if record is None or not record.first:
            segment.dedup.forget_transaction(txn_id)
        else:
            undecided.append(txn_id)
    for txn_id in undecided:
        segment.follow_recovered(txn_id)
    headers = await context.mirror.read(undecided)
    for txn_id, record in headers.items():
        if record is None or not record.first:
            segment.decide_recovered(txn_id, Decision(Header.decode(record.value) if record else None))
        else:
            segment.begun_at(txn_id, Header.decode(record.value).created_ms)


async def _operations(segment: Segment, context: SegmentContext) -> Operations:
    """The write operations of this segment that have not been cleaned up, by transaction."""
    prefix = paths.writes_by_segment(segment.id)
    with context.metrics.index_query.time():
        entries = await context.store.query_index("writes-by-segment", prefix, prefix_end(prefix))
    keys = [paths.OPS + entry.removeprefix(prefix) for entry in entries]
    found: dict[TxnId, list[WriteOp]] = {}
    for key, record in (await context.store.get_each(keys)).items():
        if record is not None:
            op = decode_op(record.value)
            assert isinstance(op, WriteOp)
            found.setdefault(TxnId.parse(paths.op_key_parts(key)[0]), []).append(op)
    return found


async def _read_frames(segment: Segment, operations: Operations, through: int, context: SegmentContext) -> bool:
    """Build pins, writers and dedup from the sealed ledgers, from the lowest `after`, or from the first ledger after
    `through`. Returns whether one of these adds to what is remembered."""
    ledgers = segment.ledgers
    starts = [Position.parse(op.after) for ops in operations.values() for op in ops]
    starts += [Position(ledger.id, -1) for ledger in ledgers.sealed if ledger.id > through][:1]
    remembers_more = False
    if not ledgers.sealed or not starts:
        return remembers_more
    at, end = min(starts), ledgers.sealed[-1].last
    while frames := await ledgers.read(at, end, READ_BYTES):
        for frame in frames:
            if frame.txn_id in operations:
                transaction = segment.buffer.track(frame.txn_id, context.clock())
                segment.buffer.recovered_frame(transaction, frame.position, frame.writer)
            if frame.sequence is not None and (frame.txn_id is None or frame.txn_id in operations):
                scope = Scope(frame.txn_id, frame.writer, frame.producer)
                segment.dedup.durable(scope, frame.sequence, frame.position, frame.count)
                remembers_more |= frame.position.ledger > through
        at = frames[-1].position
    return remembers_more
