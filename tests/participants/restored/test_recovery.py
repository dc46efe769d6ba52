"""A cluster whose metadata store is restored from a backup: nobody serves it before it has been recovered, and then
everything that was not decided is decided alike on all topics.

The story, on every store and both kinds of storage:

    before the backup   committed; open at the backup, decided afterwards; open for good; prepared; aborted
    after it            committed; aborted; a split, and messages in its children; a new topic; open for good
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import metatxn
from coordinator.service import CoordinatorService
from metastore.check import StoreCheck
from metastore.errors import StoreWentBack
from metastore.incarnation import IncarnationGuard
from metastore.txn.states import TxnState
from metatxn.client import AsyncClient
from participants.ledger.bucket import Bucket
from participants.ledger.local import LocalStorage
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.storage import LedgerStorage, StorageRefused
from participants.restored.recovery import Difference, Recovered, StoreRecovery, Wishes
from participants.service import BrokerService, wall_clock_ms
from tests.extent import usually
from tests.participants.restored.backups import Etcd, RestorableStore, SqliteFile, ZooKeeper
from tests.servers import EtcdServer, ZooKeeperServer

NEVER_MS = 10**9
PLAIN = {"plain before", "plain after", "in a child", "in another child"}
COMMITTED_BEFORE = {"committed before"}
COMMITTED_AFTER = {"open at the backup", "committed after"}
NEVER_COMMITTED = {"open for good", "aborted after", "opened after"}


class Cluster:
    """One coordinator and one broker in this process; `files` or objects hold the ledgers."""

    def __init__(self, store: RestorableStore, directory: Path, *, files: bool) -> None:
        self.store = store
        self._place: dict[str, Any] = (
            {"data_dir": directory / "data"} if files else {"storage": f"file://{directory}/objects"}
        )
        self._life = AsyncExitStack()
        self.client: AsyncClient
        self.guards: list[IncarnationGuard] = []
        self._urls: list[str] = []

    async def start(self) -> AsyncClient:
        async with AsyncExitStack() as stack:
            store = await self.store.open()
            stack.push_async_callback(store.close)
            broker = BrokerService(store, port=0, reconcile_interval_ms=200, **self._place)
            await broker.start()
            stack.push_async_callback(broker.stop)
            coordinator = CoordinatorService(store, port=0, gc_interval_ms=NEVER_MS)
            await coordinator.start()
            stack.push_async_callback(coordinator.stop)
            self.guards, self._urls = [broker._guard, coordinator.guard], [broker.url, coordinator.url]
            client = metatxn.connect_async(coordinator.url, request_timeout_s=5)
            self.client = await stack.enter_async_context(client)
            self._life = stack.pop_all()
        return self.client

    async def stop(self) -> None:
        await self._life.aclose()

    async def not_ready(self) -> int:
        """How many of the two services say that they are not."""
        async with httpx.AsyncClient() as http:
            return [(await http.get(f"{url}/readyz")).status_code for url in self._urls].count(503)

    async def open_storage(self) -> LedgerStorage:
        if "data_dir" in self._place:
            return LocalStorage.open(self._place["data_dir"])
        return await ObjectStorage.open(Bucket.open(self._place["storage"]))

    async def recover(self, wishes: Wishes) -> tuple[list[Difference], Recovered]:
        store = await self.store.open()
        try:
            async with await self.open_storage() as storage:
                recovery = StoreRecovery(store, [storage], wall_clock_ms)
                differences = [each async for each in recovery.differences(wishes)]
                return differences, await recovery.recover(wishes)
        finally:
            await store.close()

    async def findings(self) -> list[str]:
        store = await self.store.open()
        try:
            return [f"{finding.key}: {finding.problem}" async for finding in StoreCheck(store).findings()]
        finally:
            await store.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> RestorableStore:
    return SqliteFile(tmp_path)


@pytest.fixture
def etcd(tmp_path: Path) -> Any:
    with EtcdServer(tmp_path / "etcd") as server:
        yield Etcd(server, tmp_path / "etcd")


@pytest.fixture
def zookeeper(tmp_path: Path) -> Any:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield ZooKeeper(server, tmp_path / "zookeeper")


@pytest.fixture
async def make_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[str, str], Cluster]]:
    made: list[Cluster] = []

    def make(store: str, place: str) -> Cluster:
        made.append(Cluster(request.getfixturevalue(store), tmp_path, files=place == "files"))
        return made[-1]

    yield make
    for cluster in made:
        await cluster.stop()


async def before_the_backup(client: AsyncClient) -> str:
    """Answers the transaction that is committed afterwards."""
    await client.create_topic("t", 2)
    await send(client, "plain before")
    async with client.transaction() as txn:
        await send(client, "committed before", txn)
    for _ in range(2):
        aborted = await client.begin()
        await send(client, "aborted before", aborted)
        await aborted.abort()
    await send(client, "open for good", await left_open(client))
    opened = await left_open(client)
    await send(client, "open at the backup", opened)
    return opened.id


async def after_the_backup(client: AsyncClient, opened: str) -> None:
    txn = client.attach(opened)
    await txn.commit()
    async with client.transaction() as committed:
        await send(client, "committed after", committed)
    aborted = await client.begin()
    await send(client, "aborted after", aborted)
    await aborted.abort()
    await send(client, "plain after")
    first = min((await client.topic("t")).segments, key=lambda segment: segment.range)
    await client.split_segment(first.segment)
    await send(client, "in a child")
    await send(client, "in another child", keys=range(100, 110))
    await client.create_topic("new", 1)
    await client.producer("new").send({"v": "in a new topic"}, key="1")
    await send(client, "opened after", await left_open(client))


async def left_open(client: AsyncClient) -> metatxn.AsyncTransaction:
    txn = await client.begin(timeout_ms=NEVER_MS // 100)
    txn.leave_open()
    return txn


async def send(
    client: AsyncClient, value: str, txn: metatxn.AsyncTransaction | None = None, keys: range = range(10)
) -> None:
    """To every segment of the topic."""
    producer = client.producer("t")
    for key in keys:
        await producer.send({"v": value}, key=str(key), txn=txn)
    await producer.flush()


async def values(client: AsyncClient, topic: str = "t") -> list[str]:
    return [row["v"] for row in (await client.read_table(topic)).to_pylist()]


async def values_behind_what_is_open(client: AsyncClient) -> set[str]:
    return {row["v"] for row in (await client.read_table("t", isolation="snapshot")).to_pylist()}


async def restored(cluster: Cluster) -> None:
    """Up to the restore; everything is stopped."""
    client = await cluster.start()
    opened = await before_the_backup(client)
    await cluster.stop()
    cluster.store.back_up()
    client = await cluster.start()
    await after_the_backup(client, opened)
    assert await values_behind_what_is_open(client) == PLAIN | COMMITTED_BEFORE | COMMITTED_AFTER
    await cluster.stop()
    cluster.store.restore()


USUAL = [
    ("sqlite", "files", TxnState.ABORTED),
    ("etcd", "objects", TxnState.ABORTED),
    ("zookeeper", "files", TxnState.COMMITTED),
]
CASES = usually(USUAL, [*USUAL, ("sqlite", "objects", TxnState.COMMITTED)])


@pytest.mark.parametrize(("store", "place", "undecided"), CASES, ids=lambda each: str(each))
async def test_a_restored_cluster(
    store: str, place: str, undecided: TxnState, make_cluster: Callable[[str, str], Cluster]
) -> None:
    cluster = make_cluster(store, place)
    await restored(cluster)
    for _ in range(2):  # the second time the store says so itself
        with pytest.raises(StoreWentBack, match="metatxn store recover"):
            await cluster.start()

    differences, recovered = await cluster.recover(Wishes(undecided=undecided))
    assert {difference.what for difference in differences} >= {"open transaction", "ledger of an unknown segment"}
    assert recovered.decided == 2 and not recovered.unavailable and recovered.ledgers > 0

    client = await cluster.start()
    kept = COMMITTED_AFTER | NEVER_COMMITTED if undecided is TxnState.COMMITTED else set()
    found = await values(client)
    assert set(found) == PLAIN | COMMITTED_BEFORE | kept
    assert all(found.count(value) == 10 for value in set(found))
    assert await values(client, "new") == ["in a new topic"]

    ids = {segment.segment for segment in (await client.topic("t")).segments}
    for segment in (await client.topic("t")).segments:
        if segment.state == "active":
            await client.split_segment(segment.segment)
    assert len({segment.segment for segment in (await client.topic("t")).segments}) == len(ids) + 4
    await send(client, "plain at last")
    async with client.transaction() as txn:
        await send(client, "committed at last", txn)
    # Other reads may begin before the brokers have heard of the commit.
    expected = PLAIN | COMMITTED_BEFORE | kept | {"plain at last", "committed at last"}
    assert await values_behind_what_is_open(client) == expected
    await cluster.stop()
    client = await cluster.start()
    assert set(await values(client)) == expected
    await cluster.stop()
    assert await cluster.findings() == []


async def test_ids_and_epochs_are_not_given_out_again(make_cluster: Callable[[str, str], Cluster]) -> None:
    cluster = make_cluster("sqlite", "files")
    client = await cluster.start()
    await client.connect_key("job")
    await cluster.stop()
    cluster.store.back_up()
    client = await cluster.start()
    epoch = (await client.connect_key("job")).epoch
    zombie = await client.begin(key="job", epoch=epoch)
    await client.create_topic("t")
    await cluster.stop()
    cluster.store.restore()
    await cluster.recover(Wishes())
    client = await cluster.start()
    assert (await client.connect_key("job")).epoch > epoch
    assert (await client.begin()).id > zombie.id
    with pytest.raises(metatxn.NotAllowed):
        await client.begin(key="job", epoch=epoch)


@pytest.mark.parametrize("place", ["files", "objects"])
async def test_unknown_ledgers_can_be_set_aside(place: str, make_cluster: Callable[[str, str], Cluster]) -> None:
    cluster = make_cluster("sqlite", place)
    await restored(cluster)
    differences, _ = await cluster.recover(Wishes(adopt=False))
    assert {each.then for each in differences if "ledger" in each.what} == {"set aside"}
    client = await cluster.start()
    assert set(await values(client)) == {"plain before", "committed before"}
    with pytest.raises(metatxn.NotFound):
        await values(client, "new")
    await client.create_topic("new", 1)
    await cluster.stop()
    assert await cluster.findings() == []


async def look(cluster: Cluster) -> None:
    for guard in cluster.guards:
        with suppress(StoreWentBack):  # the other one has noticed it, and they share their way to the store
            await guard.look()


async def assert_refused(cluster: Cluster, why: str) -> None:
    """Before any look of the guards, and after one."""
    client = cluster.client
    calls = (client.begin(), client.read_table("t"), client.create_topic("late"))
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, metatxn.StoreUnavailable) and why in str(answer), answer
    await look(cluster)
    assert await cluster.not_ready() == 2


@pytest.mark.parametrize("kind", ["etcd", "zookeeper", "sqlite"])
async def test_a_cluster_that_runs_through_a_restore_stops(
    kind: str, request: pytest.FixtureRequest, make_cluster: Callable[[str, str], Cluster]
) -> None:
    """On etcd the next look notices it, on the others the next request, no matter who sends it."""
    store: RestorableStore = request.getfixturevalue(kind)
    cluster = make_cluster(kind, "files")
    client = await cluster.start()
    await client.create_topic("t")
    store.back_up_hot()
    await send(client, "plain after")
    async with client.transaction() as txn:
        await send(client, "committed after", txn)
    await look(cluster)
    store.restore_under()
    if kind == "etcd":
        await look(cluster)
    elif isinstance(store, ZooKeeper):
        await store.answers(cluster.guards[0]._store)
    await assert_refused(cluster, "went back in time")
    await cluster.stop()
    with pytest.raises(StoreWentBack, match="metatxn store recover"):
        await cluster.start()
    await cluster.recover(Wishes())
    client = await cluster.start()
    assert set(await values(client)) == {"plain after"}
    await cluster.stop()  # before its server


async def test_a_cluster_whose_file_is_exchanged_stops(
    sqlite: SqliteFile, make_cluster: Callable[[str, str], Cluster]
) -> None:
    """What it would go on writing is in a file without a name."""
    cluster = make_cluster("sqlite", "files")
    client = await cluster.start()
    await client.create_topic("t")
    sqlite.back_up_hot()
    await send(client, "plain after")
    sqlite.move_over()
    await assert_refused(cluster, "another file is in the place of metadata.db")


async def test_the_ledgers_of_another_cluster_are_refused(
    make_cluster: Callable[[str, str], Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster("sqlite", "files")
    await cluster.start()
    await cluster.stop()
    cluster.store = SqliteFile(tmp_path / "other")
    with pytest.raises(StorageRefused, match="belong to another metadata store"):
        await cluster.start()
