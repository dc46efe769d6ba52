"""The blocking half of the store in an SQLite file: connections and transactions."""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from metastore.backends.sqlite_files import (
    FilesLook,
    identity_of_file,
    look_of_files,
    make_lasting_directory,
    sync_directory_entries,
    take_file_lock,
)
from metastore.backends.sqlite_groups import (
    RowsOfGroup,
    evaluate_group,
    fail_jobs,
    forget_outcomes,
    keys_needed,
    refuse_jobs,
)
from metastore.backends.sqlite_lanes import SqliteJob, SqliteRead, SqliteWrite
from metastore.backends.sqlite_statements import (
    APPLICATION_ID,
    FORMAT_VERSION,
    KEYS_PER_STATEMENT,
    SCHEMA,
    STORE_FAILURES,
    answer_to,
    end_transaction,
    is_disk_full,
    one_value,
    opening_failure,
    revision_in,
    rows_with,
    said_by,
    snapshot_of_rows,
)
from metastore.errors import (
    InvalidBatch,
    OutcomeUnknown,
    StoreFull,
    StoreMissing,
    StoreUnavailable,
    StoreUnusable,
    StoreWentBack,
)
from metastore.types import Revision

Connect = Callable[..., sqlite3.Connection]

WAL_BYTES_KEPT = 64 << 20


