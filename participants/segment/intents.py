"""The intents of an owned segment: the guarded operation records that cover the entries of transactions (DESIGN §5.1,
§5.3).

    the first entry of a writer arrives   ──▶ its intent, one guarded apply ──▶ append
    announced ahead: many intents, one apply … the first entry arrives ──▶ one read, which many share ──▶ append

An intent names a lower bound of where the entries of its writer will be. It may be stored long before the first of
them arrives. It holds no reader back until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from metastore.errors import CheckFailed, MetastoreError
from metastore.txn.records.operations import WriteOp
from metastore.txn.store import begin_with_write_op, put_write_op
from metastore.types import Batch
from metatxn.wire.frames import Entry
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.segment.owned import OwnedSegment
from participants.txn.buffer import TrackedTransaction

INTENTS_PER_APPLY = 40
"""Each is three checks, a record and an index entry, so this stays below etcd's limit of 128 in one transaction."""


class Intents:
    def __init__(self, segment: OwnedSegment, metrics: BrokerMetrics) -> None:
        self._segment = segment
        self._metrics = metrics
        self._last = 0
        """The counter in the key of the last one."""

    async def announce(self, transaction: TrackedTransaction, after: Position, entry: Entry) -> None:
        """Store the intent of the first entry of a writer. `after` is pinned. Raises the store's errors."""
        op = self._op(after, count=entry.count, writer=entry.writer, sequence=entry.sequence)
        announced = transaction.announced[entry.writer] = asyncio.get_running_loop().create_future()
        stored = False
        try:
            await self._segment.store.apply(self._add(self._batch(), transaction, op))
            stored = True
        finally:
            announced.set_result(stored)
        self._metrics.op_writes.inc()

    async def announce_ahead(self, txn_ids: Sequence[TxnId]) -> int:
        """Store the intents of transactions that are expected to write here, before their first entries arrive: those
        of the entries that name no writer. Returns how many are stored. An entry that arrives meanwhile waits for its
        intent, and stores its own if this one failed.

        Nobody depends on it, so an apply that fails is not repeated. From now on each transaction is tracked until it
        is decided, because an apply without an answer may still arrive. Raises STORE_UNAVAILABLE if the broker was
        deposed, and OUTCOME_UNKNOWN if the segment is closed.
        """
        self._segment.assert_serving()
        return await self._segment.finish(self._announce_ahead(txn_ids))

    async def _announce_ahead(self, txn_ids: Sequence[TxnId]) -> int:
        found = [each for txn_id in dict.fromkeys(txn_ids) if (each := self._unannounced(txn_id)) is not None]
        if not found:
            return 0
        for transaction in found:
            transaction.maybe_stored = True
            transaction.announcements += 1
            transaction.announced[None] = asyncio.get_running_loop().create_future()
        op = self._op(self._segment.buffer.last_durable)
        size = self._add(self._segment.store.batch(), found[0], op).size_bytes
        most = max(1, min(INTENTS_PER_APPLY, self._segment.store.max_batch_bytes // 2 // size))
        portions = [found[at : at + most] for at in range(0, len(found), most)]
        return sum(await asyncio.gather(*(self._store(portion, op) for portion in portions)))

    def _unannounced(self, txn_id: TxnId) -> TrackedTransaction | None:
        """The transaction, tracked from now on; None if it is decided, or has its intent already."""
        known = self._segment.buffer.get(txn_id)
        if self._segment.mirror.final(txn_id) is not None or (known is not None and None in known.announced):
            return None
        transaction = known or self._segment.track(txn_id)
        return transaction if transaction.decision is None else None

    async def _store(self, transactions: Sequence[TrackedTransaction], op: WriteOp) -> int:
        batch = self._batch()
        for transaction in transactions:
            self._add(batch, transaction, op)
        stored = False
        try:
            await self._segment.store.apply(batch)
            stored = True
        except CheckFailed as lost:
            if lost.check == self._segment.ownership.check:
                self._segment.deposed_by(lost)
                raise self._segment.not_serving() from None
        except MetastoreError:
            pass  # the first entries will tell
        finally:
            for transaction in transactions:
                transaction.announced[None].set_result(stored)
        if not stored:
            return 0
        self._metrics.op_writes.inc(len(transactions))
        return len(transactions)

    def begin_with(self, batch: Batch, txn_id: TxnId) -> None:
        """Add the intent of the writer without a name to the apply that begins its transaction, unless the segment
        knows an id that somebody has guessed: it takes that for a transaction that was collected, and may be about to
        delete its operations. The transaction is not tracked yet, for the same reason."""
        if self._segment.buffer.get(txn_id) is not None:
            return
        self._segment.beginning.add(txn_id)
        self._last += 1
        op = self._op(self._segment.buffer.last_durable)
        batch.check(self._segment.ownership.check)
        begin_with_write_op(batch, txn_id, self._generation, self._last, op)

    def begun_with(self, txn_id: TxnId) -> None:
        """That apply has taken effect. Entries rely on the intent if nothing else has made the transaction known here
        meanwhile. If the decision is known already, a reconcile finds the intent."""
        relied_on = txn_id in self._segment.beginning and self._segment.buffer.get(txn_id) is None
        self.settled(txn_id)
        if not relied_on or self._segment.lost or self._segment.mirror.final(txn_id) is not None:
            return
        transaction = self._segment.track(txn_id)
        transaction.stored = True
        transaction.announced[None] = asyncio.get_running_loop().create_future()
        transaction.announced[None].set_result(True)

    def settled(self, txn_id: TxnId) -> None:
        """The begin was answered, or nobody waits for the answer any more. What was read of it before that proves
        nothing."""
        self._segment.beginning.discard(txn_id)
        known = self._segment.buffer.get(txn_id)
        if known is not None:
            known.announcements += 1

    # -- inside ------------------------------------------------------------------------------------------------

    def _batch(self) -> Batch:
        """Every apply of an owner checks its ownership (DESIGN §5.2)."""
        return self._segment.store.batch().check(self._segment.ownership.check)

    def _op(self, after: Position, count: int = 0, writer: str | None = None, sequence: int | None = None) -> WriteOp:
        return WriteOp(segment=self._segment.id, after=str(after), count=count, writer=writer, sequence=sequence)

    def _add(self, batch: Batch, transaction: TrackedTransaction, op: WriteOp) -> Batch:
        self._last += 1
        return put_write_op(batch, transaction.txn_id, self._generation, self._last, op)

    @property
    def _generation(self) -> int:
        return self._segment.ownership.generation


class BeginIntents:
    """The intents of segments that are stored by the apply that begins a transaction (DESIGN §5.1)."""

    def __init__(self, intents: Iterable[Intents]) -> None:
        self._intents = list(intents)
        self._tried: set[TxnId] = set()

    def add_to(self, batch: Batch, txn_id: TxnId) -> None:
        """See `coordinator.transaction_keys.StoredWithBegin`."""
        self._tried.add(txn_id)
        for each in self._intents:
            each.begin_with(batch, txn_id)

    def stored(self, txn_id: TxnId) -> None:
        """See `coordinator.transaction_keys.StoredWithBegin`."""
        for each in self._intents:
            each.begun_with(txn_id)

    def settle(self) -> None:
        """The begin has ended, in whatever way. To be called always."""
        for txn_id in self._tried:
            for each in self._intents:
                each.settled(txn_id)
