"""Removes directories that hold nothing.

Directories come with the first record that needs them, in its multi. They go some time later, and nothing depends on
when: an empty one is not a record. ZooKeeper refuses to delete a znode that has children, so a client that creates a
record at the same moment wins; and a client that assumed that the directory exists fails, looks, and creates it again.
"""

from __future__ import annotations

import asyncio

from metastore.backends.zookeeper_connection import OPERATIONS_PER_READ, LostError, ZooKeeperConnection
from metastore.backends.zookeeper_paths import Paths, parent
from metastore.backends.zookeeper_plan import Beliefs
from metastore.backends.zookeeper_wire import Culprit, Multi, Node, delete_op, get_data
from metastore.errors import StoreUnavailable

PAUSE_S = 1.0
_MAX_NOTED = 100_000


class Janitor:
    """Examines the directories that it was told about, after a pause in which they may be used again."""

    def __init__(self, connection: ZooKeeperConnection, paths: Paths, beliefs: Beliefs, deadline_s: float) -> None:
        self._connection = connection
        self._paths = paths
        self._beliefs = beliefs
        self._deadline_s = deadline_s
        self._noted: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def note(self, directory: str) -> None:
        """This directory may be empty."""
        if len(directory) > len(self._paths.records) and len(self._noted) < _MAX_NOTED:
            self._noted[directory] = None
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run(), name="zookeeper janitor")

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._noted:
                await asyncio.sleep(PAUSE_S)
                noted = list(self._noted)[:OPERATIONS_PER_READ]
                for directory in noted:
                    del self._noted[directory]
                try:
                    await self.remove_empty(noted)
                except (LostError, StoreUnavailable):
                    continue  # the next listing of them will note them again
        finally:
            self._task = None

    async def remove_empty(self, directories: list[str]) -> None:
        """Remove those of `directories` that are empty now. Raises `LostError`, `StoreUnavailable`."""
        deadline = asyncio.get_running_loop().time() + self._deadline_s
        reading = await self._connection.read([get_data(directory) for directory in directories], deadline)
        empty = [
            directory
            for directory, node in zip(directories, reading.found, strict=True)
            if isinstance(node, Node) and node.stat.children == 0
        ]
        self._beliefs.directories.difference_update(empty)
        while empty:
            (outcome,) = await self._connection.send(Multi([delete_op(directory) for directory in empty]))
            if not isinstance(outcome, Culprit):
                break
            del empty[outcome.index]
        for directory in empty:
            self.note(parent(directory))
