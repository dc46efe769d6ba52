"""Goal: a page shows the beginning of any value, and a download has all of it and harms no program that opens it.

Method: values that are long, deep, wide, of every type, or meant to do harm, without a page.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from metatxn.console.downloads import download
from metatxn.console.values import DEEPEST, MOST_NODES, ValueNode, cell_text, tree_of
from metatxn.stored.contents import Content, contents_of
from metatxn.stored.files import FILE_FORMS
from metatxn.stored.looking import StoredMessage
from metatxn.stored.where import parsed_where
from metatxn.topics import wire_schema
from metatxn.wire.broker import TopicInfo, TopicSchema
from metatxn.wire.frames import Frame, PayloadKind
from metatxn.wire.position import Position
from tests.console.life import HOSTILE

HEAVIEST = 60_000
"""Two of the heaviest values fit on a page."""
SEGMENT = "segment://public/default/files/0000-ffff-0"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"<b>": [value]}
    return value


def nodes_of(tree: ValueNode) -> int:
    return 1 + sum(map(nodes_of, tree.children))


@pytest.mark.parametrize(
    "value",
    [
        *("x" * 1_000_000, '"' * 1_000_000, "\n" * 5_000, b"\xff" * 100_000, nested(150), list(range(100_000))),
        {f"<{number}>" * 500: HOSTILE * 50 for number in range(1_000)},
        [[HOSTILE * 100] * 100] * 100,
    ],
    ids=["text", "quotes", "lines", "bytes", "deep", "long", "names", "wide"],
)
def test_a_large_value_is_shown_by_its_beginning(value: Any) -> None:
    tree = tree_of(value)
    assert 0 < tree.weight() < HEAVIEST and nodes_of(tree) <= MOST_NODES
    assert len(cell_text(value)) <= 101

    def is_cut(node: ValueNode) -> bool:
        return node.more or any(map(is_cut, node.children))

    assert is_cut(tree)


def test_a_small_value_is_shown_whole() -> None:
    value = {"a": [1, "two", None, True], "at": datetime(2026, 3, 2, tzinfo=UTC), "b": b"\x00", "c": {}}
    tree = tree_of(value)
    assert tree.text == "{a: […], at: 2026-03-02 00:00:00+00:00, b: 1 bytes, c: {}}"
    assert [(each.name, each.text) for each in tree.children[0].children] == [
        *(("0", "1"), ("1", '"two"'), ("2", "null"), ("3", "true"))
    ]
    assert [each.is_short for each in tree.children] == [False, True, True, True]
    assert nodes_of(tree_of(nested(DEEPEST))) <= DEEPEST + 1


def test_what_is_no_little_work_is_not_taken_apart() -> None:
    """A billion rows need 200 bytes. Brokers accept none such any more, but may have some."""
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int8()), pa.array(["x" * 100_000]))
    for column, count in ((pa.nulls(1_000_000_000), 1), (pa.nulls(1_000_000_000), 1_000_000_000), (long, 1_000)):
        sink = pa.BufferOutputStream()
        table = pa.table({"a": column})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        payload = sink.getvalue().to_pybytes()
        frame = Frame(payload, PayloadKind.ARROW, count, position=Position(1, 0), publish_ms=0)
        assert contents_of(frame) == [Content(None, payload, {})]
    for broken in (b"", b"[", b"[" * 100_000):
        frame = Frame(broken, PayloadKind.MESSAGES, 1, position=Position(1, 0), publish_ms=0)
        assert contents_of(frame) == [Content(None, broken, {})]


def test_json_in_columns_is_of_their_types() -> None:
    """A decimal that was written as a text is a number, and a time has one form, no matter who has written it."""
    fields: list[pa.Field[Any]] = [pa.field("price", pa.decimal128(9, 2)), pa.field("at", pa.timestamp("ms"))]
    written = b'[{"value": {"price": "30.50", "at": "2026-03-02T09:04:00"}}, {"value": {"price": "?", "more": 1}}]'
    frame = Frame(written, PayloadKind.MESSAGES, 2, position=Position(1, 0), publish_ms=0)
    first, second = (each.value for each in contents_of(frame, pa.schema(fields)))
    assert parsed_where('price > 9 and at < "2026-03-02 09:05"').matches(first)
    assert second == {"price": "?", "more": 1}


# -- downloads -----------------------------------------------------------------------------------------------------


def found(values: Sequence[Any], keys: Sequence[str | None]) -> list[StoredMessage]:
    contents = [Content(key, value, {}) for key, value in zip(keys, values, strict=True)]
    return [
        StoredMessage(
            Frame(b"", PayloadKind.BYTES, 1, position=Position(1, number), publish_ms=7),
            *(0, content, "readable"),
        )
        for number, content in enumerate(contents)
    ]


def rows(content: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content.decode())))


def test_no_cell_is_a_formula() -> None:
    """Neither a key, nor a value, nor the name of a column; and numbers stay numbers."""
    risky = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", '=cmd|"/C calc"!A0']
    fields: list[pa.Field[Any]] = [
        pa.field("=x()", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("price", pa.decimal128(9, 2)),
    ]
    topic = topic_with(pa.schema(fields))
    values = [{"=x()": text, "number": -1, "price": Decimal("-1.50")} for text in risky]
    header, *lines = rows(FILE_FORMS["csv"].write(topic, SEGMENT, found(values, risky)))
    assert header[-3:] == ["'=x()", "number", "price"]
    for line, text in zip(lines, risky, strict=True):
        assert [line[4], *line[-3:]] == [f"'{text}", f"'{text}", "-1", "-1.50"]
    free = FILE_FORMS["csv"].write(topic_with(None), SEGMENT, found([*risky, {"a": "=1"}, [1], b"="], [None] * 12))
    assert [line[-1] for line in rows(free)][1:] == [*(f"'{text}" for text in risky), '{"a": "=1"}', "[1]", "PQ=="]


def test_arrow_has_the_types_of_the_columns() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"at": pa.array([1, 2, 3], pa.timestamp("ns")), "id": [1, 2, 3]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    frame = Frame(sink.getvalue().to_pybytes(), PayloadKind.ARROW, 3, position=Position(1, 0), publish_ms=7)
    contents = contents_of(frame)
    messages = [StoredMessage(frame, index, contents[index], "readable") for index in (0, 2)]
    whole = StoredMessage(frame, 0, Content(None, b"...", {}), "readable")
    unlike = Frame(b'[{"value": {}}, {"value": 1}]', PayloadKind.MESSAGES, 2, position=Position(1, 1), publish_ms=7)
    misfit = StoredMessage(unlike, 1, contents_of(unlike)[1], "readable")
    content = FILE_FORMS["arrow"].write(topic_with(table.schema), SEGMENT, [*messages, misfit])
    read = pa.ipc.open_file(content).read_all()
    assert read.select(["at", "id"]).slice(0, 2) == table.take(pa.array([0, 2]))
    assert read["id"].to_pylist() == [1, 3, None]
    assert read["__index"].to_pylist() == [0, 2, 1] and read["__publish_ms"].to_pylist() == [7] * 3
    for given, ids in (([], []), ([whole], [None])):
        content = FILE_FORMS["arrow"].write(topic_with(table.schema), SEGMENT, given)
        assert pa.ipc.open_file(content).read_all()["id"].to_pylist() == ids


def test_a_topic_without_columns_has_json_and_bytes() -> None:
    messages = found([{"a": Decimal("1.5")}, "text", b"\xff", None], ["k", None, None, None])
    lines = [json.loads(line) for line in FILE_FORMS["jsonl"].write(topic_with(None), SEGMENT, messages).splitlines()]
    assert [line.get("value", line.get("value_base64")) for line in lines] == [{"a": "1.5"}, "text", "/w==", None]
    assert (lines[0]["segment"], lines[0]["position"], lines[0]["key"], lines[0]["readers"]) == (
        *(SEGMENT, "1:0", "k", "readable"),
    )
    table = pa.ipc.open_file(FILE_FORMS["arrow"].write(topic_with(None), SEGMENT, messages)).read_all()
    assert table["value"].to_pylist() == ['{"a": "1.5"}', '"text"', None, "null"]
    assert table["value_bytes"].to_pylist() == [None, None, b"\xff", None]


def test_the_name_of_a_file_says_nothing_to_a_browser() -> None:
    topic = TopicInfo(name=f"public/default/{HOSTILE}\r\nx: y", segments=[])
    answer = download("csv", topic, SEGMENT, [])
    assert answer.headers["content-disposition"].startswith('attachment; filename="_')
    assert "\r" not in answer.headers["content-disposition"]


def topic_with(schema: pa.Schema | None) -> TopicInfo:
    columns = None if schema is None else TopicSchema.model_validate(_with_fields(schema))
    return TopicInfo(name="public/default/files", schema=columns, segments=[])


def _with_fields(schema: pa.Schema) -> dict[str, Any]:
    return {**wire_schema(schema), "fields": [{"name": each.name, "type": str(each.type)} for each in schema]}
