"""The store in one SQLite file: embedded, durable, for one serving process.

    meta                                        records
    | name       | number                 |     | key (TEXT) | value (BLOB) | version | writes | ephemeral |
    | revision   | grows with each change |
    | last_group | token of the last commit group |

`version` is the revision of the last write, `writes` how many there were since the record was created. The database
is UTF-8 and keys compare as bytes (`BINARY`), which is the order the interface promises.

Three threads of control. The event loop only queues and answers. The *writer* thread evaluates every waiting apply
in order inside one transaction and commits once; the *reader* thread answers every waiting read from one snapshot.
Each has its own connection, and each group costs the loop one wake-up. While a group is being committed the next one
gathers, so an idle caller waits for nothing and a busy store pays one fsync for hundreds of applies.

Durability is that of `journal_mode=WAL, synchronous=FULL`: an answered apply is on disk, as far as the disk tells.
The file is opened through SQLite only: any other open and close of it by this process would drop SQLite's locks.

No other process writes the file. So before each group the name must still lead to the file that was opened, and the
revision must not be below one that this process has committed. Else the store was replaced by a backup, and is used no
more.

For the same reason the event loop may answer a read by itself, of what this process has written lately
(`sqlite_recent`), as of the last published change. That is what a read that begins now may find: a change is published
before its caller hears of it, and the database is asked if a read has told somebody of a newer state (`_told`). It is
also asked if the files do not look as the last commit left them, unless the writer has the database to itself at that
moment. If they look otherwise when the writer begins, or the last commit has failed, everything becomes unknown
(`touched`). A store that only looks, of this or another process, may see a commit before it is published, and so before
this one answers it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import re
import secrets
import shlex
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

from metastore.api import MAX_BATCH_BYTES, Ephemeral, OwnRecord, StoredIndexes, behind, is_telling, sequence_counter
from metastore.backends.sqlite_recent import MAX_DIRECTORY_KEYS, DirectoryLook, RecentRecords
from metastore.errors import (
    CheckFailed,
    InvalidBatch,
    MetastoreError,
    OutcomeUnknown,
    StoreClosed,
    StoreFull,
    StoreInUse,
    StoreMissing,
    StoreUnavailable,
    StoreUnusable,
    StoreWentBack,
)
from metastore.keys import prefix_end
from metastore.types import (
    Applied,
    Batch,
    EmptyRange,
    IndexDefinition,
    RangeResult,
    Record,
    Revision,
    Snapshot,
    Watch,
    holds,
)
from metastore.watches import ChangeLog, Written

Connect = Callable[..., sqlite3.Connection]

FORMAT_VERSION = 1
APPLICATION_ID = 0x6D747831  # "mtx1": distinguishes our file from any other SQLite database
MAX_GROUP_APPLIES = 1_000
WAL_BYTES_KEPT = 64 << 20
AT_ONCE_IN_A_ROW = 100
"""Reads that are answered without waiting, before others have their turn."""

_PLAIN = re.compile("[A-Za-z0-9._~%/:&+-]+", re.ASCII)
_SCHEMA = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE records (
    key TEXT PRIMARY KEY COLLATE BINARY,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    writes INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX ephemeral_records ON records (key) WHERE ephemeral;
INSERT INTO meta VALUES ('revision', 1), ('last_group', 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
"""
_GET_SOME = (
    "SELECT key, value, version, writes FROM records WHERE key IN ({}) "
    "UNION ALL SELECT '', x'', number, 0 FROM meta WHERE name = 'revision'"
)
"""Some rows, and the revision as the version of a key that no record has; both as they are at one moment."""
_SOME_KEYS = "SELECT json_group_array(key) FROM (SELECT key FROM records WHERE key >= ? AND key < ? LIMIT ?)"
_FIRST_IN_RANGE = "SELECT key, value, version, writes FROM records WHERE key >= ? AND key < ? ORDER BY key LIMIT 1"
_PUT_SOME = "INSERT OR REPLACE INTO records VALUES {}"
_DELETE_SOME = "DELETE FROM records WHERE key IN ({})"
_DELETE_RANGE = "DELETE FROM records WHERE key >= ? AND key < ? RETURNING key"
_PUT_NUMBERS = (
    "UPDATE meta SET number = CASE name WHEN 'revision' THEN ? ELSE ? END WHERE name IN ('revision', 'last_group')"
)
# For each statement, and each row that one returns, the driver lets other threads in and waits for its turn again, up
# to a switch interval while the event loop is busy. So a group has few statements, each of which handles many keys.
# There is one for each number of keys, and the driver keeps them compiled.
KEYS_PER_STATEMENT = 64

# What SQLite or its driver says about the data it was given. Everything else it says is about the store.
_BAD_DATA = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    TypeError,
    ValueError,
)

