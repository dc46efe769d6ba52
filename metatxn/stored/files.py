"""Messages as files: JSON lines, Arrow, and CSV.

Each begins with where a message is, and the facts about it, under the names that `client.read_table` gives them.
After that come the columns of the topic. A topic without columns has the JSON of a value, or its bytes.
"""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from metatxn.stored.contents import table_of
from metatxn.stored.looking import StoredMessage
from metatxn.stored.where import VALUE_COLUMN
from metatxn.topics import arrow_schema
from metatxn.wire.broker import TopicInfo

PLACE = ("__segment", "__position", "__index", "__readers", "__key", "__publish_ms", "__txn_id")
_FIELDS: list[pa.Field[Any]] = [
    pa.field(name, pa.int64() if name in ("__index", "__publish_ms") else pa.string()) for name in PLACE
]
_FREE: list[pa.Field[Any]] = [pa.field(VALUE_COLUMN, pa.string()), pa.field("value_bytes", pa.binary())]
_RISKY = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""The characters with which a text begins that a spreadsheet may take for a formula."""


@dataclass(frozen=True, slots=True)
class FileForm:
    """A form of files. `write` takes the topic, the segment, and its messages."""

    name: str
    ending: str
    media_type: str
    write: Callable[[TopicInfo, str, Sequence[StoredMessage]], bytes]


def as_json_lines(topic: TopicInfo, segment: str, messages: Sequence[StoredMessage]) -> bytes:
    """Messages as REST returns them: bytes are in base64, under a name of their own."""
    return "".join(f"{json_line(segment, each)}\n" for each in messages).encode("utf-8", "replace")


def json_line(segment: str, message: StoredMessage) -> str:
    """A message as JSON. What JSON has no type for is text."""
    names = (name.removeprefix("__") for name in PLACE)
    content = message.content
    is_bytes = isinstance(content.value, bytes)
    value = {"value_base64": _text(content.value)} if is_bytes else {"value": content.value}
    found = {**dict(zip(names, _place(segment, message), strict=True)), "properties": dict(content.properties), **value}
    return json.dumps(found, ensure_ascii=False, default=_text)


def as_csv(topic: TopicInfo, segment: str, messages: Sequence[StoredMessage]) -> bytes:
    """Messages as CSV with a header. Lists and objects are in JSON, and bytes in base64. A text that a spreadsheet may
    take for a formula has a `'` before it."""
    columns = _columns(topic)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([_harmless(name) for name in (*PLACE, *(columns or (VALUE_COLUMN,)))])
    for each in messages:
        value = each.content.value
        row = value if isinstance(value, dict) else {VALUE_COLUMN: value}
        cells = [row.get(name) for name in columns] if columns else [value]
        writer.writerow([_cell(cell) for cell in (*_place(segment, each), *cells)])
    return text.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | Decimal):
        return value
    if isinstance(value, dict | list | tuple):
        return _harmless(json.dumps(value, ensure_ascii=False, default=_text))
    return _harmless(_text(value))


def _harmless(text: str) -> str:
    return f"'{text}" if _RISKY.match(text) else text


def as_arrow(topic: TopicInfo, segment: str, messages: Sequence[StoredMessage]) -> bytes:
    """Messages as an Arrow IPC file. In a topic with columns, what does not fit its column is null."""
    schema = arrow_schema(topic.topic_schema)
    places = zip(*(_place(segment, each) for each in messages), strict=True) if messages else [()] * len(PLACE)
    columns: list[Any] = [pa.array(cells, field.type) for field, cells in zip(_FIELDS, places, strict=True)]
    rows = _typed(messages, schema) if schema is not None else _free(messages)
    table = pa.Table.from_arrays([*columns, *rows.columns], schema=pa.schema([*_FIELDS, *rows.schema]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _typed(messages: Sequence[StoredMessage], schema: pa.Schema) -> pa.Table:
    by_entry = itertools.groupby(messages, key=lambda each: each.frame.position)
    tables = [schema.empty_table()]
    for _, group in by_entry:
        found = list(group)
        if isinstance(found[0].content.value, bytes):  # it was not taken apart
            tables.append(pa.Table.from_pylist([{}], schema))
        else:
            tables.append(table_of(found[0].frame, [each.index for each in found], schema))
    return pa.concat_tables(tables)


def _free(messages: Sequence[StoredMessage]) -> pa.Table:
    values = [each.content.value for each in messages]
    texts = [
        None if isinstance(each, bytes) else json.dumps(each, ensure_ascii=False, default=_text) for each in values
    ]
    raw = [each if isinstance(each, bytes) else None for each in values]
    return pa.Table.from_pydict({VALUE_COLUMN: texts, "value_bytes": raw}, schema=pa.schema(_FREE))


def _place(segment: str, message: StoredMessage) -> tuple[Any, ...]:
    frame = message.frame
    position, txn_id = str(frame.position), message.txn_id
    return segment, position, message.index, message.state, message.content.key, frame.publish_ms, txn_id


def _columns(topic: TopicInfo) -> Sequence[str]:
    return [each.name for each in topic.topic_schema.fields or []] if topic.topic_schema is not None else []


def _text(value: Any) -> str:
    """The text of a value that JSON has no type for."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


FILE_FORMS: Mapping[str, FileForm] = {
    "jsonl": FileForm("JSON lines", "jsonl", "application/jsonl", as_json_lines),
    "arrow": FileForm("Arrow", "arrow", "application/vnd.apache.arrow.file", as_arrow),
    "csv": FileForm("CSV", "csv", "text/csv; charset=utf-8", as_csv),
}
"""By the endings of their names."""
