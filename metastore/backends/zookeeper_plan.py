"""How the applies of one group become the operations of one multi.

A multi takes no "put" and no "if absent": it creates what is not there, sets and deletes what is, and fails otherwise;
its operations run one after the other, each on what the ones before it left. So a plan is made from what is believed,
and the multi proves every belief it rests on:

    Absent(k)            create k, delete k            (only "create k" where the batch puts it)
                         or, where its directory is missing, create and delete the topmost one that is
    AtVersion(k, M)      check k at data version v, check the guard of k at g   (the version moves into the write)
    FirstVersion(k)      check k at data version 0
    EmptyRange           a whole directory: delete and create it (or create and delete it, if it was not there), which
                         fails unless it is empty. Any other range: check the tip at the version at which the range
                         was found empty
    delete_range         delete what was found; then a whole directory is deleted too, else the tip is checked
    put k                create k, or set k
    delete k             delete k, or (believed absent) create k, delete k

Beliefs come from a cache of what was read and written last, from guesses (an index entry that comes was not there), or
from a read made for this plan. A wrong one costs a failed multi, never a wrong result: the member that it belongs to is
then read completely, evaluated, and either loses or is planned again.

**A data version alone would not prove AtVersion**: it starts again at 0 when a record is deleted and created again. So
every multi that deletes records also sets a *guard* (one of 256, chosen by the directory). v and g are read at one
revision, at which the record had the version M. If the guard is still at g, nothing of its directory was deleted since;
so it is the same znode, and its data version is v only if it has not been written since.

**Checks of all members come first**: those of directories, then the directories that puts need are created, then the
other checks, and then the writes. The joining rule (`joining`) lets a member check what a later one writes, never the
other way round, so every check must see the records as they were before the multi; and it does. No key is written twice
in one group.

**No operation may undo what another one of the multi rests on**: it would fail again however often it is planned. So
ranges to delete that overlap are made one (a record is deleted once), and a check creates nothing that stays (a
directory that a member deletes whole would not be empty).

Only ranges that are not a whole directory are *emulated*: their proof fails whenever any client applies anything
between the read and the multi, and is tried again until the deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from metastore import keys
from metastore.backends.zookeeper_log import Change
from metastore.backends.zookeeper_paths import Paths, parent
from metastore.backends.zookeeper_reads import ZooKeeperListing
from metastore.backends.zookeeper_wire import ANY_VERSION, Node, check_op, delete_op, set_data
from metastore.errors import CheckFailed
from metastore.types import (
    Absent,
    AtVersion,
    Batch,
    Check,
    EmptyRange,
    FirstVersion,
    IndexDefinition,
    Record,
    Revision,
    Version,
    holds,
)

GUARDS = 256
_MAX_CACHED = 100_000


class UnknownError(Exception):
    """The cache does not contain enough to plan this batch."""


def disjoint(ranges: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same keys, each in one range only. Ranges that merely adjoin stay apart: either may be a whole directory."""
    merged: list[tuple[str, str]] = []
    for start, end in sorted(one for one in ranges if one[0] < one[1]):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


@dataclass(frozen=True, slots=True)
class Belief:
    """A record as it was read or written last. `guard` is the version of its guard at that time, if it is known."""

    version: Version
    data_version: int
    guard: int | None = None


@dataclass(slots=True)
class Facts:
    """Everything about one batch, read at one revision."""

    revision: Revision
    records: dict[str, Record | None] = field(default_factory=dict)
    ranges: dict[tuple[str, str], ZooKeeperListing] = field(default_factory=dict)
    deletions: dict[tuple[str, str], ZooKeeperListing] = field(default_factory=dict)  # by `disjoint` ranges

    def evaluate(self, checks: Sequence[Check]) -> CheckFailed | None:
        """The first check that does not hold."""
        for one in checks:
            current = self._first(one) if isinstance(one, EmptyRange) else self.records[one.key]
            if not holds(one, current):
                return CheckFailed(one, current, self.revision)
        return None

    def _first(self, within: EmptyRange) -> Record | None:
        found = self.ranges[within.start, within.end].result.records
        return found[0] if found else None


