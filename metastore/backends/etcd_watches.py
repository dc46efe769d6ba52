"""Watches on etcd: one server watch per prefix and process, fanned out to any number of local ones.

Ten watches of one prefix on the server cost ten times the messages; a local one costs nothing.

The stream resumes after the last revision that was delivered *completely*. Progress notifications are neither asked
for nor trusted: before 3.4.25 they can run ahead of the events. A response marked as fragment is continued by the
next one, and all events of a revision are published as one `Changes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import groupby

import grpc.aio

from metastore.backends.etcd_connection import EndedAt, EtcdConnection
from metastore.backends.etcd_stubs import Event, WatchCreateRequest, WatchRequest, WatchResponse
from metastore.backends.etcd_wire import Wire
from metastore.background import Backoff, in_background
from metastore.errors import StoreUnavailable
from metastore.types import Changes, Revision, Watch
from metastore.watches import ChangeLog

CREATED_WITHIN_S = 10.0
"""The time that the server has to create a watch."""
RECENT_BYTES = 4 << 20
"""The size of the recent changes within which a further local watch may begin; an earlier one has a stream of its
own."""


class _CompactedError(Exception):
    """The revision to resume from is no longer in the history of the server."""


class PrefixFeed:
    """A server watch of `prefix` from `from_revision` on, until the last local watch is closed."""

    def __init__(
        self,
        connection: EtcdConnection,
        wire: Wire,
        prefix: str,
        from_revision: Revision,
        current_revision: Callable[[], Awaitable[Revision]],
        on_idle: Callable[[PrefixFeed], None],
    ) -> None:
        self._connection = connection
        self._wire = wire
        self.prefix = prefix
        self._next_revision = from_revision
        self._current_revision = current_revision
        self._log = ChangeLog(from_revision - 1, RECENT_BYTES, on_idle=lambda: on_idle(self))
        self._task = in_background(self._run(), f"etcd watch of {prefix}")

    def reaches(self, from_revision: Revision) -> bool:
        """Whether a local watch can begin at `from_revision` without missing anything."""
        return from_revision > self._log.floor

    def watch(self, from_revision: Revision) -> Watch:
        return self._log.watch(self.prefix, from_revision)

    def stop(self) -> None:
        """End the stream."""
        self._task.cancel()

    async def close(self) -> None:
        """End the stream and every local watch."""
        self.stop()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._log.close()

    async def _run(self) -> None:
        """Follow the changes until cancelled. Whatever ends a stream, the next one begins where the events ended."""
        backoff = Backoff()
        while True:
            try:
                try:
                    with self._connection.cut_off():
                        await self._follow(backoff)
                except _CompactedError:
                    await self._start_over()
            except (grpc.aio.AioRpcError, StoreUnavailable):
                pass
            await backoff.pause()
            with suppress(StoreUnavailable):
                # A read finds the member that serves, and gets the token that counts.
                await self._current_revision()

    async def _follow(self, backoff: Backoff) -> None:
        """Follow one stream, until it ends or fails."""
        key, range_end = self._wire.prefix_bounds(self.prefix)
        create = WatchCreateRequest(key=key, range_end=range_end, start_revision=self._next_revision, fragment=True)
        # A member that lost its leader ends the stream instead of keeping it silent.
        metadata = [*self._connection.metadata, ("hasleader", "true")]
        stream = self._connection.watches.Watch(metadata=metadata)
        try:
            async with EndedAt(asyncio.get_running_loop().time() + CREATED_WITHIN_S):
                await stream.write(WatchRequest(create_request=create))
                response = await stream.read()
            events: list[Event] = []
            while isinstance(response, WatchResponse):
                if response.canceled:
                    if response.compact_revision:
                        raise _CompactedError
                    return
                events += response.events
                if events and not response.fragment:
                    self._publish(events)
                    events = []
                    backoff.reset()
                response = await stream.read()
        finally:
            stream.cancel()

    def _publish(self, events: Sequence[Event]) -> None:
        for revision, changed in groupby(events, lambda event: event.kv.mod_revision):
            # Old servers (before 3.4.24) may repeat events after a restart.
            if revision < self._next_revision:
                continue
            self._next_revision = revision + 1
            shown = tuple(self._wire.event(event) for event in changed if not self._wire.is_marker(event.kv))
            if shown:
                self._log.publish(Changes(revision, shown))

    async def _start_over(self) -> None:
        """Continue at the present: what consumers read after the `Resync` is at least as new as that."""
        lost = self._next_revision
        revision = await self._current_revision()
        self._log.resync(revision, f"revision {lost} is compacted away")
        self._next_revision = revision + 1
