"""Makes the faults of a schedule, each for its time, and takes all of them back."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import httpx

from metastore.backends.zookeeper import ZooKeeperStore
from metastore.errors import MetastoreError
from metastore.urls import open_store
from tests.chaos.cluster import POLL_S, Cluster, Member
from tests.chaos.mixes import Fault
from tests.chaos.schedule import Strike, whole
from tests.chaos.service import Service
from tests.chaos.store_space import fill, make_room
from tests.metastore.storms.relay import Way
from tests.partitions import around
from tests.servers import EtcdServer, ZooKeeperServer

COMPACTION_S = 0.1
STORM_PAUSE_S = 2.5
"""Some of those that are killed have just begun to serve, some have not yet."""

HELD: dict[Fault, tuple[list[Way], bool]] = {
    Fault.LATE_REQUESTS: (["requests"], False),
    Fault.LOST_REQUESTS: (["requests"], True),
    Fault.LATE_REPLIES: (["replies"], False),
    Fault.LOST_REPLIES: (["replies"], True),
    Fault.SILENCE: (["requests", "replies"], False),
}
"""What is held, and whether it is lost in the end."""


class Nemesis:
    """`made` counts the faults by kind."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By what is struck: on a busy machine a fault may begin late, and then end when the next one is due there."""
        self.made: Counter[Fault] = Counter()

    async def rage(self, strikes: Sequence[Strike]) -> None:
        """Until the last fault is over."""
        start = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as raging:
            for strike in strikes:
                await asyncio.sleep(max(0.0, start + strike.at_s - asyncio.get_running_loop().time()))
                raging.create_task(self._strike(strike))

    async def _strike(self, strike: Strike) -> None:
        if strike.fault in (Fault.DISK, Fault.STORE_DISK) and not self._cluster.disks[strike.target].mounted:
            return
        async with self._turns[whole(strike.target)]:
            self.made[strike.fault] += 1
            async with self._fault(strike):
                await asyncio.sleep(strike.for_s)

    @asynccontextmanager
    async def _fault(self, strike: Strike) -> AsyncIterator[None]:
        match strike.fault:
            case Fault.KILL:
                with _killed(self._cluster.everyone[strike.target]):
                    yield
            case Fault.FREEZE:
                with _frozen(self._cluster.everyone[strike.target]):
                    yield
            case Fault.RESTARTS:
                async with _beside(self._storm(self._cluster.services[strike.target])):
                    yield
            case Fault.RELEASE:
                await self._cluster.upgrade_or_back(strike.target)
                yield
            case Fault.STOP:
                async with _stopped(self._cluster.services[strike.target]):
                    yield
            case Fault.DRAIN:
                try:
                    await self._cluster.drains(strike.target)
                    yield
                finally:
                    while not await self._cluster.drains(strike.target, end=True):
                        await asyncio.sleep(POLL_S)
            case Fault.COMPACTION:
                async with _beside(self._compact()):
                    yield
            case Fault.LEADER:
                with _frozen(await self._leader()):
                    yield
            case Fault.QUORUM:
                first, second, *_ = self._cluster.members.values()
                with _killed(first), _killed(second):
                    yield
            case Fault.APART | Fault.APART_SILENT:
                with self._apart(strike.target, silent=strike.fault is Fault.APART_SILENT):
                    yield
            case Fault.STORE_FULL:
                members = list(self._cluster.members.values())
                try:
                    await fill(members)
                    yield
                finally:
                    await make_room(members)
            case Fault.DISK:
                with self._full(strike.target):
                    yield
            case Fault.STORE_DISK:
                async with self._store_disk_full(strike.target):
                    yield
            case _:
                with self._lost_way(strike.target, strike.fault):
                    yield

    @contextmanager
    def _lost_way(self, target: str, fault: Fault) -> Iterator[None]:
        way = self._cluster.way(target)
        if fault is Fault.CUT:
            way.cut()
            try:
                yield
            finally:
                way.mend()
            return
        ways, lose = HELD[fault]
        for one in ways:
            way.hold(one)
        try:
            yield
        finally:
            way.release(lose=lose)

    @contextmanager
    def _apart(self, member: str, *, silent: bool) -> Iterator[None]:
        peers = self._cluster.peers
        alone = around(list(self._cluster.members).index(member), len(self._cluster.members))
        (peers.hold if silent else peers.cut)(*alone)
        try:
            yield
        finally:
            peers.mend()

    @contextmanager
    def _full(self, target: str) -> Iterator[None]:
        disk = self._cluster.disks[target]
        disk.fill()
        try:
            yield
        finally:
            disk.free()

    @asynccontextmanager
    async def _store_disk_full(self, name: str) -> AsyncIterator[None]:
        """A member of ZooKeeper is stopped before there is space again, as docs/stores.md tells operators: it would go
        on behind a torn record of its log, and forget what it acknowledges from then on."""
        member = self._cluster.members[name]
        is_ill = isinstance(member, ZooKeeperServer)
        with self._full(name):
            yield
            if is_ill:
                member.kill()
        if is_ill:
            member.launch()
        await self._cluster.revive(name)

    async def _storm(self, service: Service) -> None:
        while True:
            with _killed(service):
                await asyncio.sleep(0)
            await asyncio.sleep(STORM_PAUSE_S)

    async def _leader(self) -> Member:
        """The one that says so; the first one if nobody does."""
        for member in self._cluster.members.values():
            if await asyncio.to_thread(member.leads):
                return member
        return next(iter(self._cluster.members.values()))

    async def _compact(self) -> None:
        member = next(iter(self._cluster.members.values()))
        await (_compact_etcd(member) if isinstance(member, EtcdServer) else _compact_zookeeper(member))


@contextmanager
def _killed(victim: Member | Service) -> Iterator[None]:
    victim.kill()
    try:
        yield
    finally:
        victim.launch()


@asynccontextmanager
async def _stopped(victim: Service) -> AsyncIterator[None]:
    """It ends when it has drained, which may take longer than it was to stay away."""
    await victim.stop()
    try:
        yield
    finally:
        victim.launch()


@contextmanager
def _frozen(victim: Member | Service) -> Iterator[None]:
    victim.freeze()
    try:
        yield
    finally:
        victim.thaw()


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """`work` goes on until the block ends; what it fails with fails the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        yield
        task.cancel()


async def _compact_etcd(member: Member) -> None:
    """Over its gateway: a process for each would cost more than all that it disturbs."""
    url = f"http://{member.endpoint}/v3/kv"
    async with httpx.AsyncClient(timeout=5) as http:
        while True:
            with suppress(httpx.TransportError, KeyError):
                key = {"key": base64.b64encode(b"/").decode()}
                revision = (await http.post(f"{url}/range", json=key)).json()["header"]["revision"]
                await http.post(f"{url}/compaction", json={"revision": revision, "physical": True})
            await asyncio.sleep(COMPACTION_S)


async def _compact_zookeeper(member: Member) -> None:
    store = await open_store(f"zk://{member.endpoint}/chaos")
    assert isinstance(store, ZooKeeperStore)
    try:
        while True:
            with suppress(MetastoreError):
                await store.compact()
            await asyncio.sleep(COMPACTION_S)
    finally:
        await store.close()