class Beliefs:
    """What this client believes about the store. None of it is trusted."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self.records: dict[str, Belief | None] = {}
        self.directories: set[str] = {paths.records}
        self.guards: dict[int, int] = {}

    def guard_of(self, key: str) -> int:
        return self.guard_above(self._paths.place(key)[0])

    @staticmethod
    def guard_above(directory: str) -> int:
        return crc32(directory.encode()) % GUARDS

    def guard_path(self, guard: int) -> str:
        return f"{self._paths.guards}/{guard:03d}"

    def learn(self, key: str, node: Node | None, guard: Node | None = None) -> None:
        """A record was read, with its guard at the same revision if at all.

        If not, what is known of its guard stays: it belongs to the version, and a neighbour's plan may rest on it.
        """
        before, known = self.records.get(key), None
        if guard is not None:
            known = self.guards[self.guard_of(key)] = guard.stat.version
        elif node and before and before.version == node.stat.mzxid:
            known = before.guard
        self.records[key] = Belief(node.stat.mzxid, node.stat.version, known) if node else None

    def forget(self, batch: Batch) -> None:
        """The records of the batch must be read again, and with them its directories and guards, which replace the
        beliefs."""
        for key in (*batch.puts, *batch.deletes, *(c.key for c in batch.checks if not isinstance(c, EmptyRange))):
            self.records.pop(key, None)

    def ancestors(self, path: str) -> Iterator[str]:
        """The directories that a znode needs, the deepest first."""
        while len(path := parent(path)) > len(self._paths.records):
            yield path

    def bound(self) -> None:
        """Called only between plans, because a plan must find what was read for it."""
        if len(self.records) > _MAX_CACHED:
            self.records.clear()
        if len(self.directories) > _MAX_CACHED:
            self.directories = {self._paths.records}


@dataclass(slots=True)
class Part:
    """What one batch adds to a plan."""

    tip_version: int | None = None
    directory_checks: list[bytes] = field(default_factory=list)
    checks: list[bytes] = field(default_factory=list)
    needed: list[str] = field(default_factory=list)  # directories, parents first
    removed: list[str] = field(default_factory=list)  # directories
    writes: list[bytes] = field(default_factory=list)
    guards: set[int] = field(default_factory=set)
    guards_checked: set[int] = field(default_factory=set)
    changes: list[Change] = field(default_factory=list)
    outcomes: list[tuple[str, int | None, int | None]] = field(default_factory=list)  # key, data version, guard
    probed: list[str] = field(default_factory=list)  # directories that may be left empty


class Planner:
    """Turns batches into parts of a multi."""

    def __init__(self, paths: Paths, beliefs: Beliefs, indexes: Sequence[IndexDefinition]) -> None:
        self._paths = paths
        self._beliefs = beliefs
        self._index_roots = tuple(index.root for index in indexes)

    def keys_to_read(self, batch: Batch, everything: bool) -> tuple[list[str], list[str]]:
        """The keys whose state must be read before `part` can succeed, and the directories."""
        wanted: dict[str, None] = {}
        paths: dict[str, None] = {}
        for one in batch.checks:
            if not isinstance(one, EmptyRange):
                wanted[one.key] = None
        for key in (*batch.puts, *batch.deletes):
            if everything or (key not in self._beliefs.records and not key.startswith(self._index_roots)):
                wanted[key] = None
        ranges = (one for one in batch.checks if isinstance(one, EmptyRange))
        whole = filter(None, (self._whole_directory(one.start, one.end) for one in ranges))
        for znode in (*map(self._paths.record, (*wanted, *batch.puts, *batch.deletes)), *whole):
            for path in self._beliefs.ancestors(znode):
                if everything or path not in self._beliefs.directories:
                    paths[path] = None
        return list(wanted), list(paths)

    def part(self, batch: Batch, facts: Facts | None, missing: set[str]) -> Part:
        """The part of a batch. Raises `UnknownError`. `missing` has directories that were looked up and not found."""
        part = Part()
        checks: dict[str, list[Check]] = {}
        for one in batch.checks:
            if isinstance(one, EmptyRange):
                self._check_range(part, one, facts, missing)
            else:
                checks.setdefault(one.key, []).append(one)
        for key, of_key in checks.items():
            written = key in batch.puts or key in batch.deletes
            if len(of_key) > 1 or not written:
                for one in of_key:
                    self._check(part, one, missing)
        for key, value in batch.puts.items():
            self._put(part, key, value, checks.get(key, ()), missing)
        for key in sorted(batch.deletes):
            self._delete(part, key, checks.get(key, ()), missing)
        for start, end in disjoint(batch.range_deletes):
            self._delete_range(part, start, end, batch, facts)
        return part

    # -- checks -------------------------------------------------------------------------------------------------

    def _check(self, part: Part, one: Check, missing: set[str]) -> None:
        match one:
            case Absent(key):
                if self._beliefs.records.get(key) is not None:
                    raise UnknownError
                self._probe(part, key, missing)
            case AtVersion(key, version):
                belief = self._at(key, version)
                part.checks.append(check_op(self._paths.record(key), belief.data_version))
                self._check_guard(part, key, belief)
            case FirstVersion(key):
                self._believed_first(key)
                part.checks.append(check_op(self._paths.record(key), 0))

    def _at(self, key: str, version: Version) -> Belief:
        belief = self._beliefs.records.get(key)
        if belief is None or belief.version != version or belief.guard is None:
            raise UnknownError
        if self._beliefs.guards.get(self._beliefs.guard_of(key)) != belief.guard:
            raise UnknownError
        return belief

    def _check_guard(self, part: Part, key: str, belief: Belief) -> None:
        assert belief.guard is not None
        guard = self._beliefs.guard_of(key)
        part.checks.append(check_op(self._beliefs.guard_path(guard), belief.guard))
        part.guards_checked.add(guard)

    def _believed_first(self, key: str) -> None:
        if key in self._beliefs.records:
            belief = self._beliefs.records[key]
            if belief is None or belief.data_version != 0:
                raise UnknownError

    def _probe(self, part: Part, key: str, missing: set[str]) -> None:
        """Fails if the record is there."""
        path = self._paths.record(key)
        if directories := self._missing_above(path, missing):
            part.directory_checks += self._absence(directories[0])
        else:
            part.checks += self._absence(path)
            part.probed.append(parent(path))

    def _absence(self, path: str) -> tuple[bytes, bytes]:
        """Fail if the znode is there, and leave nothing behind."""
        return self._paths.create(path), delete_op(path)

    def _missing_above(self, path: str, missing: set[str]) -> list[str]:
        """The directories that a znode needs and that are not there, parents first."""
        directories = []
        for directory in self._beliefs.ancestors(path):
            if directory in self._beliefs.directories:
                break
            if directory not in missing:
                raise UnknownError
            directories.append(directory)
        return directories[::-1]

    def _whole_directory(self, start: str, end: str) -> str | None:
        """The directory whose keys are exactly those of the range."""
        if start.startswith("/") and start.endswith("/") and len(start) > 1 and keys.prefix_end(start) == end:
            return self._paths.directory(start)
        return None

    def _check_range(self, part: Part, one: EmptyRange, facts: Facts | None, missing: set[str]) -> None:
        if one.start >= one.end:
            return
        if facts is None:
            raise UnknownError
        listing = facts.ranges[one.start, one.end]
        directory = self._whole_directory(one.start, one.end)
        if directory is None:
            part.tip_version = self._tip_version(part, listing)
        elif directory in listing.directories:
            # So are the directories below it. All come back, because others of the group may write into them.
            part.directory_checks += map(delete_op, reversed(listing.directories))
            part.directory_checks += map(self._paths.create, listing.directories)
            part.probed += listing.directories
        else:
            absent = [*self._missing_above(directory, missing), directory]
            part.directory_checks += self._absence(absent[0])

    def _tip_version(self, part: Part, listing: ZooKeeperListing) -> int:
        version = listing.tip.stat.version
        if part.tip_version not in (None, version) or version == ANY_VERSION:
            raise UnknownError  # read at two revisions, or at the one version that cannot be checked
        return version

    # -- writes -------------------------------------------------------------------------------------------------

    def _put(self, part: Part, key: str, value: bytes, checks: Sequence[Check], missing: set[str]) -> None:
        directory, path = self._paths.place(key)
        belief = self._beliefs.records.get(key)
        # Read before this write, and only ever growing: if it still has that version later, nothing was deleted since.
        guard = self._beliefs.guards.get(self._beliefs.guard_above(directory))
        match checks:
            case [Absent()]:
                if belief is not None:
                    raise UnknownError
            case [AtVersion(_, version)]:
                belief = self._at(key, version)
                self._check_guard(part, key, belief)
            case [FirstVersion()]:
                self._believed_first(key)
                belief = Belief(0, 0)
            case _:
                if key not in self._beliefs.records and not key.startswith(self._index_roots):
                    raise UnknownError
        if belief is None:
            if directory not in self._beliefs.directories:
                part.needed += self._missing_above(path, missing)
            part.writes.append(self._paths.create(path, value))
            part.outcomes.append((key, 0, guard))
        else:
            proven = len(checks) == 1
            part.writes.append(set_data(path, value, belief.data_version if proven else ANY_VERSION))
            part.outcomes.append((key, belief.data_version + 1 if proven else None, guard))
        part.changes.append(Change(key, value, first=belief is None))

    def _delete(self, part: Part, key: str, checks: Sequence[Check], missing: set[str]) -> None:
        path = self._paths.record(key)
        version = ANY_VERSION
        match checks:
            case [AtVersion(_, at)]:
                belief = self._at(key, at)
                self._check_guard(part, key, belief)
                version = belief.data_version
            case [FirstVersion()]:
                self._believed_first(key)
                version = 0
            case [Absent()]:
                if self._beliefs.records.get(key) is not None:
                    raise UnknownError
                return self._probe(part, key, missing)
            case _:
                if key in self._beliefs.records:
                    if self._beliefs.records[key] is None:
                        return self._probe(part, key, missing)
                elif not key.startswith(self._index_roots):
                    raise UnknownError
        self._remove(part, key, path, version)
        return None

    def _remove(self, part: Part, key: str, path: str, version: int = ANY_VERSION) -> None:
        part.writes.append(delete_op(path, version))
        part.guards.add(self._beliefs.guard_of(key))
        part.changes.append(Change(key, None))
        part.outcomes.append((key, None, None))
        part.probed.append(parent(path))

    def _delete_range(self, part: Part, start: str, end: str, batch: Batch, facts: Facts | None) -> None:
        if facts is None:
            raise UnknownError
        listing = facts.deletions[start, end]
        for record in listing.result.records:
            if record.key not in batch.deletes:
                self._remove(part, record.key, self._paths.record(record.key))
        directory = self._whole_directory(start, end)
        if directory is not None and directory in listing.directories:
            part.writes += map(delete_op, reversed(listing.directories))
            part.removed += listing.directories
        else:
            part.tip_version = self._tip_version(part, listing)
