"""What directories hold, in the order of the keys; the listing of a large one is kept for as long as it is true.

ZooKeeper has no way to read a part of a directory, and the operations of one transaction may be 100,000 names of 100
bytes. A client that reads them page by page would fetch, decode and sort 10 MB for each page. So a large listing is
kept with the *stamp* of its directory, and the next read asks for that first. A stamp changes with every child that
comes or goes: it is made of the zxids at which the directory was created and its children changed last, and of the
count of those changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from metastore.backends.zookeeper_paths import Paths
from metastore.backends.zookeeper_wire import Stat

LARGE = 1_000
# A name costs about half a kilobyte here.
_MAX_KEPT_NAMES = 200_000


class Child(NamedTuple):
    """A record or a directory; all keys below a directory begin with its `key`, which ends in `/` (or is empty)."""

    key: str
    is_directory: bool
    path: str


Stamp = tuple[int, int, int]


def _stamp_of(directory: Stat) -> Stamp:
    return directory.czxid, directory.pzxid, directory.cversion


class ZooKeeperListings:
    """The large listings that one store has read last."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._kept: dict[str, tuple[Stamp, Sequence[Child]]] = {}

    def keeps(self, directory: Child) -> bool:
        """Whether to ask for the directory before its names."""
        return directory.path in self._kept

    def children(self, directory: Child, stat: Stat) -> Sequence[Child] | None:
        """The kept listing, if it is of the children of a directory that looks like `stat`."""
        stamp, children = self._kept.get(directory.path, (None, ()))
        return children if stamp == _stamp_of(stat) else None

    def learn(self, directory: Child, stat: Stat, names: Sequence[str]) -> Sequence[Child]:
        """The children with these names, sorted. `stat` was read before the names: a stamp that is too old is only
        of no use, one that is too new would lie."""
        self._kept.pop(directory.path, None)
        children = self._sorted(directory, names)
        if len(children) >= LARGE:
            self._kept[directory.path] = _stamp_of(stat), children
            self._forget_the_oldest()
        return children

    def _sorted(self, directory: Child, names: Sequence[str]) -> list[Child]:
        children: list[Child] = []
        at_the_root = directory.path == self._paths.records
        for name in names:
            if at_the_root and self._paths.is_special(name):
                continue
            part, is_directory = self._paths.child(name)
            key = f"{directory.key}{part}/" if is_directory else directory.key + part
            children.append(Child(key, is_directory, f"{directory.path}/{name}"))
        children.sort()
        return children

    def _forget_the_oldest(self) -> None:
        total = sum(len(children) for _, children in self._kept.values())
        while total > _MAX_KEPT_NAMES:
            _, children = self._kept.pop(next(iter(self._kept)))
            total -= len(children)


def within(children: Sequence[Child], directory: Child, start: str, end: str) -> list[Child]:
    """The sorted children of a directory that are in `[start, end)`, or may hold records in it."""
    first = bisect_left(children, start, key=_key)
    last = bisect_left(children, end, first, key=_key)
    found = list(children[first:last])
    # Of the directories in front of it one may hold the start of the range: that with the beginning of its name.
    part, slash, _ = start.removeprefix(directory.key).partition("/")
    if slash and start.startswith(directory.key) and start < end:
        holder = directory.key + part + slash
        place = bisect_left(children, holder, key=_key)
        if place < first and children[place].key == holder:
            found.insert(0, children[place])
    return found


def _key(child: Child) -> str:
    return child.key
