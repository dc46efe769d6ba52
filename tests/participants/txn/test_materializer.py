"""Goal: whatever list of writers a commit could store, a segment can remember what it must hide because of it.

Method: the materializer alone, over a store that accepts no more than ZooKeeper does.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.capacity import ROOM_BYTES
from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.errors import CheckFailed, OutcomeUnknown
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records.operations import Outcome, WriteOp
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, begin, put_write_op
from metastore.types import AtVersion, Batch
from metatxn.wire.ids import TxnId
from participants.txn.materializer import OPS_PER_APPLY, materialize
from tests.participants.segment.faulty_store import Fault, FaultyStore

TXN = TxnId(0, 1)
SEGMENT = f"segment://shop/{'o' * 200}/0000-ffff-0"
WRITERS = 3 * OPS_PER_APPLY


def names(size: int) -> tuple[str, ...]:
    """About as many bytes of names, each of a task that has written here."""
    each = size // WRITERS - len('"",')
    return tuple(f"{number:05}".ljust(each, "x") for number in range(WRITERS))


async def written(store: MetadataStore, writers: Sequence[str]) -> AtVersion:
    """A transaction with an operation of each of these writers. Returns the check of the segment's owner."""
    owner = paths.segment_owner(SEGMENT)
    owned = await store.apply(store.batch().put(owner, b"{}"))
    header = Header(state=TxnState.OPEN, timeout_ms=1_000, created_ms=1)
    await store.apply(begin(store.batch(), TXN, header))
    for number, writer in enumerate(writers):
        op = WriteOp(segment=SEGMENT, after="1:0", count=1, writer=writer)
        await store.apply(put_write_op(store.batch(), TXN, 1, number, op))
    return AtVersion(owner, owned.revision)


@pytest.mark.parametrize("size", [10_000, ZooKeeperStore.max_batch_bytes - ROOM_BYTES])
async def test_a_list_of_writers_that_a_commit_could_store_is_remembered(size: int) -> None:
    """With the operations of all of these writers, which go afterwards."""
    store = MemoryStore(INDEXES)
    store.max_batch_bytes = ZooKeeperStore.max_batch_bytes
    owner = await written(store, names(size))
    outcome = Outcome(highest="1:9", counted_writers=names(size))
    await materialize(store, SEGMENT, owner, TXN, outcome)
    record = await store.get(paths.outcome(SEGMENT, TXN))
    assert record is not None and Outcome.decode(record.value) == outcome
    operations = paths.write_ops_of_segment(TXN, SEGMENT)
    assert not (await store.range(operations, prefix_end(operations), limit=1)).records
    await store.close()


@pytest.mark.parametrize("together_bytes", [0, 64 << 10], ids=["alone", "beside deletions"])
async def test_a_late_request_does_not_store_an_obsolete_outcome_again(
    together_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: the request whose answer was lost arrives when an index says the same. DESIGN §5.6."""
    monkeypatch.setattr("participants.txn.materializer.TOGETHER_BYTES", together_bytes)
    store = FaultyStore()
    owner = await written(store, ["a", "b"])
    sent: list[Batch] = []

    def is_sent(batch: Batch) -> bool:
        sent.append(batch)
        return True

    store.fault(Fault(is_sent, before=OutcomeUnknown("it is on its way")))
    outcome = Outcome(highest="1:9", aborted=True)
    with pytest.raises(OutcomeUnknown):
        await materialize(store, SEGMENT, owner, TXN, outcome)
    await materialize(store, SEGMENT, owner, TXN, outcome)
    record = await store.get(paths.outcome(SEGMENT, TXN))
    assert record is not None and Outcome.decode(record.value) == outcome
    await store.apply(store.batch().remove(record))
    with pytest.raises(CheckFailed):
        await store.apply(sent[0])
    await materialize(store, SEGMENT, owner, TXN, outcome)
    assert await store.get(paths.outcome(SEGMENT, TXN)) is None, "nor does one more attempt"
    await store.close()
