"""Goal: a reader that names columns gets the same rows with fewer bytes, whatever the table, and never fewer rows or
keys.

Method: tables of every type, plain and compressed, of which each column is read alone; and a broker in-process that
answers with them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pytest

from metatxn.wire.arrow_sizes import compression_of
from metatxn.wire.broker import ARROW_MEDIA_TYPE
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import Frame, PayloadKind, RawFrame, decode_frames, encode_frame, peek
from metatxn.wire.ids import TxnId
from metatxn.wire.names import MAX_COLUMN_LIST, column_list, parse_column_list
from metatxn.wire.position import Position
from metatxn.wire.rows import KEY_COLUMN
from participants.api.frames_response import ANSWER_BYTES
from participants.messages.projection import LEAST_BYTES, MOST_BYTES, project
from tests.metatxn.test_arrow_sizes import HONEST, stream
from tests.participants.api.test_rest import append, assert_problem, enc
from tests.participants.broker.process import BrokerProcess

FILLING = pa.array([random.Random(1).randbytes(LEAST_BYTES), b"", b""])
"""So much that it is worth leaving out."""


def framed(payload: bytes, kind: PayloadKind = PayloadKind.ARROW) -> RawFrame:
    """A frame with everything that a frame may have."""
    frame = Frame(
        payload=payload,
        kind=kind,
        count=3,
        txn_id=TxnId.parse("7" * 32),
        writer="w",
        producer="p",
        sequence=3,
        position=Position(4, 9),
        publish_ms=12,
        durable=5,
    )
    return peek(encode_frame(frame))


def table_of(frame: RawFrame | Frame) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(bytes(frame.payload))).read_all()


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("name", HONEST)
def test_a_column_of_any_type_is_left_out_or_alone(name: str, compression: Literal["lz4", "zstd"] | None) -> None:
    """Everything else about the entry stays."""
    table = pa.table({"filling": FILLING, "a": HONEST[name], "b": pa.array(["u", "v", "u"]).dictionary_encode()})
    frame = framed(stream(table, compression))
    for wanted in (["a"], ["b"], ["filling"], ["b", "a"]):
        found = project(frame, wanted)
        assert table_of(found).equals(table.select([each for each in table.column_names if each in wanted]))
        assert len(found.data) < len(frame.data)
        assert compression_of(found.payload)[0] == compression
        for part in ("kind", "count", "txn_id", "writer", "producer", "sequence", "position", "publish_ms", "durable"):
            assert getattr(found, part) == getattr(frame, part)


def test_several_batches_stay_several() -> None:
    table = pa.table({"a": range(3_000), "b": range(3_000)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1_000)
    found = table_of(project(framed(sink.getvalue().to_pybytes()), ["b"]))
    assert found.equals(table.select(["b"])) and found.column("b").num_chunks == 3


def test_the_key_stays() -> None:
    table = pa.table({"filling": FILLING, "k": ["x", None, "y"], "v": [1, 2, 3]})
    frame = framed(stream(table.replace_schema_metadata({KEY_COLUMN: b"k"})))
    found = table_of(project(frame, ["v"]))
    assert found.column_names == ["k", "v"] and (found.schema.metadata or {})[KEY_COLUMN] == b"k"


def test_rows_can_be_counted_without_a_wanted_column() -> None:
    found = table_of(project(framed(stream(pa.table({"a": [1, 2, 3], "filling": FILLING}))), ["z"]))
    assert found.column_names == ["a"] and found.num_rows == 3


def test_columns_of_one_name_stay_together() -> None:
    table = pa.Table.from_arrays([FILLING, pa.array([1, 2, 3]), pa.array([4, 5, 6])], ["filling", "a", "a"])
    assert table_of(project(framed(stream(table)), ["a"])).equals(table.select([1, 2]))


@pytest.mark.parametrize(
    "frame",
    [
        framed(stream(pa.table({"a": [1, 2, 3], "b": [1, 2, 3]}))),
        framed(stream(pa.table({"a": FILLING}))),
        framed(stream(pa.table({"a": FILLING}).select([]))),
        framed(stream(pa.table({"a": FILLING, "b": [1, 2, 3]})), PayloadKind.BYTES),
        framed(stream(pa.table({"large": [bytes(MOST_BYTES), *FILLING.to_pylist()[:2]], "a": [1, 2, 3]}), "zstd")),
        framed(b"\xff" * LEAST_BYTES),
        framed(stream(pa.table({"a": [1, 2, 3], "b": FILLING}))[:-LEAST_BYTES]),
    ],
    ids=["small", "all wanted", "no columns", "not a table", "too large", "not a stream", "cut"],
)
def test_what_cannot_become_smaller_stays_as_it_is(frame: RawFrame) -> None:
    assert project(frame, ["a"]) is frame


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["", "a,b", "%2C", "é +"], [","]])
def test_a_list_of_columns_comes_back(names: list[str]) -> None:
    text = column_list(names)
    assert text is not None and parse_column_list(text) == names


def test_a_list_of_columns_has_a_bound() -> None:
    assert column_list(["x" * (MAX_COLUMN_LIST - 2), "y"]) is not None
    assert column_list(["x" * (MAX_COLUMN_LIST - 1), "y"]) is None


# -- of a broker ---------------------------------------------------------------------------------------------------


async def read(process: BrokerProcess, segment: str, columns: Sequence[str] = ()) -> list[Frame]:
    query = {"columns": column_list(columns)} if columns else {}
    answer = await process.http.get(f"/v1/segments/{enc(segment)}/entries", params=query)
    assert answer.status_code == 200, answer.text
    return list(decode_frames(answer.content))


async def test_a_broker_sends_what_a_reader_asks_for(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    table = pa.table({"filling": FILLING, "a,b": [1, 2, 3]})
    assert (await append(process, segment, stream(table), ARROW_MEDIA_TYPE)).status_code == 200
    (whole,) = await read(process, segment)
    assert table_of(whole).equals(table)
    (part,) = await read(process, segment, ["a,b"])
    assert table_of(part).equals(table.select(["a,b"])) and part.position == whole.position


@pytest.mark.parametrize("wanted", ["large", "small"])
async def test_an_entry_that_stays_large_is_sent_as_it_is_stored(process: BrokerProcess, wanted: str) -> None:
    """Piece by piece, so that a slow reader costs no memory."""
    (segment,) = await process.create("t")
    table = pa.table({"large": [bytes(ANSWER_BYTES)], "small": [1]})
    assert (await append(process, segment, stream(table), ARROW_MEDIA_TYPE)).status_code == 200
    (found,) = await read(process, segment, [wanted])
    assert table_of(found).column_names == (["small"] if wanted == "small" else table.column_names)


@pytest.mark.parametrize("wrong", ["x" * (MAX_COLUMN_LIST + 1), "%FF"])
async def test_a_wrong_list_of_columns_is_refused(process: BrokerProcess, wrong: str) -> None:
    (segment,) = await process.create("t")
    answer = await process.http.get(f"/v1/segments/{enc(segment)}/entries", params={"columns": wrong})
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT, "columns")
