"""Reads of one revision, from a store that has no snapshots.

Every apply sets the tip in its multi. Servers let no read run beside a write that they apply, and answer a session in
order; so what lies between two reads that saw the same tip was read at one revision. A few keys are read in one
multi-read, where the tip practically never moves in between; if it does, they are read again.

**A range** takes several rounds: list directories, then read records; and **many keys** take several requests. Writers
do not stand still for that, and waiting for a quiet moment would starve. So the requests may see different revisions,
from r1 at the first look at the tip to r2 at the last, and the changes later than r1 are then taken from the log and
laid over what was found:

    a key that no change names was the same from r1 to r2, whenever it was read;
    a key that a change names is afterwards what the last change says.

Both together are the state at the revision up to which the log was read. If the log has been trimmed meanwhile, or
changes took so much from a limited listing that it is too short now, the range is read again.

**However large.** A read of very many records takes longer than a request may take, and more may be written meanwhile
than the log keeps. So its requests are sent in groups, each group has the time of one request, and the log is followed
from group to group. Such a read fails when ZooKeeper stops answering, and not because there is much to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from metastore import keys
from metastore.backends.zookeeper_connection import OPERATIONS_PER_READ, Found, ZooKeeperConnection
from metastore.backends.zookeeper_listings import Child, ZooKeeperListings, within
from metastore.backends.zookeeper_log import GapError, LogReader
from metastore.backends.zookeeper_paths import Paths
from metastore.backends.zookeeper_wire import Node, get_children, get_data
from metastore.types import Event, RangeResult, Record, Snapshot

T = TypeVar("T")

_AHEAD = 64
REQUESTS_TOGETHER = 40
"""The size of a group."""


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
class ZooKeeperListing:
    """A range as it was at the revision of `tip`, and the directories that were looked into, parents first."""

    result: RangeResult
    tip: Node
    directories: list[str]


class _AgainError(Exception):
    """The results of the reads cannot be combined into one revision."""


class Snapshots:
    """Reads of one revision. `on_empty` is called with directories that are empty, so that they can be removed
    later."""

    def __init__(self, connection: ZooKeeperConnection, paths: Paths, on_empty: Callable[[str], None]) -> None:
        self._connection = connection
        self._paths = paths
        self._on_empty = on_empty
        self._listings = ZooKeeperListings(paths)

    async def nodes(self, paths: Sequence[str], deadline: float) -> tuple[list[Node | None], Node]:
        """Znodes at one revision, that of the tip which comes with them. Raises `StoreUnavailable`."""
        operations = [get_data(path) for path in paths]
        while True:
            parts = list(in_parts(operations, OPERATIONS_PER_READ)) or [()]
            readings = await asyncio.gather(*(self._connection.read(part, deadline) for part in parts))
            if len({tip.stat.mzxid for reading in readings for tip in (reading.before, reading.after)}) == 1:
                found = [node if isinstance(node, Node) else None for reading in readings for node in reading.found]
                return found, readings[0].before

    async def records(self, wanted: Sequence[str], deadline: float) -> Snapshot:
        """Records of any number of keys, at one revision. Raises `StoreUnavailable`."""
        reads = [get_data(self._paths.record(key)) for key in wanted]
        while True:
            rounds = _Rounds(self._connection, self._paths, deadline)
            try:
                nodes = await rounds.find(reads)
                changed = await rounds.changes()
            except _AgainError:
                continue
            found = {
                key: record_of(key, node) if isinstance(node, Node) else None
                for key, node in zip(wanted, nodes, strict=True)
            }
            found.update((event.key, event.record) for event in changed if event.key in found)
            assert rounds.last is not None
            return Snapshot(found, rounds.last.stat.mzxid)

    async def range(
        self,
        start: str,
        end: str,
        deadline: float,
        *,
        limit: int = 0,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> ZooKeeperListing:
        """Records of a range, at one revision. Raises `StoreUnavailable`."""
        while True:
            walk = _Walk(self._connection, self._paths, self._listings, start, end, deadline)
            try:
                records, more = await walk.read(limit, reverse, keys_only)
            except _AgainError:
                continue
            assert walk.last is not None
            for directory in walk.empty:
                self._on_empty(directory)
            return ZooKeeperListing(RangeResult(records, walk.last.stat.mzxid, more), walk.last, walk.directories)


class _Rounds:
    """Requests that see revisions from that of the tip `first` to that of the tip `last`."""

    def __init__(self, connection: ZooKeeperConnection, paths: Paths, deadline: float) -> None:
        self._connection = connection
        self._paths = paths
        self._deadline = deadline
        self._time = asyncio.get_running_loop().time
        self._patience_s = deadline - self._time()
        self._log: LogReader | None = None
        self._changed: list[Event] = []
        self.first: Node | None = None
        self.last: Node | None = None

    async def find(self, operations: Sequence[bytes]) -> list[Found]:
        """Even without any operation, the tip is read. Raises `_AgainError` as `changes` does."""
        found: list[Found] = []
        parts = list(in_parts(operations, OPERATIONS_PER_READ)) or [()]
        for number, group in enumerate(in_parts(parts, REQUESTS_TOGETHER)):
            if number:
                await self._follow()
                self._deadline = self._time() + self._patience_s
            readings = await asyncio.gather(*(self._connection.read(part, self._deadline) for part in group))
            for reading in readings:
                if self.first is None or reading.before.stat.mzxid < self.first.stat.mzxid:
                    assert self._log is None, "reads are linearizable"
                    self.first = reading.before
                if self.last is None or reading.after.stat.mzxid > self.last.stat.mzxid:
                    self.last = reading.after
                found += reading.found
        return found

    async def changes(self) -> list[Event]:
        """What to lay over the results so that all of them are of the revision of `last`, which this moves. Raises
        `_AgainError`: the log does not tell it any more."""
        assert self.first is not None and self.last is not None
        if self.first.stat.mzxid == self.last.stat.mzxid:
            return []
        await self._follow()
        return self._changed

    async def _follow(self) -> None:
        """Take from the log what has changed since, before it may be trimmed."""
        assert self.first is not None
        self._log = self._log or LogReader(self._connection, self._paths, self.first.stat.mzxid)
        try:
            changes, self.last = await self._log.advance(self._deadline)
        except GapError:
            raise _AgainError from None
        self._changed += [event for change in changes for event in change.events]


class _Walk(_Rounds):
    """One attempt to read a range."""

    def __init__(
        self,
        connection: ZooKeeperConnection,
        paths: Paths,
        listings: ZooKeeperListings,
        start: str,
        end: str,
        deadline: float,
    ) -> None:
        super().__init__(connection, paths, deadline)
        self._listings = listings
        self._start = start
        self._end = end
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
        if changed := await self.changes():
            boundary = None if complete else taken[-1].key
            self._lay_over(found, changed, boundary, reverse, keys_only)
            if not complete and len(found) < wanted:
                raise _AgainError
        records = [found[key] for key in sorted(found, reverse=reverse)]
        if not limit:
            return records, False
        return records[:limit], len(records) > limit

    def _roots(self) -> list[Child]:
        """The deepest directory that holds the whole range."""
        if self._start >= self._end:
            return []
        prefix = _common(self._start, self._end)
        longer = self._start[: len(prefix) + 1]
        if len(longer) > len(prefix) and longer.rstrip(chr(0x10FFFF)) and keys.prefix_end(longer) == self._end:
            prefix = longer
        directory = prefix[: prefix.rfind("/") + 1]
        if directory:
            return [Child(directory, True, self._paths.directory(directory))]
        return [Child(prefix, True, self._paths.directory(prefix)) for prefix in ("", "/")]

    async def _expand(self, directories: Sequence[Child]) -> list[Child]:
        """What the directories hold within the range."""
        found = await self._children(directories)
        items: list[Child] = []
        for directory in directories:
            children = found.get(directory.path)
            if children is not None:
                self.directories.append(directory.path)
                items += within(children, directory, self._start, self._end)
                if not children:
                    self.empty.append(directory.path)
        return items

    async def _children(self, directories: Sequence[Child]) -> dict[str, Sequence[Child]]:
        """What the directories hold, as far as they are there. One round, or two when a kept listing is outdated."""
        found: dict[str, Sequence[Child]] = {}
        if large := [directory for directory in directories if self._listings.keeps(directory)]:
            nodes = await self.find([get_data(directory.path) for directory in large])
            for directory, node in zip(large, nodes, strict=True):
                children = self._listings.children(directory, node.stat) if isinstance(node, Node) else None
                if children is not None:
                    found[directory.path] = children
        if len(found) < len(directories) or not directories:
            unknown = [directory for directory in directories if directory.path not in found]
            # Each directory before its names, and both in one request: an even number of operations fits in one.
            pairs = [read(directory.path) for directory in unknown for read in (get_data, get_children)]
            answers = await self.find(pairs)
            for directory, node, names in zip(unknown, answers[::2], answers[1::2], strict=True):
                if isinstance(node, Node) and isinstance(names, list):
                    found[directory.path] = self._listings.learn(directory, node.stat, names)
        return found

    async def _records(self, items: Sequence[Child], keys_only: bool) -> dict[str, Record]:
        nodes = await self.find([get_data(item.path) for item in items])
        return {
            item.key: record_of(item.key, node, keys_only)
            for item, node in zip(items, nodes, strict=True)
            if isinstance(node, Node)
        }

    def _lay_over(
        self, found: dict[str, Record], changed: Sequence[Event], boundary: str | None, reverse: bool, keys_only: bool
    ) -> None:
        """Behind `boundary` nothing was read, so what changed there is left out."""
        low = boundary if boundary is not None and reverse else self._start
        high = boundary if boundary is not None and not reverse else None
        for event in changed:
            if event.key < low or event.key >= self._end or (high is not None and event.key > high):
                continue
            if event.record is None:
                found.pop(event.key, None)
            else:
                record = event.record
                found[event.key] = Record(record.key, b"", record.version, record.first) if keys_only else record
