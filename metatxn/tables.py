"""Reading whole topics as Arrow tables."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from metatxn.columns import Misfit, messages_table
from metatxn.connection import Connection
from metatxn.frames import SegmentFrames, decode_rows, keys_of, misfit_at, values_of
from metatxn.wire.broker import Isolation
from metatxn.wire.errors import NotFound, SchemaMismatch
from metatxn.wire.frames import Frame, PayloadKind

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
PARALLEL_READS = 8
"""The number of segments that are read at the same time."""


async def read_topics(
    connection: Connection,
    topics: Sequence[str],
    isolation: Isolation,
    revision: int | None,
    include_metadata: bool,
) -> dict[str, pa.Table]:
    """With `snapshot`, the revision is read first, then the layouts, then the data. A segment that is created later
    holds nothing that was decided at that revision."""
    if isolation == "snapshot" and revision is None:
        revision = (await connection.directory.read()).revision
    places = asyncio.Semaphore(PARALLEL_READS)

    async def entries(segment: str) -> list[tuple[str, Frame]]:
        async with places:
            return [(segment, frame) async for frame in SegmentFrames(connection, segment, isolation, revision)]

    tables = {}
    layouts = {topic: await connection.topics.refresh(topic) for topic in topics}
    try:
        async with asyncio.TaskGroup() as group:
            reads = {
                topic: [group.create_task(entries(segment.segment)) for segment in layout.in_order()]
                for topic, layout in layouts.items()
            }
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    for topic, layout in layouts.items():
        frames = [entry for read in reads[topic] for entry in read.result()]
        schema = layout.schema
        if schema is None and any(frame.kind is PayloadKind.ARROW for _, frame in frames):
            schema = await _columns_given_meanwhile(connection, topic)
        tables[topic] = _table(layout.topic.name, frames, schema, include_metadata)
    return tables


async def _columns_given_meanwhile(connection: Connection, topic: str) -> pa.Schema:
    """A topic without a schema gets the schema of the first table written to it, before that table is accepted."""
    schema = (await connection.topics.refresh(topic)).schema
    if schema is None:
        raise NotFound(f"topic {topic} was deleted and created again while it was read", topic=topic)
    return schema


def _table(topic: str, entries: list[tuple[str, Frame]], schema: pa.Schema | None, include_metadata: bool) -> pa.Table:
    rows = _of_messages(entries) if schema is None else _of_any(entries, schema)
    if not include_metadata:
        return rows
    metadata = pa.concat_tables(
        [METADATA_SCHEMA.empty_table(), *(_metadata(topic, segment, frame) for segment, frame in entries)]
    )
    columns = [*metadata.columns, *rows.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([*METADATA_SCHEMA, *rows.schema]))


def _of_any(entries: list[tuple[str, Frame]], schema: pa.Schema) -> pa.Table:
    rows = (decode_rows(frame, schema, segment=segment).table for segment, frame in entries)
    return pa.concat_tables([schema.empty_table(), *rows])


def _of_messages(entries: list[tuple[str, Frame]]) -> pa.Table:
    """The columns of a topic without a schema. The values of a column have one type over all of its messages."""
    read = [values_of(frame) for _, frame in entries]
    try:
        return messages_table(list(chain.from_iterable(read)), None)
    except Misfit as misfit:
        raise _in_entry(misfit, entries, [len(values) for values in read]) from misfit


def _in_entry(misfit: Misfit, entries: list[tuple[str, Frame]], counts: list[int]) -> SchemaMismatch:
    assert misfit.index is not None, "entries of messages are not tables"
    places = [(*entry, index) for entry, count in zip(entries, counts, strict=True) for index in range(count)]
    segment, frame, misfit.index = places[misfit.index]
    return misfit_at(frame, segment, misfit)


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
