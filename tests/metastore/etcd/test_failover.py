"""Goal: with several endpoints a store outlives any one member: dead, dead from the start, frozen, cut off from the
others, back again; and in time all of them, when others take their place.

Method: three real members. The one in use and the one that leads are killed, frozen and cut off while callers write;
every answer is compared with what the cluster holds in the end, and a watch must have told all of it, once and in
order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from metastore.backends import etcd_connection, etcd_members
from metastore.backends.credentials import Tls
from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_members import EtcdMember
from metastore.backends.etcd_stubs import RangeRequest
from metastore.backends.options import EtcdOptions
from metastore.errors import CheckFailed, MetastoreError, OutcomeUnknown, StoreUnavailable
from metastore.types import Applied, Changes, EmptyRange
from tests.certificates import Authority
from tests.metastore.etcd.conftest import OpenStore
from tests.partitions import around, between_etcds
from tests.servers import EtcdCluster, EtcdServer, free_port

WRITERS = 8
BOUND_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def store(cluster: EtcdCluster) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(cluster.endpoints, "/failover", options=EtcdOptions(deadline_ms=5_000))
    yield store
    await store.close()


def in_use(store: EtcdStore, cluster: EtcdCluster) -> EtcdServer:
    return next(member for member in cluster.members if member.endpoint == in_use_endpoint(store))


class Writers:
    """Create records without pause, none twice, and keep the answers."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.answers: dict[str, Applied | MetastoreError] = {}
        self._written = asyncio.Event()
        self._stop = False
        self._tasks = [asyncio.create_task(self._write(name)) for name in range(WRITERS)]

    async def _write(self, name: int) -> None:
        number = 0
        while not self._stop:
            key = f"/n/{name}/{number:06d}"
            number += 1
            try:
                self.answers[key] = await self._store.apply(self._store.batch().create(key, b""))
                self._written.set()
            except MetastoreError as error:
                self.answers[key] = error

    async def more(self, count: int = 50) -> None:
        """Return when this many more applies have been successful: writing goes on."""
        goal = count + sum(isinstance(answer, Applied) for answer in self.answers.values())
        while sum(isinstance(answer, Applied) for answer in self.answers.values()) < goal:
            self._written.clear()
            await self._written.wait()

    async def stop(self) -> None:
        """Write `/n/end` behind everything, also behind what is still in doubt: the check touches all of it, and so
        waits until all is settled."""
        self._stop = True
        await asyncio.gather(*self._tasks)
        batches = [self._store.batch().check(EmptyRange("/n/", "/n0")), self._store.batch().put("/n/end", b"")]
        while batches:
            with suppress(StoreUnavailable, OutcomeUnknown):
                with suppress(CheckFailed):
                    await self._store.apply(batches[0])
                del batches[0]


async def check(store: EtcdStore, writers: Writers, told: list[tuple[int, str]]) -> None:
    """Every answer is true, and `told` has each record that is there, once and in order."""
    stored = {record.key: record.version for record in (await store.scan("/n/")).records if record.key != "/n/end"}
    for key, answer in writers.answers.items():
        if isinstance(answer, Applied):
            assert stored.get(key) == answer.revision
        elif answer.definite:
            assert key not in stored, answer
    assert sorted((revision, key) for key, revision in stored.items()) == sorted(told)
    assert [revision for revision, _ in told] == sorted(revision for revision, _ in told)


async def follow(store: EtcdStore, start: int, told: list[tuple[int, str]]) -> None:
    """Until the record `/n/end`, which is not told."""
    async with store.watch("/n/", start) as watch:
        async for item in watch:
            assert isinstance(item, Changes), "there was a gap"
            if item.events[-1].key == "/n/end":
                return
            told += [(item.revision, event.key) for event in item.events]


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_reads_writes_and_watches_go_on_without_any_one_member(
    cluster: EtcdCluster, store: EtcdStore, fault: str
) -> None:
    told: list[tuple[int, str]] = []
    following = asyncio.create_task(follow(store, await store.current_revision() + 1, told))
    writers = Writers(store)
    async with asyncio.timeout(BOUND_S):
        await writers.more()
        for leading in (False, True):
            victim = await asyncio.to_thread(cluster.leader) if leading else in_use(store, cluster)
            getattr(victim, fault)()
            await writers.more()
            assert leading or in_use(store, cluster) is not victim
            while await reading(store) is None:
                continue
            if fault == "kill":
                await asyncio.to_thread(victim.start)
            else:
                victim.thaw()
            await writers.more()
        await writers.stop()
        await following
    await check(store, writers, told)


