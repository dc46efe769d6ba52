"""Topic schemas: the columns of a topic, and whether data fits them."""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from typing import Any

import pyarrow as pa

from metastore.txn.records.topics import TopicRecord
from metatxn.wire import errors
from metatxn.wire.arrow_types import type_named
from metatxn.wire.broker import Message, SchemaField, TopicSchema

MAX_SCHEMA_BYTES = 200_000
"""The most bytes of a serialized schema: some 3,500 columns. It is a part of the topic's record, which all stores have
to accept."""


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(bare(schema).serialize().to_pybytes()).decode()


@lru_cache(1_000)
def decode_schema(text: str) -> pa.Schema:
    """Decode a schema. Raises `ValueError` for anything other than a serialized Arrow schema in base64."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, pa.ArrowException, OSError) as error:
        raise ValueError(f"not a serialized Arrow schema in base64: {error}") from None


def bare(schema: pa.Schema) -> pa.Schema:
    """The schema without metadata and with every column nullable, on which all writers of a topic must agree."""
    return pa.schema([pa.field(field.name, field.type, nullable=True) for field in schema])


def from_wire(schema: TopicSchema) -> pa.Schema:
    """Convert a schema from its REST form. Raises INVALID_ARGUMENT for an unknown type or a malformed `arrow`."""
    try:
        if schema.arrow is not None:
            found = bare(decode_schema(schema.arrow))
        else:
            found = pa.schema([pa.field(field.name, type_named(field.type)) for field in schema.fields or ()])
    except (ValueError, OverflowError) as error:
        raise errors.InvalidArgument(f"schema: {error}", field="schema") from None
    assert_sound(found)
    return found


def assert_sound(schema: pa.Schema) -> None:
    """Raises INVALID_ARGUMENT for two columns with the same name, and for too large a schema."""
    if len(set(schema.names)) < len(schema.names):
        raise errors.InvalidArgument("schema: two columns have the same name", field="schema")
    size = len(bare(schema).serialize())
    if size > MAX_SCHEMA_BYTES:
        problem = f"schema: it has {size} bytes, and a topic keeps at most {MAX_SCHEMA_BYTES}"
        raise errors.InvalidArgument(problem, field="schema", limit_bytes=MAX_SCHEMA_BYTES)


def to_wire(arrow_schema: str) -> TopicSchema:
    schema = decode_schema(arrow_schema)
    fields = [SchemaField(name=field.name, type=str(field.type), nullable=field.nullable) for field in schema]
    return TopicSchema(fields=fields, arrow=arrow_schema)


def extends(topic: TopicRecord, schema: pa.Schema) -> bool:
    """Whether a producer may try to set this schema: the topic has none, or this one adds columns after its own."""
    if topic.format is not None or topic.arrow_schema is None:
        return topic.format is None
    known = decode_schema(topic.arrow_schema)
    return len(schema) > len(known) and bare(schema).equals(pa.schema([*known, *list(bare(schema))[len(known) :]]))


def differences(expected: pa.Schema, found: pa.Schema) -> list[tuple[str, str]]:
    """How a table differs from the columns of its topic, by column; empty if only their order does."""
    wanted = {field.name: field.type for field in expected}
    given = {field.name: field.type for field in found}
    return [
        *((name, "is missing") for name in wanted if name not in given),
        *((name, "is not in the topic") for name in given if name not in wanted),
        *(
            (name, f"is {given[name]}, not {kind}")
            for name, kind in wanted.items()
            if name in given and given[name] != kind
        ),
    ]


def value_of(message: Message) -> Any:
    return message.value if message.value_base64 is None else base64.b64decode(message.value_base64)
