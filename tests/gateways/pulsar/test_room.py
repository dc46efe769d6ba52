"""Goal: one connection takes a bounded part of a broker, whatever it asks for, how often, and whether it reads or not.

Method: floods of every command from a client that reads nothing, with the memory that they take; and each bound by
itself, with what is held back until the test lets it go on.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metatxn_gateways.listener import FrameConnection
from metatxn_gateways.pulsar import acks, connection, consumers, lookups, producers, readers, session
from metatxn_gateways.pulsar.codes import PulsarCode
from metatxn_gateways.pulsar.commands import MAX_COMMAND_BYTES, MAX_FRAME_BYTES, command
from metatxn_gateways.pulsar.producers import PulsarProducers
from metatxn_gateways.pulsar.topic_schemas import MAX_SCHEMA_BYTES
from participants.broker.broker import Broker
from participants.segment.reading import SegmentReader
from participants.segment.segment import Segment
from participants.subscription.attached import AttachedConsumers
from tests.gateways.pulsar.client import EARLIEST_ID, batch, entry
from tests.gateways.pulsar.conftest import PulsarGateway, values
from tests.gateways.pulsar.secured import TOPIC, refusal
from tests.gateways.pulsar.test_quotas import until

FLOOD_BYTES = 50_000
ROOM_BYTES = 20 << 20
"""What such a flood may take. Most of it is for what is in progress, which has a few kilobytes each."""


def links(gateway: PulsarGateway) -> list[FrameConnection]:
    return list(gateway.listener._server._connections)


def receives(link: FrameConnection) -> bool:
    assert link._transport is not None
    return link._transport.is_reading()


class Held:
    """The calls of a method, which wait until the test lets them go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        self.calls, self.most, self._now = 0, 0, 0
        self.go = asyncio.Event()
        method = getattr(kind, name)

        async def held(this: Any, *arguments: Any, **fields: Any) -> Any:
            self.calls += 1
            self._now += 1
            self.most = max(self.most, self._now)
            try:
                await self.go.wait()
                return await method(this, *arguments, **fields)
            finally:
                self._now -= 1

        monkeypatch.setattr(kind, name, held)


class Deaf:
    """A connection of a client that reads nothing."""

    def __init__(self, endpoint: socket.socket) -> None:
        self._socket = endpoint

    @classmethod
    @asynccontextmanager
    async def connected(cls, gateway: PulsarGateway) -> AsyncIterator[Deaf]:
        with socket.socket() as endpoint:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            endpoint.setblocking(False)
            await asyncio.get_running_loop().sock_connect(endpoint, ("127.0.0.1", gateway.port))
            client = cls(endpoint)
            await client.send(command("connect", client_version="x", protocol_version=21))
            yield client

    async def send(self, *frames: bytes) -> None:
        sized = b"".join(len(each).to_bytes(4) + each for each in frames)
        await asyncio.get_running_loop().sock_sendall(self._socket, sized)

    async def read_all(self, size: int) -> None:
        """Read this many bytes."""
        while size > 0:
            size -= len(await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20))


# -- floods -----------------------------------------------------------------------------------------------------------

SEGMENT, ONE = f"segment://{TOPIC}/0000-ffff-0", {"ledger_id": 1, "entry_id": 0}


def _subscribes(number: int) -> list[bytes]:
    about = {"topic": SEGMENT, "subscription": "r", "sub_type": 0, "durable": False, "start_message_id": EARLIEST_ID}
    asked = command("subscribe", request_id=number, consumer_id=number, **about)
    return [asked, command("flow", consumer_id=number, message_permits=1)]


