"""Entries as the brokers send them, and their content: a table, or messages converted into one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pyarrow as pa

from metatxn.connection import Connection
from metatxn.http import Call, path_of
from metatxn.paging import Paged
from metatxn.table_writer import key_text
from metatxn.wire.broker import END_HEADER, FRAMES_MEDIA_TYPE, NEXT_HEADER, REVISION_HEADER, Isolation
from metatxn.wire.columns import Misfit, fitted, table_with_nulls
from metatxn.wire.contents import messages_of
from metatxn.wire.errors import SchemaMismatch, ServiceUnreachable
from metatxn.wire.frames import Frame, FrameError, PayloadKind, decode_frames
from metatxn.wire.names import column_list
from metatxn.wire.record_batches import records_of
from metatxn.wire.rows import KEY_COLUMN

PAGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FramesPage:
    """A page of visible entries of a segment, in order. The next page begins after `next`; `end` is true if nothing
    more was readable after this page."""

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
    columns: Sequence[str] | None = None,
) -> FramesPage:
    is_new = await connection.directory.knows_batches()
    params = {
        "after": after,
        "max_bytes": max_bytes,
        "isolation": isolation,
        "revision": revision,
        "wait_ms": wait_ms or None,
        "batches": "true" if is_new else None,
        "columns": column_list(columns) if columns and is_new else None,
    }
    call = Call("GET", path_of("segments", segment, "entries"), params, wait_s=wait_ms / 1000)
    if owner_url is not None and connection.topics.owner(segment) is None:
        connection.topics.set_owner(segment, owner_url.rstrip("/"))
    response = await connection.owner_of(segment, call)
    media_type = (response.header("Content-Type") or "").partition(";")[0]
    try:
        frames = list(decode_frames(memoryview(response.body).toreadonly()))
        at = response.headers[NEXT_HEADER.lower()]
    except (FrameError, KeyError) as error:
        raise ServiceUnreachable(f"{response.url} answered {media_type}, not {FRAMES_MEDIA_TYPE}") from error
    taken = response.header(REVISION_HEADER)
    end = (response.header(END_HEADER) or "").lower() == "true"
    return FramesPage(frames, at, end, int(taken) if taken else None)


class SegmentFrames(Paged[Frame]):
    """Every visible entry of a segment, up to where nothing more was readable. `columns` are those that are needed of
    tables."""

    def __init__(
        self,
        connection: Connection,
        segment: str,
        isolation: Isolation,
        revision: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._connection = connection
        self._segment = segment
        self._isolation: Isolation = isolation
        self._revision = revision
        self._columns = columns
        self._after: str | None = None
        self._page: FramesPage | None = None
        self._over = False

    async def page(self) -> list[Frame] | None:
        if self._over:
            return None
        self._page = await read_frames(
            self._connection,
            self._segment,
            after=self._after,
            isolation=self._isolation,
            revision=self._revision,
            columns=self._columns,
        )
        return self._page.frames

    def passed(self) -> None:
        assert self._page is not None
        self._over = self._page.end or self._page.next == self._after
        self._after = self._page.next


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of one entry and, row by row, their keys. A value that does not fit is null, and listed in `misfits`."""

    table: pa.Table
    keys: list[str | None]
    misfits: list[Misfit]


def misfit_at(frame: Frame, segment: str | None, misfit: Misfit, index: int) -> SchemaMismatch:
    """The error for a value in this entry; `index` is that of its message or row there."""
    place = f"{frame.position} of {segment}" if segment is not None else str(frame.position)
    return SchemaMismatch(
        f"message {index} at {place} does not fit: {misfit}",
        columns=[misfit.column],
        position=str(frame.position),
        segment=segment,
        message=index,
    )


def decode_entry(frame: Frame, schema: pa.Schema | None) -> pa.Table:
    """The rows of an entry, in the columns of the topic's schema if it has one. Raises `SchemaMismatch`."""
    return decode_rows(frame, schema).table


def decode_rows(frame: Frame, schema: pa.Schema | None, *, segment: str | None = None, keys: bool = False) -> Decoded:
    """Like `decode_entry`; `segment` is named in the error. `keys` are only determined on request."""
    decoded = decode_with_nulls(frame, schema, keys=keys)
    if decoded.misfits:
        first = decoded.misfits[0]
        raise misfit_at(frame, segment, first, first.index) from first
    return decoded


def decode_with_nulls(frame: Frame, schema: pa.Schema | None, *, keys: bool = False) -> Decoded:
    """Like `decode_rows`, but never raises."""
    if frame.kind is not PayloadKind.ARROW:
        messages = messages_of(frame)
        found, misfits = table_with_nulls(list(messages.values), schema)
        return Decoded(found, list(messages.keys) if keys else [], misfits)
    table = _written_table(frame)
    found, misfits = (table.replace_schema_metadata(None), []) if schema is None else fitted(table, schema)
    return Decoded(found, _arrow_keys(table) if keys else [], misfits)


def keys_of(frame: Frame) -> list[str | None]:
    """The keys, row by row."""
    return _arrow_keys(_written_table(frame)) if frame.kind is PayloadKind.ARROW else list(messages_of(frame).keys)


def _written_table(frame: Frame) -> pa.Table:
    # Copied, because columns in the middle of a page would be unaligned, which slows Arrow's kernels down.
    return pa.ipc.open_stream(pa.py_buffer(bytes(frame.payload))).read_all()


def _arrow_keys(table: pa.Table) -> list[str | None]:
    name = (table.schema.metadata or {}).get(KEY_COLUMN)
    if name is None or name.decode() not in table.column_names:
        return [None] * table.num_rows
    return [None if key is None else key_text(key) for key in table.column(name.decode()).to_pylist()]


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A message with the bytes of its value: JSON as text in UTF-8, anything else as it was sent."""

    key: str | None
    value: bytes | None
    properties: dict[str, str]
    timestamp_ms: int


def raw_messages(frame: Frame) -> list[RawMessage] | None:
    """The messages of an entry, or None if it is a table. Those of Kafka's clients have the times that they gave."""
    if frame.kind is PayloadKind.ARROW:
        return None
    if frame.kind is PayloadKind.KAFKA:
        return [
            RawMessage(record.key_text, record.value, record.properties, record.timestamp_ms)
            for record in records_of(frame.payload, frame.count)
        ]
    keys, values, properties, _ = messages_of(frame)
    times = repeat(frame.publish_ms)
    return [
        RawMessage(key, _raw(value), given or {}, time_ms)
        for key, value, given, time_ms in zip(keys, values, properties, times, strict=False)
    ]


def _raw(value: Any) -> bytes | None:
    if isinstance(value, bytes | None):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def values_of(frame: Frame) -> list[Any]:
    """The values of an entry that is not a table."""
    return list(messages_of(frame).values)
