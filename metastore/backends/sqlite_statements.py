"""The statements of the store in an SQLite file, and what they tell."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from metastore.backends.sqlite_recent import MAX_DIRECTORY_KEYS
from metastore.errors import MetastoreError, StoreFull, StoreUnavailable, StoreUnusable
from metastore.keys import prefix_end
from metastore.types import EmptyRange, Record, Revision, Snapshot

FORMAT_VERSION = 1
APPLICATION_ID = 0x6D747831  # "mtx1": distinguishes our file from any other SQLite database

SCHEMA = f"""
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
PUT_SOME = "INSERT OR REPLACE INTO records VALUES {}"
DELETE_SOME = "DELETE FROM records WHERE key IN ({})"
DELETE_RANGE = "DELETE FROM records WHERE key >= ? AND key < ? RETURNING key"
PUT_NUMBERS = (
    "UPDATE meta SET number = CASE name WHEN 'revision' THEN ? ELSE ? END WHERE name IN ('revision', 'last_group')"
)
# For each statement, and each row that one returns, the driver lets other threads in and waits for its turn again, up
# to a switch interval while the event loop is busy. So a group has few statements, each of which handles many keys.
# There is one for each number of keys, and the driver keeps them compiled.
KEYS_PER_STATEMENT = 64

# What SQLite or its driver says about the data it was given. Everything else it says is about the store.
BAD_DATA = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    TypeError,
    ValueError,
)

# How a statement fails because of the store. When memory runs out in SQLite (SQLITE_NOMEM), that is `MemoryError`.
STORE_FAILURES = (sqlite3.Error, MemoryError)

T = TypeVar("T")

SqliteRow = tuple[str, bytes, int, int]
"""A row: key, value, version, writes."""


def one_value(connection: sqlite3.Connection, statement: str) -> Any:
    """What a statement with one row of one column returns."""
    (value,) = connection.execute(statement).fetchone()
    return value


def revision_in(connection: sqlite3.Connection) -> Revision:
    """The revision of the store, as of the connection's transaction."""
    return int(one_value(connection, "SELECT number FROM meta WHERE name = 'revision'"))


def rows_with(connection: sqlite3.Connection, keys: Iterable[str]) -> tuple[dict[str, SqliteRow], Revision]:
    """The rows that exist, and the revision. For more keys than one statement has, call it in a transaction."""
    rows: dict[str, SqliteRow] = {}
    parts = list(in_statements(keys)) or [()]
    for some in parts:
        found = connection.execute(_GET_SOME.format(placeholders(len(some))), some).fetchall()
        rows.update((row[0], row) for row in found)
    return rows, rows.pop("")[2]


def answer_to(connection: sqlite3.Connection, query: Callable[[sqlite3.Connection], Any] | tuple[str, ...]) -> Any:
    """The answer to a read: a snapshot of the records with these keys, or what the function finds."""
    return snapshot_of_rows(query, *rows_with(connection, query)) if isinstance(query, tuple) else query(connection)


def snapshot_of_rows(keys: Sequence[str], rows: Mapping[str, SqliteRow], revision: Revision) -> Snapshot:
    """The records with these keys. `rows` are those that exist."""
    return Snapshot({key: record_of_row(rows[key]) if key in rows else None for key in keys}, revision)


def in_statements(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """The items in parts, each for one statement."""
    rest = iter(items)
    while part := tuple(islice(rest, KEYS_PER_STATEMENT)):
        yield part


def placeholders(count: int) -> str:
    """The placeholders of this many values in a statement."""
    return ",".join("?" * count)


def keys_below(directory: str, connection: sqlite3.Connection) -> tuple[list[str], Revision]:
    """The keys of a directory, or one more than are kept, in one row: each row waits for the loop's thread."""
    span = (directory, prefix_end(directory), MAX_DIRECTORY_KEYS + 1)
    return json.loads(connection.execute(_SOME_KEYS, span).fetchone()[0]), revision_in(connection)


def first_row_in(connection: sqlite3.Connection, span: EmptyRange) -> SqliteRow | None:
    """The row with the lowest key of the range."""
    row: SqliteRow | None = connection.execute(_FIRST_IN_RANGE, (span.start, span.end)).fetchone()
    return row


def record_of_row(row: SqliteRow) -> Record:
    """The record that a row holds."""
    key, value, version, writes = row
    return Record(key, value, version, writes == 1)


def end_transaction(connection: sqlite3.Connection) -> None:
    """Roll back, unless SQLite has ended the transaction by itself, as it does after some failures."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def is_disk_full(error: BaseException) -> bool:
    """Whether a statement failed because the disk, or the quota, is full."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def said_by(error: BaseException) -> str:
    """The error in words. A `MemoryError` has none of its own."""
    return str(error) or type(error).__name__


def opening_failure(path: Path, error: sqlite3.Error) -> MetastoreError:
    """What to raise when the file cannot be opened."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreUnusable(f"{path} is not a readable SQLite database: {error}")
    kind = StoreFull if is_disk_full(error) else StoreUnavailable
    return kind(f"cannot open {path}: {error}")
