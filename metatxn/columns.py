"""Columns as people write them on the command line and in the console: `id:int64,name:string`."""

from __future__ import annotations

from pydantic import ValidationError

from metatxn.wire.broker import SchemaField, TopicSchema
from metatxn.wire.text import split_outside_brackets


def columns_text(schema: TopicSchema | None) -> str | None:
    if schema is None:
        return None
    return ",".join(f"{field.name}:{field.type}" for field in schema.fields or [])


def parsed_columns(text: str) -> TopicSchema:
    """Raises `ValueError`."""
    fields = []
    for column in split_outside_brackets(text):
        name, colon, kind = column.partition(":")
        if not colon or not name.strip() or not kind.strip():
            raise ValueError(f"{column!r} is not a column. Use NAME:TYPE, such as id:int64,name:string.")
        fields.append(SchemaField(name=name.strip(), type=kind.strip()))
    try:
        return TopicSchema(fields=fields)
    except ValidationError as error:
        raise ValueError(str(error)) from error
