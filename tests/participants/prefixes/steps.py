"""The places where a broker can die: behind each of its writes to the store, to its disk, and to its bucket.

A `Steps` counts them, over all edges of one process, and ends the process behind the one it was told: nothing that the
process tries from then on has an effect, and nothing answers it. Whatever it had done stays, as after `kill -9`.

    edge      steps
    -------------------------------------------------------------------------------------------------------------
    store     every apply that writes
    disk      create, write, sync (of a file, of a directory), truncate, rename, unlink, mkdir, rmdir
    bucket    every object that is put, every object that is deleted

The disk works in place of the calls, in one thread, so the same story takes the same steps each time. Its syncs are
steps and nothing more: what was written outlives a process. Power cuts are `test_torn_groups` and the simulator.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore.store import ObjectStore

from metastore.api import MetadataStore
from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.types import Applied, Batch
from participants.common.signal import Signal
from participants.ledger.bucket import Bucket
from participants.ledger.disk import Disk
from participants.ledger.storage import StorageFailed
from tests.participants.segment.faulty_store import FaultyStore

T = TypeVar("T")


class Steps:
    """`answered`: whether the process still learns that its last step was done, so that it may tell its client."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.dead = False
        self.died = Signal()
        self._armed = False
        self._last: int | None = None
        self._answered = True

    def arm(self, last: int | None, *, answered: bool = True) -> None:
        """From here on steps are counted, and the process dies behind the `last` one; None: it lives."""
        self._armed, self._last, self._answered = True, last, answered

    def disarm(self) -> None:
        self._armed = False

    def done(self, what: str) -> bool:
        """A step has been done; False: nobody hears of it."""
        if not self._armed or self.dead:
            return not self.dead
        self.trace.append(what)
        if len(self.trace) == self._last:
            self.dead = True
            self.died.notify()
            return self._answered
        return True


class InPlace(Executor):
    """Calls are done where they are asked for."""

    def submit(self, call: Callable[..., T], /, *args: Any, **more: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*args, **more))
        except BaseException as error:  # noqa: BLE001  it belongs to the one who waits
            future.set_exception(error)
        return future


class MortalStore(FaultyStore):
    """One process's way to a store that others have, too."""

    def __init__(self, steps: Steps, inner: MetadataStore) -> None:
        super().__init__(inner)
        self._steps = steps

    def _assert_near(self) -> None:
        if self._steps.dead:
            raise StoreUnavailable("the process is dead")

    async def _apply(self, batch: Batch) -> Applied:
        before = await self.inner.current_revision()
        applied = await self.inner.apply(batch)
        if applied.revision > before and not self._steps.done(f"apply {' '.join([*batch.puts, *batch.deletes])}"):
            raise OutcomeUnknown("the process is dead")
        return applied

    async def close(self) -> None:
        """It is not ours to close."""


class MortalDisk(Disk):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def _do(self, what: str, call: Callable[..., T], *args: Any) -> T:
        if self._steps.dead:
            raise _gone()
        result = call(*args)
        if not self._steps.done(what):
            raise _gone()
        return result

    def open(self, path: Path, flags: int) -> int:
        if not flags & os.O_CREAT:
            return super().open(path, flags)
        if self._steps.dead:
            raise _gone()
        fd = super().open(path, flags)
        if not self._steps.done(f"create {path.name}"):
            os.close(fd)
            raise _gone()
        return fd

    def write(self, fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        return self._do("write", super().write, fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        self._do("fdatasync", lambda: None)

    def fsync(self, fd: int) -> None:
        self._do("fsync", lambda: None)

    def truncate(self, fd: int, size: int) -> None:
        self._do("truncate", super().truncate, fd, size)

    def mkdir(self, path: Path) -> None:
        self._do("mkdir", super().mkdir, path)

    def rmdir(self, path: Path) -> None:
        self._do("rmdir", super().rmdir, path)

    def unlink(self, path: Path) -> None:
        self._do(f"unlink {path.name}", super().unlink, path)

    def rename(self, source: Path, target: Path) -> None:
        self._do(f"rename to {target.name}", super().rename, source, target)

    def fsync_dir(self, path: Path) -> None:
        self._do("fsync of a directory", lambda: None)


class MortalBucket(Bucket):
    def __init__(self, steps: Steps, store: ObjectStore) -> None:
        super().__init__(store)
        self._steps = steps
        self._objects = store

    async def create(self, name: str, content: bytes) -> None:
        self._assert_alive()
        await super().create(name, content)
        self._done(f"put {name}")

    async def put(self, name: str, content: bytes | memoryview) -> None:
        self._assert_alive()
        await super().put(name, content)
        self._done(f"replace {name}")

    async def move(self, name: str, target: str) -> None:
        self._assert_alive()
        await super().move(name, target)
        self._done(f"move {name}")

    async def delete(self, names: Sequence[str]) -> None:
        there = {meta["path"] for chunk in obstore.list(self._objects) for meta in chunk}
        for name in names:
            self._assert_alive()
            await super().delete([name])
            if name in there:
                self._done(f"delete {name}")

    async def get(self, name: str) -> bytes:
        self._assert_alive()
        return await super().get(name)

    def _assert_alive(self) -> None:
        if self._steps.dead:
            raise StorageFailed("the process is dead")

    def _done(self, what: str) -> None:
        if not self._steps.done(what):
            raise StorageFailed("the process is dead")


def _gone() -> OSError:
    return OSError(errno.EIO, "the process is dead")
