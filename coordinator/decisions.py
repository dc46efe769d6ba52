"""The one write that decides a transaction, whether a user, the sweep, a newer epoch or an administrator requests it.

    header at the version read → final │ lease, prepared, writers at the versions read → gone │ deadline entry → gone

With a transaction key, the same apply also changes the key's record at the version read: it no longer holds this
transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from coordinator.answers import Members, members, members_alike, unknown_transaction
from coordinator.metrics import CoordinatorMetrics
from coordinator.presumed import PresumedKeys
from coordinator.settling import Overtaken, Settling
from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import MetastoreError
from metastore.txn.key_records import KeyRecord, read_key
from metastore.txn.records.transactions import Header, TransactionKey
from metastore.txn.states import ExpiredBy, TxnState
from metastore.txn.store import TransactionRecords, finalize, read_transaction
from metastore.types import Applied, Batch
from metatxn.wire.ids import TxnId

log = structlog.get_logger()

DecidedTransactions = tuple[Sequence[TransactionRecords], Header]
"""Transactions with equal headers as they were read, and what each of them becomes."""


class KeyMovedOn(Exception):
    """The transaction's key no longer holds the transaction at its epoch, so the transaction cannot be committed."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Reads transactions and decides them. All state is in the store."""

    store: MetadataStore
    clock: Clock
    settling: Settling
    metrics: CoordinatorMetrics
    presumed: PresumedKeys = field(default_factory=PresumedKeys)

    async def read(self, txn_id: TxnId) -> TransactionRecords:
        """Read a transaction. Raises TXN_NOT_FOUND."""
        records = await read_transaction(self.store, txn_id)
        if records is None:
            raise unknown_transaction(txn_id)
        return records

    async def decide(
        self, records: TransactionRecords, final: Header, *, as_holder: bool = False, key: KeyRecord | None = None
    ) -> Members:
        """Decide a transaction. `key` is its key as it was read with the records or later, to save a read. Raises
        `Overtaken` (read again), `KeyMovedOn` (only for a commit), and the store's errors."""
        batch = finalize(self.store.batch(), [records], final)
        written = await self._let_go_of_key(batch, records, final, key, as_holder=as_holder)
        applied = await self.apply(batch, ([records], final))
        if written is not None and as_holder:
            self.presumed.written(*written, applied.revision)
        return members(records.txn_id, final, applied.revision)

    async def decide_together(self, decided: Sequence[DecidedTransactions]) -> list[Members]:
        """Like `decide`, for all of them in one apply or for none. For transactions without a key."""
        batch = self.store.batch()
        for alike, final in decided:
            assert final.key is None, final
            finalize(batch, alike, final)
        applied = await self.apply(batch, *decided)
        return [
            answer
            for alike, final in decided
            for answer in members_alike([records.txn_id for records in alike], final, applied.revision)
        ]

    async def apply(self, batch: Batch, *decided: DecidedTransactions) -> Applied:
        """Apply a batch that decides `decided`, and count the results."""
        try:
            applied = await self.settling.apply(batch)
        except Overtaken as overtaken:
            if overtaken.perhaps_ours and await self._landed(*decided[0]):
                self._count(decided)
            else:
                self.metrics.overtaken()
            raise
        self._count(decided)
        for alike, final in decided:
            one = len(alike) == 1
            ids = {"txn_id": alike[0].txn_id} if one else {"txn_ids": [records.txn_id for records in alike]}
            (log.info if final.expired_by else log.debug)(
                "transaction decided" if one else "transactions decided",
                **ids,
                state=final.state.value,
                expired_by=final.expired_by,
                reason=final.reason,
                revision=applied.revision,
            )
        return applied

    def _count(self, decided: Sequence[DecidedTransactions]) -> None:
        for alike, final in decided:
            self.metrics.decided(final, len(alike))

    async def _landed(self, alike: Sequence[TransactionRecords], final: Header) -> bool:
        """Whether the header now shows a decision of ours whose reply was lost; used only for counting. An apply takes
        effect as a whole, so one header is enough for all of it."""
        try:
            record = await self.store.get(alike[0].header_record.key)
        except MetastoreError:
            return False
        return record is not None and record.value == final.encode()

    async def _let_go_of_key(
        self,
        batch: Batch,
        records: TransactionRecords,
        final: Header,
        key: KeyRecord | None,
        *,
        as_holder: bool,
    ) -> tuple[KeyRecord, TransactionKey] | None:
        """Clear the key's `txn_id`; a commit also checks its epoch and moves `last_version` (DESIGN §5.15). Returns the
        key, and what is written into its record.

        An *unprepared* transaction commits only under the key's current epoch. A prepared one has outlived its epoch
        when a newer connection took over: that connection is told about it and must be able to commit it, and the key
        still holds it.
        """
        header = records.header
        if header.key is None:
            return None
        key = key or await read_key(self.store, header.owner, header.key)
        held = key.value
        if held is None or held.txn_id != str(records.txn_id):
            if final.state is TxnState.COMMITTED:
                raise KeyMovedOn
            return None
        if final.state is TxnState.COMMITTED and held.epoch != header.epoch and not records.prepared_record:
            raise KeyMovedOn
        update: dict[str, object] = {"txn_id": None, "updated_ms": final.finalized_ms}
        if final.state is TxnState.COMMITTED and header.version is not None:
            update["last_version"] = header.version
        if as_holder:
            update["ended_by_holder"] = True
        value = held.model_copy(update=update)
        key.write(batch, value)
        return key, value


def committed(header: Header, now_ms: int, writers: tuple[str, ...] | None, by: str | None) -> Header:
    """The final header of a commit. `by`, here and below, is the name of the caller who requested it, if
    authenticated."""
    update = {"state": TxnState.COMMITTED, "finalized_ms": now_ms, "writers": writers, "ended_by": by}
    return header.model_copy(update=update)


def aborted(
    header: Header, now_ms: int, reason: str | None, by: str | None = None, *, expired_by: ExpiredBy | None = None
) -> Header:
    update = {"finalized_ms": now_ms, "reason": reason, "ended_by": by, "expired_by": expired_by}
    return header.model_copy(update={"state": TxnState.ABORTED, **update})
