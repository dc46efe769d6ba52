"""Goal: a backup of a cluster on one kind of store is restored into another kind, which is the way to move: each header
and each other record is there as it was at the revision of the backup, and no id or epoch is given out again.

Method: as in `test_restoring`, on real stores. Open transactions stay open, so that the records can be compared byte
for byte. There are more of them than one apply of the restore has.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coordinator.transactions import Transactions
from metastore.check import dump
from metastore.txn import paths
from metastore.txn.records.topics import TopicRecord
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES
from metastore.urls import open_store
from metatxn.wire.coordinator import ConnectRequest
from metatxn.wire.ids import TxnId
from participants.backup.copies import read_records
from tests.participants.backup.cases import RESTORED_MS, BackupCase
from tests.participants.segment.world import World, committed, materialized, publish
from tests.servers import EtcdServer, ZooKeeperServer

MOVES = (("sqlite", "etcd"), ("sqlite", "zookeeper"), ("zookeeper", "etcd"), ("etcd", "sqlite"))
MANY = 45
MADE_ANEW = (paths.INCARNATION, paths.VERSION, paths.GC_HORIZON, paths.SEGMENTS)
TOPIC = paths.topic("public/default/t")
LEAPT = (paths.ID_SEQUENCES, paths.TRANSACTION_KEYS, paths.SEGMENT_OWNERS, paths.TOPICS)


@pytest.fixture
def etcd(etcd_server: EtcdServer) -> str:
    return f"etcd://{etcd_server.endpoint}"


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeperServer) -> str:
    return f"zk://{zookeeper_server.endpoint}"


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}"


@pytest.fixture(params=MOVES, ids="-to-".join)
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BackupCase]:
    async with AsyncExitStack() as stack:
        stores = []
        for kind in request.param:
            url = f"{request.getfixturevalue(kind)}/{secrets.token_hex(6)}"
            stores.append(await open_store(url, INDEXES))
        world = World(tmp_path, store=stores[0])
        stack.push_async_callback(world.close)
        case = BackupCase(world, tmp_path, "local", into=stores[1])
        stack.push_async_callback(case.restored.close)
        yield case


async def test_a_cluster_moves_to_another_kind_of_store(case: BackupCase) -> None:
    world, segment = case.world, await case.begin()
    await connected(world)
    decided = [await decided_one(world, number) for number in range(MANY)]
    done, opened = await world.begin(), await world.begin()
    await publish(segment, "plain")
    await publish(segment, "committed", done)
    await publish(segment, "open", opened)
    await world.commit(done)
    await materialized(segment, done)
    later: list[tuple[TxnId, int]] = []

    async def meanwhile() -> None:
        await world.commit(opened)
        later.append((await begun(world), await connected(world)))
        await publish(segment, "later", later[0][0])
        await world.commit(later[0][0])
        await materialized(segment, opened, later[0][0])

    manifest = await case.take(after=meanwhile)
    assert await case.problems(manifest) == []
    await case.restore(manifest, keep_open=True)
    store = case.restored.store.inner

    before = {key: value async for key, value in read_records(case.place, manifest)}
    here = {record.key: record async for record in dump(store)}
    assert here.keys() - {paths.GC_HORIZON, paths.VERSION} == before.keys() - {paths.GC_HORIZON, paths.VERSION}
    for key, value in before.items():
        if not key.startswith((*MADE_ANEW, *LEAPT)):
            assert here[key].value == value, key
    states = {paths.txn_id_of_header(key): here[key] for key in here if key.startswith(paths.HEADERS)}
    assert states.keys() == {*decided, done, opened}
    for txn_id, record in states.items():
        assert record.first is (txn_id == opened) is (Header.decode(record.value).state is TxnState.OPEN), txn_id
    assert await case.laws() == []

    assert await begun(case.restored) > max(later[0][0], *states)
    assert await connected(case.restored) > later[0][1]
    restored = await case.served()
    assert restored.ownership.generation >= RESTORED_MS <= TopicRecord.decode(here[TOPIC].value).next_segment
    assert await committed(restored) == ["plain", "committed"]
    await case.restored.commit(opened)
    await materialized(restored, opened)
    assert await committed(restored) == ["plain", "committed", "open"]
    assert await case.laws() == []


async def begun(world: World) -> TxnId:
    """By a coordinator that has just started."""
    return (await Transactions(world.store.inner, world.now_ms, 1).begin()).txn_id


async def connected(world: World) -> int:
    """The epoch that the next user of a transaction key gets."""
    keys = Transactions(world.store.inner, world.now_ms, 1).keys
    return (await keys.connect("job", ConnectRequest(epoch=-1))).epoch


async def decided_one(world: World, number: int) -> TxnId:
    txn_id = await world.begin()
    await (world.abort if number % 3 else world.commit)(txn_id)
    return txn_id
