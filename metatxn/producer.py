"""Sending messages: JSON values or bytes, routed by key, and batched by time, by size and while an earlier batch is in
flight."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from metatxn.connection import Connection
from metatxn.delivery import Batching, OrderedDelivery
from metatxn.topics import Layout
from metatxn.transaction import AsyncTransaction, inside
from metatxn.wire.batches import PackedMessage, pack_batch, packed_message
from metatxn.wire.errors import InvalidArgument, MetatxnError
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, PayloadKind
from metatxn.wire.record_batches import HEADER

BATCH_BYTES = 1024 * 1024
BATCH_MESSAGES = 1000
RECORD_BYTES = 8
"""What a message takes in an entry beside its content, at most."""
STICKY_MESSAGES = 100
"""This many messages without a key go to one segment before the next segment's turn, so that they share entries."""


@dataclass(slots=True)
class Outgoing:
    """A queued message. `future` is of the kind that its sender can wait for."""

    key: str | None
    packed: PackedMessage
    turn: int
    future: asyncio.Future[str] | concurrent.futures.Future[str]


class MessageFormat:
    kind = PayloadKind.BATCH

    def size(self, item: Outgoing) -> int:
        return len(item.packed.content) + RECORD_BYTES

    def key(self, item: Outgoing) -> str | None:
        return item.key

    def split(self, item: Outgoing, layout: Layout) -> Iterable[tuple[str, Outgoing]]:
        if item.key is None:
            return [(layout.any_segment(item.turn // STICKY_MESSAGES), item)]
        return [(layout.segment_of(item.key), item)]

    def encode(self, items: list[Outgoing]) -> tuple[bytes, int]:
        return pack_batch(item.packed for item in items)

    def done(self, items: list[Outgoing], outcome: str | MetatxnError) -> None:
        for item in items:
            if item.future.cancelled():
                continue
            if isinstance(outcome, str):
                item.future.set_result(outcome)
            else:
                item.future.set_exception(outcome)
                item.future.exception()  # retrieved: `flush` and the commit raise it for those who do not wait


def message_batching(max_messages: int, max_bytes: int, linger_ms: float, max_pending_bytes: int) -> Batching:
    """The batching with these limits. Raises `InvalidArgument`."""
    for name, number, top in (
        ("max_entry_messages", max_messages, None),
        ("max_entry_bytes", max_bytes, MAX_PAYLOAD_BYTES),
        ("max_pending_bytes", max_pending_bytes, None),
    ):
        if number < 1 or (top is not None and number > top):
            raise InvalidArgument(f"{name}: must be at least 1" + (f" and at most {top}" if top else ""), field=name)
    if not 0 <= linger_ms <= 3_600_000:
        raise InvalidArgument("linger_ms: must be between 0 and an hour", field="linger_ms")
    return Batching(max(1, max_bytes - HEADER.size), max_messages, linger_ms / 1000, max_pending_bytes)


class AsyncProducer:
    """A producer of one topic. Messages of one key in one transaction are appended in the order in which they were
    sent. To order messages of different transactions, wait for the futures, or use `flush`."""

    def __init__(self, connection: Connection, topic: str, name: str | None, batching: Batching) -> None:
        self.topic = topic
        self.name = name
        self.delivery: OrderedDelivery[Outgoing] = OrderedDelivery(
            connection, topic, MessageFormat(), batching, name=name
        )
        self._turns = itertools.count()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r})"

    async def send(
        self,
        value: Any,
        key: str | None = None,
        txn: AsyncTransaction | None = None,
        properties: dict[str, str] | None = None,
    ) -> asyncio.Future[str]:
        """Queue one message, waiting while too much is pending. The future returns the position of its entry once that
        is durable. A queued message is sent even if the future is cancelled.

        `value` is anything that JSON can hold, or bytes. Raises `TypeError` or `ValueError` for a value that is not
        JSON, `NotFound` for a topic that does not exist, and the transaction's first failure if it has one: such a
        transaction cannot be committed.
        """
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        outgoing = self.outgoing(value, key, properties, future)
        if txn is None:
            await self.delivery.put(outgoing, None)
            return future
        txn.joined_by(self.delivery)
        with inside(txn):
            await self.delivery.put(outgoing, txn.id)
        return future

    async def flush(self) -> None:
        """Wait until everything sent so far is durable. Raises the first failure since the last flush; the failure of a
        transaction is also raised by its commit."""
        await self.delivery.flush(everything=True)

    async def close(self) -> None:
        """Flush, and accept no more messages."""
        await self.delivery.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with contextlib.suppress(MetatxnError) if error is not None else contextlib.nullcontext():
            await self.close()

    def outgoing(
        self,
        value: Any,
        key: str | None,
        properties: dict[str, str] | None,
        future: asyncio.Future[str] | concurrent.futures.Future[str],
    ) -> Outgoing:
        return Outgoing(key, packed_message(value, key, properties), next(self._turns), future)
