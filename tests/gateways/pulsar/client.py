"""A small client of Pulsar's binary protocol. Its commands are those of the gateway; that they are Pulsar's, too, is
what `test_conversation` and `make pulsar-test` are for."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, NamedTuple, Self

from crc32c import crc32c

from metatxn.wire.pulsar_entries import MAGIC, decode_pulsar
from metatxn_gateways.pulsar.acks import acked_runs
from metatxn_gateways.pulsar.commands import MessageMetadata, SingleMessageMetadata, command, read_command
from metatxn_gateways.pulsar.readers import EARLIEST, LATEST

PATIENCE_S = 20
"""Anyone who waits longer has failed."""
EARLIEST_ID = {"ledger_id": EARLIEST, "entry_id": EARLIEST}
LATEST_ID = {"ledger_id": LATEST, "entry_id": LATEST}


class Delivered(NamedTuple):
    """A message for a consumer. `times` is how often it was delivered before."""

    consumer: int
    place: tuple[int, int]
    number: int
    value: bytes | None
    times: int


class Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def entry(value: bytes, key: str | None = None, sequence: int = 0, **metadata: Any) -> bytes:
    """One message, which is no batch."""
    fields = {"producer_name": "p", "sequence_id": sequence, "publish_time": 1, "partition_key": key, **metadata}
    return checked(MessageMetadata(**fields), value)


def batch(
    values: Mapping[str, bytes] | list[bytes], compress: Any = None, compression: int = 0, **metadata: Any
) -> bytes:
    keyed = list(values.items()) if isinstance(values, Mapping) else [(None, value) for value in values]
    payload = b""
    for key, value in keyed:
        single = SingleMessageMetadata(partition_key=key, payload_size=len(value)).SerializeToString()
        payload += struct.pack(">I", len(single)) + single + value
    fields = {
        "producer_name": "p",
        "sequence_id": 0,
        "publish_time": 1,
        "num_messages_in_batch": len(keyed),
        "compression": compression,
        "uncompressed_size": len(payload),
        **metadata,
    }
    return checked(MessageMetadata(**fields), compress(payload) if compress else payload)


def checked(metadata: Any, payload: bytes) -> bytes:
    encoded: bytes = metadata.SerializeToString()
    behind = struct.pack(">I", len(encoded)) + encoded + payload
    return MAGIC + struct.pack(">I", crc32c(behind)) + behind


class PulsarClient:
    """One connection. What nobody has asked for is kept by its kind until somebody takes it (`next`)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = iter(range(1, 1 << 30))
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._came: dict[str, deque[Any]] = {}
        self.heard: list[bytes] = []
        self._arrived = asyncio.Event()
        self._receiving = asyncio.ensure_future(self._receive())

    @classmethod
    async def opened(cls, url: str, tls: ssl.SSLContext | None = None) -> Self:
        host, port = url.partition("://")[2].split(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=tls))

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, url: str, *, tls: ssl.SSLContext | None = None, token: str | None = None, **connect: Any
    ) -> AsyncIterator[Self]:
        client = await cls.opened(url, tls)
        shown: dict[str, Any] = {"auth_method_name": "token", "auth_data": token.encode()} if token is not None else {}
        try:
            client.send("connect", client_version="test", protocol_version=21, **shown, **connect)
            client.features = await client.next("connected")
            yield client
        finally:
            await client.close()

    features: Any = None

    async def close(self) -> None:
        self._writer.close()
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)

    # -- commands ----------------------------------------------------------------------------------------------

    def send(self, name: str, content: bytes = b"", **fields: Any) -> None:
        self.raw(command(name, **fields) + content)

    def raw(self, frame: bytes) -> None:
        self._writer.write(len(frame).to_bytes(4) + frame)

    async def ask(self, name: str, **fields: Any) -> Any:
        """The answer to a request. Raises `Refused`."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self.send(name, request_id=number, **fields)
        async with asyncio.timeout(PATIENCE_S):
            found = await answer
        if found.DESCRIPTOR.fields_by_name.get("error") and found.HasField("error"):
            raise Refused(found.error, found.message)
        return found

    async def next(self, name: str) -> Any:
        """The next command of this kind that nobody has asked for; for a message with the entry."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._came.get(name):
                self._arrived.clear()
                await self._arrived.wait()
        return self._came[name].popleft()

    def waiting(self, name: str) -> int:
        return len(self._came.get(name, ()))

    async def until_heard(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.heard) < count:
                self._arrived.clear()
                await self._arrived.wait()

    async def until_closed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([self._receiving])

    async def _receive(self) -> None:
        while True:
            size = int.from_bytes(await self._reader.readexactly(4))
            frame = await self._reader.readexactly(size)
            name, content, behind = read_command(memoryview(frame))
            if name == "ping":
                self.send("pong")
                continue
            self.heard.append(frame)
            self._arrived.set()
            number = getattr(content, "request_id", 0)
            if number and (answer := self._answers.pop(number, None)) is not None:
                answer.set_result(content)
                continue
            self._came.setdefault(name, deque()).append((content, behind) if name == "message" else content)

    # -- what clients do with them -----------------------------------------------------------------------------

    async def layout(self, topic: str, session: int = 1) -> Any:
        self.send("scalable_topic_lookup", session_id=session, topic=topic)
        return await self.next("scalable_topic_update")

    async def producer(self, segment: str, number: int = 1, **fields: Any) -> Any:
        return await self.ask("producer", topic=segment, producer_id=number, **fields)

    def produce(self, content: bytes, sequence: int, number: int = 1, **fields: Any) -> None:
        self.send("send", content, producer_id=number, sequence_id=sequence, **fields)

    async def receipts(self, count: int) -> list[tuple[int, int]]:
        """The positions of this many sends."""
        found = [(await self.next("send_receipt")).message_id for _ in range(count)]
        return [(each.ledger_id, each.entry_id) for each in found]

    async def reader(self, segment: str, number: int = 1, start: Any = EARLIEST_ID, permits: int = 1000) -> None:
        await self.ask(
            "subscribe",
            topic=segment,
            subscription="reader",
            sub_type=0,
            consumer_id=number,
            durable=False,
            start_message_id=start,
        )
        self.send("flow", consumer_id=number, message_permits=permits)

    async def subscribe(
        self, segment: str, number: int = 1, name: str = "s", kind: int = 1, permits: int = 1000, **fields: Any
    ) -> Any:
        """A consumer with a subscription that begins with the earliest message: 1 is shared, 0 exclusive."""
        await self.ask(
            "subscribe",
            **{"topic": segment, "subscription": name, "sub_type": kind, "consumer_id": number}
            | {"consumer_name": f"c-{number}", "initial_position": 1}
            | fields,
        )
        if permits:
            self.send("flow", consumer_id=number, message_permits=permits)

    async def messages(self, count: int) -> list[Delivered]:
        """The next messages that are delivered, without those that `ack_set` leaves out."""
        found: list[Delivered] = []
        while len(found) < count:
            head, content = await self.next("message")
            place, times = (head.message_id.ledger_id, head.message_id.entry_id), head.redelivery_count
            values = [each.value for each in decode_pulsar(content)]
            left_out = [*chain(*acked_runs(head.ack_set, len(values)))] if head.ack_set else []
            indexes = [index for index in range(len(values)) if index not in left_out]
            found += [Delivered(head.consumer_id, place, index, values[index], times) for index in indexes]
        return found

    async def ack(
        self,
        *places: tuple[int, int],
        number: int = 1,
        cumulative: bool = False,
        ack_set: Sequence[int] = (),
        txn: Mapping[str, int] | None = None,
    ) -> Any:
        """Acknowledge entries, or of one the messages whose bits are 0. Raises `Refused`."""
        ids = [{"ledger_id": ledger, "entry_id": entry, "ack_set": ack_set} for ledger, entry in places]
        return await self.ask("ack", consumer_id=number, ack_type=int(cumulative), message_ids=ids, **(txn or {}))

    async def begin(self, ttl_ms: int = 60_000) -> dict[str, int]:
        begun = await self.ask("new_txn", txn_ttl_millis=ttl_ms, tc_id=0)
        return {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}

    async def end(self, txn: dict[str, int], *, commit: bool) -> None:
        await self.ask("end_txn", txn_action=0 if commit else 1, **txn)
