"""What differs between the Sparks that we run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_connector.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """Spark 4.0 has no such class, but its tasks hand Arrow batches to whatever is an Arrow writer, also in a
            stream; its driver asks nothing but the methods."""


__all__ = ["StreamArrowWriter", "needs_spark"]


@contextmanager
def needs_spark(version: str, what: str) -> Iterator[None]:
    """Around an import of what older Sparks do not have. Raises `OptionError`."""
    try:
        yield
    except ImportError:
        raise OptionError(f"{what} need Spark {version} or newer.") from None
