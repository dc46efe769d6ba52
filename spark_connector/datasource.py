"""`.format("metatxn")`: the entry point that Spark calls, and the classes that do the work."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import partial

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_connector import arrow_schema
from spark_connector.clients import ServiceAddress, check_reachable, client
from spark_connector.errors import one_line
from spark_connector.options import (
    OptionError,
    check_option_values,
    direction_of,
    own_options,
    read_options,
    write_options,
)
from spark_connector.reader import BatchReader, dataframe_schema
from spark_connector.spark_versions import StreamArrowWriter, needs_spark
from spark_connector.stream_writer import StreamWriter
from spark_connector.table_options import remember_in, remembered_in
from spark_connector.table_writes import check_dataframe, fitting_schema
from spark_connector.topics import find_topic
from spark_connector.writer import BatchWriter


class MetatxnDataSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_option_values(options)

    @classmethod
    def name(cls) -> str:
        return "metatxn"

    def schema(self) -> StructType:
        """The schema for `load()`, for `CREATE TABLE … USING metatxn` and for `CREATE TEMPORARY VIEW … USING
        metatxn`."""
        given = own_options(self.options)
        schema = self._topic_schema(given) if direction_of(given) == "write" else self._read_schema(given)
        if "provider" in self.options:
            return remember_in(schema, given)
        return schema

    def _read_schema(self, given: Mapping[str, str]) -> StructType:
        options = read_options(given, None)
        _check(options.service)
        return dataframe_schema(options)

    def _topic_schema(self, given: Mapping[str, str]) -> StructType:
        """The schema of the topic: a table or view with `topic` is for inserting into it."""
        options = write_options(given, "batch")
        _check(options.service)
        assert options.topic is not None
        with one_line():
            return arrow_schema.to_spark(find_topic(client(options.service), options.topic).declared)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(remembered_in(schema, self.options, "read"), "batch")
        _check(options.service)
        if not options.push_filters:
            return BatchReader(options, schema)
        with needs_spark("4.1", "Pushed filters (option pushFilters)"):
            from spark_connector.filtering_reader import FilteringReader
        return FilteringReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError(
                'Format metatxn cannot overwrite, because a topic is append-only. Use mode "append" or INSERT INTO.'
            )
        options = write_options(remembered_in(schema, self.options, "write"), "batch")
        _check(options.service)
        with one_line():
            columns = arrow_schema.to_send(schema)
            rows = check_dataframe(partial(fitting_schema, client(options.service)), options, columns)
            return BatchWriter(options, rows)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = read_options(self.options, "streaming")
        _check(options.service)
        with needs_spark("4.2", "Streaming reads of format metatxn"):
            from spark_connector.stream_reader import StreamReader
        return StreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamArrowWriter:  # noqa: N802
        if overwrite:
            raise OptionError(
                'Format metatxn has no output mode "complete", because a topic is append-only. Use "append".'
            )
        options = write_options(self.options, "streaming")
        _check(options.service)
        with one_line():
            return StreamWriter(options, arrow_schema.to_send(schema))


def _check(service: ServiceAddress) -> None:
    with one_line():
        check_reachable(service)