_MANY_IDS = [{**ONE, "ack_set": [1]}] * 9_000
FLOODS: dict[str, Callable[[int], Sequence[bytes]]] = {
    "schemas": lambda number: [command("get_schema", request_id=number, topic=SEGMENT)],
    "new schemas": lambda number: [
        command("get_or_create_schema", request_id=number, topic=SEGMENT, schema={"type": 1, "name": str(number)})
    ],
    "lookups": lambda number: [command("lookup", request_id=number, topic=SEGMENT.replace("0000-ffff", "0000-7fff"))],
    "watches": lambda number: [
        command("scalable_topic_lookup", session_id=number, topic="topic://public/default/many")
    ],
    "readers": _subscribes,
    "producers": lambda number: [
        command("producer", request_id=number, topic=SEGMENT, producer_id=number, producer_name="p" * 200)
    ],
    "sends": lambda number: [command("send", producer_id=0, sequence_id=number) + entry(b"")],
    "memberships": lambda number: [
        command(
            "scalable_topic_subscribe",
            request_id=number,
            topic=f"topic://{TOPIC}",
            subscription=f"s{number}",
            consumer_name="c",
            consumer_id=number,
            consumer_type=1,
        )
    ],
    "acknowledgements": lambda number: [
        command("ack", request_id=number, consumer_id=0, ack_type=0, message_ids=_MANY_IDS[: 1 + 3_000 * (number == 1)])
    ],
    "redeliveries": lambda number: [command("redeliver", consumer_id=0, message_ids=_MANY_IDS[:1_000])],
    "last messages": lambda number: [command("get_last_message_id", request_id=number, consumer_id=0)],
    "partitions": lambda number: [command("partition_metadata", request_id=number, topic="t")],
    "signs of life": lambda number: [command("ping")],
    "coordinators": lambda number: [command("watch_tc_assignments", watch_id=number)],
}


async def filled(gateway: PulsarGateway) -> None:
    """A topic with a large schema, a batch of many messages and a megabyte of entries, and one with many segments."""
    await gateway.create("t")
    await gateway.create("many", 50)
    async with gateway.client() as client:
        large = {"type": 2, "schema_data": bytes(MAX_SCHEMA_BYTES - 100)}
        await client.ask("get_or_create_schema", topic=SEGMENT, schema=large)
        await client.producer(SEGMENT)
        client.produce(batch([b""] * 1_000), 0)
        for number in range(1, 30):
            client.produce(entry(bytes(40_000)), number)
        await client.receipts(30)


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_from_a_client_that_reads_nothing_takes_a_bounded_room(gateway: PulsarGateway, kind: str) -> None:
    await filled(gateway)
    async with Deaf.connected(gateway) as deaf:
        await deaf.send(command("producer", request_id=1, topic=SEGMENT, producer_id=0))
        about = {"topic": SEGMENT, "subscription": "s", "sub_type": 1, "consumer_name": "c", "initial_position": 1}
        await deaf.send(command("subscribe", request_id=2, consumer_id=0, **about))
        await until(lambda: len(links(gateway)) == 1)
        frames: list[bytes] = []
        while sum(map(len, frames)) < FLOOD_BYTES:
            frames += FLOODS[kind](len(frames) + 1)
        gc.collect()
        tracemalloc.start()
        try:
            sending = asyncio.ensure_future(deaf.send(*frames))
            async with gateway.client() as other:
                for _ in range(200):  # all that is in progress has gone on, or is held back
                    other.send("ping")
                    await other.next("pong")
            now, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < ROOM_BYTES, f"{most >> 20} MiB, and {now >> 20} MiB at the end"
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


# -- each bound by itself ---------------------------------------------------------------------------------------------


