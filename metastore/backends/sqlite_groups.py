"""One group of writes of the store in an SQLite file, up to its commit.

They are evaluated in their order, each on what those before it have left.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, TypeVar

from metastore.api import behind
from metastore.backends.sqlite_lanes import Plan, SqliteJob, SqliteWrite
from metastore.backends.sqlite_statements import (
    BAD_DATA,
    DELETE_RANGE,
    DELETE_SOME,
    PUT_NUMBERS,
    PUT_SOME,
    SqliteRow,
    first_row_in,
    in_statements,
    is_disk_full,
    placeholders,
    record_of_row,
    revision_in,
    rows_with,
    said_by,
)
from metastore.errors import CheckFailed, InvalidBatch, StoreFull, StoreUnavailable, StoreWentBack
from metastore.types import Applied, Batch, EmptyRange, Revision, holds
from metastore.watches import Written

T = TypeVar("T")


class _RefusedData(Exception):
    """What the database says about the data of a batch."""


def _told_of_refusals(statement: Callable[..., T], *arguments: Any) -> T:
    try:
        return statement(*arguments)
    except BAD_DATA as error:
        raise _RefusedData(str(error)) from error


class RowsOfGroup:
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
            rows, self.revision = rows_with(connection, self._known)
        except BAD_DATA:  # one of the jobs hears of it when it asks for its rows
            self._known.clear()
            rows, self.revision = {}, revision_in(connection)
        self._known |= rows

    def rows(self, keys: Iterable[str]) -> dict[str, SqliteRow]:
        """The rows that exist. Raises `_RefusedData`."""
        wanted = dict.fromkeys(keys)
        if unknown := [key for key in wanted if key not in self._known]:
            rows, _ = _told_of_refusals(rows_with, self._connection, unknown)
            self._known |= dict.fromkeys(unknown)
            self._known |= rows
        return {key: row for key in wanted if (row := self._known[key]) is not None}

    def first_in(self, span: EmptyRange) -> SqliteRow | None:
        """The first row in a range. Raises `_RefusedData`."""
        return _told_of_refusals(first_row_in, self.written(), span)

    def written(self) -> sqlite3.Connection:
        """The connection, for a statement that sees what the jobs have written. Raises `_RefusedData`."""
        for some in in_statements(self._deletes):
            _told_of_refusals(self._connection.execute, DELETE_SOME.format(placeholders(len(some))), some)
        for part in in_statements(self._puts.values()):
            rows = ",".join([f"({placeholders(5)})"] * len(part))
            _told_of_refusals(self._connection.execute, PUT_SOME.format(rows), tuple(chain.from_iterable(part)))
        self._deletes.clear()
        self._puts.clear()
        return self._connection

    def write(self, batch: Batch, found: Mapping[str, SqliteRow], ephemeral: bool) -> Written | None:
        """Apply a batch. Returns None if nothing was changed. `found` are the rows of its keys. Raises
        `_RefusedData`."""
        deleted = batch.deletes & found.keys()
        for span in batch.range_deletes:
            rows = _told_of_refusals(self.written().execute, DELETE_RANGE, span)
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


def keys_needed(batch: Batch | Plan) -> Iterable[str]:
    """The keys of which a batch needs the rows, as far as they are known now."""
    if not isinstance(batch, Batch):
        return ()
    return chain((check.key for check in batch.checks if not isinstance(check, EmptyRange)), batch.puts, batch.deletes)


def evaluate_group(
    connection: sqlite3.Connection, state: RowsOfGroup, group: list[SqliteWrite], token: int
) -> Revision:
    """Set the outcome of every job that has none, in a transaction that is ready to be committed. Returns the revision
    after it, which is the same as before if there is nothing to commit."""
    before, jobs = state.revision, [job for job in group if job.outcome is None]
    try:
        for job in jobs:
            _evaluate(state, job)
        state.written()
    except _RefusedData:
        forget_outcomes(jobs)
        connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        state = _evaluate_each(connection, jobs)
    if state.revision > before:
        connection.execute(PUT_NUMBERS, (state.revision, token))
    return state.revision


def _evaluate_each(connection: sqlite3.Connection, jobs: list[SqliteWrite]) -> RowsOfGroup:
    """The database refuses what one of the jobs writes: evaluate and write one after the other, without that one."""
    state = RowsOfGroup(connection)
    for job in jobs:
        revision = state.revision
        connection.execute("SAVEPOINT job")
        try:
            _evaluate(state, job)
            state.written()
        except _RefusedData as refused:
            connection.execute("ROLLBACK TO job")
            state, job.changes = RowsOfGroup(connection), None
            state.revision = revision
            job.outcome = InvalidBatch(f"the database refuses the batch: {refused}")
        connection.execute("RELEASE job")
    return state


def _evaluate(state: RowsOfGroup, job: SqliteWrite) -> None:
    """Set the outcome of one job on the state that its predecessors left."""
    batch = job.batch
    if not isinstance(batch, Batch):
        try:
            batch = batch(state.written())
        except ValueError as error:  # a counter without a number is an error of its caller, not of the group
            job.outcome = error
            return
    found = state.rows(keys_needed(batch))
    for check in batch.checks:
        row = state.first_in(check) if isinstance(check, EmptyRange) else found.get(check.key)
        current = record_of_row(row) if row else None
        if not holds(check, current):
            job.outcome = CheckFailed(check, current, state.revision)
            return
    job.changes = state.write(batch, found, job.ephemeral)
    job.outcome = Applied(state.revision)


def refuse_jobs(group: Iterable[SqliteJob[Any]], how: str) -> None:
    """Tell the callers that the store has lost writes."""
    for job in group:
        job.outcome = StoreWentBack(behind(how))


def forget_outcomes(group: list[SqliteWrite]) -> None:
    """Take back the outcomes of the jobs in a transaction that is gone."""
    for job in group:
        job.changes = None
        if not isinstance(job.outcome, InvalidBatch | StoreWentBack):
            job.outcome = None


def fail_jobs(group: list[SqliteWrite], error: BaseException) -> None:
    """Tell those callers that have no outcome yet that nothing was written."""
    for job in group:
        if job.outcome is None:
            kind = StoreFull if is_disk_full(error) else StoreUnavailable
            job.outcome = kind(f"nothing was written: {said_by(error)}")
