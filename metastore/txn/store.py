"""Typed access to the transaction records: the only code that combines their keys, values, checks and indexes.

Reads are coroutines. Writes are functions that add to a `Batch`, because the records that they depend on (a key's
epoch, a segment's ownership) must be checked in the same `apply`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from metastore.api import MetadataStore
from metastore.txn import paths
from metastore.txn.key_records import KeyRecord
from metastore.txn.records.operations import AckOp, OffsetOp, WriteOp
from metastore.txn.records.transactions import SHORT_HEADER_BYTES, GcHorizon, Header, Lease, Prepared, RememberedWriters
from metastore.txn.states import TxnState, may_become
from metastore.types import Absent, Batch, FirstVersion, IndexDefinition, Record, Revision, Snapshot
from metatxn.wire.ids import TxnId


def _writes_by_segment(key: str, value: bytes) -> Iterable[str]:
    if entry := paths.write_entry(key):
        yield entry


def _acks_by_segment_subscription(key: str, value: bytes) -> Iterable[str]:
    if entry := paths.ack_entry(key):
        yield entry


def _offsets_by_group(key: str, value: bytes) -> Iterable[str]:
    if entry := paths.offset_entry(key):
        yield entry


def _by_final_state(key: str, value: bytes) -> Iterable[str]:
    # Many are decided in one millisecond, with equal values. Long ones (lists of writers) are not cached.
    decided = (_decided if len(value) <= SHORT_HEADER_BYTES else _decided.__wrapped__)(value)
    return (f"{decided}/{key.removeprefix(paths.HEADERS)}",) if decided else ()


@lru_cache(maxsize=1024)
def _decided(value: bytes) -> str:
    """The state and the time as in the index, or empty while the transaction is open."""
    header = Header.decode(value)
    if not header.state.final:
        return ""
    assert header.finalized_ms is not None
    return paths.decided_at(header.state, header.finalized_ms)


INDEXES = (
    IndexDefinition("writes-by-segment", paths.OPS, _writes_by_segment),
    IndexDefinition("acks-by-segment-subscription", paths.OPS, _acks_by_segment_subscription),
    IndexDefinition("offsets-by-group", paths.OPS, _offsets_by_group),
    IndexDefinition("txn-by-final-state", paths.HEADERS, _by_final_state),
)
"""The indexes of a store of transactions. The deadline index is not among them: its entry depends on three records
(header, lease, prepared), so `TransactionRecords` moves it."""


class TransactionRecords(NamedTuple):
    """All records of one transaction except its operations, read at one revision. Absent records are None."""

    txn_id: TxnId
    revision: Revision
    header_record: Record
    header: Header
    lease_record: Record | None
    prepared_record: Record | None
    writers_record: Record | None

    @property
    def prepared(self) -> Prepared | None:
        return Prepared.decode(self.prepared_record.value) if self.prepared_record else None

    @property
    def remembered_writers(self) -> tuple[str, ...] | None:
        return RememberedWriters.decode(self.writers_record.value).writers if self.writers_record else None

    @property
    def deadline_ms(self) -> int:
        """The deadline in force: that of the prepared record, or else of the last keep-alive, or else of the begin."""
        if self.prepared_record:
            return Prepared.decode(self.prepared_record.value).deadline_ms
        if self.lease_record:
            return Lease.decode(self.lease_record.value).deadline_ms
        return self.header.timeout_ms

    @property
    def header_to_decide(self) -> Header:
        """The header, with the keep-alives from the record that the decision deletes."""
        kept_alive = self._kept_alive()
        return self.header.model_copy(update=kept_alive) if kept_alive else self.header

    @property
    def decided_alike(self) -> tuple[bytes, ...]:
        """A value that is equal for transactions whose headers equal decisions make equal."""
        told_by = (self.header_record, self.lease_record, self.prepared_record)
        return tuple(record.value for record in told_by if record)

    def _kept_alive(self) -> dict[str, int | None]:
        if self.lease_record:
            lease = Lease.decode(self.lease_record.value)
            return {"renewed_ms": lease.renewed_ms, "renewals": lease.renewals}
        prepared = self.prepared
        return {"renewed_ms": prepared.renewed_ms, "renewals": prepared.renewals} if prepared else {}

    @property
    def size_bytes(self) -> int:
        """The size of the values: the names of writers, and what was given at begin, may be long."""
        records = (self.header_record, self.lease_record, self.prepared_record, self.writers_record)
        return sum(len(record.value) for record in records if record)

    def keep_alive(self, batch: Batch, deadline_ms: int, now_ms: int) -> Batch:
        """Move the deadline of an open, unprepared transaction."""
        batch.check(FirstVersion(self.header_record.key), Absent(paths.prepared(self.txn_id)))
        before = Lease.decode(self.lease_record.value).renewals if self.lease_record else None
        value = Lease(deadline_ms=deadline_ms, renewed_ms=now_ms, renewals=(before or 0) + 1).encode()
        if self.lease_record:
            batch.replace(self.lease_record, value)
        else:
            batch.create(paths.lease(self.txn_id), value)
        return self._move_deadline(batch, deadline_ms)

    def prepare(self, batch: Batch, prepared: Prepared) -> Batch:
        """Close an open transaction for operations; the deadline of the prepared record is then in force."""
        batch.check(FirstVersion(self.header_record.key))
        if self.lease_record:
            batch.remove(self.lease_record)
        else:
            batch.check(Absent(paths.lease(self.txn_id)))
        batch.create(paths.prepared(self.txn_id), prepared.model_copy(update=self._kept_alive()).encode())
        return self._move_deadline(batch, prepared.deadline_ms)

    def remember_writers(self, batch: Batch, writers: tuple[str, ...]) -> Batch:
        batch.check(FirstVersion(self.header_record.key), Absent(paths.prepared(self.txn_id)))
        value = RememberedWriters(writers=writers).encode()
        if self.writers_record:
            return batch.replace(self.writers_record, value)
        return batch.create(paths.remembered_writers(self.txn_id), value)

    def _move_deadline(self, batch: Batch, deadline_ms: int) -> Batch:
        if deadline_ms != self.deadline_ms:
            batch.delete(paths.deadline_entry(self.deadline_ms, self.txn_id))
            batch.put(paths.deadline_entry(deadline_ms, self.txn_id), b"")
        return batch


async def read_transaction(store: MetadataStore, txn_id: TxnId) -> TransactionRecords | None:
    """The header and the side records at one revision, or None if the header is unknown."""
    snapshot = await store.get_many(_record_keys(txn_id))
    return _records_of(txn_id, snapshot)


async def read_transactions(store: MetadataStore, txn_ids: Sequence[TxnId]) -> list[TransactionRecords | None]:
    """Like `read_transaction`, for many transactions, all at one revision."""
    snapshot = await store.get_many([key for txn_id in txn_ids for key in _record_keys(txn_id)])
    return [_records_of(txn_id, snapshot) for txn_id in txn_ids]


async def read_key_and_transaction(
    store: MetadataStore, owner: str | None, key: str, txn_id: TxnId
) -> tuple[KeyRecord, TransactionRecords | None]:
    """A transaction key, and a transaction as `read_transaction` reads it, both at one revision."""
    of_key = paths.transaction_key(owner, key)
    snapshot = await store.get_many([of_key, *_record_keys(txn_id)])
    return KeyRecord(owner, key, snapshot.records[of_key]), _records_of(txn_id, snapshot)


async def read_plain(store: MetadataStore, txn_ids: Sequence[TxnId]) -> dict[TxnId, TransactionRecords]:
    """The transactions that exist, *presumed* to have no lease, prepared or writers record: one key each instead of
    four.

    For a decision, which checks that these records are absent, so a wrong presumption only fails the apply, and the
    transaction is read again; and for what looks at the headers alone.
    """
    if not txn_ids:
        return {}
    keys = [paths.header(txn_id) for txn_id in txn_ids]
    snapshot = await store.get_many(keys)
    return {
        txn_id: TransactionRecords(txn_id, snapshot.revision, record, Header.decode(record.value), None, None, None)
        for txn_id, key in zip(txn_ids, keys, strict=True)
        if (record := snapshot.records[key])
    }


async def gc_horizon(store: MetadataStore) -> Revision:
    """The highest decision revision whose header may be deleted; 0 if there is none."""
    record = await store.get(paths.GC_HORIZON)
    return GcHorizon.decode(record.value).revision if record else 0


def _record_keys(txn_id: TxnId) -> tuple[str, str, str, str]:
    return (
        paths.header(txn_id),
        paths.lease(txn_id),
        paths.prepared(txn_id),
        paths.remembered_writers(txn_id),
    )


def _records_of(txn_id: TxnId, snapshot: Snapshot) -> TransactionRecords | None:
    header, lease, prepared, writers = (snapshot.records[key] for key in _record_keys(txn_id))
    if header is None:
        return None
    return TransactionRecords(txn_id, snapshot.revision, header, Header.decode(header.value), lease, prepared, writers)


def begin(batch: Batch, txn_id: TxnId, header: Header) -> Batch:
    """Create an OPEN header and its deadline entry."""
    return begin_alike(batch, [txn_id], header)


def begin_alike(batch: Batch, txn_ids: Iterable[TxnId], header: Header) -> Batch:
    """`begin` for several transactions with equal headers."""
    assert header.state is TxnState.OPEN
    value = header.encode()
    for txn_id in txn_ids:
        batch.create(paths.header(txn_id), value)
        batch.put(paths.deadline_entry(header.timeout_ms, txn_id), b"")
    return batch


def finalize(batch: Batch, alike: Iterable[TransactionRecords], final: Header) -> Batch:
    """Decide (DESIGN §5.1) transactions with equal headers: each header at the version read, and its side records at
    theirs, all become final or are deleted at once.

    A concurrent keep-alive, prepare or add-writers makes the apply fail; the caller reads again.
    """
    value = final.encode()
    assert final.finalized_ms is not None
    for records in alike:
        assert may_become(records.header.state, final.state)
        txn_id = records.txn_id
        absent: list[Absent] = []
        batch.replace(records.header_record, value)
        batch.delete(paths.deadline_entry(records.deadline_ms, txn_id))
        for record, key in (
            (records.lease_record, paths.lease(txn_id)),
            (records.prepared_record, paths.prepared(txn_id)),
            (records.writers_record, paths.remembered_writers(txn_id)),
        ):
            if record:
                batch.remove(record)
            else:
                absent.append(Absent(key))
        batch.check(*absent)
    return batch


def put_write_op(batch: Batch, txn_id: TxnId, generation: int, counter: int, op: WriteOp) -> Batch:
    """The guarded intent (DESIGN §5.1): only while the header is at its first version and nothing is prepared.

    The caller adds the third guard, its ownership of the segment.
    """
    batch.check(FirstVersion(paths.header(txn_id)), Absent(paths.prepared(txn_id)))
    return batch.create(paths.write_op(txn_id, op.segment, generation, counter), op.encode())


def begin_with_write_op(batch: Batch, txn_id: TxnId, generation: int, counter: int, op: WriteOp) -> Batch:
    """An intent in the apply that begins its transaction (`begin`), which so is open and not prepared.

    The caller adds the other guard, the ownership of the segment.
    """
    return batch.create(paths.write_op(txn_id, op.segment, generation, counter), op.encode())


def put_ack_ops(batch: Batch, txn_id: TxnId, generation: int, ops: Iterable[tuple[int, AckOp]]) -> Batch:
    """Acknowledgements of one transaction, each with its counter, guarded like `put_write_op`.

    The caller adds the other guards, its ownership of the segment and the subscription's incarnation.
    """
    batch.check(FirstVersion(paths.header(txn_id)), Absent(paths.prepared(txn_id)))
    for counter, op in ops:
        batch.create(paths.ack_op(txn_id, op.segment, op.subscription, generation, counter), op.encode())
    return batch


def put_offset_op(batch: Batch, txn_id: TxnId, op: OffsetOp, before: Record | None) -> Batch:
    """The offset of a consumer group, guarded like `put_write_op`. `before` is the record that it replaces, as read.

    The caller adds the other guard, the group's generation.
    """
    batch.check(FirstVersion(paths.header(txn_id)), Absent(paths.prepared(txn_id)))
    if before is not None:
        return batch.replace(before, op.encode())
    return batch.create(paths.offset_op(txn_id, op.segment, op.group), op.encode())
