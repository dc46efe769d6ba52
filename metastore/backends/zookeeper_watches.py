"""Watches on ZooKeeper: the log is followed from one znode, the tip.

A watch of ZooKeeper fires once, says neither what changed nor how often, and is gone with its connection. None of
that matters here: it only wakes the feed, which reads the log on from where it was. The watch is set *before* the log
is read, so a change that the reading misses has fired it. A feed that was away, for a moment or longer than its
session lived, resumes by revision in the same way; there is a gap only where the log has been trimmed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from metastore.backends.zookeeper_connection import LostError, ZooKeeperConnection
from metastore.backends.zookeeper_log import GapError, LogReader
from metastore.backends.zookeeper_paths import Paths
from metastore.backends.zookeeper_wire import Watched
from metastore.background import Backoff, in_background
from metastore.errors import StoreUnavailable
from metastore.types import Revision, Watch
from metastore.watches import ChangeLog


class Feed:
    """All changes from `from_revision` on, until the last local watch is closed."""

    def __init__(
        self,
        connection: ZooKeeperConnection,
        paths: Paths,
        from_revision: Revision,
        deadline_s: float,
        on_idle: Callable[[Feed], None],
    ) -> None:
        self._connection = connection
        self._paths = paths
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._reader = LogReader(connection, paths, from_revision - 1)
        self._log = ChangeLog(from_revision - 1, on_idle=lambda: on_idle(self))
        self._task = in_background(self._run(), "zookeeper watch")

    def reaches(self, from_revision: Revision) -> bool:
        """Whether a local watch can begin at `from_revision` without missing anything."""
        return from_revision > self._log.floor

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        return self._log.watch(prefix, from_revision)

    def stop(self) -> None:
        self._task.cancel()

    async def close(self) -> None:
        """End the feed and every local watch."""
        self.stop()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._log.close()

    async def _run(self) -> None:
        """Follow the log until cancelled."""
        backoff = Backoff()
        while True:
            try:
                await self._connection.wait_connected()
                changed = asyncio.Event()
                await self._connection.send(Watched(self._paths.tip, partial(self._wake, changed)))
                await self._read_on()
                backoff.reset()
                await changed.wait()
            except (LostError, StoreUnavailable):
                await backoff.pause()

    def _wake(self, changed: asyncio.Event, _: object) -> None:
        """Called on a thread of kazoo's."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(changed.set)

    async def _read_on(self) -> None:
        deadline = self._loop.time() + self._deadline_s
        try:
            changes, _ = await self._reader.advance(deadline)
        except GapError as gap:
            # What consumers read after the `Resync` is at least as new as this.
            tip = (await self._connection.read((), deadline)).before.stat.mzxid
            self._log.resync(tip, str(gap))
            self._reader = LogReader(self._connection, self._paths, self._log.revision)
            return
        for change in changes:
            self._log.publish(change)
