"""Backups that are taken and pruned while everything fails, and what readers see of the last one in an empty cluster.

A backup is a snapshot of its revision: it is judged as those that auditors read (`checkers.snapshots`), with the same
histories. What it is made of is read by a process of its own, from the same disks or objects as the brokers', and its
place fails like their object store.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

from metastore.api import MetadataStore
from metastore.check import StoreCheck, dump
from metastore.errors import MetastoreError
from metastore.txn import paths
from metastore.txn.operator_decisions import decide_for_operator
from metastore.txn.states import TxnState
from metastore.txn.store import read_transaction
from metatxn.wire.ids import TxnId
from participants.backup import verifying
from participants.backup.manifest import Manifest
from participants.backup.place import BackupPlace, NoSuchBackup
from participants.backup.pruning import find_prunable, prune
from participants.backup.restoring import BackupRestorer
from participants.backup.taking import BackupOvertaken, BackupTaker
from participants.ledger.local import LocalStorage
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.storage import LedgerError, LedgerStorage
from participants.segment.rolling import DEFAULT_MAX_LEDGER_BYTES
from tests.simulation.bucket import Objects, SimulatedBucket
from tests.simulation.client import Client
from tests.simulation.cluster import Cluster
from tests.simulation.disk import Device, SimulatedDisk
from tests.simulation.history import History
from tests.simulation.network import Network
from tests.simulation.processes import Process
from tests.simulation.services import _IN_THE_LOOP, DATA_DIR, RECONCILE_INTERVAL_MS, SimulatedBroker
from tests.simulation.store import SimulatedStore, StoreServer
from tests.simulation.workloads.base import Workload

_PAUSE_S = (1.0, 12.0)
_LOOK_EVERY_S = 0.5
_GRACE_MS = (20_000, 90_000)
_MARGIN_MS = 15_000
"""More than clocks differ, or a put is late."""
_LATER_MS = 3_600_000
"""After all clocks of the story."""
_NAME = "restored"


class Backups:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._random = cluster.world.generator("backups")
        self._place = BackupPlace(SimulatedBucket(Objects(cluster.world)))
        self._grace_ms = self._random.randrange(*_GRACE_MS)
        self._last: Manifest | None = None
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._process = self._world.process("backups")
        tasks = {"backups": self._keep_taking(), "prunes": self._keep_pruning()}
        self._running = [self._process.spawn(task, name) for name, task in tasks.items()]

    async def finish(self) -> None:
        """Nothing of a process that has died runs any more, so nobody waits for it, also if it dies while it ends."""
        assert self._running
        if self._process.alive:
            for task in self._running:
                task.cancel()
        while self._process.alive and not all(task.done() for task in self._running):
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _keep_taking(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(*_PAUSE_S))
            try:
                await self._take()
            except (MetastoreError, LedgerError, BackupOvertaken) as error:
                self._world.trace.note("backups", f"there is none: {error!r}")

    async def _keep_pruning(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(*_PAUSE_S))
            try:
                now_ms, keep = self._process.wall_clock_ms(), self._random.randint(1, 2)
                prunable = await find_prunable(self._place, keep, now_ms, self._grace_ms)
                await prune(self._place, prunable, lambda done, total: None)
                self._world.trace.note("backups", f"pruned {prunable.backups}, {len(prunable.objects)} objects")
            except (LedgerError, NoSuchBackup) as error:
                self._world.trace.note("backups", f"not pruned: {error!r}")

    async def _take(self) -> None:
        async with AsyncExitStack() as stack:
            store = SimulatedStore(self._cluster.store, self._process)
            stack.push_async_callback(store.close)
            storages = [await stack.enter_async_context(each) for each in await self._storages()]
            clock, longest_ms = self._process.wall_clock_ms, self._grace_ms - _MARGIN_MS
            taker = BackupTaker(store, storages, self._place, clock, "simulated", longest_ms=longest_ms)
            self._last = await taker.take()
            self._world.trace.note("backups", f"{self._last.id} at revision {self._last.revision}")

    async def _storages(self) -> list[LedgerStorage]:
        cluster = self._cluster
        if cluster.objects is not None:
            return [await ObjectStorage.open_to_read(SimulatedBucket(cluster.objects), executor=_IN_THE_LOOP)]
        disks = [SimulatedDisk(device, self._process) for device in cluster.devices.values()]
        return [LocalStorage.open_to_read(DATA_DIR, disk=disk, executor=_IN_THE_LOOP) for disk in disks]

    # -- judging -------------------------------------------------------------------------------------------------

    async def judge(self, workload: Workload, history: History) -> None:
        """Nothing fails any more. What readers see of the last backup is one more snapshot."""
        ids = await self._place.ids()
        for each in ids:
            found = verifying.problems_of(self._place, await self._place.manifest(each))
            history.broken += [f"the backup {each}: {problem}" async for problem in found]
        if self._last is not None and not any(each >= self._last.id for each in ids):
            history.broken.append(f"the backup {self._last.id} is gone, and there is no later one")
        if not ids:
            return
        self._last = await self._place.manifest()  # one whose manifest has landed late is complete, too
        server, network, process = StoreServer(self._world), Network(self._world), self._world.process(_NAME)
        place = self._new_place()
        async with await self._opened(place, process) as storage:
            await BackupRestorer(server.truth, [storage], self._place, self._later_ms).restore(self._last)
        await self._abort_prepared(server.truth)
        async for finding in StoreCheck(server.truth).findings():
            history.broken.append(f"restored: {finding.key}: {finding.problem}")
        broker = SimulatedBroker(
            server, network, process, place, DEFAULT_MAX_LEDGER_BYTES, RECONCILE_INTERVAL_MS, drain_timeout_ms=1
        )
        await process.spawn(broker.start())
        await self._read(workload, network, history, self._last.revision)
        self._world.kill(process, "it was read")

    async def _abort_prepared(self, store: MetadataStore) -> None:
        """In place of their external coordinator: a restore leaves them open, and readers behind them."""
        async for record in dump(store, paths.PREPARED):
            records = await read_transaction(store, TxnId.parse(record.key.removeprefix(paths.PREPARED)))
            assert records is not None, "a prepared transaction has a header"
            await decide_for_operator(store, records, TxnState.ABORTED, self._later_ms(), "the story is over")

    def _new_place(self) -> Device | Objects:
        """Of either kind, whatever the cluster had."""
        return Objects(self._world) if self._random.random() < 0.5 else Device(self._world, _NAME)

    async def _opened(self, place: Device | Objects, process: Process) -> LedgerStorage:
        if isinstance(place, Objects):
            return await ObjectStorage.open(SimulatedBucket(place), executor=_IN_THE_LOOP)
        return LocalStorage.open(DATA_DIR, disk=SimulatedDisk(place, process), executor=_IN_THE_LOOP)

    def _later_ms(self) -> int:
        assert self._last is not None
        return self._last.finished_ms + _LATER_MS

    async def _read(self, workload: Workload, network: Network, history: History, revision: int) -> None:
        client = Client(self._world, network, [], [f"http://{_NAME}"], self._random, history)
        pages = []
        for topic in workload.topics:
            for place in await client.look(topic):
                pages += await workload.read_all(_NAME, client, place, "read_committed")
        history.snapshots.append(
            [
                replace(page, isolation="snapshot", revision=revision, floor=revision, at_revision=revision)
                for page in pages
            ]
        )
