"""The edge to the object store that brokers share: names that are taken once, and requests that travel.

Faults on: a put that is lost, late (its caller has given up, then it lands), done without an answer, or repeated by the
library; gets and listings that fail; slow ones. Off: objects seen in part, a listing that misses an answered put, a
condition that is ignored: the stores named in `participants.ledger.bucket` promise not to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from participants.ledger.bucket import Bucket
from participants.ledger.storage import StorageFailed
from tests.simulation.world import World

T = TypeVar("T")
_LATE_S = 6.0


class Objects:
    """What is in the store."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.content: dict[str, bytes] = {}

    def put(self, name: str, content: bytes) -> bool:
        """False: the name is taken."""
        if name in self.content:
            return False
        self.content[name] = content
        self.world.trace.note("bucket", f"put {name}, {len(content)} bytes")
        return True


class SimulatedBucket(Bucket):
    """As one process reaches it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._world = objects.world
        self._faults = objects.world.faults

    async def create(self, name: str, content: bytes) -> None:
        put = bytes(content)
        if self._faults.happens("bucket_lost_request"):
            raise await self._failed(f"put {name}")
        if self._faults.happens("bucket_late"):
            self._world.later(self._faults.random.uniform(0, _LATE_S), self._objects.put, name, put)
            raise await self._failed(f"put {name}")
        created = await self._travel(lambda: self._objects.put(name, put))
        if self._faults.happens("bucket_lost_reply"):
            raise await self._failed(f"put {name}")
        if self._faults.happens("bucket_repeated"):
            created = self._objects.put(name, put)
        if not created:
            raise FileExistsError(f"{name} exists")

    async def get(self, name: str) -> bytes:
        await self._may_fail(f"get {name}")
        found = await self._travel(lambda: self._objects.content.get(name))
        if found is None:
            raise FileNotFoundError(f"{name} does not exist")
        return found

    async def get_range(self, name: str, start: int, end: int) -> bytes:
        return (await self.get(name))[start:end]

    async def sizes(self, directory: str) -> dict[str, int]:
        await self._may_fail(f"list {directory}")
        prefix = f"{directory}/"
        content = self._objects.content
        return await self._travel(
            lambda: {name: len(content[name]) for name in sorted(content) if name.startswith(prefix)}
        )

    async def sync(self, name: str) -> None:
        """What was put stays, whatever dies."""

    async def put(self, name: str, content: bytes | memoryview) -> None:
        await self._may_fail(f"put {name}")
        await self._travel(lambda: self._objects.content.update({name: bytes(content)}))

    async def directories(self, directory: str) -> list[str]:
        return sorted({name.removeprefix(f"{directory}/").split("/")[0] for name in await self.sizes(directory)})

    async def delete(self, names: Sequence[str]) -> None:
        await self._may_fail("delete")
        for name in names:
            await self._travel(lambda name=name: self._objects.content.pop(name, None))  # type: ignore[misc]

    async def _travel(self, effect: Callable[[], T]) -> T:
        """There and back; what was sent takes effect whatever becomes of the sender."""
        answer: asyncio.Future[T] = self._world.loop.create_future()

        def arrive() -> None:
            result = effect()
            self._world.later(self._faults.delay_s("bucket_slow", 0.01), give, result)

        def give(result: T) -> None:
            if not answer.done():
                answer.set_result(result)

        self._world.later(self._faults.delay_s("bucket_slow", 0.01), arrive)
        return await answer

    async def _may_fail(self, what: str) -> None:
        if self._faults.happens("bucket_failed"):
            raise await self._failed(what)

    async def _failed(self, what: str) -> StorageFailed:
        await asyncio.sleep(self._faults.delay_s("bucket_slow", 0.01))
        self._world.trace.note("bucket", f"failed: {what}")
        return StorageFailed(f"{what}: the connection broke")