async def reading(store: EtcdStore) -> int | None:
    try:
        return await store.current_revision()
    except StoreUnavailable:
        return None


async def test_a_call_outlives_the_freezing_of_the_member_in_use(cluster: EtcdCluster) -> None:
    """The deadline is shorter than what gRPC takes to notice it, and there is time left for the others."""
    store = await EtcdStore.open(cluster.endpoints, "/frozen", options=EtcdOptions(deadline_ms=12_000))
    for call in (lambda: store.get("/a"), lambda: store.apply(store.batch().put("/a", b""))):
        victim = in_use(store, cluster)
        victim.freeze()
        async with asyncio.timeout(BOUND_S):
            await call()
        assert in_use(store, cluster) is not victim
        victim.thaw()
    await store.close()


async def test_a_watch_moves_to_another_member_while_nobody_writes(cluster: EtcdCluster, store: EtcdStore) -> None:
    other = await EtcdStore.open(list(reversed(cluster.endpoints)), "/failover")
    async with asyncio.timeout(BOUND_S), store.watch("/n/", await store.current_revision() + 1) as watch:
        first = await other.apply(other.batch().put("/n/1", b""))
        item = await anext(watch)
        assert isinstance(item, Changes) and item.revision == first.revision
        in_use(store, cluster).kill()
        second = await other.apply(other.batch().put("/n/1", b""))
        item = await anext(watch)
        assert isinstance(item, Changes) and item.revision == second.revision
    await other.close()


@pytest.mark.parametrize("dropped", [False, True], ids=["refused", "dropped"])
async def test_reads_writes_and_watches_go_on_without_a_member_that_lost_the_others(
    tmp_path: Path, dropped: bool
) -> None:
    """It still takes connections and requests, and a leader thinks for a while that it leads."""
    cluster = EtcdCluster(tmp_path)
    async with between_etcds(cluster) as ways, started(cluster):
        store = await EtcdStore.open(cluster.endpoints, "/partitioned", options=EtcdOptions(deadline_ms=5_000))
        told: list[tuple[int, str]] = []
        following = asyncio.create_task(follow(store, await store.current_revision() + 1, told))
        writers = Writers(store)
        async with asyncio.timeout(BOUND_S):
            await writers.more()
            for leading in (False, True):
                victim = await asyncio.to_thread(cluster.leader) if leading else in_use(store, cluster)
                (ways.hold if dropped else ways.cut)(*around(cluster.members.index(victim), 3))
                await writers.more()
                assert leading or in_use(store, cluster) is not victim
                while await reading(store) is None:
                    continue
                ways.mend()
                await writers.more()
            await writers.stop()
            await following
        await check(store, writers, told)
        await store.close()