# How a statement fails because of the store: memory that runs out inside SQLite (SQLITE_NOMEM) is no `sqlite3.Error`.
_STORE_FAILURES = (sqlite3.Error, MemoryError)

T = TypeVar("T")

SqliteRow = tuple[str, bytes, int, int]
"""A row: key, value, version, writes."""

Plan = Callable[[sqlite3.Connection], Batch]

_Files = tuple[int, int, int, int, int, int]


# eq=False: jobs are distinguished by identity. kw_only: a kind of job adds what it needs.
@dataclass(slots=True, eq=False, kw_only=True)
class _Job(Generic[T]):
    """A call in a lane. `outcome` is set in the lane's thread, `future` on the loop."""

    future: asyncio.Future[T]
    outcome: T | Exception | None = None
    begun: bool = False
    telling: bool = field(default_factory=is_telling)

    def answer(self, failure: BaseException | None) -> None:
        """Wake the caller, with `failure` if the lane found no outcome."""
        if self.outcome is None:
            self.future.set_exception(failure or AssertionError("a job without outcome"))
        elif isinstance(self.outcome, Exception):
            self.future.set_exception(self.outcome)
        else:
            self.future.set_result(self.outcome)


@dataclass(slots=True, eq=False, kw_only=True)
class _Write(_Job[Applied]):
    """A write of a batch, or of the one that `plan` makes when it is the job's turn, inside the group's transaction."""

    batch: Batch | Plan
    ephemeral: bool = False
    changes: Written | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class _Read(_Job[T]):
    """A read: of the records with these keys, or `query`."""

    query: Callable[[sqlite3.Connection], T] | tuple[str, ...]


J = TypeVar("J", bound=_Job[Any])


