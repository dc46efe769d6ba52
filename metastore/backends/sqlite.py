"""The store in one SQLite file: embedded, durable, for one serving process.

    meta                                        records
    | name       | number                 |     | key (TEXT) | value (BLOB) | version | writes | ephemeral |
    | revision   | grows with each change |
    | last_group | token of the last commit group |

`version` is the revision of the last write, `writes` how many there were since the record was created. The database
is UTF-8 and keys compare as bytes (`BINARY`), which is the order the interface promises.

Three threads of control (`sqlite_lanes`). The event loop only queues and answers. The *writer* thread evaluates every
waiting apply in order inside one transaction (`sqlite_groups`) and commits once; the *reader* thread answers every
waiting read from one snapshot. Each has its own connection, and each group costs the loop one wake-up. While a group is
being committed the next one gathers, so an idle caller waits for nothing and a busy store pays one fsync for hundreds
of applies.

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
import os
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from metastore.api import MAX_BATCH_BYTES, Ephemeral, OwnRecord, StoredIndexes, sequence_counter
from metastore.backends.sqlite_database import Connect, SqliteDatabase
from metastore.backends.sqlite_lanes import (
    Plan,
    SqliteJob,
    SqliteLane,
    SqliteRead,
    SqliteWrite,
    too_late_to_read,
    too_late_to_write,
)
from metastore.backends.sqlite_recent import MAX_DIRECTORY_KEYS, DirectoryLook, RecentRecords
from metastore.backends.sqlite_statements import keys_below, record_of_row, revision_in, rows_with
from metastore.errors import InvalidBatch, OutcomeUnknown, StoreClosed, StoreUnavailable
from metastore.types import Applied, Batch, IndexDefinition, RangeResult, Record, Revision, Snapshot, Watch
from metastore.watches import ChangeLog

AT_ONCE_IN_A_ROW = 100
"""Reads that are answered without waiting, before others have their turn."""

_PLAIN = re.compile("[A-Za-z0-9._~%/:&+-]+", re.ASCII)

T = TypeVar("T")


class SqliteStore(StoredIndexes):
    """The store in one SQLite file; see the module's docstring. Open one with `SqliteStore.open`."""

    kind = "sqlite"

    def __init__(
        self, database: SqliteDatabase, indexes: Iterable[IndexDefinition], deadline_ms: int, max_batch_bytes: int
    ) -> None:
        super().__init__(indexes)
        self.max_batch_bytes = max_batch_bytes
        self._deadline_s = deadline_ms / 1000
        self._database = database
        database.on_went_back = self._went_back
        self._writer: SqliteLane[SqliteWrite] = SqliteLane("sqlite writer", database.commit_group, self._publish)
        self._reader: SqliteLane[SqliteRead[Any]] = SqliteLane("sqlite reader", database.read_group)
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
        database = SqliteDatabase(Path(path), connect, deadline_ms / 2000, read_only)
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
            row = rows_with(connection, [counter])[0].get(counter)
            key, batch = self._next_in_sequence(prefix, value, record_of_row(row) if row else None)
            return batch

        applied = await self._apply(plan)
        return Record(key, value, applied.revision, first=True)

    async def _apply(self, batch: Batch | Plan, *, ephemeral: bool = False) -> Applied:
        self._assert_open()
        if self._database.read_only:
            raise InvalidBatch("the store was opened read-only")
        job = SqliteWrite(future=asyncio.get_running_loop().create_future(), batch=batch, ephemeral=ephemeral)
        self._writer.submit(job)
        return await self._in_time(job, too_late_to_write)

    def _publish(self, group: list[SqliteWrite]) -> None:
        """Feed the watches, on the loop, before any caller of the group learns its answer."""
        try:
            self._feed(group)
        except BaseException:  # a listener has failed, and the callers learn their answers nevertheless
            self._recent.forget()
            self._told = max(self._told, self._log.revision + 1)
            raise

    def _feed(self, group: list[SqliteWrite]) -> None:
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
                job: SqliteRead[tuple[list[str], Revision]] = SqliteRead(
                    future=asyncio.get_running_loop().create_future(), query=partial(keys_below, look.directory)
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
            return RangeResult([record_of_row(row) for row in rows[: limit or None]], revision_in(connection), more)

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
        job: SqliteRead[T] = SqliteRead(future=asyncio.get_running_loop().create_future(), query=query)
        self._reader.submit(job)
        return await self._in_time(job, too_late_to_read)

    async def _in_time(self, job: SqliteJob[T], too_late: Callable[[SqliteJob[T]], None]) -> T:
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
