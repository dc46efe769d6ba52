"""Goal: messages that were sent in a batch are stored as they came, without a look at each of them, and every reader
gets them: with JSON, as frames, and readers that have never heard of batches.

Method: a broker in-process, its HTTP paths. The bytes of a batch are tested in `tests/metatxn/test_batches.py`.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from metatxn.wire.batches import JSON, UNREADABLE, PackedMessage, pack_batch, packed_message, unpack_batch
from metatxn.wire.broker import BATCH_MEDIA_TYPE
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, Frame, PayloadKind, decode_frames
from metatxn.wire.record_batches import CONTROL, HEADER, encoded_varint
from tests.participants.api.test_rest import assert_problem, enc
from tests.participants.broker.process import BrokerProcess
from tests.participants.broker.stories import assert_lawful
from tests.participants.segment.world import World

SENT: list[tuple[Any, str | None, dict[str, str] | None]] = [
    ({"a": [1, None, "ü"]}, "k", {"p": "ü"}),
    (b"\x00\xff", None, None),
    (None, "", {}),
    ("text", "k", None),
]
BATCH, COUNT = pack_batch(packed_message(*each) for each in SENT)


async def append(process: BrokerProcess, segment: str, batch: bytes, **query: Any) -> httpx.Response:
    path, headers = f"/v1/segments/{enc(segment)}/entries", {"Content-Type": BATCH_MEDIA_TYPE}
    return await process.http.post(path, content=batch, headers=headers, params=query)


async def frames_of(process: BrokerProcess, segment: str, **query: Any) -> list[Frame]:
    return list(decode_frames((await process.http.get(f"/v1/segments/{enc(segment)}/entries", params=query)).content))


async def read(process: BrokerProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await process.http.get("/v1/topics/t/messages")).json()["messages"]
    return found


async def test_a_batch_is_stored_as_it_came_and_read_by_everybody(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    assert (await append(process, segment, BATCH, count=COUNT, producer="p", sequence=1)).status_code == 200
    again = await append(process, segment, BATCH, producer="p", sequence=1)
    assert again.json()["duplicate"]
    (frame,) = await frames_of(process, segment, batches="true")
    assert (frame.kind, frame.count, bytes(frame.payload)) == (PayloadKind.BATCH, COUNT, BATCH)
    (older,) = await frames_of(process, segment)
    assert (older.kind, older.count, older.position) == (PayloadKind.MESSAGES, COUNT, frame.position)
    assert (older.publish_ms, older.producer, older.sequence) == (frame.publish_ms, "p", 1)
    assert json.loads(bytes(older.payload)) == [
        {"key": "k", "value": {"a": [1, None, "ü"]}, "properties": {"p": "ü"}},
        {"key": None, "value_base64": "AP8=", "properties": None},
        {"key": "", "value": None, "properties": None},
        {"key": "k", "value": "text", "properties": None},
    ]
    assert [(each["key"], each["value"], each["value_base64"], each["properties"]) for each in await read(process)] == [
        ("k", {"a": [1, None, "ü"]}, None, {"p": "ü"}),
        (None, None, "AP8=", {}),
        ("", None, None, {}),
        ("k", "text", None, {}),
    ]
    await assert_lawful(world)


async def test_the_latest_value_of_each_key_is_found_in_batches(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    await append(process, segment, pack_batch(packed_message(n, f"k{n % 3}", None) for n in range(6))[0])
    await append(process, segment, pack_batch([packed_message(None, "k0", None), packed_message(b"", "k1", None)])[0])
    view = (await process.http.get("/v1/topics/t/messages", params={"compacted": "true"})).json()["messages"]
    assert [(each["key"], each["value"]) for each in view] == [("k2", 5)]


def changed(**fields: int) -> bytes:
    """The batch with other numbers in its header."""
    names = ("offset", "length", "epoch", "magic", "crc", "attributes", "last", *"abcde", "count")
    known = dict(zip(names, HEADER.unpack_from(BATCH), strict=True))
    return HEADER.pack(*(known | fields).values()) + BATCH[HEADER.size :]


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (b"", "0 bytes"),
        (BATCH[:60], "60 bytes"),
        (BATCH[:-1], "length"),
        (changed(magic=1), "version"),
        (changed(crc=0), "checksum"),
        (BATCH[:-1] + b"\1", "checksum"),
        (changed(count=COUNT + 1), "header"),
        (changed(count=0, last=-1), "header"),
        (changed(attributes=CONTROL), "header"),
        (changed(attributes=5), "header"),
        (b'[{"value": 1}]', "14 bytes"),
    ],
)
async def test_what_is_no_batch_is_refused_and_changes_nothing(process: BrokerProcess, batch: bytes, why: str) -> None:
    (segment,) = await process.create("t")
    problem = assert_problem(await append(process, segment, batch), ErrorCode.INVALID_ARGUMENT, "body")
    assert why in problem["detail"]
    assert not await read(process)


async def test_the_number_of_messages_is_that_of_the_batch(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    assert_problem(await append(process, segment, BATCH, count=COUNT + 1), ErrorCode.INVALID_ARGUMENT, "count")
    many, _ = pack_batch([packed_message(1, None, None)] * 100_001)
    assert (await append(process, segment, many)).status_code == 413
    assert not await read(process)


async def test_messages_of_a_topic_with_columns_have_to_fit(process: BrokerProcess) -> None:
    (segment,) = await process.create("t", schema={"fields": [{"name": "a", "type": "int64"}]})
    for misfit in ({"a": "x"}, {"b": 1}, b"bytes", 7):
        batch, _ = pack_batch([packed_message({"a": 1}, None, None), packed_message(misfit, None, None)])
        assert_problem(await append(process, segment, batch), ErrorCode.SCHEMA_MISMATCH)
    assert (await append(process, segment, pack_batch([packed_message({"a": 1}, None, None)])[0])).status_code == 200
    assert [each["value"] for each in await read(process)] == [{"a": 1}]


async def test_kafka_s_clients_are_told_what_is_json(process: BrokerProcess) -> None:
    (segment,) = await process.create("t", format="kafka")
    assert (await append(process, segment, BATCH, producer="p", sequence=1)).status_code == 200
    assert (await append(process, segment, BATCH, producer="p", sequence=1)).json()["duplicate"]
    (frame,) = await frames_of(process, segment)
    assert (frame.kind, frame.count) == (PayloadKind.KAFKA, COUNT)
    found = await read(process)
    assert [each["value"] for each in found] == [{"a": [1, None, "ü"]}, None, None, "text"]
    is_json = {"content-type": "application/json"}
    assert [each["properties"] for each in found] == [{"p": "ü", **is_json}, {}, {}, is_json]
    broken = pack_batch([(b"\0\0", b"\x7f")])[0]
    assert_problem(await append(process, segment, broken), ErrorCode.INVALID_ARGUMENT, "body")


def json_record(text: bytes) -> PackedMessage:
    return bytes([JSON, 0]), encoded_varint(-1) + encoded_varint(len(text)) + text + b"\0"


async def test_values_that_were_accepted_unseen_and_cannot_be_shown_say_why(process: BrokerProcess) -> None:
    """The client library does not send them. Their neighbours are shown."""
    (segment,) = await process.create("t")
    texts = [b"1", b"NaN", b'"\\ud800"', b"[" * 300 + b"]" * 300, b"no JSON"]
    await append(process, segment, pack_batch(map(json_record, texts))[0])
    await append(process, segment, pack_batch([(b"\0\0", b"\x7f")])[0])
    first, *hidden, as_bytes, unreadable = await read(process)
    assert first["value"] == 1 and as_bytes["value_base64"] == "bm8gSlNPTg=="
    assert all(each["value"] is None and UNREADABLE in each["properties"] for each in (*hidden, unreadable))
    assert [frame.count for frame in await frames_of(process, segment)] == [5, 1]


async def test_a_batch_that_is_too_large_as_json_stays_a_batch(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    batch, _ = pack_batch([packed_message(bytes(MAX_PAYLOAD_BYTES - 100), None, None)])
    assert (await append(process, segment, batch)).status_code == 200
    (frame,) = await frames_of(process, segment)
    assert frame.kind is PayloadKind.BATCH
    assert unpack_batch(frame.payload, 1).values == [bytes(MAX_PAYLOAD_BYTES - 100)]
    large, _ = pack_batch([packed_message(bytes(6 << 20), None, None)])
    await append(process, segment, large)
    (frame,) = await frames_of(process, segment, after=str(frame.position))
    assert frame.kind is PayloadKind.MESSAGES and len(frame.payload) > 8 << 20
