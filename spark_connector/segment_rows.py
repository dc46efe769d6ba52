"""The rows of a part of one segment in the form that Spark needs: what the tasks of batch and streaming reads do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

import metatxn
from metatxn.frames import decode_rows
from spark_connector import arrow_schema
from spark_connector.clients import client
from spark_connector.errors import data_lost, one_line
from spark_connector.message_rows import may_be_text, messages_of_entry
from spark_connector.options import OptionError, ReadOptions
from spark_connector.places import before, order
from spark_connector.spans import read_span, trace_of_this_task
from spark_connector.topics import Topic

METADATA = StructType(
    [
        StructField("__topic", StringType()),
        StructField("__segment", StringType()),
        StructField("__position", StringType()),
        StructField("__key", StringType()),
        StructField("__publish_ms", LongType()),
        StructField("__txn_id", StringType()),
    ]
)

COMBINED_BYTES = 1024 * 1024
LARGE_BYTES = 256 * 1024
CallInSpan = Callable[[Callable[[], metatxn.FramesPage]], metatxn.FramesPage]
EntryFilter = Callable[[Mapping[str, Any]], bool]
"""Whether an entry is wanted, according to its metadata, or to the part of it that is known so far."""


def every_entry(_described: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True)
class SegmentRange(InputPartition):
    """Entries after `after` and up to `end`, inclusive. If `end` is None, they go up to the end of the snapshot of
    `revision`. Both ends are fixed on the driver, so that a task notices what was trimmed meanwhile. `columns` are the
    wanted columns of the topic; with `messages` it has no schema, and they are those of its messages. If `some` is true
    the topic has other columns, too, which need not be sent."""

    topic: str
    segment: str
    owner: str | None
    after: str
    end: str | None
    revision: int | None
    columns: pa.Schema
    messages: bool = False
    some: bool = False


def with_metadata(columns: StructType) -> StructType:
    clash = sorted(set(columns.names) & set(METADATA.names))
    if clash:
        raise OptionError(
            f"Option includeMetadata=true needs the names {', '.join(clash)}, which are columns of the topic."
        )
    return StructType([*columns.fields, *METADATA.fields])


def wanted_columns(schema: StructType, topic: Topic, options: ReadOptions) -> pa.Schema:
    """The topic's columns that a DataFrame of this schema contains: all, or fewer if the user gave a schema, or if
    columns were added to the topic after the query began.

    Raises `SchemaMismatch` for a column that the topic does not have, or that has another type there.
    """
    wanted = set(schema.names)
    own = {field.name: field for field in topic.offered if field.name in wanted}
    offered = arrow_schema.to_spark(pa.schema(own.values()))
    if options.include_metadata:
        offered = with_metadata(offered)
    known = {field.name: field.type for field in arrow_schema.of_dataframe(offered)}
    problems = []
    for field in arrow_schema.of_dataframe(schema):
        if field.name not in known:
            problems.append(f"column {field.name} is not in topic {topic.name}")
        elif known[field.name] != field.type and not _may_be_read_as(topic, own.get(field.name), field):
            problems.append(f"column {field.name} is read as {field.type}, the topic has {known[field.name]}")
    if problems:
        raise metatxn.SchemaMismatch(
            "; ".join(problems), action="Leave out or correct .schema(), or create the table or view again."
        )
    # Even if only metadata is wanted, a column is needed to count the rows.
    return pa.schema([own[name] for name in schema.names if name in own] or [topic.offered.field(0)])


def _may_be_read_as(topic: Topic, written: pa.Field[Any] | None, wanted: pa.Field[Any]) -> bool:
    if topic.columns is None and may_be_text(wanted.name, wanted.type):
        return True
    return written is not None and wanted.type == pa.int64() and arrow_schema.counts_nanoseconds(written.type)


def rows(
    partition: SegmentRange, options: ReadOptions, schema: StructType, let_through: EntryFilter
) -> Iterator[pa.RecordBatch]:
    """The rows of a range. Raises errors of the client library, in one line each; lost data is skipped if the user
    wants that."""
    after = partition.after
    read = {"metatxn.segment": partition.segment, "metatxn.after": after, "metatxn.end": partition.end or ""}
    with one_line(), read_span(trace_of_this_task(), read) as call:
        while True:
            try:
                yield from _rows(partition, after, options, schema, let_through, call)
            except (metatxn.PositionTrimmed, metatxn.NotFound) as gone:
                if options.fail_on_data_loss:
                    raise data_lost(partition.segment, gone.detail) from gone
                first = gone.members.get("first_position")
                if first is None:
                    return  # all of it is gone
                after = before(first)
            else:
                return


def _rows(
    partition: SegmentRange,
    after: str,
    options: ReadOptions,
    schema: StructType,
    let_through: EntryFilter,
    call: CallInSpan,
) -> Iterator[pa.RecordBatch]:
    """Never reads beyond the end that the driver fixed: a task that runs later must not see what is decided later."""
    expected = arrow_schema.expected_by_spark(schema)
    end = order(partition.end) if partition.end is not None else None
    for page in _pages(partition, after, end, options, call):
        entries: list[tuple[str, pa.Table]] = []
        for frame in page.frames:
            position = str(frame.position)
            if end is not None and order(position) > end:
                break
            described = {
                "__topic": partition.topic,
                "__segment": partition.segment,
                "__position": position,
                "__publish_ms": frame.publish_ms,
                "__txn_id": str(frame.txn_id) if frame.txn_id is not None else None,
            }
            if not let_through(described):
                continue
            if partition.messages:
                decoded = messages_of_entry(frame, partition.columns, partition.segment)
            else:
                decoded = decode_rows(
                    frame, partition.columns, segment=partition.segment, keys=options.include_metadata
                )
            table = decoded.table
            if options.include_metadata:
                table = _with_metadata(table, decoded.keys, described)
            entries.append((position, table))
        yield from _conformed(entries, partition.segment, expected)


def _pages(
    partition: SegmentRange, after: str, end: tuple[int, int] | None, options: ReadOptions, call: CallInSpan
) -> Iterator[metatxn.FramesPage]:
    """The pages of a range, up to the one that reaches its end. The next one is requested before one is handed out, so
    that it arrives while Spark processes the rows: there are two pages in memory."""
    service = client(options.service)

    def page(after: str) -> metatxn.FramesPage:
        return service.read_frames(
            partition.segment,
            owner_url=partition.owner,
            after=after,
            isolation=options.isolation,
            revision=partition.revision,
            columns=partition.columns.names if partition.some else None,
        )

    ahead = ThreadPoolExecutor(1)
    requested: Future[metatxn.FramesPage] | None = ahead.submit(call, partial(page, after))
    try:
        while requested is not None:
            read = requested.result()
            reached = read.end or read.next == after or (end is not None and _place_of(read.next) >= end)
            after = read.next
            requested = None if reached else ahead.submit(call, partial(page, after))
            yield read
    finally:
        ahead.shutdown(wait=False)  # Spark may want no more rows while a page is on its way


def _place_of(token: str) -> tuple[int, int]:
    """Where a page ended, without what the broker adds for the next one."""
    return order(token.partition("@")[0])


def _conformed(entries: list[tuple[str, pa.Table]], segment: str, expected: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of entries, which are given with their positions. Raises `SchemaMismatch` for a value that Spark cannot
    hold, with the position of the first entry that contains it."""
    for batch in _combined([table for _, table in entries]):
        try:
            conformed = arrow_schema.conform(batch, expected)
        except metatxn.SchemaMismatch as error:
            raise _placed(entries, segment, expected) or error from None
        yield conformed


