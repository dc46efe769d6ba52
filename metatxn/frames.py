"""Entries as the brokers send them, and what is in them: a table, or messages turned into one."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from metatxn.connection import Connection
from metatxn.errors import SchemaMismatch, ServiceUnreachable
from metatxn.http import Call, path_of
from metatxn.paging import Paged
from metatxn.table_writer import KEY_METADATA, key_text
from participants.api.models import END_HEADER, FRAMES_MEDIA_TYPE, NEXT_HEADER, REVISION_HEADER, Isolation
from participants.ledger.frames import Frame, FrameError, PayloadKind, decode_all

PAGE_BYTES = 8 * 1024 * 1024
VALUE_COLUMN = "value"
"""The one column of a topic without a schema whose messages are not JSON objects."""


@dataclass(frozen=True, slots=True)
class FramesPage:
    """Visible entries of a segment, in order. `next` is where to go on; `end`: nothing more was readable behind it."""

    frames: list[Frame]
    next: str
    end: bool
    revision: int | None


async def read_frames(
    connection: Connection,
    segment: str,
    *,
    owner_url: str | None = None,
    after: str | None = None,
    isolation: Isolation = "read_committed",
    revision: int | None = None,
    max_bytes: int = PAGE_BYTES,
    wait_ms: int = 0,
) -> FramesPage:
    params = {
        "after": after,
        "max_bytes": max_bytes,
        "isolation": isolation,
        "revision": revision,
        "wait_ms": wait_ms or None,
    }
    call = Call("GET", path_of("segments", segment, "entries"), params, wait_s=wait_ms / 1000)
    if owner_url is not None and connection.topics.owner(segment) is None:
        connection.topics.set_owner(segment, owner_url.rstrip("/"))
    response = await connection.owner_of(segment, call)
    media_type = response.headers.get("Content-Type", "").partition(";")[0]
    try:
        frames = list(decode_all(response.content))
        at = response.headers[NEXT_HEADER]
    except (FrameError, KeyError) as error:
        raise ServiceUnreachable(f"{response.url} answered {media_type}, not {FRAMES_MEDIA_TYPE}") from error
    taken = response.headers.get(REVISION_HEADER)
    end = response.headers.get(END_HEADER, "").lower() == "true"
    return FramesPage(frames, at, end, int(taken) if taken else None)


class SegmentFrames(Paged[Frame]):
    """Every visible entry of a segment, up to where nothing more was readable."""

    def __init__(self, connection: Connection, segment: str, isolation: Isolation, revision: int | None = None) -> None:
        self._connection = connection
        self._segment = segment
        self._isolation: Isolation = isolation
        self._revision = revision
        self._after: str | None = None
        self._page: FramesPage | None = None
        self._over = False

    async def page(self) -> list[Frame] | None:
        if self._over:
            return None
        self._page = await read_frames(
            self._connection, self._segment, after=self._after, isolation=self._isolation, revision=self._revision
        )
        return self._page.frames

    def passed(self) -> None:
        assert self._page is not None
        self._over = self._page.end or self._page.next == self._after
        self._after = self._page.next


@dataclass(frozen=True, slots=True)
class Decoded:
    """One entry's rows and, row by row, their keys."""

    table: pa.Table
    keys: list[str | None]


def decode_entry(frame: Frame, schema: pa.Schema | None) -> pa.Table:
    """The rows of an entry, in the columns of the topic's schema if it has one. Raises `SchemaMismatch`."""
    return decode(frame, schema).table


def decode(frame: Frame, schema: pa.Schema | None, *, keys: bool = False) -> Decoded:
    """`keys` are only looked for when asked for."""
    match frame.kind:
        case PayloadKind.ARROW:
            # A copy: in the middle of a page the columns would lie at odd addresses, which Arrow's kernels dislike.
            table = pa.ipc.open_stream(pa.py_buffer(bytes(frame.payload))).read_all()
            return Decoded(_in_schema(table, schema), _arrow_keys(table) if keys else [])
        case PayloadKind.MESSAGES | PayloadKind.BYTES:
            return Decoded(messages_table(values_of(frame), schema), _message_keys(frame) if keys else [])


def _value_of(message: dict[str, Any]) -> Any:
    if "value_base64" in message:
        return base64.b64decode(message["value_base64"])
    return message["value"]


def _message_keys(frame: Frame) -> list[str | None]:
    if frame.kind is PayloadKind.BYTES:
        return [None]
    return [message.get("key") for message in json.loads(bytes(frame.payload))]


def _arrow_keys(table: pa.Table) -> list[str | None]:
    name = (table.schema.metadata or {}).get(KEY_METADATA)
    if name is None or name.decode() not in table.column_names:
        return [None] * table.num_rows
    return [None if key is None else key_text(key) for key in table.column(name.decode()).to_pylist()]


def _in_schema(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    if schema is None:
        return table.replace_schema_metadata(None)
    # Columns that were added to the topic later are null in what was written before.
    later = [field for field in schema if field.nullable and field.name not in table.column_names]
    for field in later:
        table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    try:
        return table.select(schema.names).cast(schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise SchemaMismatch(f"an entry does not fit the topic's schema: {error}") from error


def messages_table(values: list[Any], schema: pa.Schema | None) -> pa.Table:
    """JSON objects become columns; without a schema, anything else becomes the column `value`."""
    if schema is not None:
        return pa.Table.from_arrays([_column(values, field) for field in schema], schema=schema)
    if values and all(isinstance(value, dict) for value in values):
        return pa.Table.from_pylist(values, schema=_all_columns(values))
    try:
        return pa.table({VALUE_COLUMN: pa.array(values)})
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.table({VALUE_COLUMN: pa.array([_as_text(value) for value in values], pa.string())})


def _column(values: list[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    """JSON has no dates, decimals or bytes: they are texts there, which Arrow can parse."""
    cells = [value.get(field.name) if isinstance(value, dict) else value for value in values]
    column: pa.Array[Any]
    try:
        column = pa.array(cells, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        try:
            column = pa.array(cells).cast(field.type)
        except pa.ArrowException:
            raise SchemaMismatch(f"column {field.name}: {error}", columns=[field.name]) from error
    return column


def _all_columns(values: list[dict[str, Any]]) -> pa.Schema:
    """Columns in the order in which they first appear; one whose values have no common type becomes JSON text."""
    names = dict.fromkeys(name for value in values for name in value)
    fields = []
    for name in names:
        cells = [value.get(name) for value in values]
        try:
            fields.append(pa.field(name, pa.array(cells).type))
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            for value in values:
                if name in value:
                    value[name] = _as_text(value[name])
            fields.append(pa.field(name, pa.string()))
    return pa.schema(fields)


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return json.dumps(value)


def values_of(frame: Frame) -> list[Any]:
    """The values of an entry that holds no table."""
    assert frame.kind is not PayloadKind.ARROW
    if frame.kind is PayloadKind.BYTES:
        return [bytes(frame.payload)]
    return [_value_of(message) for message in json.loads(bytes(frame.payload))]
