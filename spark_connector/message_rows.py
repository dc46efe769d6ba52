"""The rows of a topic without a schema: its messages, in the columns of Kafka's source."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import metatxn
from metatxn.frames import Decoded, raw_messages

_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.string()),
    pa.field("value", pa.binary()),
    pa.field("properties", pa.map_(pa.string(), pa.string())),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
]
MESSAGE_COLUMNS = pa.schema(_FIELDS)


def may_be_text(name: str, wanted: pa.DataType) -> bool:
    """Whether `.schema()` may ask for a column as text: the values, of which Kafka's source only has the bytes."""
    return name == "value" and wanted == pa.string()


def messages_of_entry(frame: metatxn.Frame, columns: pa.Schema, segment: str) -> Decoded:
    """The messages of an entry. Raises `SchemaMismatch` for an entry with a table: the topic has been given a schema
    since the read was planned."""
    found = raw_messages(frame)
    if found is None:
        raise metatxn.SchemaMismatch(
            f"the entry at {frame.position} of {segment} is a table: the topic has got a schema",
            action="Start again: its messages are read in its columns now.",
            position=str(frame.position),
            segment=segment,
        )
    values: dict[str, list[Any]] = {
        "key": [message.key for message in found],
        "value": [message.value for message in found],
        "properties": [list(message.properties.items()) for message in found],
        "timestamp": [message.timestamp_ms * 1_000 for message in found],
    }
    table = pa.Table.from_pydict({field.name: values[field.name] for field in columns}, schema=columns)
    return Decoded(table, [message.key for message in found], [])
