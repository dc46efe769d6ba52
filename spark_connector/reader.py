"""The batch reader: every segment of the subscribed topics is a partition, up to an end that is fixed on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_connector import arrow_schema
from spark_connector.clients import client
from spark_connector.errors import data_lost, one_line
from spark_connector.horizons import Horizons, ending_places, every_segment, starting_places
from spark_connector.options import ReadOptions
from spark_connector.places import order
from spark_connector.segment_rows import EntryFilter, SegmentRange, every_entry, rows, wanted_columns, with_metadata
from spark_connector.topics import common_schema, find_topics


def dataframe_schema(options: ReadOptions) -> StructType:
    """The columns of the topics, and the metadata columns if requested."""
    with one_line():
        topics = find_topics(client(options.service), options.topics, options.pattern)
        columns = arrow_schema.to_spark(common_schema(topics))
    return with_metadata(columns) if options.include_metadata else columns


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._let_through: EntryFilter = every_entry

    def partitions(self) -> Sequence[InputPartition]:
        with one_line():
            return self._partitions()

    def _partitions(self) -> list[InputPartition]:
        options, service = self._options, client(self._options.service)
        revision = options.revision
        snapshot = options.isolation == "snapshot"
        if snapshot and revision is None:
            # Read before the layouts: a segment created after the revision holds nothing decided at or before it.
            revision = service.cluster().revision
        topics = find_topics(service, options.topics, options.pattern)
        columns = {topic.name: wanted_columns(self._schema, topic, options) for topic in topics}
        horizons = Horizons(service, options.isolation, topics)
        looked = horizons.look(every_segment(topics))
        if looked.gone and options.fail_on_data_loss:
            raise data_lost(min(looked.gone), "it was deleted")
        starts = starting_places(horizons.offsets(options.starting, looked), topics, looked)
        ends = None if snapshot else ending_places(horizons.offsets(options.ending, looked), topics, looked)
        return [
            SegmentRange(
                topic.name,
                each.id,
                each.owner,
                starts[each.id],
                ends[each.id] if ends is not None else None,
                revision,
                columns[topic.name],
                topic.columns is None,
                topic.has_more_than(columns[topic.name]),
            )
            for topic in topics
            for each in topic.segments
            if each.id in starts
            and (ends is None or order(starts[each.id]) < order(ends[each.id]))
            and self._let_through({"__topic": topic.name, "__segment": each.id})
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SegmentRange):
            return iter(())  # Spark creates one if there is none
        return rows(partition, self._options, self._schema, self._let_through)
