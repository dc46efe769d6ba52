"""Goal: what is deleted in slices fits into a request to ZooKeeper, however long the names in the keys are.

Method: the records of a topic, a subscription and of writers with the longest names that the services accept, of
characters that UTF-8 writes with four bytes and a key with twelve; one more of them than a slice would have had.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metastore.backends.zookeeper import ZooKeeperStore
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records.operations import AckOp, Outcome, WriteOp
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, begin, put_ack_ops, put_write_op
from metastore.types import AtVersion, Batch
from metatxn.wire.ids import TxnId
from participants.segment import dedup_snapshot
from participants.subscription import deletion
from participants.txn import materializer
from tests.metastore.zookeeper.conftest import OpenStore
from tests.servers import ZooKeeperServer

LONGEST = "\N{GRINNING FACE}" * 512
SEGMENT = f"segment://public/default/{LONGEST}/0000-ffff-0"
SUBSCRIPTION = LONGEST[:256]
TXN = TxnId(0, 1)


@pytest.fixture
async def store(zookeeper_server: ZooKeeperServer, open_store: OpenStore) -> ZooKeeperStore:
    opened = await open_store(zookeeper_server, indexes=INDEXES)
    header = Header(state=TxnState.OPEN, timeout_ms=1_000, created_ms=1)
    await opened.apply(begin(opened.batch(), TXN, header))
    return opened


async def owner_of(store: ZooKeeperStore) -> AtVersion:
    key = paths.segment_owner(SEGMENT)
    return AtVersion(key, (await store.apply(store.batch().put(key, b"{}"))).revision)


async def put(store: ZooKeeperStore, number: int, add: Callable[[Batch, int], object]) -> None:
    for one in range(number):
        batch = store.batch()
        add(batch, one)
        await store.apply(batch)


async def is_empty(store: ZooKeeperStore, prefix: str) -> bool:
    return not (await store.range(prefix, prefix_end(prefix), limit=1)).records


async def test_operations_of_a_decided_transaction(store: ZooKeeperStore) -> None:
    owner = await owner_of(store)
    op = WriteOp(segment=SEGMENT, after="1:0", count=1, writer="w")
    await put(store, materializer.OPS_PER_APPLY + 1, lambda batch, one: put_write_op(batch, TXN, 1, one, op))
    outcome = Outcome(highest="1:9", aborted=True)
    await materializer.materialize(store, SEGMENT, owner, TXN, outcome)
    assert await store.get(paths.outcome(SEGMENT, TXN))
    assert await is_empty(store, paths.write_ops_of_segment(TXN, SEGMENT))


async def test_acknowledgements_of_a_subscription_that_is_dropped(store: ZooKeeperStore) -> None:
    owner = await owner_of(store)
    op = AckOp(segment=SEGMENT, subscription=SUBSCRIPTION, incarnation=1, position="1:0")
    await put(store, deletion.RECORDS_PER_APPLY + 1, lambda batch, one: put_ack_ops(batch, TXN, 1, [(one, op)]))
    await deletion.delete_incarnations(store, owner, SEGMENT, SUBSCRIPTION, last=1)
    assert await is_empty(store, paths.ops_of_transaction(TXN))


async def test_sequences_of_before(store: ZooKeeperStore) -> None:
    owner = await owner_of(store)
    chunks = f"{paths.dedup_snapshots(SEGMENT)}1/"
    await put(store, dedup_snapshot.DELETED_PER_APPLY + 1, lambda batch, one: batch.put(f"{chunks}{one:020}", b""))
    await dedup_snapshot.delete_stale(store, SEGMENT, owner, None)
    assert await is_empty(store, paths.dedup_snapshots(SEGMENT))