async def test_nothing_is_received_from_a_client_that_does_not_take_its_answers(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        large = {"type": 2, "schema_data": bytes(MAX_SCHEMA_BYTES - 100)}
        await client.ask("get_or_create_schema", topic=segment, schema=large)
    count = 300
    async with Deaf.connected(gateway) as deaf:
        asked = (command("get_schema", request_id=number, topic=segment) for number in range(1, count + 1))
        sending = asyncio.ensure_future(deaf.send(*asked))
        await until(lambda: len(links(gateway)) == 1 and not receives(links(gateway)[0]))
        (link,) = links(gateway)
        most = 0

        def taken() -> bool:
            nonlocal most
            most = max(most, link.unsent_bytes)
            return reading.done()

        reading = asyncio.ensure_future(deaf.read_all(count * (MAX_SCHEMA_BYTES - 100)))
        await until(taken)
        await sending
        assert most < 4 * MAX_SCHEMA_BYTES
        await until(lambda: receives(link))


async def test_layouts_wait_for_a_client_that_does_not_take_them_and_only_the_last_one_is_sent(
    gateway: PulsarGateway,
) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await client.layout(f"topic://{TOPIC}", 5)
        (link,) = links(gateway)
        link.pause_writing()
        for parent in (segment, *await gateway.split(segment)):
            if parent != segment:
                await gateway.split(parent)
        client.send("ping")
        link.resume_writing()
        await client.next("pong")
        update = await client.next("scalable_topic_update")
        assert len(update.layout.segments) == 7 and client.waiting("scalable_topic_update") == 0


async def test_so_many_requests_are_in_progress(gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    (segment,) = await gateway.create("t")
    held = Held(monkeypatch, Broker, "in_layout")
    monkeypatch.setattr(session, "MAX_REQUESTS", 3)
    async with gateway.client() as client:
        asked = [asyncio.ensure_future(client.producer(segment, number)) for number in range(10)]
        await until(lambda: held.calls == 3)
        (link,) = links(gateway)
        assert not receives(link)
        held.go.set()
        await asyncio.gather(*asked)
        assert receives(link)


async def test_so_many_bytes_of_requests_are_in_progress(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = await gateway.create("t")
    held = Held(monkeypatch, Broker, "in_layout")
    monkeypatch.setattr(session, "MAX_REQUEST_BYTES", 500)
    async with gateway.client() as client:
        asked = [asyncio.ensure_future(client.ask("lookup", topic=segment)) for _ in range(40)]
        await until(lambda: bool(held.calls) and not receives(links(gateway)[0]))
        assert held.calls * len(command("lookup", request_id=1, topic=segment)) < 600
        held.go.set()
        await asyncio.gather(*asked)


async def test_lookups_beyond_the_bound_are_too_many(gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    (segment,) = await gateway.create("t")
    held = Held(monkeypatch, Broker, "in_layout")
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 2)
    async with gateway.client() as client:
        asked = [asyncio.ensure_future(client.ask("lookup", topic=segment)) for _ in range(2)]
        await until(lambda: held.calls == 2)
        assert await refusal(client.ask("lookup", topic=segment)) == PulsarCode.TOO_MANY_REQUESTS
        held.go.set()
        await asyncio.gather(*asked)
        await client.ask("lookup", topic=segment)


async def test_a_connection_has_so_many_producers(gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    (segment,) = await gateway.create("t")
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 2)
    async with gateway.client() as client:
        for number in (1, 2, 2):
            await client.producer(segment, number)
        assert await refusal(client.producer(segment, 3)) == PulsarCode.NOT_ALLOWED
        await client.ask("close_producer", producer_id=1)
        await client.producer(segment, 3)


async def test_a_connection_has_so_many_consumers_also_if_they_come_at_once(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = await gateway.create("t")
    held = Held(monkeypatch, AttachedConsumers, "attach")
    monkeypatch.setattr(consumers, "MAX_CONSUMERS", 2)
    async with gateway.client() as client:
        asked = [asyncio.ensure_future(client.subscribe(segment, number)) for number in (1, 2)]
        await until(lambda: held.calls == 2)
        assert await refusal(client.subscribe(segment, 3)) == PulsarCode.NOT_ALLOWED
        assert await refusal(client.subscribe(segment, 1)) == PulsarCode.SERVICE_NOT_READY
        held.go.set()
        await asyncio.gather(*asked)
        assert await refusal(client.subscribe(segment, 3)) == PulsarCode.NOT_ALLOWED
        await client.subscribe(segment, 1)


async def test_a_consumer_that_is_closed_while_it_is_created_does_not_stay(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = await gateway.create("t")
    held = Held(monkeypatch, AttachedConsumers, "attach")
    async with gateway.client() as client:
        asked = asyncio.ensure_future(refusal(client.subscribe(segment, 1, kind=0)))
        await until(lambda: held.calls == 1)
        await client.ask("close_consumer", consumer_id=1)
        held.go.set()
        assert await asked == PulsarCode.SERVICE_NOT_READY
        await client.subscribe(segment, 2, kind=0)  # nobody is left who has the segment for itself


async def test_what_was_sent_and_is_not_answered_is_bounded_also_behind_what_waits(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = await gateway.create("t")
    held = Held(monkeypatch, Segment, "publish")
    monkeypatch.setattr(producers, "MAX_PENDING", 4)
    came, send = 0, PulsarProducers.send
    over, is_over = 0, PulsarProducers._over

    def counted(this: PulsarProducers, request: Any, content: memoryview) -> None:
        nonlocal came
        came += 1
        send(this, request, content)

    def counted_over(this: PulsarProducers, *what: Any) -> None:
        nonlocal over
        is_over(this, *what)
        over += 1

    monkeypatch.setattr(PulsarProducers, "send", counted)
    monkeypatch.setattr(PulsarProducers, "_over", counted_over)
    damaged = bytearray(entry(b"damaged"))
    damaged[-1] ^= 1
    async with gateway.client() as client:
        await client.producer(segment)
        client.produce(entry(b"x"), 0)
        for number in range(1, 10):
            client.produce(bytes(damaged), number)
        await until(lambda: over == 3)  # they are damaged, and wait for the answer to the one before them
        assert came == 4 and not receives(links(gateway)[0])
        held.go.set()
        await client.receipts(1)
        for _ in range(9):
            assert (await client.next("send_error")).error == PulsarCode.CHECKSUM
        await until(lambda: receives(links(gateway)[0]))


async def test_so_many_consumers_read_at_once(gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await client.producer(segment)
        client.produce(entry(b"0"), 0)
        await client.receipts(1)
        held = Held(monkeypatch, SegmentReader, "read_committed")
        for number in range(12):
            await client.reader(segment, number)
        assert held.calls == session.DELIVERIES_AT_ONCE
        held.go.set()
        assert await values(client, 12) == [b"0"] * 12
        assert held.most == session.DELIVERIES_AT_ONCE


@pytest.mark.parametrize("room", [0, 1 << 20])
async def test_what_is_not_permitted_yet_is_kept_in_a_bounded_room_and_delivered_once(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    (segment,) = await gateway.create("t")
    monkeypatch.setattr(readers, "MAX_KEPT_BYTES", room)
    reads = Held(monkeypatch, SegmentReader, "read_committed")
    reads.go.set()
    async with gateway.client() as client:
        await client.producer(segment)
        for number in range(20):
            client.produce(entry(b"%d" % number), number)
        await client.receipts(20)
        await client.reader(segment, permits=1)
        found = await values(client, 1)
        for _ in range(19):
            client.send("flow", consumer_id=1, message_permits=1)
            found += await values(client, 1)
        assert found == [b"%d" % number for number in range(20)]
        assert (reads.calls >= 20) == (room == 0), "what is not kept is read again"


async def test_a_command_has_so_many_bytes(gateway: PulsarGateway) -> None:
    large = command("lookup", request_id=1, topic="t" * MAX_COMMAND_BYTES)
    for frame in (large, command("send", producer_id=1, sequence_id=0) + bytes(MAX_FRAME_BYTES)):
        async with gateway.client() as client:
            client.raw(frame)
            await client.until_closed()
            assert not client.waiting("error")


async def test_an_acknowledgement_looks_at_so_many_messages(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = await gateway.create("t")
    monkeypatch.setattr(acks, "MAX_MESSAGES", 5)
    async with gateway.client() as client:
        await client.producer(segment)
        client.produce(batch([b"0", b"1", b"2"]), 0)
        client.produce(batch([b"3", b"4", b"5"]), 1)
        places = await client.receipts(2)
        await client.subscribe(segment)
        await client.messages(6)
        assert await refusal(client.ack(*places, ack_set=[1])) == PulsarCode.NOT_ALLOWED
        for place in places:
            await client.ack(place, ack_set=[1])


async def test_a_client_that_takes_nothing_is_gone_after_a_while(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 0.05)
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        large = {"type": 2, "schema_data": bytes(MAX_SCHEMA_BYTES - 100)}
        await client.ask("get_or_create_schema", topic=segment, schema=large)
    async with Deaf.connected(gateway) as deaf:
        asked = (command("get_schema", request_id=number, topic=segment) for number in range(1, 300))
        sending = asyncio.ensure_future(deaf.send(*asked))
        await until(lambda: len(links(gateway)) == 1)
        await until(lambda: not links(gateway))
        await asyncio.gather(sending, return_exceptions=True)