class SqliteDatabase:
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
        self._files: FilesLook | None = None
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
            make_lasting_directory(self._path.parent)
            self._lock = take_file_lock(self._path)
            connection = self._writer = self._open()
            self._prepare(connection)
            sync_directory_entries(self._path.parent)
            self._file = identity_of_file(self._path)
            self._committed = revision_in(connection)
            self._files = look_of_files(self._path)
            return self._committed
        except sqlite3.Error as error:
            raise opening_failure(self._path, error) from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (StoreFull if full else StoreUnavailable)(f"cannot open {self._path}: {error}") from error

    def open_reader(self) -> None:
        try:
            self._reader = self._open()
            self._reader.execute("PRAGMA query_only = ON")
            if self.read_only and one_value(self._reader, "SELECT count(*) FROM sqlite_schema") == 0:
                raise StoreMissing(f"the file {self._path} is empty")
            self._assert_ours(self._reader)
        except sqlite3.Error as error:
            raise opening_failure(self._path, error) from error

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
        is_new = one_value(connection, "SELECT count(*) FROM sqlite_schema") == 0
        if not is_new:
            self._assert_ours(connection)
        if one_value(connection, "PRAGMA journal_mode = WAL") != "wal":
            raise StoreUnusable(f"{self._path} cannot use a write-ahead log here: put it on a local file system")
        connection.execute("BEGIN IMMEDIATE")
        if is_new:
            for statement in filter(str.strip, SCHEMA.split(";")):
                connection.execute(statement)
        # The ephemeral records of a former process. This is a change like any other: it has its own revision.
        if connection.execute("DELETE FROM records WHERE ephemeral").rowcount:
            connection.execute("UPDATE meta SET number = number + 1 WHERE name = 'revision'")
        connection.execute("COMMIT")

    def _assert_ours(self, connection: sqlite3.Connection) -> None:
        if one_value(connection, "PRAGMA application_id") != APPLICATION_ID:
            raise StoreUnusable(f"{self._path} is not a metadata store")
        if one_value(connection, "PRAGMA user_version") > FORMAT_VERSION:
            raise StoreUnusable(f"{self._path} was written by a newer version of this software")

    # -- the event loop ----------------------------------------------------------------------------------------

    def is_as_committed(self) -> bool:
        """Whether nobody else has touched the files since the last commit, as far as their sizes and times tell."""
        if self._has_it_alone:
            return identity_of_file(self._path) == self._file
        return self._files is not None and look_of_files(self._path) == self._files

    # -- both threads ------------------------------------------------------------------------------------------

    def _refuse_replaced(self, group: Sequence[SqliteJob[Any]]) -> None:
        """Fail the jobs if the file has lost its name: what is written into it then is gone when it is closed."""
        if self._file is not None and identity_of_file(self._path, self._file) != self._file:
            how = f"another file is in the place of {self.name}, or none"
            self._note_lost(how)
            refuse_jobs(group, how)

    def _refuse_behind(self, group: Sequence[SqliteJob[Any]], revision: Revision, committed: Revision) -> None:
        """Fail the jobs, except those that tell the others, if the store is or was behind `committed`, which was known
        before the transaction began that has read `revision`."""
        if revision < committed:
            self._note_lost(f"it was at revision {committed}, and now it is at revision {revision}")
        if self._lost is not None:
            refuse_jobs((job for job in group if not job.telling), self._lost)

    def _note_lost(self, how: str) -> None:
        self._lost = self._lost or how
        self.on_went_back(how)

    # -- the writer's thread -----------------------------------------------------------------------------------

    def commit_group(self, group: list[SqliteWrite]) -> None:
        """Evaluate the jobs in order in one transaction, commit it once, and set every outcome.

        No verdict stands before the commit does: a job may have lost against a neighbour's write, and that write
        is gone when the commit fails. Only `InvalidBatch` is a fact of its own.
        """
        connection = self._writer
        assert connection is not None
        token = secrets.randbits(62)
        try:
            self._refuse_replaced(group)
            end_transaction(connection)  # what a failed group left behind
            connection.execute("BEGIN IMMEDIATE")
            state = RowsOfGroup(connection, chain.from_iterable(keys_needed(job.batch) for job in group))
            before = state.revision
            self._refuse_behind(group, before, self._committed)
            if self._files is None or look_of_files(self._path) != self._files:
                self.touched += 1
            self._has_it_alone = True
            revision = evaluate_group(connection, state, group, token)
            if revision == before:
                self._has_it_alone = False
                connection.execute("ROLLBACK")
                return
        except STORE_FAILURES as error:
            self._has_it_alone = False
            forget_outcomes(group)
            fail_jobs(group, error)
            return
        except BaseException:
            self._has_it_alone = False
            forget_outcomes(group)
            raise
        try:
            connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - the verdicts stand already, and must not be told unproven
            self._files, self._has_it_alone = None, False
            self._settle(connection, group, token, error)
            return
        self._committed = revision
        self._files, self._has_it_alone = look_of_files(self._path), False

    def _settle(
        self, connection: sqlite3.Connection, group: list[SqliteWrite], token: int, error: BaseException
    ) -> None:
        """COMMIT failed in some way: find out whether it took effect, and make sure that this remains true.

        Reading the token is not enough. After a failed fsync the frames of the lost commit may sit in the log, and a
        recovery after a crash could still find them complete. Only a further commit settles it: its frames take their
        place, or follow them. A full disk is the exception: the commit frame was never written.
        """
        try:
            end_transaction(connection)
            taken = one_value(connection, "SELECT number FROM meta WHERE name = 'last_group'") == token
            if taken or not is_disk_full(error):
                fence = secrets.randbits(62)
                connection.execute("UPDATE meta SET number = ? WHERE name = 'last_group'", (fence,))
        except BaseException:  # noqa: BLE001 - as above
            for job in group:
                changed, job.changes = job.changes is not None, None
                if isinstance(job.outcome, InvalidBatch | StoreWentBack):
                    continue
                lost = f"the commit failed and could not be looked up: {said_by(error)}"
                job.outcome = OutcomeUnknown(lost) if changed else StoreUnavailable(lost)
            return
        if not taken:
            forget_outcomes(group)
            fail_jobs(group, error)

    # -- the reader's thread -----------------------------------------------------------------------------------

    def read_group(self, group: list[SqliteRead[Any]]) -> None:
        """Answer the jobs from one snapshot: taken after all of them were asked, so it is new enough for each."""
        connection = self._reader
        assert connection is not None
        try:
            self._refuse_replaced(group)
            end_transaction(connection)
            committed = self._committed
            if self._read_at_once(connection, group, committed):
                return
            connection.execute("BEGIN")
            self._refuse_behind(group, revision_in(connection), committed)
            for job in group:
                if job.outcome is not None:
                    continue
                try:
                    job.outcome = answer_to(connection, job.query)
                except ValueError as error:  # a key that UTF-8 cannot express is the caller's error
                    job.outcome = error
            connection.execute("COMMIT")
        except STORE_FAILURES as error:
            for job in group:
                job.outcome = StoreUnavailable(f"cannot read the database: {said_by(error)}")

    def _read_at_once(self, connection: sqlite3.Connection, group: list[SqliteRead[Any]], committed: Revision) -> bool:
        """Answer the jobs by one statement, which needs no transaction, if they are reads of a few keys."""
        keys: set[str] = set()
        for job in group:
            if not isinstance(job.query, tuple) or len(keys := keys | set(job.query)) > KEYS_PER_STATEMENT:
                return False
        try:
            rows, revision = rows_with(connection, keys)
        except ValueError:  # one of the keys is wrong
            return False
        self._refuse_behind(group, revision, committed)
        for job in group:
            if job.outcome is None:
                assert isinstance(job.query, tuple)
                job.outcome = snapshot_of_rows(job.query, rows, revision)
        return True
