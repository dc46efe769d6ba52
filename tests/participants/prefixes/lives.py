"""Brokers that die, and the places that outlive them: a directory, or a bucket."""

from __future__ import annotations

import asyncio
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Self

import obstore
from obstore.store import MemoryStore as ObjectsInMemory

from coordinator.gc_sweep import GcSweep
from coordinator.transactions import Transactions
from metastore.api import Ephemeral
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metastore.txn.records.segments import SegmentRecord
from participants.broker.broker import Broker
from participants.common.metrics import BrokerMetrics
from participants.ledger.directories import segment_directory
from participants.ledger.local import LocalStorage
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.storage import LedgerStorage
from participants.segment.segment import Segment
from participants.topic.claims import Claims
from participants.topic.layout import LayoutUpkeep
from participants.topic.messages import Messages
from participants.topic.subscriptions import Subscriptions
from tests.participants.broker.process import NEVER_MS
from tests.participants.prefixes.steps import InPlace, MortalBucket, MortalDisk, MortalStore, Steps
from tests.participants.segment.world import World

SETTLE_MS = 20
COORDINATOR = 2
"""The id of those that live and die here; the one of `World` has another."""
_number = count(1)


class Place(ABC):
    """Where ledgers lie, no matter who lives."""

    @abstractmethod
    async def open(self, steps: Steps) -> LedgerStorage: ...

    @abstractmethod
    def after_death(self) -> Place:
        """The same place as the dead process has left it, out of its reach."""

    @abstractmethod
    def ledgers(self) -> dict[str, set[int]]:
        """By the directory of a segment: the numbers of the ledgers of which there is something."""

    @abstractmethod
    def drafts(self) -> list[str]:
        """What is there and is no ledger."""


class Files(Place):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def open(self, steps: Steps) -> LedgerStorage:
        return LocalStorage.open(self._directory, disk=MortalDisk(steps), executor=InPlace())

    def after_death(self) -> Place:
        copy = self._directory.with_name(f"{self._directory.name}+")
        shutil.copytree(self._directory, copy)
        return Files(copy)

    def ledgers(self) -> dict[str, set[int]]:
        directories = (self._directory / "ledgers").iterdir()
        return {each.name: {int(path.name[:20]) for path in _with_frames(each.iterdir())} for each in directories}

    def drafts(self) -> list[str]:
        """An index that no record names, and a draft of one, go with the ledger."""
        found = [path for path in (self._directory / "ledgers").rglob("*.*") if path.is_file()]
        ledgers = {path.with_name(path.name[:20]) for path in _with_frames(found)}
        hidden = {path for path in found if re.search(r"\.hidden\.\d+(\.tmp)?$", path.name)}
        orphans = [path.name for path in hidden if path.with_name(path.name.partition(".")[0]) not in ledgers]
        known = {*hidden, *_with_frames(found)}
        others = [path for path in found if path not in known and path.suffix != ".sealed"]
        return [*orphans, *(path.name for path in others)]


def _with_frames(files: Iterable[Path]) -> list[Path]:
    """Ledgers as they were sealed, and other forms of them."""
    return [path for path in files if re.fullmatch(r"\d{20}\.(ledger|form\.\d+\.\d+)", path.name)]


class Objects(Place):
    """A fence is no ledger: it stays until its segment is dropped."""

    def __init__(self) -> None:
        self._objects = ObjectsInMemory()

    async def open(self, steps: Steps) -> LedgerStorage:
        return await ObjectStorage.open(MortalBucket(steps, self._objects), executor=InPlace())

    def after_death(self) -> Place:
        return self

    def ledgers(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for chunk in obstore.list(self._objects, "ledgers"):
            for meta in chunk:
                _, segment, ledger, name = meta["path"].split("/")
                found.setdefault(segment, set())
                if name == "0" * 20:
                    found[segment].add(int(ledger))
        return found

    def drafts(self) -> list[str]:
        return []


class Life:
    """One process, from its start to its death or stop: a broker, and beside it a coordinator."""

    def __init__(self, world: World, place: Place, storage: LedgerStorage, steps: Steps) -> None:
        self.world = world
        self.place = place
        self.steps = steps
        self.storage = storage
        self.store = MortalStore(steps, world.store.inner)
        metrics = BrokerMetrics()
        self.url = f"http://broker-{next(_number)}"
        self.broker = Broker(
            self.store,
            storage,
            self.url,
            clock=world.now_ms,
            metrics=metrics,
            reconcile_interval_ms=NEVER_MS,
            settle_ms=SETTLE_MS,
            max_ledger_bytes=world.max_ledger_bytes,
        )
        self.layout = LayoutUpkeep(self.broker)
        self.claims = Claims(self.broker)
        self.messages = Messages(self.broker)
        self.subscriptions = Subscriptions(self.broker, self.messages)
        self.transactions = Transactions(self.store, world.now_ms, COORDINATOR, id_block_size=1)
        self.gc_sweep = GcSweep(self.store, world.now_ms, self.transactions.metrics, retention_ms=0)
        self._announcement: Ephemeral | None = None

    @classmethod
    async def create(cls, world: World, place: Place, steps: Steps) -> Self:
        """It has its storage, and does nothing yet."""
        return cls(world, place, await place.open(steps), steps)

    @classmethod
    async def start(cls, world: World, place: Place, steps: Steps) -> Self:
        life = await cls.create(world, place, steps)
        await life.begin()
        return life

    async def begin(self) -> None:
        await self.broker.start()
        record = BrokerRecord(url=self.url, storage=self.storage.storage_id)
        self._announcement = await self.world.store.inner.ephemeral(
            paths.broker_process(self.broker.id), record.encode(), 10_000
        )

    async def end(self) -> None:
        """The process is gone, killed or stopped."""
        if self._announcement is not None:
            await self._announcement.close()
        await self.broker.stop()
        await self.storage.close()

    # -- looking -----------------------------------------------------------------------------------------------

    async def records(self) -> dict[str, SegmentRecord]:
        """Of every segment that is not deleted, no matter who serves it."""
        found = await self.world.store.inner.scan(paths.SEGMENTS)
        records = {
            record.key.removeprefix(paths.SEGMENTS): SegmentRecord.decode(record.value) for record in found.records
        }
        return {key: record for key, record in records.items() if record.state != "deleted"}

    async def segment(self, segment_id: str) -> Segment:
        while segment_id not in self.broker.served:
            await asyncio.sleep(0.001)
        return self.broker.served[segment_id]

    async def serving(self) -> None:
        """Until every segment that is there is served here."""
        while {paths.segment(each) for each in self.broker.served} < {
            f"{paths.SEGMENTS}{key}" for key in await self.records()
        }:
            await asyncio.sleep(0.001)

    async def quiet(self) -> None:
        """Until nothing goes on behind the requests."""
        await self.serving()
        while tasks := {task for segment in self.broker.served.values() for task in segment._tasks}:
            await asyncio.wait(tasks)

    def directory_of(self, segment_id: str) -> str:
        return segment_directory(segment_id)
