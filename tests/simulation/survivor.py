"""A coordinator from before the metadata store was restored from a backup.

The store gives out ids again that this one is using: it begins transactions with some of the ids of the blocks that the
others lease, a moment later, and ends them when nobody begins any more. An id that began once it leaves alone: when
that transaction is forgotten, nobody can see that it was there.
"""

from __future__ import annotations

from metastore.txn import paths
from metastore.txn import store as txn_records
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import finalize, read_transaction
from metastore.types import Changes, Event
from metatxn.wire.ids import TxnId
from tests.simulation.processes import EPOCH_MS
from tests.simulation.store import StoreServer, run_now

NAME = "survivor"
_MOST = 4
"""Of one block: those are used up and the next one is leased before long."""
_AMONG = 30
_WITHIN_S = 2.0
_TIMEOUT_MS = 86_400_000


class Survivor:
    def __init__(self, store: StoreServer, block_size: int) -> None:
        self._store = store
        self._world = store.world
        self._block_size = block_size
        self._begun: set[TxnId] = set()
        """By anybody."""
        self._own: list[TxnId] = []
        store.listeners.append(self._hear)

    def _hear(self, changes: Changes) -> None:
        for event in changes.events:
            if event.key.startswith(paths.HEADERS):
                self._begun.add(paths.txn_id_of_header(event.key))
            elif event.key.startswith(paths.ID_SEQUENCES):
                self._use_some(event)

    def _use_some(self, sequence: Event) -> None:
        """Of the block that was just leased."""
        faults = self._world.faults
        if sequence.record is None or not faults.happens("ids_in_use"):
            return
        coordinator = int(sequence.key.removeprefix(paths.ID_SEQUENCES))
        free = int(sequence.record.value)
        first = max(1, free - self._block_size)  # brokers, which are coordinator 0, lease smaller ones
        for _ in range(faults.random.randint(1, _MOST)):
            number = first + faults.random.randrange(min(_AMONG, free - first))
            self._world.later(faults.random.uniform(0, _WITHIN_S), self._begin, TxnId(coordinator, number))
        self._world.later(0, self._begin, TxnId(coordinator, first))

    def _begin(self, txn_id: TxnId) -> None:
        if txn_id in self._begun:
            return
        now_ms = EPOCH_MS + int(self._world.loop.time() * 1000)
        header = Header(
            state=TxnState.OPEN, timeout_ms=now_ms + _TIMEOUT_MS, created_ms=now_ms, properties={"by": NAME}
        )
        self._world.trace.note(NAME, f"begins {txn_id}")
        self._own.append(txn_id)
        truth = self._store.truth
        run_now(truth.apply(txn_records.begin(truth.batch(), txn_id, header)))

    def end(self) -> None:
        """Abort what it has open."""
        truth = self._store.truth
        for txn_id in self._own:
            records = run_now(read_transaction(truth, txn_id))
            if records is not None and not records.header.state.final:
                aborted = {"state": TxnState.ABORTED, "finalized_ms": records.header.created_ms}
                run_now(truth.apply(finalize(truth.batch(), [records], records.header.model_copy(update=aborted))))