@asynccontextmanager
async def started(cluster: EtcdCluster) -> AsyncIterator[None]:
    """Beside the event loop, which carries what the members say to each other."""
    await asyncio.to_thread(cluster.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(cluster.__exit__, None, None, None)


async def test_a_member_that_says_that_it_cannot_serve_is_left_at_once(
    tmp_path: Path, own_server: EtcdServer, open_store: OpenStore
) -> None:
    """A member that still learns refuses everything, quickly. Calls that wait long must not wait there, nor go round
    between addresses of it, nor to one where nobody is."""
    with joined(own_server, tmp_path, "--learner") as learner:
        endpoints = [learner.endpoint, f"localhost:{learner.port}", f"127.0.0.1:{free_port()}", own_server.endpoint]
        async with asyncio.timeout(BOUND_S):
            store = await EtcdStore.open(endpoints, "/learning", options=EtcdOptions(deadline_ms=60_000))
            members = store._connection.members
            for call in (lambda: store.get("/a"), lambda: store.apply(store.batch().put("/a", b""))):
                members.in_use = members.all[0]
                while [member.ready for member in members.all] != [True, True, False, True]:
                    await members.wait_for_change()
                await call()
                assert in_use_endpoint(store) == own_server.endpoint
            members.leave(members.all[0], silent=False)
            assert in_use_endpoint(store) == own_server.endpoint, "another one is in use already"
            unheard_of = RangeRequest(key=b"/", revision=1 << 40)
            with pytest.raises(grpc.aio.AioRpcError):
                await store._connection.call(store._connection.kv.Range, unheard_of, 5)
            assert in_use_endpoint(store) == own_server.endpoint, "nobody else would take that either"
            await store.close()
            store = await open_store(own_server)
            await store._connection.learn_members()
            assert [member.address for member in store._connection.members.all] == [own_server.endpoint]


AT_ONCE = ("--strict-reconfig-check=false",)
"""Lets members come and go before the cluster has known them for some seconds."""


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[EtcdServer]:
    """A cluster of one that lets others come and go at once."""
    with EtcdServer(tmp_path / "first", flags=AT_ONCE) as server:
        yield server


async def test_members_that_took_the_place_of_others_are_found(
    tmp_path: Path, changing: EtcdServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was given is one address, and one day nobody is there any more."""
    monkeypatch.setattr(etcd_connection, "MEMBERS_EVERY_S", 0.02)
    store = await open_store(changing, "/replaced")
    await store.apply(store.batch().create("/a", b""))
    with joined(changing, tmp_path, flags=AT_ONCE) as newcomer:
        while newcomer.endpoint not in [member.address for member in store._connection.members.all]:
            await store.current_revision()
        own, its = member_id(changing, changing.name), member_id(changing, newcomer.name)
        await asyncio.to_thread(changing.etcdctl, "move-leader", its)  # who removes itself as a leader may not answer
        await asyncio.to_thread(newcomer.etcdctl, "member", "remove", own)
        changing.kill()
        async with asyncio.timeout(BOUND_S):
            while await reading(store) is None:
                continue
            assert in_use_endpoint(store) == newcomer.endpoint
            record = await store.get("/a")
            assert record is not None and record.first
            await store.apply(store.batch().create("/b", b""))


async def test_nobody_is_found_where_another_cluster_serves(
    tmp_path: Path, etcd_server: EtcdServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a member says that it serves at `localhost`, which is true on its own machine."""
    advertised = ("--advertise-client-urls", f"http://{etcd_server.endpoint}")
    with EtcdServer(tmp_path / "etcd", flags=advertised) as server, joined(server, tmp_path, flags=advertised):
        store = await open_store(server)
        tried: list[EtcdMember] = []

        def member(*arguments: Any) -> EtcdMember:
            tried.append(EtcdMember(*arguments))
            return tried[-1]

        monkeypatch.setattr(etcd_members, "EtcdMember", member)
        await store._connection.learn_members()
        assert [member.address for member in store._connection.members.all] == [server.endpoint]
        assert [closed(one) for one in tried] == [True]


async def test_members_are_learned_once_and_forgotten_when_they_leave(
    changing: EtcdServer, tmp_path: Path, open_store: OpenStore
) -> None:
    store = await open_store(changing)
    members = store._connection.members
    with joined(changing, tmp_path) as newcomer:
        await learned(store, newcomer)
        await store._connection.learn_members()
        assert [member.address for member in members.all] == [changing.endpoint, newcomer.endpoint]
        given = [f"localhost:{server.port}" for server in (changing, newcomer)]
        other = await EtcdStore.open(given, "/given")
        while not all(member.ready for member in other._connection.members.all):
            await other._connection.members.wait_for_change()
        await other._connection.learn_members()
        assert [member.address for member in other._connection.members.all] == given, "by another name"
        await other.close()
        left, forgotten = member_id(changing, newcomer.name), members.all[1]
        await asyncio.to_thread(changing.etcdctl, "member", "remove", left)
        await store._connection.learn_members()
        assert [member.address for member in members.all] == [changing.endpoint]
        assert closed(forgotten)


def closed(member: EtcdMember) -> bool:
    return all(
        channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN for channel in (member.requests, member.streams)
    )


def member_id(server: EtcdServer, name: str) -> str:
    listed = server.etcdctl("member", "list")["members"]
    return next(f"{one['ID']:x}" for one in listed if one["name"] == name)


async def learned(store: EtcdStore, newcomer: EtcdServer) -> None:
    """A member tells the others where it serves some time after it does."""
    while newcomer.endpoint not in [member.address for member in store._connection.members.all]:
        await store._connection.learn_members()


@contextmanager
def joined(server: EtcdServer, directory: Path, *how: str, flags: tuple[str, ...] = ()) -> Iterator[EtcdServer]:
    """A second member of the cluster of `server`."""
    newcomer = EtcdServer(
        directory / "newcomer", name="newcomer", flags=(*flags, "--initial-cluster-state", "existing")
    )
    newcomer.cluster = f"{server.cluster},{newcomer.cluster}"
    server.etcdctl("member", "add", newcomer.name, "--peer-urls", newcomer.peer, *how)
    with newcomer:
        yield newcomer


async def test_the_first_endpoint_may_be_dead_from_the_start(cluster: EtcdCluster) -> None:
    cluster.members[0].kill()
    endpoints = [f"127.0.0.1:{free_port()}", *cluster.endpoints]
    async with asyncio.timeout(BOUND_S):
        store = await EtcdStore.open(endpoints, "/dead")
        applied = await store.apply(store.batch().create("/a", b""))
        record = await store.get("/a")
        assert record is not None and record.version == applied.revision
        await store.close()


async def test_the_first_endpoint_may_be_frozen_from_the_start(cluster: EtcdCluster) -> None:
    cluster.members[0].freeze()
    async with asyncio.timeout(BOUND_S):
        store = await EtcdStore.open(cluster.endpoints, "/frozen", options=EtcdOptions(deadline_ms=10_000))
        await store.apply(store.batch().create("/a", b""))
        await store.close()


async def test_the_loss_of_the_majority_is_an_error_in_time_and_ends_with_it(
    cluster: EtcdCluster, store: EtcdStore
) -> None:
    victims = cluster.members[:2]
    for member in victims:
        member.kill()
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(MetastoreError) as lost:
            await store.apply(store.batch().create("/a", b""))
        assert lost.value.retriable or not lost.value.definite
        with pytest.raises(StoreUnavailable):
            await store.get("/a")
        for member in victims:
            await asyncio.to_thread(member.launch)
        for member in victims:
            await asyncio.to_thread(member.wait_healthy)
        while await reading(store) is None:
            continue
        await store.apply(store.batch().put("/a", b"2"))


async def test_each_member_proves_its_own_name(tmp_path: Path) -> None:
    """The certificates are of different hosts: checking all of them against one name would leave only one member."""
    authority = Authority(tmp_path / "authority")
    certificates = [authority.sign("m0"), authority.sign("m1", host="elsewhere.example"), authority.sign("m2")]
    with EtcdCluster(tmp_path, certificates) as cluster:
        async with asyncio.timeout(BOUND_S):
            store = await EtcdStore.open(cluster.endpoints[1:], "/names", tls=Tls(authority.ca))
            assert in_use_endpoint(store) == cluster.members[2].endpoint
            await store.apply(store.batch().create("/a", b""))
            await store.close()
            only = cluster.endpoints[1:2]
            with pytest.raises(StoreUnavailable, match="Hostname Verification"):
                await EtcdStore.open(only, "/names", options=EtcdOptions(deadline_ms=2_000), tls=Tls(authority.ca))


def in_use_endpoint(store: EtcdStore) -> str:
    return store._connection.members.in_use.address
