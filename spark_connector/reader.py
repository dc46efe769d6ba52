"""The batch reader: every segment of the subscribed topics is a partition, up to an end fixed on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

import metatxn
from metatxn.frames import decode
from spark_connector import arrow_schema
from spark_connector.clients import client
from spark_connector.errors import one_line
from spark_connector.options import OptionError, ReadOptions
from spark_connector.topics import common_schema, find_topics

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


@dataclass(frozen=True)
class SegmentRange(InputPartition):
    """Positions up to `end`, inclusive; None: to wherever the snapshot of `revision` ends."""

    topic: str
    segment: str
    owner: str | None
    end: str | None
    revision: int | None
    columns: pa.Schema


def dataframe_schema(options: ReadOptions) -> StructType:
    """The columns of the topics, and the metadata columns where asked for."""
    with one_line():
        topics = find_topics(client(options.url, options.token), options.topics, options.pattern)
        columns = arrow_schema.to_spark(common_schema(topics))
    return with_metadata(columns) if options.include_metadata else columns


def with_metadata(columns: StructType) -> StructType:
    clash = sorted(set(columns.names) & set(METADATA.names))
    if clash:
        raise OptionError(
            f"Option includeMetadata=true needs the names {', '.join(clash)}, which the topic uses itself."
        )
    return StructType([*columns.fields, *METADATA.fields])


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with one_line():
            return self._partitions()

    def _partitions(self) -> list[InputPartition]:
        options, service = self._options, client(self._options.url, self._options.token)
        revision = options.revision
        if options.isolation == "snapshot" and revision is None:
            # Before the layouts: a segment made after the revision holds nothing that was decided at or before it.
            revision = service.cluster().revision
        topics = find_topics(service, options.topics, options.pattern)
        self._check_schema(common_schema(topics))
        found: list[InputPartition] = []
        for topic in topics:
            for segment in topic.segments:
                end = None if options.isolation == "snapshot" else self._end(service, segment.id)
                found.append(SegmentRange(topic.name, segment.id, segment.owner, end, revision, topic.declared))
        return found

    def _end(self, service: metatxn.Client, segment: str) -> str:
        detail = service.segment(segment)
        committed = self._options.isolation == "read_committed"
        return detail.max_read_position if committed else detail.last_position

    def _check_schema(self, columns: pa.Schema) -> None:
        """A schema the user gave, or one that was remembered by a table, must still be the topic's."""
        wanted = arrow_schema.to_spark(columns)
        if self._options.include_metadata:
            wanted = with_metadata(wanted)
        given = arrow_schema.of_dataframe(self._schema)
        if given != arrow_schema.of_dataframe(wanted):
            raise metatxn.SchemaMismatch(
                f"the DataFrame is read as {self._schema.simpleString()}, the topic has {wanted.simpleString()}",
                action="Leave .schema() out, or create the table or view again.",
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentRange)
        with one_line():
            yield from self._rows(partition)

    def _rows(self, partition: SegmentRange) -> Iterator[pa.RecordBatch]:
        """Up to the end that the driver fixed: what is decided later must not be seen by a task that runs later."""
        service, schema = client(self._options.url, self._options.token), arrow_schema.expected_by_spark(self._schema)
        end = _order(partition.end) if partition.end is not None else None
        after: str | None = None
        while True:
            page = service.read_frames(
                partition.segment,
                owner_url=partition.owner,
                after=after,
                isolation=self._options.isolation,
                revision=partition.revision,
            )
            for frame in page.frames:
                position = str(frame.position)
                if end is not None and _order(position) > end:
                    return
                decoded = decode(frame, partition.columns, keys=self._options.include_metadata)
                rows = decoded.table
                if self._options.include_metadata:
                    txn_id = str(frame.txn_id) if frame.txn_id is not None else None
                    constants = (partition.topic, partition.segment, position, frame.publish_ms, txn_id)
                    rows = _with_metadata(rows, decoded.keys, constants)
                for batch in rows.combine_chunks().to_batches():
                    yield arrow_schema.conform(batch, schema)
            if page.end or page.next == after:
                return
            after = page.next


def _with_metadata(
    rows: pa.Table, keys: list[str | None], constants: tuple[str, str, str, int, str | None]
) -> pa.Table:
    topic, segment, position, publish_ms, txn_id = constants
    count = rows.num_rows
    columns: list[pa.Array[Any]] = [
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(segment, pa.string()), count),
        pa.repeat(pa.scalar(position, pa.string()), count),
        pa.array(keys, pa.string()),
        pa.repeat(pa.scalar(publish_ms, pa.int64()), count),
        pa.repeat(pa.scalar(txn_id, pa.string()), count),
    ]
    for name, column in zip(METADATA.names, columns, strict=True):
        rows = rows.append_column(name, column)
    return rows


def _order(position: str) -> tuple[int, int]:
    """Entry -1 stands before the first one of a ledger."""
    ledger, entry = position.split(":")
    return int(ledger), int(entry)