class SqliteStore(StoredIndexes):
    """The store in one SQLite file; see the module's docstring. Open one with `SqliteStore.open`."""

    kind = "sqlite"

    def __init__(
        self, database: _Database, indexes: Iterable[IndexDefinition], deadline_ms: int, max_batch_bytes: int
    ) -> None:
        super().__init__(indexes)
        self.max_batch_bytes = max_batch_bytes
        self._deadline_s = deadline_ms / 1000
        self._database = database
        database.on_went_back = self._went_back
        self._writer: _Lane[_Write] = _Lane("sqlite writer", database.commit_group, self._publish)
        self._reader: _Lane[_Read[Any]] = _Lane("sqlite reader", database.read_group)
        self._log = ChangeLog(0)
        self._recent = RecentRecords()
        self._told: Revision = 0
        """The newest state that somebody may have been told of. It may be newer than the last published change."""
        self._touched = 0
        """The files' `touched` as of what `_recent` knows."""
        self._answered_at_once = 0
        self._closing: asyncio.Task[None] | None = None

    def command_for(self, key: str) -> str:
        """The command without the directory of the file, which only concerns its machine."""
        literal = key.replace("'", "''")
        question = f"SELECT value FROM records WHERE key = '{literal}'"
        quoted = f'"{question}"' if _PLAIN.fullmatch(key) else shlex.quote(question)  # every key of ours is plain
        return f"sqlite3 -readonly {shlex.quote(self._database.name)} {quoted}"

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        indexes: Iterable[IndexDefinition] = (),
        *,
        deadline_ms: int = 10_000,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        read_only: bool = False,
        connect: Connect = sqlite3.connect,
    ) -> Self:
        """Open the store in the file `path`; it and its directory are created when absent.

        `read_only` looks into a file that another process may be serving: it takes no lock, refuses every apply and
        its watches stay silent. Raises `StoreInUse`, `StoreUnusable`, `StoreUnavailable`, `StoreFull`,
        and `StoreMissing` if there is nothing to look into.
        """
        database = _Database(Path(path), connect, deadline_ms / 2000, read_only)
        store = cls(database, indexes, deadline_ms, max_batch_bytes)
        try:
            revision = await store._writer.call(database.open_writer)
            await store._reader.call(database.open_reader)
        except BaseException:
            # Also when this task is cancelled: the threads may be about to take the lock and must give it back.
            await asyncio.shield(asyncio.ensure_future(store._release()))
            raise
        store._log = ChangeLog(revision)
        return store

    # -- writing -----------------------------------------------------------------------------------------------

    async def apply(self, batch: Batch) -> Applied:
        self.refuse_unfit(batch)
        return await self._apply(batch)

    async def put_sequential(self, prefix: str, value: bytes) -> Record:
        """See `MetadataStore`. The number is taken inside the group's transaction, so no caller loses and many share
        one commit."""
        self._refuse_unfit_sequence(prefix, value)
        counter, key = sequence_counter(prefix), ""

        def plan(connection: sqlite3.Connection) -> Batch:
            nonlocal key
            row = _rows(connection, [counter])[0].get(counter)
            key, batch = self._next_in_sequence(prefix, value, _record(row) if row else None)
            return batch

        applied = await self._apply(plan)
        return Record(key, value, applied.revision, first=True)

    async def _apply(self, batch: Batch | Plan, *, ephemeral: bool = False) -> Applied:
        self._assert_open()
        if self._database.read_only:
            raise InvalidBatch("the store was opened read-only")
        job = _Write(future=asyncio.get_running_loop().create_future(), batch=batch, ephemeral=ephemeral)
        self._writer.submit(job)
        return await self._in_time(job, _too_late_to_write)

    def _publish(self, group: list[_Write]) -> None:
        """Feed the watches, on the loop, before any caller of the group learns its answer."""
        try:
            self._feed(group)
        except BaseException:  # a listener has failed, and the callers learn their answers nevertheless
            self._recent.forget()
            self._told = max(self._told, self._log.revision + 1)
            raise

    def _feed(self, group: list[_Write]) -> None:
        self.group_sent(len(group))
        if self._touched != self._database.touched:
            self._touched = self._database.touched
            self._recent.forget()
        for job in group:
            if isinstance(job.outcome, OutcomeUnknown):
                self._log.resync(self._log.revision, "the outcome of a commit is unknown")
            if job.changes is None or self.lost_writes is not None:
                continue
            if job.changes.revision > self._log.revision + 1:
                # A commit of unknown outcome has happened after all.
                self._log.resync(job.changes.revision - 1, "the outcome of a commit was unknown")
            self._log.publish(job.changes)
            self._recent.published(job.changes)

    # -- reading -----------------------------------------------------------------------------------------------

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        self._assert_open()
        if (known := self._known(wanted)) is not None:
            self._answered_at_once += 1
            if self._answered_at_once % AT_ONCE_IN_A_ROW == 0:
                await asyncio.sleep(0)  # a loop that only reads must not keep others waiting
            return known
        found: Snapshot = await self._read(tuple(wanted))
        self._told = max(self._told, found.revision)
        if not self._database.read_only:
            self._look_around(found)
        return found

    def _known(self, wanted: Sequence[str]) -> Snapshot | None:
        """The records without asking the database, if this process knows them; see the module's docstring. Who wants
        none asks whether the store answers."""
        if not wanted or self.lost_writes is not None or self._log.revision < self._told:
            return None
        if self._touched != self._database.touched or not self._database.is_as_committed():
            return None
        found = self._recent.find(wanted)
        return None if found is None else Snapshot(found, self._log.revision)

    def _look_around(self, found: Snapshot) -> None:
        """Look which keys there are beside those that there are not, so that the next ones need not be looked for."""
        for key, record in found.records.items():
            if record is None and (look := self._recent.look_at(key)) is not None:
                job: _Read[tuple[list[str], Revision]] = _Read(
                    future=asyncio.get_running_loop().create_future(), query=partial(_keys_below, look.directory)
                )
                job.future.add_done_callback(partial(self._looked, look))
                self._reader.submit(job)

    def _looked(self, look: DirectoryLook, answer: asyncio.Future[tuple[list[str], Revision]]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self._recent.looked(look, None)
            return
        keys, revision = answer.result()
        as_published = revision == self._log.revision >= self._told
        self._recent.looked(look, keys if as_published or len(keys) > MAX_DIRECTORY_KEYS else None)

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        value = "x''" if keys_only else "value"
        order = "DESC" if reverse else "ASC"
        statement = (
            f"SELECT key, {value}, version, writes FROM records WHERE key >= ? AND key < ? ORDER BY key {order} LIMIT ?"
        )

        def query(connection: sqlite3.Connection) -> RangeResult:
            # One row more than asked for tells whether there is more; a negative limit is none.
            rows = connection.execute(statement, (start, end, limit + 1 if limit else -1)).fetchall()
            more = bool(limit) and len(rows) > limit
            return RangeResult([_record(row) for row in rows[: limit or None]], _revision(connection), more)

        found = await self._read(query)
        self._told = max(self._told, found.revision)
        return found

    async def size_bytes(self) -> int | None:
        """The size of the file, without its write-ahead log."""

        def query(connection: sqlite3.Connection) -> int:
            product = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            return int(connection.execute(product).fetchone()[0])

        return await self._read(query)

    async def _read(self, query: Callable[[sqlite3.Connection], T] | tuple[str, ...]) -> T:
        self._assert_open()
        job: _Read[T] = _Read(future=asyncio.get_running_loop().create_future(), query=query)
        self._reader.submit(job)
        return await self._in_time(job, _too_late_to_read)

    async def _in_time(self, job: _Job[T], too_late: Callable[[_Job[T]], None]) -> T:
        """Wait for the answer, unless `too_late` has given another one at the deadline. This is `asyncio.timeout` for a
        tenth of the cost, because only a future has to be ended."""
        timer = asyncio.get_running_loop().call_later(self._deadline_s, too_late, job)
        try:
            return await job.future
        finally:
            timer.cancel()

    def _went_back(self, how: str) -> None:
        """Note that the store has lost writes. Called in the threads of the lanes."""
        self.lost_writes = self.lost_writes or how

    # -- hints -------------------------------------------------------------------------------------------------

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        self._assert_open()
        return self._log.watch(prefix, from_revision)

    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        """Put an ephemeral record. Only this process can serve the file, so it is deleted when the file is next
        opened."""
        batch = self.batch().put(key, value)
        self.refuse_unfit(batch)
        applied = await self._apply(batch, ephemeral=True)
        return OwnRecord(self, key, applied.revision)

    async def compact(self) -> None:
        """Forget all history up to now, so that watches from before it start with a `Resync` (for tests)."""
        self._log.compact(self._log.revision)

    # -- life --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close as the interface describes. Raises `StoreUnavailable`, and keeps the lock, while the disk hangs in a
        commit."""
        if self._closing is None or (self._closing.done() and self._closing.exception()):
            self._closing = asyncio.create_task(self._close(), name="close of a sqlite store")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._writer.idle()
                await self._reader.idle()
        except TimeoutError:
            # The lock stays: no other process may open the file while a commit is in progress.
            raise StoreUnavailable("a commit is still in progress, so the file stays locked") from None
        finally:
            await self._log.close()
        await self._release()

    async def _release(self) -> None:
        await self._reader.call(self._database.close_reader)
        await self._writer.call(self._database.close_writer)
        self._reader.stop()
        self._writer.stop()

    def _assert_open(self) -> None:
        super()._assert_open()
        if self._closing is not None:
            raise StoreClosed("this store is closed")


class _Lane(Generic[J]):
    """One thread, and the jobs that gather while it works: they are handed to it together once it is free.

    `work` runs in the thread and sets outcomes; `done` runs on the loop before the callers wake.
    """

    def __init__(
        self, name: str, work: Callable[[list[J]], None], done: Callable[[list[J]], None] = lambda group: None
    ) -> None:
        self._work = work
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, name)
        self._waiting: deque[J] = deque()
        self._flush_is_due = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._working = False

    def submit(self, job: J) -> None:
        self._waiting.append(job)
        self._idle.clear()
        self._flush_soon()

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` alone in this lane's thread, after the work that was already given to it."""
        return await self._loop.run_in_executor(self._thread, function)

    async def idle(self) -> None:
        """Wait until everything submitted has been answered."""
        await self._idle.wait()

    def stop(self) -> None:
        self._thread.shutdown(wait=False)

    def _flush_soon(self) -> None:
        # Not at once, so that callers that were woken in this turn of the loop join the same group.
        if not (self._flush_is_due or self._working):
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        group: list[J] = []
        while self._waiting and len(group) < MAX_GROUP_APPLIES:
            job = self._waiting.popleft()
            if not job.future.done():
                job.begun = True
                group.append(job)
        if not group:
            self._idle.set()
            return
        self._working = True
        self._thread.submit(self._run, group)

    def _run(self, group: list[J]) -> None:
        failure: BaseException | None = None
        try:
            self._work(group)
        except BaseException as error:  # noqa: BLE001 - a bug, and its place is with the callers
            failure = error
        self._loop.call_soon_threadsafe(self._answer, group, failure)

    def _answer(self, group: list[J], failure: BaseException | None) -> None:
        self._working = False
        try:
            self._done(group)
        finally:
            for job in group:
                if not job.future.done():
                    job.answer(failure)
            self._flush_soon()


class _Database:
    """The blocking half: files, connections, transactions. Each method belongs to one of the two threads."""

    def __init__(self, path: Path, connect: Connect, busy_timeout_s: float, read_only: bool) -> None:
        self._path = path
        self.name = path.name
        self._connect = connect
        self._busy_timeout_s = busy_timeout_s
        self.read_only = read_only
        self._lock: int | None = None
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._committed: Revision = 0
        self._files: _Files | None = None
        """The files as the last commit left them."""
        self._has_it_alone = False
        """Whether the writer is in a transaction, so that nobody else can write."""
        self.touched = 0
        """How often others, or a commit that failed, had touched the files when a group began."""
        self._lost: str | None = None
        self.on_went_back: Callable[[str], None] = lambda how: None

    # -- opening and closing -----------------------------------------------------------------------------------

    def open_writer(self) -> Revision:
        """Lock the file and prepare it; returns its revision."""
        try:
            # Two names of one file (a symbolic link, a relative path) must lead to one lock.
            self._path = self._path.resolve()
            if self.read_only:
                if not self._path.is_file():
                    raise StoreMissing(f"there is no file {self._path}")
                return 0
            _make_directory(self._path.parent)
            self._lock = _take_lock(self._path)
            connection = self._writer = self._open()
            self._prepare(connection)
            _sync_directory(self._path.parent)
            self._file = _identity(self._path)
            self._committed = _revision(connection)
            self._files = _files(self._path)
            return self._committed
        except sqlite3.Error as error:
            raise _opening_failure(self._path, error) from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (StoreFull if full else StoreUnavailable)(f"cannot open {self._path}: {error}") from error

    def open_reader(self) -> None:
        try:
            self._reader = self._open()
            self._reader.execute("PRAGMA query_only = ON")
            if self.read_only and _one(self._reader, "SELECT count(*) FROM sqlite_schema") == 0:
                raise StoreMissing(f"the file {self._path} is empty")
            self._assert_ours(self._reader)
        except sqlite3.Error as error:
            raise _opening_failure(self._path, error) from error

    def close_writer(self) -> None:
        """Close the connection, then release the lock, and never the other way round."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open(self) -> sqlite3.Connection:
        mode = "ro" if self.read_only else "rwc"
        connection = self._connect(
            f"file:{quote(str(self._path))}?mode={mode}",
            uri=True,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            cached_statements=4 * KEYS_PER_STATEMENT,
        )
        for pragma in (
            "synchronous = FULL",
            "fullfsync = ON",
            "checkpoint_fullfsync = ON",
            f"journal_size_limit = {WAL_BYTES_KEPT}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        is_new = _one(connection, "SELECT count(*) FROM sqlite_schema") == 0
        if not is_new:
            self._assert_ours(connection)
        if _one(connection, "PRAGMA journal_mode = WAL") != "wal":
            raise StoreUnusable(f"{self._path} cannot use a write-ahead log here: put it on a local file system")
        connection.execute("BEGIN IMMEDIATE")
        if is_new:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
        # The ephemeral records of a former process. This is a change like any other: it has its own revision.
        if connection.execute("DELETE FROM records WHERE ephemeral").rowcount:
            connection.execute("UPDATE meta SET number = number + 1 WHERE name = 'revision'")
        connection.execute("COMMIT")

    def _assert_ours(self, connection: sqlite3.Connection) -> None:
        if _one(connection, "PRAGMA application_id") != APPLICATION_ID:
            raise StoreUnusable(f"{self._path} is not a metadata store")
        if _one(connection, "PRAGMA user_version") > FORMAT_VERSION:
            raise StoreUnusable(f"{self._path} was written by a newer version of this software")

    # -- the event loop ----------------------------------------------------------------------------------------

    def is_as_committed(self) -> bool:
        """Whether nobody else has touched the files since the last commit, as far as their sizes and times tell."""
        if self._has_it_alone:
            return _identity(self._path) == self._file
        return self._files is not None and _files(self._path) == self._files

    # -- both threads ------------------------------------------------------------------------------------------

    def _refuse_replaced(self, group: Sequence[_Job[Any]]) -> None:
        """Fail the jobs if the file has lost its name: what is written into it then is gone when it is closed."""
        if self._file is not None and _identity(self._path, self._file) != self._file:
            how = f"another file is in the place of {self.name}, or none"
            self._note_lost(how)
            _refuse(group, how)

    def _refuse_behind(self, group: Sequence[_Job[Any]], revision: Revision, committed: Revision) -> None:
        """Fail the jobs, except those that tell the others, if the store is or was behind `committed`, which was known
        before the transaction began that has read `revision`."""
        if revision < committed:
            self._note_lost(f"it was at revision {committed}, and now it is at revision {revision}")
        if self._lost is not None:
            _refuse((job for job in group if not job.telling), self._lost)

    def _note_lost(self, how: str) -> None:
        self._lost = self._lost or how
        self.on_went_back(how)

    # -- the writer's thread -----------------------------------------------------------------------------------

    def commit_group(self, group: list[_Write]) -> None:
        """Evaluate the jobs in order in one transaction, commit it once, and set every outcome.

        No verdict stands before the commit does: a job may have lost against a neighbour's write, and that write
        is gone when the commit fails. Only `InvalidBatch` is a fact of its own.
        """
        connection = self._writer
        assert connection is not None
        token = secrets.randbits(62)
        try:
            self._refuse_replaced(group)
            _end_transaction(connection)  # what a failed group left behind
            connection.execute("BEGIN IMMEDIATE")
            state = _State(connection, chain.from_iterable(_keys(job.batch) for job in group))
            before = state.revision
            self._refuse_behind(group, before, self._committed)
            if self._files is None or _files(self._path) != self._files:
                self.touched += 1
            self._has_it_alone = True
            revision = _evaluate_group(connection, state, group, token)
            if revision == before:
                self._has_it_alone = False
                connection.execute("ROLLBACK")
                return
        except _STORE_FAILURES as error:
            self._has_it_alone = False
            _forget(group)
            _fail(group, error)
            return
        except BaseException:
            self._has_it_alone = False
            _forget(group)
            raise
        try:
            connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - the verdicts stand already, and must not be told unproven
            self._files, self._has_it_alone = None, False
            self._settle(connection, group, token, error)
            return
        self._committed = revision
        self._files, self._has_it_alone = _files(self._path), False

    def _settle(self, connection: sqlite3.Connection, group: list[_Write], token: int, error: BaseException) -> None:
        """COMMIT failed in some way: find out whether it took effect, and make sure that this remains true.

        Reading the token is not enough. After a failed fsync the frames of the lost commit may sit in the log, and a
        recovery after a crash could still find them complete. Only a further commit settles it: its frames take their
        place, or follow them. A full disk is the exception: the commit frame was never written.
        """
        try:
            _end_transaction(connection)
            taken = _one(connection, "SELECT number FROM meta WHERE name = 'last_group'") == token
            if taken or not _is_full(error):
                fence = secrets.randbits(62)
                connection.execute("UPDATE meta SET number = ? WHERE name = 'last_group'", (fence,))
        except BaseException:  # noqa: BLE001 - as above
            for job in group:
                changed, job.changes = job.changes is not None, None
                if isinstance(job.outcome, InvalidBatch | StoreWentBack):
                    continue
                lost = f"the commit failed and could not be looked up: {_said(error)}"
                job.outcome = OutcomeUnknown(lost) if changed else StoreUnavailable(lost)
            return
        if not taken:
            _forget(group)
            _fail(group, error)

    # -- the reader's thread -----------------------------------------------------------------------------------

    def read_group(self, group: list[_Read[Any]]) -> None:
        """Answer the jobs from one snapshot: taken after all of them were asked, so it is new enough for each."""
        connection = self._reader
        assert connection is not None
        try:
            self._refuse_replaced(group)
            _end_transaction(connection)
            committed = self._committed
            if self._read_at_once(connection, group, committed):
                return
            connection.execute("BEGIN")
            self._refuse_behind(group, _revision(connection), committed)
            for job in group:
                if job.outcome is not None:
                    continue
                try:
                    job.outcome = _found(connection, job.query)
                except ValueError as error:  # a key that UTF-8 cannot express is the caller's error
                    job.outcome = error
            connection.execute("COMMIT")
        except _STORE_FAILURES as error:
            for job in group:
                job.outcome = StoreUnavailable(f"cannot read the database: {_said(error)}")

    def _read_at_once(self, connection: sqlite3.Connection, group: list[_Read[Any]], committed: Revision) -> bool:
        """Answer the jobs by one statement, which needs no transaction, if they are reads of a few keys."""
        keys: set[str] = set()
        for job in group:
            if not isinstance(job.query, tuple) or len(keys := keys | set(job.query)) > KEYS_PER_STATEMENT:
                return False
        try:
            rows, revision = _rows(connection, keys)
        except ValueError:  # one of the keys is wrong
            return False
        self._refuse_behind(group, revision, committed)
        for job in group:
            if job.outcome is None:
                assert isinstance(job.query, tuple)
                job.outcome = _snapshot(job.query, rows, revision)
        return True


# -- one group, up to its commit -------------------------------------------------------------------------------


class _RefusedData(Exception):
    """What the database says about the data of a batch."""


def _told_of_refusals(statement: Callable[..., T], *arguments: Any) -> T:
    try:
        return statement(*arguments)
    except _BAD_DATA as error:
        raise _RefusedData(str(error)) from error


class _State:
    """The rows with the keys of a group's batches, and the revision, as the jobs of the group find and leave them.

    What the jobs write is kept here, and written by a few statements in the end, or when a statement has to see it.
    """

    def __init__(self, connection: sqlite3.Connection, keys: Iterable[str] = ()) -> None:
        """The rows with these keys are read together with the revision."""
        self._connection = connection
        self._known: dict[str, SqliteRow | None] = dict.fromkeys(keys)
        self._puts: dict[str, tuple[str, bytes, int, int, bool]] = {}
        self._deletes: set[str] = set()
        try:
            rows, self.revision = _rows(connection, self._known)
        except _BAD_DATA:  # one of the jobs hears of it when it asks for its rows
            self._known.clear()
            rows, self.revision = {}, _revision(connection)
        self._known |= rows

    def rows(self, keys: Iterable[str]) -> dict[str, SqliteRow]:
        """The rows that exist. Raises `_RefusedData`."""
        wanted = dict.fromkeys(keys)
        if unknown := [key for key in wanted if key not in self._known]:
            rows, _ = _told_of_refusals(_rows, self._connection, unknown)
            self._known |= dict.fromkeys(unknown)
            self._known |= rows
        return {key: row for key in wanted if (row := self._known[key]) is not None}

    def first_in(self, span: EmptyRange) -> SqliteRow | None:
        """The first row in a range. Raises `_RefusedData`."""
        return _told_of_refusals(_first_row, self.written(), span)

    def written(self) -> sqlite3.Connection:
        """The connection, for a statement that sees what the jobs have written. Raises `_RefusedData`."""
        for some in _parts(self._deletes):
            _told_of_refusals(self._connection.execute, _DELETE_SOME.format(_marks(len(some))), some)
        for part in _parts(self._puts.values()):
            marks = ",".join([f"({_marks(5)})"] * len(part))
            _told_of_refusals(self._connection.execute, _PUT_SOME.format(marks), tuple(chain.from_iterable(part)))
        self._deletes.clear()
        self._puts.clear()
        return self._connection

    def write(self, batch: Batch, found: Mapping[str, SqliteRow], ephemeral: bool) -> Written | None:
        """Apply a batch. Returns None if nothing was changed. `found` are the rows of its keys. Raises
        `_RefusedData`."""
        deleted = batch.deletes & found.keys()
        for span in batch.range_deletes:
            rows = _told_of_refusals(self.written().execute, _DELETE_RANGE, span)
            deleted.update(key for (key,) in rows.fetchall())
        if not (deleted or batch.puts):
            return None
        self.revision += 1
        for key in deleted:
            self._known[key] = None
            self._puts.pop(key, None)
        self._deletes |= deleted
        known = batch.puts.keys() & found.keys()
        for key, value in batch.puts.items():
            row = key, value, self.revision, found[key][3] + 1 if key in known else 1
            self._known[key] = row
            self._puts[key] = (*row, ephemeral)
        return Written(self.revision, sorted(deleted), dict(batch.puts), known)


def _keys(batch: Batch | Plan) -> Iterable[str]:
    """The keys of which a batch needs the rows, as far as they are known now."""
    if not isinstance(batch, Batch):
        return ()
    return chain((check.key for check in batch.checks if not isinstance(check, EmptyRange)), batch.puts, batch.deletes)


def _evaluate_group(connection: sqlite3.Connection, state: _State, group: list[_Write], token: int) -> Revision:
    """Set the outcome of every job that has none, in a transaction that is ready to be committed. Returns the revision
    after it, which is the same as before if there is nothing to commit."""
    before, jobs = state.revision, [job for job in group if job.outcome is None]
    try:
        for job in jobs:
            _evaluate(state, job)
        state.written()
    except _RefusedData:
        _forget(jobs)
        connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        state = _evaluate_each(connection, jobs)
    if state.revision > before:
        connection.execute(_PUT_NUMBERS, (state.revision, token))
    return state.revision


def _evaluate_each(connection: sqlite3.Connection, jobs: list[_Write]) -> _State:
    """The database refuses what one of the jobs writes: evaluate and write one after the other, without that one."""
    state = _State(connection)
    for job in jobs:
        revision = state.revision
        connection.execute("SAVEPOINT job")
        try:
            _evaluate(state, job)
            state.written()
        except _RefusedData as refused:
            connection.execute("ROLLBACK TO job")
            state, job.changes = _State(connection), None
            state.revision = revision
            job.outcome = InvalidBatch(f"the database refuses the batch: {refused}")
        connection.execute("RELEASE job")
    return state


def _evaluate(state: _State, job: _Write) -> None:
    """Set the outcome of one job on the state that its predecessors left."""
    batch = job.batch
    if not isinstance(batch, Batch):
        try:
            batch = batch(state.written())
        except ValueError as error:  # a counter without a number is an error of its caller, not of the group
            job.outcome = error
            return
    found = state.rows(_keys(batch))
    for check in batch.checks:
        row = state.first_in(check) if isinstance(check, EmptyRange) else found.get(check.key)
        current = _record(row) if row else None
        if not holds(check, current):
            job.outcome = CheckFailed(check, current, state.revision)
            return
    job.changes = state.write(batch, found, job.ephemeral)
    job.outcome = Applied(state.revision)


def _refuse(group: Iterable[_Job[Any]], how: str) -> None:
    for job in group:
        job.outcome = StoreWentBack(behind(how))


def _forget(group: list[_Write]) -> None:
    """Take back the outcomes of the jobs in a transaction that is gone."""
    for job in group:
        job.changes = None
        if not isinstance(job.outcome, InvalidBatch | StoreWentBack):
            job.outcome = None


def _fail(group: list[_Write], error: BaseException) -> None:
    for job in group:
        if job.outcome is None:
            kind = StoreFull if _is_full(error) else StoreUnavailable
            job.outcome = kind(f"nothing was written: {_said(error)}")


def _too_late_to_write(job: _Job[Any]) -> None:
    if job.future.done():
        return
    if job.begun:
        job.future.set_exception(OutcomeUnknown("the disk did not confirm the commit within the deadline"))
    else:
        job.future.set_exception(StoreUnavailable("the disk was busy with other commits until the deadline"))


def _too_late_to_read(job: _Job[Any]) -> None:
    if not job.future.done():
        job.future.set_exception(StoreUnavailable("the disk did not answer within the deadline"))


# -- SQLite, in small pieces -----------------------------------------------------------------------------------


def _one(connection: sqlite3.Connection, statement: str) -> Any:
    (value,) = connection.execute(statement).fetchone()
    return value


def _revision(connection: sqlite3.Connection) -> Revision:
    return int(_one(connection, "SELECT number FROM meta WHERE name = 'revision'"))


def _rows(connection: sqlite3.Connection, keys: Iterable[str]) -> tuple[dict[str, SqliteRow], Revision]:
    """The rows that exist, and the revision. For more keys than one statement has, call it in a transaction."""
    rows: dict[str, SqliteRow] = {}
    parts = list(_parts(keys)) or [()]
    for some in parts:
        rows.update((row[0], row) for row in connection.execute(_GET_SOME.format(_marks(len(some))), some).fetchall())
    return rows, rows.pop("")[2]


def _found(connection: sqlite3.Connection, query: Callable[[sqlite3.Connection], Any] | tuple[str, ...]) -> Any:
    return _snapshot(query, *_rows(connection, query)) if isinstance(query, tuple) else query(connection)


def _snapshot(keys: Sequence[str], rows: Mapping[str, SqliteRow], revision: Revision) -> Snapshot:
    return Snapshot({key: _record(rows[key]) if key in rows else None for key in keys}, revision)


def _parts(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    rest = iter(items)
    while part := tuple(islice(rest, KEYS_PER_STATEMENT)):
        yield part


def _marks(count: int) -> str:
    return ",".join("?" * count)


def _keys_below(directory: str, connection: sqlite3.Connection) -> tuple[list[str], Revision]:
    """The keys of a directory, or one more than are kept, in one row: each row waits for the loop's thread."""
    span = (directory, prefix_end(directory), MAX_DIRECTORY_KEYS + 1)
    return json.loads(connection.execute(_SOME_KEYS, span).fetchone()[0]), _revision(connection)


def _first_row(connection: sqlite3.Connection, span: EmptyRange) -> SqliteRow | None:
    row: SqliteRow | None = connection.execute(_FIRST_IN_RANGE, (span.start, span.end)).fetchone()
    return row


def _record(row: SqliteRow) -> Record:
    key, value, version, writes = row
    return Record(key, value, version, writes == 1)


def _end_transaction(connection: sqlite3.Connection) -> None:
    # SQLite ends some failed transactions by itself, so check first.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _is_full(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _said(error: BaseException) -> str:
    """The error in words. A `MemoryError` has none of its own."""
    return str(error) or type(error).__name__


def _opening_failure(path: Path, error: sqlite3.Error) -> MetastoreError:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreUnusable(f"{path} is not a readable SQLite database: {error}")
    kind = StoreFull if _is_full(error) else StoreUnavailable
    return kind(f"cannot open {path}: {error}")


# -- files -----------------------------------------------------------------------------------------------------


def _identity(path: Path, known: tuple[int, int] | None = None) -> tuple[int, int] | None:
    """The file that has this name, or None. It is the `known` one as long as that cannot be determined."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return known
    return found.st_dev, found.st_ino


def _files(path: Path) -> _Files | None:
    """How the file and its write-ahead log look, or None if that cannot be determined."""
    try:
        file, log = path.stat(), path.with_name(f"{path.name}-wal").stat()
    except OSError:
        return None
    return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, log.st_size, log.st_mtime_ns


def _take_lock(path: Path) -> int:
    """An exclusive `flock` on `<path>.lock`, held until the descriptor is closed or the process ends.

    The lock file is never unlinked: a second process could lock the old file while a third one locks a new file of
    the same name. It holds the owner's process id, for the message only.
    """
    lock_path = path.with_name(path.name + ".lock")
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode(errors="replace") or "unknown"
        os.close(lock)
        raise StoreInUse(
            f"{path} is being served by process {owner}: stop that process, or give this one another file; "
            "several processes can share a store on etcd"
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _make_directory(directory: Path) -> None:
    """Create a directory and its parents so that they survive a power failure."""
    if directory.exists():
        return
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable: syncing a file does not sync its name."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
