"""Removes history from the log: all of it up to now, or the logs of clients that are gone or silent.

Two may still need an entry. A *reader* that has not come so far: it looks at the floors, so the floor is raised first,
and nothing above it is ever deleted. And the *writer* whose reply was lost: it looks for the entry of its last request,
and takes one that is not there for a request that never was applied (see `zookeeper_group_commit`). It has one request
in doubt at most, that of its newest entry. So the newest entry of a log goes only together with the log itself, in one
multi; a writer that finds its log gone knows that it does not know.

Time proves nothing here, as a client may be silent for long and a server's clock may jump. A log in which something
was written since it was looked at has another data version, and every multi that removes an idle one checks that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from metastore.backends.zookeeper_connection import ZooKeeperConnection
from metastore.backends.zookeeper_log import floor_of
from metastore.backends.zookeeper_paths import Paths
from metastore.backends.zookeeper_reads import Snapshots, in_parts
from metastore.backends.zookeeper_wire import Culprit, Multi, Node, check_op, delete_op, get_data, set_data
from metastore.types import Revision

DELETED_AT_ONCE = 500
# The log of a client that has written nothing for this long is removed when a client next opens the store.
IDLE_LOG_MS = 600_000


class History:
    """The removal of history. Several clients may do all of it at once, and it may end half-way."""

    def __init__(self, connection: ZooKeeperConnection, paths: Paths, snapshots: Snapshots, deadline_s: float) -> None:
        self._connection = connection
        self._paths = paths
        self._snapshots = snapshots
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()

    async def compact(self) -> None:
        """Remove all history up to now. Raises `StoreUnavailable`."""
        entries = [entry for home in await self._homes() for entry in (await self._entries(home))[:-1]]
        # The entries were listed before, so all of them are at or below it.
        _, tip = await self._snapshots.nodes((), self._deadline())
        await self._raise_floor(tip.stat.mzxid)
        await self._delete(entries)

    async def remove_idle_logs(self) -> None:
        """Remove the logs of clients that are gone or have been silent for long; the latter begin a new one when they
        write again.

        Raises `StoreUnavailable`.
        """
        homes = await self._homes()
        nodes, tip = await self._snapshots.nodes(homes, self._deadline())
        for home, node in zip(homes, nodes, strict=True):
            if node and node.stat.mtime < tip.stat.mtime - IDLE_LOG_MS:
                await self._remove(home, node)

    async def _remove(self, home: str, node: Node) -> None:
        """Remove a log that has been idle, unless its client has written since it looked like `node`."""
        unchanged = check_op(home, node.stat.version)
        entries = await self._entries(home)
        await self._raise_floor(node.stat.mzxid)
        if await self._delete(entries[:-1], unchanged):
            last = [*map(delete_op, entries[-1:]), delete_op(home)]
            await self._connection.ask(Multi([unchanged, *last]), self._deadline())

    async def _raise_floor(self, floor: Revision) -> None:
        """Record that entries up to this revision may be gone. Another client may be doing the same."""
        deadline = self._deadline()
        while True:
            (log,) = (await self._connection.read([get_data(self._paths.log)], deadline)).found
            assert isinstance(log, Node)
            if floor_of(log) >= floor:
                return
            raised = set_data(self._paths.log, b"%d" % floor, log.stat.version)
            (outcome,) = await self._connection.ask(Multi([raised]), deadline)
            if not isinstance(outcome, Culprit):
                return

    async def _delete(self, entries: Sequence[str], *checks: bytes) -> bool:
        """Delete the entries that still exist. Returns False, and stops, once one of the checks does not hold."""
        for part in in_parts(entries, DELETED_AT_ONCE):
            left = list(part)
            while left:
                operations = [*checks, *map(delete_op, left)]
                (outcome,) = await self._connection.ask(Multi(operations), self._deadline())
                if not isinstance(outcome, Culprit):
                    break
                if outcome.index < len(checks):
                    return False
                del left[outcome.index - len(checks)]
        return True

    async def _homes(self) -> list[str]:
        writers = await self._connection.children(self._paths.log, self._deadline())
        return [f"{self._paths.log}/{writer}" for writer in writers]

    async def _entries(self, home: str) -> list[str]:
        """The entries of one log, oldest first."""
        return [f"{home}/{number}" for number in sorted(await self._connection.children(home, self._deadline()))]

    def _deadline(self) -> float:
        return self._loop.time() + self._deadline_s
