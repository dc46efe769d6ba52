"""The content of an entry: bytes, an Arrow stream, a JSON list of messages, a batch of them, a batch of Kafka's, or an
entry of Pulsar's."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, repeat
from typing import Any

import pyarrow as pa
from pydantic import ConfigDict, TypeAdapter, ValidationError

from metatxn.wire import errors, pulsar_entries, record_batches
from metatxn.wire.arrow_sizes import MAX_TABLE_BYTES, TableTooLarge, read_within
from metatxn.wire.batches import UNREADABLE
from metatxn.wire.broker import MAX_ENTRY_MESSAGES, Message, ReadMessage, hash_of_key, hash_of_key_bytes
from metatxn.wire.contents import messages_of
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, Entry, Frame, PayloadKind, RawFrame, encode_frame, peek
from metatxn.wire.names import message_ids
from metatxn.wire.record_batches import CONTENT_TYPE, JSON_TYPE, KafkaRecord, bodies_of, records_of
from metatxn.wire.rows import KEY_COLUMN, plain_values, rows_of
from participants.messages.batches import encode_batch, no_delivery_times
from participants.messages.pieces import PIECE_ITEMS, in_turns, is_one_piece, json_pieces

_MESSAGES = TypeAdapter(list[Message])
_READ_MESSAGES = TypeAdapter(list[ReadMessage])
_VALUES = TypeAdapter(list[Any], config=ConfigDict(ser_json_inf_nan="constants"))


@dataclass(frozen=True, slots=True)
class ArrowPayload:
    schema: pa.Schema
    rows: int


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Encode messages. Raises INVALID_ARGUMENT for values that JSON cannot express, because what is accepted must be
    readable."""
    _check_readable(messages)
    return json.dumps(
        [{name: getattr(message, name) for name in message.model_fields_set} for message in messages],
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def _check_readable(messages: Sequence[Message]) -> None:
    if problem := _problems([message.value for message in messages]):
        raise errors.InvalidArgument(f"messages: {problem}", field="messages")


def _problems(values: list[Any]) -> str | None:
    """What is wrong with a value that is too deep, or contains half of a surrogate pair or a number that JSON cannot
    express."""
    try:
        written = _VALUES.dump_json(values)
        if b"NaN" in written or b"Infinity" in written:  # such a number, or a text that contains this word
            json.dumps(values, allow_nan=False)
    except (ValueError, RecursionError) as error:
        return f"a value is not plain JSON: {error}"
    return None


def decode_messages(payload: bytes | memoryview) -> list[Message]:
    """Decode messages. Raises INVALID_ARGUMENT unless the payload is a JSON list of messages that can be read again,
    and PAYLOAD_TOO_LARGE if there are more than `MAX_ENTRY_MESSAGES`."""
    return [message for piece in _decoded(payload) for message in piece]


async def decode_messages_in_turns(payload: bytes | memoryview) -> list[Message]:
    """Like `decode_messages`, but lets other tasks run after each piece."""
    return [message async for piece in in_turns(_decoded(payload)) for message in piece]


def _decoded(payload: bytes | memoryview) -> Iterator[list[Message]]:
    before = 0
    try:
        text = bytes(payload).decode()
        for piece in (text,) if is_one_piece(text) else json_pieces(text):
            messages = _validated(piece, before)
            before += len(messages)
            if before > MAX_ENTRY_MESSAGES:
                problem = f"body: more than {MAX_ENTRY_MESSAGES} messages in one entry"
                raise errors.PayloadTooLarge(problem, field="body")
            _check_readable(messages)
            yield messages
    except (ValueError, RecursionError) as error:
        raise errors.InvalidArgument(f"body: not a JSON list: {error}", field="body") from None


def _validated(piece: str, before: int) -> list[Message]:
    """The messages of a piece; `before` is the number of messages before it. Raises `ValueError` if it is not a
    list."""
    try:
        return _MESSAGES.validate_json(piece)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise ValueError(first["msg"]) from None
        index, *parts = first["loc"]
        where = ".".join(str(part) for part in (before + int(index), *parts))
        raise errors.InvalidArgument(f"body.{where}: {first['msg']}", field="body") from None


def hashes_of(keys: Iterable[str | None], producer: str | None, sequence: int | None) -> list[int]:
    """The hash that determines the segment of each message. Messages without a key share one, which is the same in a
    retry."""
    default = hash_of_key(f"{producer}/{sequence}")
    return [default if key is None else hash_of_key(key) for key in keys]


def inspect_arrow(payload: bytes) -> ArrowPayload:
    """The schema and the row count of an Arrow stream. Raises INVALID_ARGUMENT if it is not one, and PAYLOAD_TOO_LARGE
    if it is too large for its readers once it is decoded."""
    try:
        schema, batches = read_within(payload, MAX_TABLE_BYTES)
        return ArrowPayload(schema, sum(batch.num_rows for batch in batches))
    except TableTooLarge as error:
        raise errors.PayloadTooLarge(
            f"body: {error}",
            action="Write fewer rows into each entry, or the same without compression and dictionaries.",
            field="body",
            limit_bytes=MAX_TABLE_BYTES,
        ) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise errors.InvalidArgument(f"body: not an Arrow stream: {error}", field="body") from None


def message_count(entry: Entry) -> int:
    """The number of messages that `read_messages` finds in the entry. Opaque bytes are one, whatever their count."""
    return 1 if entry.kind is PayloadKind.BYTES else entry.count


def read_bytes(frame: RawFrame) -> int:
    """The size of an entry for readers of its messages. A page holds as many entries as have its size together, and
    what is compressed may become a thousand times as large."""
    match frame.kind:
        case PayloadKind.KAFKA | PayloadKind.BATCH:
            return len(frame.data) - frame.size + record_batches.unpacked_batch_bytes(frame.payload)
        case PayloadKind.PULSAR:
            return len(frame.data) - frame.size + pulsar_entries.unpacked_entry_bytes(frame.payload)
        case PayloadKind.BYTES | PayloadKind.ARROW | PayloadKind.MESSAGES:
            return len(frame.data)


def read_messages(segment: str, frame: Frame, indexes: Sequence[int] | None = None) -> list[ReadMessage]:
    """The messages of one entry in their REST form: those with these indexes, or all."""
    wanted = range(message_count(frame)) if indexes is None else indexes
    match frame.kind:
        case PayloadKind.MESSAGES:
            every = json.loads(bytes(frame.payload))
            bodies = [every[index] for index in wanted]
        case PayloadKind.ARROW:
            bodies = rows_of(frame.payload, wanted)
        case PayloadKind.BYTES:
            bodies = [{"value_base64": base64.b64encode(frame.payload).decode()} for _ in wanted]
        case PayloadKind.BATCH | PayloadKind.PULSAR:
            bodies = _batch_bodies(frame, wanted)
        case PayloadKind.KAFKA:
            records = bodies_of(frame.payload, frame.count)
            bodies = [_without_raw(records[index]) for index in wanted]
    for body, message_id in zip(bodies, message_ids(segment, frame.position, wanted), strict=True):
        body["message_id"], body["publish_ms"], body["txn_id"] = message_id, frame.publish_ms, frame.txn_id
        body["properties"] = body.get("properties") or {}
    return _READ_MESSAGES.validate_python(bodies)


def _batch_bodies(batch: Entry, indexes: Sequence[int]) -> list[dict[str, Any]]:
    """The answer for a value that was accepted unseen and that JSON cannot express: the reason."""
    keys, values, properties, deliver_at_ms = messages_of(batch)
    found = [values[index] for index in indexes]
    problems = _problems([value for value in found if not isinstance(value, bytes)])
    bodies = []
    for index, value in zip(indexes, found, strict=True):
        body = {"key": keys[index], "properties": properties[index], "deliver_at_ms": deliver_at_ms[index]}
        if isinstance(value, bytes):
            body["value_base64"] = base64.b64encode(value).decode()
        elif problems and (problem := _problems([value])):
            body |= {"value": None, "properties": {**(properties[index] or {}), UNREADABLE: problem}}
        else:
            body["value"] = value
        bodies.append(body)
    return bodies


def batch_as_json(batch: Entry) -> bytes:
    """The messages of a batch as a payload of the kind `MESSAGES`."""
    members = ("key", "value", "value_base64", "properties")
    bodies = _batch_bodies(batch, range(batch.count))
    texts = [{name: body[name] for name in members if name in body} for body in bodies]
    for text, body in zip(texts, bodies, strict=True):
        if body["deliver_at_ms"] is not None:
            text["deliver_at_ms"] = body["deliver_at_ms"]
    return json.dumps(texts, separators=(",", ":")).encode()


def with_json(frame: RawFrame) -> RawFrame:
    """A frame for readers that do not know batches: the same one with JSON, unless that is too large for a frame."""
    if frame.kind is not PayloadKind.BATCH:
        return frame
    payload = batch_as_json(frame)
    if len(payload) > MAX_PAYLOAD_BYTES:
        return frame
    return peek(encode_frame(replace(frame, payload=payload, kind=PayloadKind.MESSAGES)))


def entry_for_all_releases(batch: Entry) -> Entry:
    """The entry with JSON in place of a batch, for brokers of release 0.2.0. Raises PAYLOAD_TOO_LARGE."""
    payload = batch_as_json(batch)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise errors.PayloadTooLarge(f"the entry has {len(payload)} bytes in JSON", limit_bytes=MAX_PAYLOAD_BYTES)
    return replace(batch, payload=payload, kind=PayloadKind.MESSAGES)


def as_batch(messages: Sequence[Message], now_ms: int) -> bytes:
    """The messages as a record batch of Kafka's. A value that is not bytes becomes JSON, and a header says so.
    Raises INVALID_ARGUMENT if there is none, or one with a delivery time."""
    if not messages:
        raise errors.InvalidArgument("messages: a record batch has at least one message", field="messages")
    if any(message.deliver_at_ms is not None for message in messages):
        raise no_delivery_times()
    return encode_batch([_as_record(message, now_ms) for message in messages])


def _as_record(message: Message, now_ms: int) -> KafkaRecord:
    headers = {name: text.encode() for name, text in (message.properties or {}).items()}
    value: bytes | None = None
    if message.value_base64 is not None:
        value = base64.b64decode(message.value_base64)
    elif message.value is not None:
        value = json.dumps(message.value, ensure_ascii=False, separators=(",", ":")).encode()
        headers[CONTENT_TYPE] = JSON_TYPE.encode()
    key = None if message.key is None else message.key.encode()
    return KafkaRecord(key, value, tuple(headers.items()), now_ms)


def _without_raw(body: dict[str, Any]) -> dict[str, Any]:
    if "raw" in body:
        body["value_base64"] = base64.b64encode(body.pop("raw")).decode()
    return body


def keyed(frame: Frame) -> Iterator[list[tuple[int, str, bool]]]:
    """The index and the key of every message that has a key, and whether it deletes the key: its value is null or
    empty (in a batch of Kafka's only null), or the row has other columns than the key's and all of them are null. The
    result comes in pieces."""
    match frame.kind:
        case PayloadKind.MESSAGES:
            before = 0
            for piece in json_pieces(bytes(frame.payload).decode()):
                bodies = json.loads(piece)
                yield [
                    (before + index, body["key"], not body.get("value_base64") and body.get("value") is None)
                    for index, body in enumerate(bodies)
                    if body.get("key") is not None
                ]
                before += len(bodies)
        case PayloadKind.ARROW:
            yield from _keyed_rows(frame.payload)
        case PayloadKind.BATCH | PayloadKind.PULSAR:
            yield from _keyed_in_batch(frame)
        case PayloadKind.KAFKA:
            yield from _keyed_records(frame)
        case PayloadKind.BYTES:
            return


def _keyed_records(batch: Frame) -> Iterator[list[tuple[int, str, bool]]]:
    """Keys are compared by their bytes, which need not be UTF-8. For Kafka clients an empty value is a value, so only
    null deletes."""
    records = records_of(batch.payload, batch.count)
    for start in range(0, len(records), PIECE_ITEMS):
        piece = zip(count(start), records[start : start + PIECE_ITEMS])
        yield [(index, each.compared_key, each.value is None) for index, each in piece if each.compared_key is not None]


def _keyed_in_batch(frame: Frame) -> Iterator[list[tuple[int, str, bool]]]:
    keys, values, _, _ = messages_of(frame)
    for start in range(0, frame.count, PIECE_ITEMS):
        piece = zip(count(start), keys[start : start + PIECE_ITEMS], values[start : start + PIECE_ITEMS])
        yield [(index, key, value is None or value == b"") for index, key, value in piece if key is not None]


def key_hashes(frame: Frame) -> list[int]:
    """The hash of the key of every message. The messages of an entry that have no key share one hash, under which their
    producer sends them (see `hashes_of`), or that of the entry's position if it has no sequence."""
    sent_as = frame.position if frame.sequence is None else f"{frame.producer}/{frame.sequence}"
    found = [hash_of_key(str(sent_as))] * message_count(frame)
    for piece in keyed(frame):
        for index, key, _ in piece:
            found[index] = hash_of_key_bytes(key.encode(errors="surrogateescape"))
    return found


def _keyed_rows(payload: bytes | memoryview) -> Iterator[list[tuple[int, str, bool]]]:
    with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
        table = reader.read_all()
    columns = dict(zip(table.column_names, table.columns, strict=True))
    keys = columns.pop((table.schema.metadata or {}).get(KEY_COLUMN, b"").decode(errors="replace"), None)
    if keys is None:
        return
    for start in range(0, table.num_rows, PIECE_ITEMS):
        nulls = [column.slice(start, PIECE_ITEMS).is_null().to_pylist() for column in columns.values()]
        deletes = map(all, zip(*nulls, strict=True)) if nulls else repeat(False)
        rows = zip(count(start), plain_values(keys.slice(start, PIECE_ITEMS)), deletes)
        yield [(index, str(key), delete) for index, key, delete in rows if key is not None]
