"""Reading whole topics as Arrow tables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import pyarrow as pa

from metatxn.connection import Connection
from metatxn.frames import SegmentFrames, decode_with_nulls, keys_of, misfit_at, values_of
from metatxn.wire.broker import Isolation
from metatxn.wire.columns import Misfit, table_with_nulls
from metatxn.wire.errors import NotFound, SchemaMismatch
from metatxn.wire.frames import Frame, PayloadKind

log = logging.getLogger("metatxn")
_METADATA_FIELDS: list[pa.Field[Any]] = [
    pa.field("__topic", pa.string()),
    pa.field("__segment", pa.string()),
    pa.field("__position", pa.string()),
    pa.field("__key", pa.string()),
    pa.field("__publish_ms", pa.int64()),
    pa.field("__txn_id", pa.string()),
]
METADATA_SCHEMA = pa.schema(_METADATA_FIELDS)
"""The columns that `include_metadata` adds, before those of the topic."""
OnError = Literal["raise", "null", "skip"]
"""What happens to a message with a value that does not fit its column."""
_Entry = tuple[str, Frame]
"""An entry with its segment."""
_Rows = tuple[pa.Table, list[Misfit]]
"""A row for each message, and what does not fit and is null, by row."""
PARALLEL_READS = 8
"""The number of segments that are read at the same time."""


async def read_topics(
    connection: Connection,
    topics: Sequence[str],
    isolation: Isolation,
    revision: int | None,
    include_metadata: bool,
    on_error: OnError,
    columns: Sequence[str] | None,
) -> dict[str, pa.Table]:
    """Read topics. With `snapshot`, the revision is read first, then the layouts, then the data. A segment created
    later holds nothing that was decided at that revision."""
    if isolation == "snapshot" and revision is None:
        revision = (await connection.directory.read()).revision
    places = asyncio.Semaphore(PARALLEL_READS)

    async def entries(segment: str, columns: Sequence[str] | None) -> list[_Entry]:
        async with places:
            frames = SegmentFrames(connection, segment, isolation, revision, columns)
            return [(segment, frame) async for frame in frames]

    tables = {}
    layouts = {topic: await connection.topics.refresh(topic) for topic in topics}
    for topic, layout in layouts.items():
        _check_columns(topic, layout.schema, columns)
    try:
        async with asyncio.TaskGroup() as group:
            reads = {
                topic: [
                    group.create_task(entries(each.segment, columns if layout.schema is not None else None))
                    for each in layout.in_order()
                ]
                for topic, layout in layouts.items()
            }
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    for topic, layout in layouts.items():
        frames = [entry for read in reads[topic] for entry in read.result()]
        schema = layout.schema
        if schema is None and any(frame.kind is PayloadKind.ARROW for _, frame in frames):
            schema = await _columns_given_meanwhile(connection, topic)
            _check_columns(topic, schema, columns)
        tables[topic] = _table(layout.topic.name, frames, schema, columns, include_metadata, on_error)
    return tables


def _check_columns(topic: str, schema: pa.Schema | None, columns: Sequence[str] | None) -> None:
    missing = [] if schema is None else [name for name in columns or () if name not in schema.names]
    if missing:
        assert schema is not None
        raise SchemaMismatch(
            f"topic {topic} does not have the columns {', '.join(missing)}; its columns are {', '.join(schema.names)}",
            columns=missing,
        )


async def _columns_given_meanwhile(connection: Connection, topic: str) -> pa.Schema:
    """The columns now: a topic without a schema gets those of the first table written to it, before it is accepted."""
    schema = (await connection.topics.refresh(topic)).schema
    if schema is None:
        raise NotFound(f"topic {topic} was deleted and created again while it was read", topic=topic)
    return schema


def _table(
    topic: str,
    entries: list[_Entry],
    schema: pa.Schema | None,
    columns: Sequence[str] | None,
    include_metadata: bool,
    on_error: OnError,
) -> pa.Table:
    if schema is None:
        rows, misfits = _of_messages(entries, columns, skip=on_error == "skip")
    else:
        rows, misfits = _of_any(entries, schema, columns)
    if include_metadata:
        rows = _with_metadata(topic, entries, rows)
    if not misfits:
        return rows
    problem = _problem(misfits[0], entries)
    if on_error == "raise":
        raise problem from misfits[0]
    unfit = {misfit.index for misfit in misfits}
    log.warning("%s: %d of %d messages do not fit; the first: %s", topic, len(unfit), rows.num_rows, problem.detail)
    if on_error == "null":
        return rows
    return rows.filter(pa.array([index not in unfit for index in range(rows.num_rows)], pa.bool_()))


def _of_any(entries: list[_Entry], schema: pa.Schema, columns: Sequence[str] | None) -> _Rows:
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    tables, misfits, before = [wanted.empty_table()], [], 0
    for _, frame in entries:
        decoded = decode_with_nulls(frame, wanted)
        for misfit in decoded.misfits:
            misfit.index += before
            # A message that is not an object may fit into a column that is not wanted.
            if misfit.column in wanted.names or misfit.column not in schema.names:
                misfits.append(misfit)
        tables.append(decoded.table)
        before += decoded.table.num_rows
    return pa.concat_tables(tables), misfits


def _of_messages(entries: list[_Entry], columns: Sequence[str] | None, *, skip: bool) -> _Rows:
    """The columns of a topic without a schema. The values of a column have one type over all of its messages, so a
    message that does not fit in any column is a misfit. A column that no message has is null."""
    values = list(chain.from_iterable(values_of(frame) for _, frame in entries))
    rows, misfits = table_with_nulls(values, None, skip=skip)
    if columns is None:
        return rows, misfits
    for name in columns:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows.select(list(columns)), misfits


def _problem(misfit: Misfit, entries: list[_Entry]) -> SchemaMismatch:
    index = misfit.index
    for segment, frame in entries:
        rows = 1 if frame.kind is PayloadKind.BYTES else frame.count
        if index < rows:
            return misfit_at(frame, segment, misfit, index)
        index -= rows
    raise AssertionError("every row is one of an entry")


def _with_metadata(topic: str, entries: list[_Entry], rows: pa.Table) -> pa.Table:
    metadata = pa.concat_tables(
        [METADATA_SCHEMA.empty_table(), *(_metadata(topic, segment, frame) for segment, frame in entries)]
    )
    columns = [*metadata.columns, *rows.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([*METADATA_SCHEMA, *rows.schema]))


def _metadata(topic: str, segment: str, frame: Frame) -> pa.Table:
    keys = keys_of(frame)
    count = len(keys)
    txn_id = str(frame.txn_id) if frame.txn_id is not None else None
    return pa.Table.from_pydict(
        {
            "__topic": [topic] * count,
            "__segment": [segment] * count,
            "__position": [str(frame.position)] * count,
            "__key": keys,
            "__publish_ms": [frame.publish_ms] * count,
            "__txn_id": [txn_id] * count,
        },
        schema=METADATA_SCHEMA,
    )
