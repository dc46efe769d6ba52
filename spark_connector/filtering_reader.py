"""The batch reader with `pushFilters`. Spark refuses any reader that accepts filters unless the session's configuration
allows it, and Spark 4.0 has no filters to pass; therefore this reader has a module and a class of its own."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.datasource import Filter

from spark_connector.metadata_filters import MetadataFilters, can_be_pushed
from spark_connector.reader import BatchReader


class FilteringReader(BatchReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Accept the filters that an entry's metadata decides, and return the others, which Spark applies itself."""
        self._let_through = MetadataFilters(each for each in filters if can_be_pushed(each)).let_through
        return [each for each in filters if not can_be_pushed(each)]
