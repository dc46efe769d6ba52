"""Reads of one revision, from a store that has no snapshots.

Every apply sets the tip in its multi. Servers let no read run beside a write that they apply, and answer a session in
order; so what lies between two reads that saw the same tip was read at one revision. A few keys are read in one
multi-read, where the tip practically never moves in between; if it does, they are read again.

**A range** takes several rounds: list directories, then read records. Writers do not stand still for that, and
waiting for a quiet moment would starve. So the rounds may see different revisions, from r1 at the first look at the
tip to r2 at the last, and the changes later than r1 are then taken from the log and laid over what was found:

    a key that no change names was the same from r1 to r2, whenever it was read;
    a key that a change names is afterwards what the last change says.

Both together are the state at the revision up to which the log was read. If the log has been trimmed meanwhile, or
changes took so much from a limited listing that it is too short now, the range is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from metastore import keys
from metastore.backends.zookeeper_connection import OPERATIONS_PER_READ, Connection, Reading
from metastore.backends.zookeeper_log import LogReader, TrimmedError
from metastore.backends.zookeeper_paths import Paths
from metastore.backends.zookeeper_wire import Node, get_children, get_data
from metastore.types import RangeResult, Record

T = TypeVar("T")

_AHEAD = 64


def record_of(key: str, node: Node, keys_only: bool = False) -> Record:
    """A version is the zxid of the multi that wrote the record last; a data version of 0 says that it was the first."""
    return Record(key, b"" if keys_only else node.data, node.stat.mzxid, node.stat.version == 0)


def _common(one: str, other: str) -> str:
    """The longest prefix of both."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return one[:index]
    return min(one, other, key=len)


def in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


@dataclass(slots=True)
class Listing:
    """A range as it was at the revision of `tip`, and the directories that were looked into, parents first."""

    result: RangeResult
    tip: Node
    directories: list[str]


@dataclass(order=True, slots=True)
class _Item:
    """A record or a directory in the order of the keys: all keys below a directory begin with its `key`."""

    key: str
    is_directory: bool
    path: str = field(compare=False)


class _AgainError(Exception):
    """What was read cannot be made whole."""


