"""A cluster of one node that is backed up, and the empty one into which the backup is restored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore as MemoryObjects

from metastore.api import MetadataStore
from metastore.check import EVERYTHING, StoreCheck
from metastore.txn import paths
from metastore.txn.records.processes import Incarnation
from metastore.txn.records.topics import TopicRecord
from metastore.types import RangeResult, Record
from participants.backup import verifying
from participants.backup.manifest import Manifest
from participants.backup.place import BackupPlace
from participants.backup.restoring import BackupRestorer, Restored
from participants.backup.taking import BackupTaker
from participants.ledger.bucket import Bucket
from participants.ledger.storage import LedgerStorage
from participants.segment.segment import Segment
from tests.coordinator.stores import WrappedStore
from tests.participants.devices import DeviceKind
from tests.participants.segment.world import SEGMENT, World

RESTORED_MS = 1_000_000
Then = Callable[[], Awaitable[None]]


class CutStore(WrappedStore):
    """Something happens before the records are read, after it, and each time the backup waits for brokers."""

    def __init__(
        self,
        inner: MetadataStore,
        before: Then | None = None,
        after: Then | None = None,
        waiting: Then | None = None,
    ) -> None:
        super().__init__(inner)
        self.before, self.after, self.waiting = before, after, waiting

    async def get_each(self, wanted: Iterable[str]) -> dict[str, Record | None]:
        found = await super().get_each(wanted)
        if self.waiting is not None:
            await self.waiting()
        return found

    async def range(self, start: str, end: str, **options: Any) -> RangeResult:
        whole = start == EVERYTHING and not options
        if whole and self.before is not None:
            await self.before()
        found = await super().range(start, end, **options)
        if whole and self.after is not None:
            await self.after()
        return found


class BackupCase:
    def __init__(self, world: World, directory: Path, device: DeviceKind, into: MetadataStore | None = None) -> None:
        """It is restored into the empty store `into`, or into one in memory."""
        self.world = world
        self.place = BackupPlace(Bucket(MemoryObjects()))
        self.restored = World(directory / "restored", device, into)
        self.restored._time_ms = count(RESTORED_MS)
        self.restoring: list[tuple[int, int]] = []
        """What was told of how far the restore is."""

    async def lawful(self) -> None:
        """The records that belong to the segment of the world."""
        topic = TopicRecord(name="public/default/t", segments=(SEGMENT,), next_segment=1, created_ms=1)
        batch = self.world.store.batch()
        batch.create(paths.INCARNATION, Incarnation(id="a" * 32, begun_ms=1).encode())
        batch.create(paths.topic(topic.name), topic.encode())
        await self.world.store.apply(batch.create(paths.id_sequence(1), b"1000"))

    async def begin(self) -> Segment:
        await self.lawful()
        self.node = await self.world.first_node()
        return await self.node.open()

    async def take(
        self,
        before: Then | None = None,
        after: Then | None = None,
        waiting: Then | None = None,
        storages: Sequence[LedgerStorage] = (),
    ) -> Manifest:
        store = CutStore(self.world.store.inner, before, after, waiting)
        return await BackupTaker(store, storages or [self.node.storage], self.place, self.world.now_ms, "0.3.0").take()

    async def problems(self, manifest: Manifest) -> list[str]:
        return [problem async for problem in verifying.problems_of(self.place, manifest)]

    async def restore(self, manifest: Manifest, **options: Any) -> Restored:
        self.device = self.restored.new_device("restored")
        async with await self.device.open() as storage:
            store, clock = self.restored.store.inner, self.restored.now_ms
            restorer = BackupRestorer(store, [storage], self.place, clock, lambda *told: self.restoring.append(told))
            return await restorer.restore(manifest, **options)

    async def served(self, segment: str = SEGMENT) -> Segment:
        """The segment as a broker of the restored cluster serves it."""
        self.node = node = await self.restored.node(self.device.again())
        return await node.open(segment)

    async def laws(self) -> list[str]:
        return [f"{found.key}: {found.problem}" async for found in StoreCheck(self.restored.store.inner).findings()]
