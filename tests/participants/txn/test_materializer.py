"""Goal: whatever list of writers a commit could store, a segment can remember what it must hide because of it.

Method: the materializer alone, over a store that accepts no more than ZooKeeper does.
"""

from __future__ import annotations

from itertools import count

import pytest

from coordinator.capacity import ROOM_BYTES
from metastore.backends.memory import MemoryStore
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records.operations import Outcome, WriteOp
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, begin, put_write_op
from metastore.types import AtVersion
from metatxn.wire.ids import TxnId
from participants.txn.materializer import OPS_PER_APPLY, materialize

TXN = TxnId(0, 1)
SEGMENT = f"segment://shop/{'o' * 200}/0000-ffff-0"
WRITERS = 3 * OPS_PER_APPLY


def names(size: int) -> tuple[str, ...]:
    """About as many bytes of names, each of a task that has written here."""
    each = size // WRITERS - len('"",')
    return tuple(f"{number:05}".ljust(each, "x") for number in range(WRITERS))


@pytest.mark.parametrize("size", [10_000, ZooKeeperStore.max_batch_bytes - ROOM_BYTES])
async def test_a_list_of_writers_that_a_commit_could_store_is_remembered(size: int) -> None:
    """With the operations of all of these writers, which go afterwards."""
    store = MemoryStore(INDEXES)
    store.max_batch_bytes = ZooKeeperStore.max_batch_bytes
    owner = paths.segment_owner(SEGMENT)
    owned = await store.apply(store.batch().put(owner, b"{}"))
    header = Header(state=TxnState.OPEN, timeout_ms=1_000, created_ms=1)
    await store.apply(begin(store.batch(), TXN, header))
    for number, writer in zip(count(), names(size), strict=False):
        op = WriteOp(segment=SEGMENT, after="1:0", count=1, writer=writer)
        await store.apply(put_write_op(store.batch(), TXN, 1, number, op))
    outcome = Outcome(highest="1:9", counted_writers=names(size))
    await materialize(store, SEGMENT, AtVersion(owner, owned.revision), TXN, outcome)
    record = await store.get(paths.outcome(SEGMENT, TXN))
    assert record is not None and Outcome.decode(record.value) == outcome
    operations = paths.write_ops_of_segment(TXN, SEGMENT)
    assert not (await store.range(operations, prefix_end(operations), limit=1)).records
    await store.close()
