"""Topic schemas: the columns of a topic, and whether data fits them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from metastore.txn.records.topics import TopicRecord
from metatxn.wire import errors
from metatxn.wire.broker import Message, SchemaField, TopicSchema
from metatxn.wire.columns import first_misfit


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(bare(schema).serialize().to_pybytes()).decode()


@lru_cache(1_000)
def decode_schema(text: str) -> pa.Schema:
    """Decode a schema. Raises `ValueError` for anything but a serialized Arrow schema in base64."""
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
            return bare(decode_schema(schema.arrow))
        names = [field.name for field in schema.fields or ()]
        if len(set(names)) != len(names):
            raise ValueError("two columns have the same name")
        return pa.schema([pa.field(field.name, _type(field.type)) for field in schema.fields or ()])
    except ValueError as error:
        raise errors.InvalidArgument(f"schema: {error}", field="schema") from None


def _type(name: str) -> pa.DataType:
    """The type of this name. Raises `ValueError` for a name that Arrow does not know."""
    timestamp: Callable[[str, str | None], pa.DataType] = pa.timestamp  # type: ignore[assignment]
    type_for_alias: Callable[[str], pa.DataType] = pa.type_for_alias  # type: ignore[assignment]
    if name.startswith("timestamp[") and name.endswith("]"):
        unit, _, zone = name.removeprefix("timestamp[").removesuffix("]").partition(", tz=")
        return timestamp(unit, zone or None)
    return type_for_alias(name)


def to_wire(arrow_schema: str) -> TopicSchema:
    schema = decode_schema(arrow_schema)
    fields = [SchemaField(name=field.name, type=str(field.type), nullable=field.nullable) for field in schema]
    return TopicSchema(fields=fields, arrow=arrow_schema)


def adds_columns(expected: pa.Schema, found: pa.Schema) -> bool:
    """Whether `found` is `expected` with further columns after it."""
    return len(found) > len(expected) and bare(found).equals(
        pa.schema([*expected, *list(bare(found))[len(expected) :]])
    )


def check_fits(topic: str, expected: pa.Schema, found: pa.Schema) -> None:
    """Raises SCHEMA_MISMATCH, which names the columns, before any row is accepted."""
    if bare(found).equals(expected):
        return
    wanted = {field.name: field.type for field in expected}
    given = {field.name: field.type for field in found}
    differences = [
        *(f"{name} is missing" for name in wanted if name not in given),
        *(f"{name} is not in the topic" for name in given if name not in wanted),
        *(
            f"{name} is {given[name]}, not {kind}"
            for name, kind in wanted.items()
            if name in given and given[name] != kind
        ),
    ]
    raise errors.SchemaMismatch(
        f"topic {topic}: {'; '.join(differences) or 'the columns are in another order'}",
        topic=topic,
        columns=[difference.partition(" ")[0] for difference in differences],
    )


def check_messages_fit(topic: TopicRecord, messages: Sequence[Message]) -> None:
    """Raises SCHEMA_MISMATCH, which names the first message and column, if the values cannot be rows of the topic. A
    message without a value is a row of nulls."""
    if topic.arrow_schema is None:
        return
    misfit = first_misfit([_value(message) for message in messages], decode_schema(topic.arrow_schema))
    if misfit is not None:
        raise errors.SchemaMismatch(
            f"topic {topic.name}: message {misfit.index} does not fit: {misfit}",
            topic=topic.name,
            columns=[misfit.column],
            message=misfit.index,
        )


def _value(message: Message) -> Any:
    return message.value if message.value_base64 is None else base64.b64decode(message.value_base64)
