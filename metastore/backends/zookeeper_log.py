"""The recent changes, kept in the store itself, so that watches resume and long reads are of one revision.

    <root>/tip                      set by every apply; its mzxid is the revision of the store
    <root>/log                      data: the floor of logs that were removed
    <root>/log/<writer>             data: the floor of this log
    <root>/log/<writer>/<number>    what one multi changed; its czxid is the revision of the change

Every store client writes a log of its own, under a name that no other client ever has. An entry is created in the multi
that makes its changes. Numbers grow; the order *between* writers is that of the czxid, which is the number of the
transaction in ZooKeeper's own log. A number is the data version of the log's znode at which its entry was made: one
that is below the version now and has no entry was trimmed, or fenced off. A *floor* is the revision of the newest entry
that was trimmed: a reader that has read up to a revision at or above every floor has missed nothing.

An entry is a sequence of

    0 <key length: 4> <key>                                   deleted
    1 <key length: 4> <key> <value length: 4> <value>         written again
    2 <key length: 4> <key> <value length: 4> <value>         written first

**Nothing is missed, nothing comes twice.** A round reads the tip first, at revision R, and behind it every log up to
its end. An entry with a czxid of at most R existed before the reads of the logs, so they found it, unless it was
trimmed: then a floor is above what had been read, and the round says so. Entries above R may have been found in one log
and missed in another, so they are left for the next round. What a round returns is therefore complete up to R.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metastore.backends.zookeeper_connection import OPERATIONS_PER_READ, ZooKeeperConnection
from metastore.backends.zookeeper_paths import Paths
from metastore.backends.zookeeper_wire import Node, get_children, get_data
from metastore.types import Changes, Event, Record, Revision

_LENGTH = struct.Struct("!I")
_DELETED, _AGAIN, _FIRST = b"\0", b"\1", b"\2"
_ENTRIES_PER_READ = 16


@dataclass(frozen=True, slots=True)
class Change:
    """One key as an apply leaves it. `value` is None if it was deleted."""

    key: str
    value: bytes | None
    first: bool = False


def encode(changes: Iterable[Change]) -> bytes:
    parts: list[bytes] = []
    for change in changes:
        key = change.key.encode()
        if change.value is None:
            parts += (_DELETED, _LENGTH.pack(len(key)), key)
        else:
            kind = _FIRST if change.first else _AGAIN
            parts += (kind, _LENGTH.pack(len(key)), key, _LENGTH.pack(len(change.value)), change.value)
    return b"".join(parts)


def decode(entry: bytes, revision: Revision) -> tuple[Event, ...]:
    """Decode what `encode` wrote. Raises `ValueError` for anything else, such as an entry cut short."""
    events: list[Event] = []
    offset = 0

    def take(size: int) -> bytes:
        nonlocal offset
        part = entry[offset : offset + size]
        if len(part) < size:
            raise ValueError(f"ends {size - len(part)} bytes early")
        offset += size
        return part

    while offset < len(entry):
        kind = take(1)
        key = take(*_LENGTH.unpack(take(_LENGTH.size))).decode()
        if kind == _DELETED:
            events.append(Event(key, None))
        elif kind in (_AGAIN, _FIRST):
            value = take(*_LENGTH.unpack(take(_LENGTH.size)))
            events.append(Event(key, Record(key, value, revision, kind == _FIRST)))
        else:
            raise ValueError(f"knows no change of kind {kind[0]}")
    return tuple(events)


def entry_name(number: int) -> str:
    return f"{number:010d}"


def floor_of(node: Node) -> Revision:
    return int(node.data or b"0")


class GapError(Exception):
    """Entries after the revision that had been read are gone, or one cannot be read. The message says which."""


def _events(entry: Node) -> tuple[Event, ...]:
    try:
        return decode(entry.data, entry.stat.czxid)
    except ValueError as error:
        raise GapError(f"the log's entry of revision {entry.stat.czxid} {error}") from error


class LogReader:
    """Reads the changes later than `revision`, round by round."""

    def __init__(self, connection: ZooKeeperConnection, paths: Paths, revision: Revision) -> None:
        self._connection = connection
        self._paths = paths
        self.revision = revision
        self._next: dict[str, int] = {}

    async def advance(self, deadline: float) -> tuple[list[Changes], Node]:
        """The changes up to now, and the tip at which they are complete; `revision` moves on to it.

        Raises `GapError`, `StoreUnavailable`: then nothing has moved.
        """
        before = dict(self._next)
        try:
            return await self._advance(deadline)
        except BaseException:
            self._next = before
            raise

    async def _advance(self, deadline: float) -> tuple[list[Changes], Node]:
        writers = list(self._next)[: (OPERATIONS_PER_READ - 2) // 2]
        probes = [get_children(self._paths.log), get_data(self._paths.log)]
        for writer in writers:
            probes += (get_data(self._entry(writer, self._next[writer])), get_data(self._home(writer)))
        reading = await self._connection.read(probes, deadline)
        tip = reading.before
        names, removed = reading.found[:2]
        assert isinstance(names, list) and isinstance(removed, Node)
        self._require(removed)
        for gone in sorted(self._next.keys() - names):
            del self._next[gone]  # what it held is below the floor of removed logs
        entries: list[Node] = []
        for writer, entry, home in zip(writers, reading.found[2::2], reading.found[3::2], strict=True):
            if not isinstance(home, Node) or writer not in self._next:
                continue
            self._require(home)
            if isinstance(entry, Node):
                entries += await self._read_on(writer, entry, tip, deadline)
            elif home.stat.version > self._next[writer]:
                entries += await self._search(writer, tip, deadline)
        for writer in names:
            if writer not in writers:
                entries += await self._search(writer, tip, deadline)
        found = sorted((entry for entry in entries if entry.stat.czxid > self.revision), key=lambda e: e.stat.czxid)
        changes = [Changes(entry.stat.czxid, _events(entry)) for entry in found if entry.data]
        self.revision = max(self.revision, tip.stat.mzxid)
        return changes, tip

    def _entry(self, writer: str, number: int) -> str:
        return f"{self._paths.log}/{writer}/{entry_name(number)}"

    def _home(self, writer: str) -> str:
        return f"{self._paths.log}/{writer}"

    def _require(self, holder: Node) -> None:
        if floor_of(holder) > self.revision:
            raise GapError(f"the log no longer reaches back to revision {self.revision + 1}")

    async def _read_on(self, writer: str, entry: Node, tip: Node, deadline: float) -> list[Node]:
        """The next entry has been found. Follow the log up to the tip or to its end."""
        entries: list[Node] = []
        ahead: list[Node | None] = [entry]
        end = 0
        while True:
            for node in ahead:
                if node is None:
                    if end > self._next[writer]:
                        # A number without an entry, and others may follow: a request was fenced off here.
                        return await self._search(writer, tip, deadline)
                    return entries
                if node.stat.czxid > tip.stat.mzxid:
                    return entries
                entries.append(node)
                self._next[writer] += 1
            numbers = range(self._next[writer], self._next[writer] + _ENTRIES_PER_READ)
            paths = [self._entry(writer, number) for number in numbers]
            *ahead, home = await self._nodes([*paths, self._home(writer)], deadline)
            end = home.stat.version if home else 0

    async def _search(self, writer: str, tip: Node, deadline: float) -> list[Node]:
        """Find the entries after `revision` from the end of the log: of an unknown log, or across a hole."""
        listing = await self._connection.read([get_children(self._home(writer))], deadline)
        names = listing.found[0]
        if not isinstance(names, list):
            names = []
        numbers = sorted(map(int, names))
        following = numbers[-1] + 1 if numbers else 0
        entries: list[Node] = []
        reached = False
        while numbers and not reached:
            part, numbers = numbers[-_ENTRIES_PER_READ:], numbers[:-_ENTRIES_PER_READ]
            nodes = await self._nodes([self._entry(writer, number) for number in part], deadline)
            for number, node in zip(reversed(part), reversed(nodes), strict=True):
                if node is None or node.stat.czxid <= self.revision:
                    reached = True
                    break
                if node.stat.czxid > tip.stat.mzxid:
                    following = number
                else:
                    entries.append(node)
        # Only now, because anything trimmed while this was read shows in the floor.
        floors = await self._nodes([self._home(writer), self._paths.log], deadline)
        for holder in filter(None, floors):
            self._require(holder)
        self._next[writer] = following
        return entries

    async def _nodes(self, paths: Sequence[str], deadline: float) -> list[Node | None]:
        reading = await self._connection.read([get_data(path) for path in paths], deadline)
        return [found if isinstance(found, Node) else None for found in reading.found]
