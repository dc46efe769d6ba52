"""Records that go away with the session of the process that wrote them.

    <root>/alive/<owner>            ephemeral: ZooKeeper deletes it when the session ends
    <root>/held/<owner>/<number>    the key of a record; its czxid is the version of that record
    <root>/records/…                the record, like any other

The record itself is not an ephemeral znode: ZooKeeper would delete it without a log entry and without setting the tip,
so watches would miss the deletion, and reads would not be of one revision. The owner's znode is ephemeral in its place.
Every store watches `alive`. When an owner is gone, the fastest of them deletes what it held, by an ordinary apply that
checks the version, so that nothing is deleted that another process has written since.

An owner lives as long as one session and its name never comes back. After its session was lost, a process takes a new
name and writes its records again, unless another process has written them. Their versions change with that, so a
deletion in the name of the old owner that comes later finds nothing.

**Whose record it is, when a reply was lost**, the holder tells: it is made in the multi that writes the record, so a
record is ours if its version is the czxid of a holder of ours. Both are read at one revision, because the process that
cleans up deletes both at once. So a process remembers the holders of all its writes since the last one whose answer
came. To close a record in doubt also settles it: what is applied next waits for whatever is still on its way.
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
from metastore.backends.zookeeper_connection import LostError, ZooKeeperConnection
from metastore.backends.zookeeper_paths import Paths
from metastore.backends.zookeeper_reads import Snapshots
from metastore.backends.zookeeper_wire import (
    NO_AUTH,
    NOT_EMPTY,
    Culprit,
    Multi,
    Node,
    delete_op,
    get_children,
    get_data,
)
from metastore.background import Backoff, in_background
from metastore.errors import CheckFailed, MetastoreError, StoreUnavailable
from metastore.types import Absent, Applied, AtVersion, Batch, Version

Apply = Callable[[Batch, Sequence[bytes]], Awaitable[Applied]]


class HeldRecord(Ephemeral):
    """A record that ends by `close`, or with the process. `session` is the one in which it is held, as far as known."""

    def __init__(self, owner: Ephemerals, key: str, value: bytes) -> None:
        self._owner = owner
        self.key = key
        self.value = value
        self.session: int | None = None
        self.holders: list[str] = []
        self.closing = False

    async def close(self) -> None:
        """Delete the record. Raises the store's errors: then it ends with the session, and closing it may be tried
        again."""
        await self._owner.let_go(self)


class Ephemerals:
    """The records that this process holds, and the end of those whose owners are gone."""

    def __init__(
        self, connection: ZooKeeperConnection, paths: Paths, apply: Apply, snapshots: Snapshots, deadline_s: float
    ) -> None:
        self._connection = connection
        self._paths = paths
        self._apply = apply
        self._snapshots = snapshots
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._owner: tuple[str, int] | None = None
        self._numbers = itertools.count()
        self._held: list[HeldRecord] = []
        self._taking = asyncio.Lock()
        self._reaper = in_background(self._reap_for_ever(), "zookeeper ephemerals")
        self._keeper: asyncio.Task[None] | None = None
        connection.on_state.append(lambda connected: self._keep())

    async def close(self) -> None:
        """Stop. What is still held ends with the session."""
        tasks = [self._reaper, *([self._keeper] if self._keeper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def let_go_all(self) -> None:
        """Delete the records that are held, if that is possible now."""
        for held in list(self._held):
            with suppress(MetastoreError):  # then its session ends it
                await self.let_go(held)

    # -- holding ------------------------------------------------------------------------------------------------

    async def hold(self, key: str, value: bytes) -> HeldRecord:
        """Put the record, whatever was there before."""
        held = HeldRecord(self, key, value)
        async with self._taking:
            await self._write(held, Batch().put(key, value))
            self._held.append(held)
        self._keep()  # the session may have ended before there was anything to keep
        return held

    async def let_go(self, held: HeldRecord) -> None:
        """Delete the record, unless another process has written it since."""
        held.closing = True
        async with self._taking:
            if held not in self._held:
                return
            await self._delete(held)
            self._held.remove(held)
            for holder in held.holders:
                with suppress(StoreUnavailable):  # another process will see that it holds nothing
                    await self._connection.ask(Multi([delete_op(holder)]), self._deadline())

    async def _delete(self, held: HeldRecord) -> None:
        while True:
            version, is_ours = await self._look(held)
            batch = Batch()
            if version is None:
                batch.check(Absent(held.key))
            elif is_ours:
                batch.check(AtVersion(held.key, version)).delete(held.key)
            else:
                return
            with suppress(CheckFailed):
                await self._apply(batch, ())
                return

    async def _look(self, held: HeldRecord) -> tuple[Version | None, bool]:
        """The version of the record (None if it does not exist), and whether it is a write of ours."""
        paths = [self._paths.record(held.key), *held.holders]
        (record, *holders), _ = await self._snapshots.nodes(paths, self._deadline())
        version = record.stat.mzxid if record else None
        return version, version in [holder.stat.czxid for holder in holders if holder]

    async def _write(self, held: HeldRecord, batch: Batch) -> None:
        owner, session = await self._living_owner()
        holder = f"{self._paths.held}/{owner}/{next(self._numbers):010d}"
        held.holders.append(holder)
        try:
            await self._apply(batch, [self._paths.create(holder, held.key.encode())])
        except MetastoreError as error:
            if error.definite:
                held.holders.remove(holder)
            raise
        held.session, held.holders = session, [holder]

    async def _living_owner(self) -> tuple[str, int]:
        """An owner, and the session with which it lives. It is alive before it holds anything."""
        while self._owner is None or self._owner[1] != self._connection.session:
            name = secrets.token_hex(6)
            mark = f"{self._paths.alive}/{name}"
            made = Multi([self._paths.create(mark, ephemeral=True), self._paths.create(f"{self._paths.held}/{name}")])
            (outcome,) = await self._connection.ask(made, self._deadline())
            if isinstance(outcome, Culprit) and outcome.code == NO_AUTH:
                raise self._connection.denied()
            # A request that was sent twice fails the second time, and its session may be another one by then.
            (node,) = (await self._connection.read([get_data(mark)], self._deadline())).found
            if isinstance(node, Node):
                self._owner = name, node.stat.owner
        return self._owner

    # -- keeping ------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Make sure that what is held is held in the current session."""
        if self._keeper is None and self._lost():
            self._keeper = in_background(self._hold_again(), "zookeeper ephemerals again")

    def _lost(self) -> list[HeldRecord]:
        """The records whose session is over. None without a connection: there will be an event with the next one."""
        session = self._connection.session
        if session is None:
            return []
        return [held for held in self._held if held.session != session and not held.closing]

    async def _hold_again(self) -> None:
        """Write the records that were held in another session again, under an owner of this one."""
        backoff = Backoff()
        try:
            while lost := self._lost():
                try:
                    for held in lost:
                        async with self._taking:
                            await self._write_again(held)
                except MetastoreError:
                    await backoff.pause()
        finally:
            self._keeper = None

    async def _write_again(self, held: HeldRecord) -> None:
        while held in self._held and not held.closing:
            version, is_ours = await self._look(held)
            if version is not None and not is_ours:
                self._held.remove(held)
                return
            unchanged = Absent(held.key) if version is None else AtVersion(held.key, version)
            with suppress(CheckFailed):
                await self._write(held, Batch().check(unchanged).put(held.key, held.value))
                return

    # -- ending what the dead held --------------------------------------------------------------------------------

    async def _reap_for_ever(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._connection.wait_connected()
                changed = asyncio.Event()
                # Set before the look, so that an owner that ends after it is noticed.
                await self._connection.send(GetChildren(self._paths.alive, partial(self._wake, changed)))
                await self.reap()
                backoff.reset()
                await changed.wait()
            except (LostError, MetastoreError):
                await backoff.pause()

    def _wake(self, changed: asyncio.Event, _: object) -> None:
        """Note a change of the owners. Called on a thread of kazoo's."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(changed.set)

    async def reap(self) -> None:
        """Delete the records of owners that are gone. Raises `StoreUnavailable` if something of them is left."""
        # In this order, because an owner is alive before it holds anything.
        operations = [get_children(self._paths.held), get_children(self._paths.alive)]
        owners, alive = (await self._connection.read(operations, self._deadline())).found
        if isinstance(owners, list) and isinstance(alive, list):
            dead = [f"{self._paths.held}/{owner}" for owner in owners if owner not in alive]
            if not all([await self._bury(home) for home in dead]):
                raise StoreUnavailable("not everything that a dead process held is gone")

    async def _bury(self, home: str) -> bool:
        """Delete the records of one owner. Returns whether nothing of it is left."""
        for name in await self._connection.children(home, self._deadline()):
            holder = f"{home}/{name}"
            (node,) = (await self._connection.read([get_data(holder)], self._deadline())).found
            if isinstance(node, Node):
                key = node.data.decode()
                try:
                    await self._apply(Batch().check(AtVersion(key, node.stat.czxid)).delete(key), [delete_op(holder)])
                except CheckFailed:
                    await self._connection.ask(Multi([delete_op(holder)]), self._deadline())
                except StoreUnavailable:
                    continue  # another process was faster, or it still exists in the end
        (outcome,) = await self._connection.ask(Multi([delete_op(home)]), self._deadline())
        return not (isinstance(outcome, Culprit) and outcome.code == NOT_EMPTY)

    def _deadline(self) -> float:
        return self._loop.time() + self._deadline_s
