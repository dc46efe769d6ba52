"""The basic types of the store: records, checks, batches, watch items.

Keys are text and sort by their UTF-8 bytes (which for Python strings is code point order). Values are bytes. A
*revision* is a number that grows with what is applied: an `apply` that changes nothing does not change it, and applies
that were sent together may share one. A *version* is what a record carries for later comparison. Both are opaque beyond
`==`, `<` and `>`: on etcd a version is the record's modification revision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from metastore.keys import prefix_end

Revision = int
Version = int


class Record(NamedTuple):  # A tuple, like `Event`, because every read and every write creates some.
    """One key as it was read.

    `first` is true while the record has been written exactly once since it was created. A transaction header is written
    exactly twice in its life, so `first` means OPEN without anyone having read it before.
    """

    key: str
    value: bytes
    version: Version
    first: bool


@dataclass(frozen=True, slots=True)
class Absent:
    """Check: no record has this key."""

    key: str


@dataclass(frozen=True, slots=True)
class AtVersion:
    """Check: the record exists and has not been written since it was read at `version`."""

    key: str
    version: Version


@dataclass(frozen=True, slots=True)
class FirstVersion:
    """Check: the record exists and has been written exactly once since its creation (see `Record.first`)."""

    key: str


@dataclass(frozen=True, slots=True)
class EmptyRange:
    """Check: no record has a key in `[start, end)`."""

    start: str
    end: str


Check = Absent | AtVersion | FirstVersion | EmptyRange


def holds(check: Check, found: Record | None) -> bool:
    """Whether a check holds when `found` is the record of its key, or the first record in its range."""
    if isinstance(check, AtVersion):  # called for every check, and a `match` takes three times as long
        return found is not None and found.version == check.version
    if isinstance(check, FirstVersion):
        return found is not None and found.first
    return found is None


_NO_ENTRIES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """A secondary index over the records below `prefix`.

    `entries(key, value)` names the index entries of one record, as escaped key parts joined by `/` (see
    `metastore.keys.join`). It must be a pure function: the entries of an old value are found by calling it again.
    Where indexes are native, an entry is stored as the empty record `/idx/<name>/<entry>`, in the same `apply` as its
    record, so an index can never disagree with what it indexes. Where they are emulated, nothing is stored.
    """

    name: str
    prefix: str
    entries: Callable[[str, bytes], Iterable[str]]
    root: str = field(init=False)
    guarded: tuple[str, str] = field(init=False)
    """Below these prefixes only records together with their index entries may be written."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", f"/idx/{self.name}/")
        object.__setattr__(self, "guarded", (self.prefix, self.root))

    def keys(self, key: str, value: bytes) -> set[str]:
        return {self.root + entry for entry in self.entries(key, value)}