def _placed(entries: list[tuple[str, pa.Table]], segment: str, expected: pa.Schema) -> metatxn.SchemaMismatch | None:
    for position, table in entries:
        try:
            for batch in table.to_batches():
                arrow_schema.conform(batch, expected)
        except metatxn.SchemaMismatch as error:
            members = {**error.members, "segment": segment, "position": position}
            return metatxn.SchemaMismatch(f"at {position} of {segment}: {error.detail}", action=error.action, **members)
    return None


def _combined(tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Entries may be small and many, but Spark processes few large batches much faster. Large batches are not
    copied."""
    small: list[pa.RecordBatch] = []
    size = 0
    for batch in (batch for table in tables for batch in table.to_batches()):
        if batch.nbytes >= LARGE_BYTES:
            yield from _as_one(small)
            yield batch
            small, size = [], 0
            continue
        small.append(batch)
        size += batch.nbytes
        if size >= COMBINED_BYTES:
            yield from _as_one(small)
            small, size = [], 0
    yield from _as_one(small)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []


def _with_metadata(table: pa.Table, keys: list[str | None], described: dict[str, Any]) -> pa.Table:
    for field in METADATA:
        kind: Any = pa.int64() if isinstance(field.dataType, LongType) else pa.string()
        same: Any = pa.scalar(described.get(field.name), kind)
        column = pa.array(keys, kind) if field.name == "__key" else pa.repeat(same, table.num_rows)
        table = table.append_column(field.name, column)
    return table
