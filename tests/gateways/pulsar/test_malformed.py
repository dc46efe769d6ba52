"""Goal: whatever bytes a connection sends, it is answered, refused or closed, and all others go on.

Method: broken and hostile frames over loopback, behind the handshake and instead of it.
"""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from metastore.txn import paths
from metatxn.wire.pulsar_entries import MAGIC
from metatxn_gateways.pulsar.codes import PulsarCode
from metatxn_gateways.pulsar.commands import TYPES, MessageMetadata, command
from tests.gateways.pulsar.client import PulsarClient, batch, checked, entry
from tests.gateways.pulsar.conftest import PulsarGateway, values

_LONG = bytes(range(200, 204))
"""The size of metadata that are not there."""
_ENDLESS = b"\x0a\x7f"
"""A text of 127 bytes that are not there."""


_TEXT = b"\x0a\x02\xff\xfe"
"""A name that is not text."""
_CUT = command("lookup", topic="t", request_id=1)[:-2]


def _nested(name: str, content: bytes, field: int = 3) -> bytes:
    """A command with this field."""
    return _with(name, bytes([field << 3 | 2, len(content)]) + content)


def _with(name: str, content: bytes) -> bytes:
    """A command that consists of these bytes."""
    tag = TYPES[name] << 3 | 2
    coded = bytes([tag & 0x7F | 0x80, tag >> 7]) if tag > 127 else bytes([tag])
    body = bytes([0x08, TYPES[name]]) + coded + bytes([len(content)]) + content
    return len(body).to_bytes(4) + body


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x00\x00\x09\x08",
        b"\xff\xff\xff\xff\x08",
        _CUT[4:5].join([b"\x00\x00\x00\x04", b"\x08\x16\x00\x00"]),
        command("connected", server_version="x"),
        b"\x00\x00\x00\x02\x08\x63",
        b"\x00\x00\x00\x02\x08\x17",
        command("send", producer_id=1, sequence_id=0),
        command("send", producer_id=1, sequence_id=0) + b"\x0e\x01",
        command("send", producer_id=1, sequence_id=0) + b"no checksum at all",
        command("send", producer_id=1, sequence_id=0)
        + MAGIC
        + crc32c(bytes(range(200, 204))).to_bytes(4)
        + bytes(range(200, 204)),
        command("get_schema_response", request_id=1),
        command("get_or_create_schema_response", request_id=1),
        command("auth_challenge", server_version="x"),
        command("auth_response", response={"auth_method_name": "token", "auth_data": b"a.b.c"}),
        command("auth_response"),
        _nested("get_or_create_schema", _ENDLESS),
        _nested("producer", _ENDLESS, field=7),
        _nested("subscribe", _ENDLESS, field=12),
        _nested("auth_response", _ENDLESS, field=2),
        _with("lookup", _TEXT),
    ],
)
async def test_a_malformed_frame_closes_its_connection(
    gateway: PulsarGateway, frame: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client, gateway.client() as other:
        await client.producer(segment)
        client.raw(frame)
        await client.until_closed()
        await other.reader(segment)
        assert capsys.readouterr().out.count("connection closed: malformed request") == 1


async def test_nothing_is_answered_before_the_handshake(gateway: PulsarGateway) -> None:
    client = await PulsarClient.opened(gateway.listener.url)
    client.send("lookup", topic="t", request_id=1)
    await client.until_closed()
    assert not client.heard
    await client.close()


async def test_what_does_not_match_its_checksum_or_its_count_is_not_stored(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await client.producer(segment)
        damaged = bytearray(entry(b"damaged"))
        damaged[-1] ^= 1
        client.produce(bytes(damaged), 0)
        assert (await client.next("send_error")).error == PulsarCode.CHECKSUM
        client.produce(entry(b"too large" * (2 << 20)), 1)
        assert (await client.next("send_error")).error == PulsarCode.NOT_ALLOWED
        client.produce(batch([b"a", b"b"]), 2, num_messages=7)
        await client.receipts(1)
        await client.reader(segment)
        assert await values(client, 2) == [b"a", b"b"]
    assert len(await gateway.browse("t")) == 2


async def test_bytes_by_chance_do_no_harm(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    dice = random.Random(7)
    for _ in range(200):
        client = await PulsarClient.opened(gateway.listener.url)
        client.send("connect", client_version="x", protocol_version=21)
        name = dice.choice(sorted(TYPES))
        content = dice.randbytes(dice.randrange(12))
        client.raw(_with(name, content) + dice.randbytes(dice.randrange(20)))
        client.send("ping")
        await client.close()
    async with gateway.client() as client:
        await client.producer(segment)
        client.produce(entry(b"x"), 0)
        await client.receipts(1)


@pytest.mark.parametrize(
    "content",
    [
        _TEXT + b"\x20\x02",
        b"\x20\x02\x2a\x04" + _TEXT,
        b"\x20\x02\x2a\x07\x0a\x01k\x12\x02\xff\xfe",
    ],
    ids=["name", "property", "value of a property"],
)
async def test_a_schema_whose_texts_are_not_text_closes_its_connection(
    gateway: PulsarGateway, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (segment,) = await gateway.create("t")
    topic = b"\x12" + bytes([len(segment)]) + segment.encode()
    async with gateway.client() as client:
        client.raw(_with("get_or_create_schema", b"\x08\x01" + topic + bytes([0x1A, len(content)]) + content))
        await client.until_closed()
    assert capsys.readouterr().out.count("connection closed: malformed request") == 1
    assert not (await gateway.world.store.scan(paths.PULSAR_SCHEMAS)).records


async def test_a_message_whose_texts_are_not_text_is_kept_as_it_is(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()
    sent = checked(MessageMetadata.FromString(metadata + b"\x32\x02\xff\xfe"), b"x")
    async with gateway.client() as client:
        await client.producer(segment)
        client.produce(sent, 0)
        await client.receipts(1)
        await client.reader(segment)
        assert bytes((await client.next("message"))[1]) == sent