@dataclass(slots=True)
class Batch:
    """What one `apply` checks and changes, all or nothing.

    There are two ways to write. `create`, `replace` and `remove` carry their own check (absent, or still at the version
    that was read) and move index entries along; they are the only way to write an indexed record. `put`, `delete` and
    `delete_range` have no check and refuse keys below an indexed prefix (a programming error, so an `AssertionError`).
    A key may be written once per batch. `keep_entries` is false in a store that emulates its indexes.
    """

    indexes: tuple[IndexDefinition, ...] = ()
    checks: list[Check] = field(default_factory=list)
    puts: dict[str, bytes] = field(default_factory=dict)
    deletes: set[str] = field(default_factory=set)
    range_deletes: list[tuple[str, str]] = field(default_factory=list)
    keep_entries: bool = True

    def check(self, *checks: Check) -> Self:
        self.checks.extend(checks)
        return self

    def create(self, key: str, value: bytes) -> Self:
        """Put a record that must not exist yet."""
        self.checks.append(Absent(key))
        return self._write(key, None, value)

    def replace(self, record: Record, value: bytes) -> Self:
        """Put a record that must still be at the version of `record`."""
        self.checks.append(AtVersion(record.key, record.version))
        return self._write(record.key, record.value, value)

    def remove(self, record: Record) -> Self:
        """Delete a record that must still be at the version of `record`."""
        self.checks.append(AtVersion(record.key, record.version))
        return self._write(record.key, record.value, None)

    def put(self, key: str, value: bytes) -> Self:
        self._assert_bare(key)
        return self._set(key, value)

    def delete(self, key: str) -> Self:
        self._assert_bare(key)
        return self._unset(key)

    def delete_range(self, start: str, end: str) -> Self:
        """Delete every key in `[start, end)`. Keep ranges small: a backend may refuse more than a few hundred keys."""
        for index in self.indexes:
            for prefix in index.guarded:
                assert end <= prefix or start >= prefix_end(prefix), (
                    f"{start} contains indexed records or index entries"
                )
        for key in self.puts:
            assert not start <= key < end, f"{key} is written twice in one batch"
        self.range_deletes.append((start, end))
        return self

    def written(self) -> set[str]:
        return {*self.puts, *self.deletes}

    @property
    def size_bytes(self) -> int:
        """The bytes of all keys and values. Raises `UnicodeEncodeError` for a key that UTF-8 cannot express."""
        keys = [*self.puts, *self.deletes]
        for check in self.checks:
            keys += (check.start, check.end) if isinstance(check, EmptyRange) else (check.key,)
        for bounds in self.range_deletes:
            keys += bounds
        text = "".join(keys)
        size = len(text) if text.isascii() else sum(len(key.encode()) for key in keys)
        return size + sum(map(len, self.puts.values()))

    @property
    def empty(self) -> bool:
        return not (self.checks or self.puts or self.deletes or self.range_deletes)

    def _write(self, key: str, old: bytes | None, new: bytes | None) -> Self:
        for index in self.indexes if self.keep_entries else ():
            if not key.startswith(index.prefix):
                continue
            before = set(index.entries(key, old)) if old is not None else _NO_ENTRIES
            after = set(index.entries(key, new)) if new is not None else _NO_ENTRIES
            for entry in before - after:
                self._unset(index.root + entry)
            for entry in after - before:
                self._set(index.root + entry, b"")
        return self._set(key, new) if new is not None else self._unset(key)

    def _set(self, key: str, value: bytes) -> Self:
        assert key not in self.puts and key not in self.deletes, f"{key} is written twice in one batch"
        for start, end in self.range_deletes:
            assert not start <= key < end, f"{key} is written twice in one batch"
        self.puts[key] = value
        return self

    def _unset(self, key: str) -> Self:
        assert key not in self.puts and key not in self.deletes, f"{key} is written twice in one batch"
        self.deletes.add(key)
        return self

    def _assert_bare(self, key: str) -> None:
        for index in self.indexes:
            assert not key.startswith(index.guarded), (
                f"{key} is indexed by {index.name}, or an entry of it: use create/replace/remove for the record"
            )


@dataclass(frozen=True, slots=True)
class Applied:
    """A successful `apply`: the store revision at which it took effect, which is the version of every record it put."""

    revision: Revision


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Records in key order (or reverse), as they were at `revision`; `more` is true if `limit` cut the list off."""

    records: list[Record]
    revision: Revision
    more: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Several keys read at one `revision`; an absent key maps to None."""

    records: Mapping[str, Record | None]
    revision: Revision


class Event(NamedTuple):
    """One change: `record` is the current record of the key, or None if it was deleted."""

    key: str
    record: Record | None


@dataclass(frozen=True, slots=True)
class Changes:
    """All events of one revision below the watched prefix, in the order in which they were applied.

    From a watch that polls: the last event of each key since the previous item, as of `revision`.
    """

    revision: Revision
    events: tuple[Event, ...]

    def below(self, prefix: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.key.startswith(prefix))


@dataclass(frozen=True, slots=True)
class Resync:
    """Events may have been lost (compaction, session expiry, slow consumer): read again, then rely on events after it.

    The watch continues after this item: every change later than `revision` will be delivered, none at or before it.
    """

    revision: Revision
    reason: str


WatchItem = Changes | Resync


class Watch(ABC, AsyncIterator[WatchItem]):
    """A stream of `Changes` and `Resync` items. Iterate it from one task; leaving its `async with` ends it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def __anext__(self) -> WatchItem: ...

    @abstractmethod
    async def close(self) -> None: ...
