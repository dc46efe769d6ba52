"""Goal: a table that becomes very large when it is decoded is found before it is: whatever makes it large, and whatever
makes it look small.

Method: hostile streams of a few kilobytes, each of which Arrow itself decodes; and tables of every type that are as
large as they look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa
import pytest

from metatxn.wire.arrow_sizes import ROW_BYTES, TableTooLarge, read_within

MOST = 1 << 20
ROWS = 20_000
LONG = "x" * 1_000


def stream(table: pa.Table, compression: Literal["lz4", "zstd"] | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def read(payload: bytes, most_bytes: int) -> pa.Table:
    schema, batches = read_within(payload, most_bytes)
    return pa.Table.from_batches(batches, schema)


def zeros(kind: Any, number: int = ROWS) -> Any:
    return pa.array([0] * number, kind)


def one_long() -> Any:
    return pa.array([LONG])


def _list_views(*parts: Any) -> Any:
    make: Any = pa.ListViewArray.from_arrays  # of the sizes the stubs do not know
    return make(*parts)


HOSTILE: dict[str, Callable[[], Any]] = {
    "rows without bytes": lambda: pa.nulls(MOST),
    "lists of values without bytes": lambda: pa.ListArray.from_arrays(
        pa.array([0, 2 * MOST], pa.int32()), pa.nulls(2 * MOST)
    ),
    "one wide value without bytes": lambda: pa.FixedSizeListArray.from_arrays(pa.nulls(2 * MOST), 2 * MOST),
    "a dictionary": lambda: pa.DictionaryArray.from_arrays(zeros(pa.int8()), one_long()),
    "a dictionary of lists": lambda: pa.DictionaryArray.from_arrays(zeros(pa.int8()), pa.array([[LONG]])),
    "a dictionary in a structure": lambda: pa.StructArray.from_arrays(
        [pa.DictionaryArray.from_arrays(zeros(pa.int8()), one_long())], ["d"]
    ),
    "a run": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), one_long()),
    "a run of numbers": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([2**31 - 1], pa.int32()), pa.array([7])),
    "list views": lambda: _list_views(zeros(pa.int32()), pa.array([1] * ROWS, pa.int32()), one_long()),
    "a dense union": lambda: pa.UnionArray.from_dense(zeros(pa.int8()), zeros(pa.int32()), [one_long()]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_few_bytes_that_become_many_are_refused(name: str) -> None:
    payload = stream(pa.table({"a": HOSTILE[name]()}))
    assert len(payload) < MOST // 4
    with pytest.raises(TableTooLarge, match=f"more than {MOST} bytes"):
        read(payload, MOST)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("in_dictionary", [False, True])
def test_what_is_compressed_is_refused_before_it_is_decompressed(
    compression: Literal["lz4", "zstd"], in_dictionary: bool
) -> None:
    column: Any = pa.array([bytes(8 * MOST)])
    payload = stream(pa.table({"a": column.dictionary_encode() if in_dictionary else column}), compression)
    del column
    before = pa.total_allocated_bytes()
    with pytest.raises(TableTooLarge):
        read_within(payload, MOST)  # no batch is asked for
    assert pa.total_allocated_bytes() - before < MOST
    assert read(payload, 9 * MOST).num_rows == 1


HONEST: dict[str, Any] = {
    "numbers": pa.array([1, None, 3], pa.int16()),
    "bits": pa.array([True, None, False]),
    "texts": pa.array(["x" * 50, None, ""]),
    "views": pa.array(["x" * 50, None, "y"]).cast(pa.string_view()),
    "nulls": pa.nulls(3),
    "decimals": pa.array([1, 2, None], pa.decimal128(9, 2)),
    "lists": pa.array([["x", None], [], None]),
    "list views": pa.array([["a"], ["b", "c"], None], pa.list_view(pa.string())),
    "maps": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    "structures": pa.array([{"a": 1}, {"a": None}, None]),
    "fixed": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int8(), 2)),
    "dictionary": pa.array(["x" * 90, "y", None]).dictionary_encode(),
    "dictionary of times": pa.array([1, 1, None], pa.timestamp("us")).dictionary_encode(),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", None])),
    "sparse union": pa.UnionArray.from_sparse(zeros(pa.int8(), 3), [pa.array([1, 2, 3])]),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["a"])]
    ),
}


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("name", HONEST)
def test_what_is_as_large_as_it_looks_is_read(name: str, compression: Literal["lz4"] | None) -> None:
    table = pa.table({"a": HONEST[name]})
    assert read(stream(table, compression), 1_000).equals(table)
    with pytest.raises(TableTooLarge):
        read(stream(table, compression), ROW_BYTES * table.num_rows - 1)


def test_what_is_no_stream_is_no_table() -> None:
    good = stream(pa.table({"a": [1, 2, 3]}), "zstd")
    for bad in (b"", b"x" * 100, good[: len(good) // 2]):
        with pytest.raises((pa.ArrowException, OSError)):
            read(bad, MOST)
    assert read(stream(pa.table({})), 0).num_rows == 0
