"""Records that go away with the session of the process that wrote them.

    <root>/alive/<owner>            ephemeral: ZooKeeper deletes it when the session ends
    <root>/held/<owner>/<number>    the key of a record; its czxid is the version of that record
    <root>/records/…                the record, like any other

The record itself is no ephemeral znode: ZooKeeper would delete it without a log entry and without setting the tip, so
that watches missed it and reads of one revision were none. The owner's znode is ephemeral in its place. Every store
watches `alive`. When an owner is gone, whoever is fastest deletes what it held, by an ordinary apply that checks
the version, so that nothing is taken away that somebody else has written since.

An owner lives as long as one session and its name never comes back. After its session was lost, a process takes a new
name and writes its records again, unless somebody else has written them. Their versions change with that, so a
deletion in the name of the old owner that comes later finds nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from kazoo.protocol.serialization import GetChildren

from metastore.api import Ephemeral
from metastore.backends.zookeeper_connection import Connection, LostError
from metastore.backends.zookeeper_paths import Paths
from metastore.backends.zookeeper_wire import Culprit, Multi, Node, delete, get_children, get_data
from metastore.background import Backoff, in_background
from metastore.errors import CheckFailed, MetastoreError, StoreUnavailable
from metastore.types import Absent, Applied, AtVersion, Batch, Record, Version

Apply = Callable[[Batch, Sequence[bytes]], Awaitable[Applied]]
Get = Callable[[str], Awaitable[Record | None]]


class HeldRecord(Ephemeral):
    """Ends by `close`, or with the session."""

    def __init__(self, owner: Ephemerals, key: str, value: bytes) -> None:
        self._owner = owner
        self.key = key
        self.value = value
        self.version: Version = 0
        self.holder = ""

    async def close(self) -> None:
        await self._owner.let_go(self)


class Ephemerals:
    """The records that this process holds, and the end of those whose owners are gone."""

    def __init__(self, connection: Connection, paths: Paths, apply: Apply, get: Get, deadline_s: float) -> None:
        self._connection = connection
        self._paths = paths
        self._apply = apply
        self._get = get
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._owner: str | None = None
        self._session: int | None = None
        self._numbers = itertools.count()
        self._held: list[HeldRecord] = []
        self._taking = asyncio.Lock()
        self._reaper = in_background(self._reap_for_ever(), "zookeeper ephemerals")
        self._keeper: asyncio.Task[None] | None = None
        connection.on_state.append(self._on_state)

    async def close(self) -> None:
        """Stop. What is still held ends with the session."""
        tasks = [self._reaper, *([self._keeper] if self._keeper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def let_go_all(self) -> None:
        """Delete what is held, if that is possible now."""
        for held in list(self._held):
            with suppress(MetastoreError):  # then its session ends it
                await self.let_go(held)

    # -- holding ------------------------------------------------------------------------------------------------

    async def hold(self, key: str, value: bytes) -> HeldRecord:
        """Put the record, whatever was there."""
        held = HeldRecord(self, key, value)
        async with self._taking:
            await self._write(held, Batch().put(key, value))
            self._held.append(held)
        return held

    async def let_go(self, held: HeldRecord) -> None:
        """Delete the record, unless somebody else has written it since."""
        async with self._taking:
            if held not in self._held:
                return
            with suppress(CheckFailed):
                await self._apply(Batch().check(AtVersion(held.key, held.version)).delete(held.key), ())
            self._held.remove(held)
            with suppress(StoreUnavailable):  # somebody will see that it holds nothing
                await self._connection.ask(Multi([delete(held.holder)]), self._deadline())

    async def _write(self, held: HeldRecord, batch: Batch) -> None:
        owner = await self._living_owner()
        held.holder = f"{self._paths.held}/{owner}/{next(self._numbers):010d}"
        applied = await self._apply(batch, [self._paths.create(held.holder, held.key.encode())])
        held.version = applied.revision

    async def _living_owner(self) -> str:
        """The owner of this session. It is alive before it holds anything."""
        if self._owner is None or self._session != self._connection.session:
            owner = secrets.token_hex(6)
            session = self._connection.session
            request = Multi(
                [
                    self._paths.create(f"{self._paths.alive}/{owner}", ephemeral=True),
                    self._paths.create(f"{self._paths.held}/{owner}"),
                ]
            )
            # Sent twice it fails at the first operation, which is there: it is ours.
            await self._connection.ask(request, self._deadline())
            self._owner, self._session = owner, session
        return self._owner

    def _on_state(self, connected: bool) -> None:
        if connected and self._held and self._connection.session != self._session and self._keeper is None:
            self._keeper = self._loop.create_task(self._hold_again(), name="zookeeper ephemerals again")

    async def _hold_again(self) -> None:
        """The session was lost. Write what was held again, under a new owner."""
        backoff = Backoff()
        try:
            while self._connection.session != self._session:
                try:
                    async with self._taking:
                        await self._living_owner()
                        for held in list(self._held):
                            await self._write_again(held)
                except MetastoreError:
                    self._session = None
                    await backoff.pause()
        finally:
            self._keeper = None

    async def _write_again(self, held: HeldRecord) -> None:
        while True:
            record = await self._get(held.key)
            batch = Batch().put(held.key, held.value)
            if record is None:
                batch.check(Absent(held.key))
            elif record.version == held.version:
                batch.check(AtVersion(held.key, held.version))
            else:
                self._held.remove(held)
                return
            with suppress(CheckFailed):
                await self._write(held, batch)
                return

    # -- ending what the dead held --------------------------------------------------------------------------------

    async def _reap_for_ever(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._connection.wait_connected()
                changed = asyncio.Event()
                # Set before the look, so that whoever dies behind it is noticed.
                await self._connection.send(GetChildren(self._paths.alive, partial(self._wake, changed)))
                await self.reap()
                backoff.reset()
                await changed.wait()
            except (LostError, MetastoreError):
                await backoff.pause()

    def _wake(self, changed: asyncio.Event, _: object) -> None:
        """On a thread of kazoo's."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(changed.set)

    async def reap(self) -> None:
        """Delete the records of owners that are gone."""
        # In this order: who holds something was alive before that.
        operations = [get_children(self._paths.held), get_children(self._paths.alive)]
        owners, alive = (await self._connection.read(operations, self._deadline())).found
        if isinstance(owners, list) and isinstance(alive, list):
            for owner in owners:
                if owner not in alive:
                    await self._bury(f"{self._paths.held}/{owner}")

    async def _bury(self, home: str) -> None:
        (names,) = (await self._connection.read([get_children(home)], self._deadline())).found
        for name in names if isinstance(names, list) else ():
            holder = f"{home}/{name}"
            (node,) = (await self._connection.read([get_data(holder)], self._deadline())).found
            if isinstance(node, Node):
                key = node.data.decode()
                try:
                    await self._apply(Batch().check(AtVersion(key, node.stat.czxid)).delete(key), [delete(holder)])
                except CheckFailed:
                    await self._connection.ask(Multi([delete(holder)]), self._deadline())
                except StoreUnavailable:
                    continue  # somebody else was faster
        outcome = await self._connection.ask(Multi([delete(home)]), self._deadline())
        assert outcome[0] is None or isinstance(outcome[0], Culprit)

    def _deadline(self) -> float:
        return self._loop.time() + self._deadline_s
