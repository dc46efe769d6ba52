"""The differences between the supported versions of Spark."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spark_connector.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """Spark 4.0 has no such class, but its tasks pass Arrow batches to any Arrow writer, also in a stream; its
            driver checks nothing but the methods."""


__all__ = ["StreamArrowWriter", "from_arrow", "needs_spark", "to_arrow"]

_NAMED = "timezone" in inspect.signature(to_arrow_schema).parameters
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if _NAMED else {"timestamp_utc": True}


def to_arrow(schema: StructType) -> pa.Schema:
    """Convert to Arrow. Timestamps with a time zone become UTC."""
    arrow: pa.Schema = to_arrow_schema(schema, **_IN_UTC)
    return arrow


def from_arrow(schema: pa.Schema) -> StructType:
    """Convert from Arrow. Timestamps without a time zone remain without one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


@contextmanager
def needs_spark(version: str, what: str) -> Iterator[None]:
    """A context for an import that older versions of Spark do not have. Raises `OptionError`."""
    try:
        yield
    except ImportError:
        raise OptionError(f"{what} need Spark {version} or newer.") from None