class Snapshots:
    """Reads. `on_empty` is told directories that hold nothing, so that they can be removed some time."""

    def __init__(self, connection: Connection, paths: Paths, on_empty: Callable[[str], None]) -> None:
        self._connection = connection
        self._paths = paths
        self._on_empty = on_empty

    async def nodes(self, paths: Sequence[str], deadline: float) -> tuple[list[Node | None], Node]:
        """Znodes at one revision, that of the tip which comes with them. Raises `StoreUnavailable`."""
        operations = [get_data(path) for path in paths]
        while True:
            parts = list(in_parts(operations, OPERATIONS_PER_READ)) or [()]
            readings = await asyncio.gather(*(self._connection.read(part, deadline) for part in parts))
            if len({tip.stat.mzxid for reading in readings for tip in (reading.before, reading.after)}) == 1:
                found = [node if isinstance(node, Node) else None for reading in readings for node in reading.found]
                return found, readings[0].before

    async def range(
        self,
        start: str,
        end: str,
        deadline: float,
        *,
        limit: int = 0,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> Listing:
        """Raises `StoreUnavailable`."""
        while True:
            walk = _Walk(self._connection, self._paths, start, end, deadline)
            try:
                records, more = await walk.read(limit, reverse, keys_only)
            except _AgainError:
                continue
            assert walk.last is not None
            for directory in walk.empty:
                self._on_empty(directory)
            return Listing(RangeResult(records, walk.last.stat.mzxid, more), walk.last, walk.directories)


class _Walk:
    """One attempt to read a range."""

    def __init__(self, connection: Connection, paths: Paths, start: str, end: str, deadline: float) -> None:
        self._connection = connection
        self._paths = paths
        self._start = start
        self._end = end
        self._deadline = deadline
        self.first: Node | None = None
        self.last: Node | None = None
        self.directories: list[str] = []
        self.empty: list[str] = []

    async def read(self, limit: int, reverse: bool, keys_only: bool) -> tuple[list[Record], bool]:
        items = await self._expand(self._roots())
        items.sort(reverse=reverse)
        wanted = limit + 1 if limit else 0
        while any(item.is_directory for item in (items[:wanted] if wanted else items)):
            # Without a limit every directory is needed; with one only the first, some ahead because they may be empty.
            leading = items[: max(wanted, _AHEAD)] if wanted else items
            inside = [item for item in leading if item.is_directory]
            items = [item for item in leading if not item.is_directory] + items[len(leading) :]
            items += await self._expand(inside)
            items.sort(reverse=reverse)
        complete = not wanted or len(items) <= wanted
        taken = items[:wanted] if wanted else items
        found = await self._records(taken, keys_only)
        assert self.first is not None and self.last is not None
        if self.first.stat.mzxid != self.last.stat.mzxid:
            boundary = None if complete else taken[-1].key
            await self._lay_changes_over(found, boundary, reverse, keys_only)
            if not complete and len(found) < wanted:
                raise _AgainError
        records = [found[key] for key in sorted(found, reverse=reverse)]
        if not limit:
            return records, False
        return records[:limit], len(records) > limit

    def _roots(self) -> list[_Item]:
        """The deepest directory that holds the whole range."""
        if self._start >= self._end:
            return []
        prefix = _common(self._start, self._end)
        longer = self._start[: len(prefix) + 1]
        if len(longer) > len(prefix) and longer.rstrip(chr(0x10FFFF)) and keys.prefix_end(longer) == self._end:
            prefix = longer
        directory = prefix[: prefix.rfind("/") + 1]
        if directory:
            return [_Item(directory, True, self._paths.directory(directory))]
        return [_Item(prefix, True, self._paths.directory(prefix)) for prefix in ("", "/")]

    async def _expand(self, directories: Sequence[_Item]) -> list[_Item]:
        """What the directories hold within the range."""
        items: list[_Item] = []
        parts = list(in_parts(directories, OPERATIONS_PER_READ))
        readings = await self._all([[get_children(item.path) for item in part] for part in parts])
        for part, reading in zip(parts, readings, strict=True):
            for directory, names in zip(part, reading.found, strict=True):
                if isinstance(names, list):
                    self.directories.append(directory.path)
                    if not names:
                        self.empty.append(directory.path)
                    items += self._within(directory, names)
        return items

    def _within(self, directory: _Item, names: list[str]) -> Iterator[_Item]:
        start, end = self._start, self._end
        for name in names:
            if directory.path == self._paths.records and self._paths.is_special(name):
                continue
            part, is_directory = self._paths.child(name)
            key = directory.key + part
            if not is_directory:
                if start <= key < end:
                    yield _Item(key, False, f"{directory.path}/{name}")
            elif key + "/" < end and keys.prefix_end(key + "/") > start:
                yield _Item(key + "/", True, f"{directory.path}/{name}")

    async def _records(self, items: Sequence[_Item], keys_only: bool) -> dict[str, Record]:
        found: dict[str, Record] = {}
        parts = list(in_parts(items, OPERATIONS_PER_READ))
        readings = await self._all([[get_data(item.path) for item in part] for part in parts])
        for part, reading in zip(parts, readings, strict=True):
            for item, node in zip(part, reading.found, strict=True):
                if isinstance(node, Node):
                    found[item.key] = record_of(item.key, node, keys_only)
        return found

    async def _all(self, parts: Sequence[Sequence[bytes]]) -> list[Reading]:
        """Also without anything to read, the tip is looked at."""
        readings = await asyncio.gather(*(self._connection.read(part, self._deadline) for part in parts or [()]))
        for reading in readings:
            if self.first is None or reading.before.stat.mzxid < self.first.stat.mzxid:
                self.first = reading.before
            if self.last is None or reading.after.stat.mzxid > self.last.stat.mzxid:
                self.last = reading.after
        return readings if parts else []

    async def _lay_changes_over(
        self, found: dict[str, Record], boundary: str | None, reverse: bool, keys_only: bool
    ) -> None:
        """Bring what was found to the revision up to which the log says everything. Behind `boundary` nothing was
        read, so what changed there is left out."""
        assert self.first is not None
        reader = LogReader(self._connection, self._paths, self.first.stat.mzxid)
        try:
            changes, self.last = await reader.advance(self._deadline)
        except TrimmedError:
            raise _AgainError from None
        low = boundary if boundary is not None and reverse else self._start
        high = boundary if boundary is not None and not reverse else None
        for event in (event for change in changes for event in change.events):
            if event.key < low or event.key >= self._end or (high is not None and event.key > high):
                continue
            if event.record is None:
                found.pop(event.key, None)
            else:
                record = event.record
                found[event.key] = Record(record.key, b"", record.version, record.first) if keys_only else record
