"""What the connector is measured beside: a sink and a source of Python and Arrow, in memory, that do nothing else.

A module of its own, because Spark's workers import it.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from spark_connector.spark_versions import StreamArrowWriter

BATCH_BYTES = 1 << 20
"""As large as the entries of a topic."""
TEXT_BYTES = 96 << 10
"""More than compression looks back on: Parquet's files become as large as the rows in them."""
ID_BYTES = 8
"""Of the column `id`, and of its digits in front of the text that makes each payload another one."""


def texts(width: int) -> list[str]:
    """Random letters, for payloads of rows of `width` bytes."""
    letters = random.Random(width)
    size = width - 2 * ID_BYTES
    return ["".join(letters.choices(string.ascii_letters, k=size)) for _ in range(-(-TEXT_BYTES // size))]


class Dropping(DataSource):
    """`writeStream.format("dropping")` takes its rows."""

    @classmethod
    def name(cls) -> str:
        return "dropping"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamArrowWriter:  # noqa: N802
        return _Dropper()


@dataclass
class _Taken(WriterCommitMessage):
    rows: int


class _Dropper(StreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Taken:  # type: ignore[override]  # as in its base class
        return _Taken(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing."""


class Remembering(DataSource):
    """`readStream.format("remembering")` gives `rows` rows of `width` bytes per micro-batch, in `partitions` tasks."""

    @classmethod
    def name(cls) -> str:
        return "remembering"

    def schema(self) -> str:
        return "id long, payload string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        rows, width, partitions = (int(self.options[name]) for name in ("rows", "width", "partitions"))
        return _Memory(rows, width, partitions)


@dataclass
class _Rows(InputPartition):
    count: int


class _Memory(DataSourceStreamReader):
    def __init__(self, rows: int, width: int, partitions: int) -> None:
        self._rows, self._width, self._partitions = rows, width, partitions

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"read": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"read": start["read"] + self._rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        each = (end["read"] - start["read"]) // self._partitions
        return [_Rows(each) for _ in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        batch, left = _batch(self._width), partition.count
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


@lru_cache(maxsize=4)
def _batch(width: int) -> pa.RecordBatch:
    ids, payloads = range(BATCH_BYTES // width), texts(width)
    rows = [f"{number:0{ID_BYTES}X}{payloads[number % len(payloads)]}" for number in ids]
    return pa.RecordBatch.from_pydict({"id": list(ids), "payload": rows})
