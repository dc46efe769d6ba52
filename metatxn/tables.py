"""Reading whole topics as Arrow tables."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from metatxn.connection import Connection
from metatxn.errors import SchemaMismatch
from metatxn.frames import SegmentFrames, decode, messages_table, values_of
from participants.api.models import Isolation
from participants.ledger.frames import Frame, PayloadKind

_METADATA_FIELDS: list[pa.Field[Any]] = [
    pa.field("__topic", pa.string()),
    pa.field("__segment", pa.string()),
    pa.field("__position", pa.string()),
    pa.field("__key", pa.string()),
    pa.field("__publish_ms", pa.int64()),
    pa.field("__txn_id", pa.string()),
]
METADATA_SCHEMA = pa.schema(_METADATA_FIELDS)
"""The columns that `include_metadata` adds, in front of the topic's own."""
PARALLEL_READS = 8
"""Segments at once."""


async def read_topics(
    connection: Connection,
    topics: Sequence[str],
    isolation: Isolation,
    revision: int | None,
    include_metadata: bool,
) -> dict[str, pa.Table]:
    """With `snapshot`: the revision first, then the layouts, then the data. A segment that is made later holds nothing
    that was decided at that revision."""
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
        tables[topic] = _table(layout.topic.name, frames, layout.schema, include_metadata)
    return tables


def _table(topic: str, frames: list[tuple[str, Frame]], schema: pa.Schema | None, include_metadata: bool) -> pa.Table:
    rows = _rows([frame for _, frame in frames], schema)
    if not include_metadata:
        return rows
    metadata = pa.concat_tables(
        [METADATA_SCHEMA.empty_table(), *(_metadata(topic, segment, frame, schema) for segment, frame in frames)]
    )
    columns = [*metadata.columns, *rows.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([*METADATA_SCHEMA, *rows.schema]))


def _rows(frames: list[Frame], schema: pa.Schema | None) -> pa.Table:
    if schema is not None:
        return pa.concat_tables([schema.empty_table(), *(decode(frame, schema).table for frame in frames)])
    if all(frame.kind is not PayloadKind.ARROW for frame in frames):
        values = [value for frame in frames for value in values_of(frame)]
        return messages_table(values, None) if values else pa.table({})
    try:
        return pa.concat_tables([decode(frame, None).table for frame in frames], promote_options="permissive")
    except pa.ArrowException as error:
        raise SchemaMismatch(f"the topic has no schema, and its entries have no common one: {error}") from error


def _metadata(topic: str, segment: str, frame: Frame, schema: pa.Schema | None) -> pa.Table:
    keys = decode(frame, schema, keys=True).keys
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
