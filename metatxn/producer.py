"""Sending messages: JSON values or bytes, routed by key, and batched by time, by size and while an earlier batch is in
flight."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from metatxn.connection import Connection
from metatxn.delivery import Batching, OrderedDelivery
from metatxn.reader import milliseconds
from metatxn.topics import Layout
from metatxn.transaction import AsyncTransaction, inside
from metatxn.wire.batches import pack_batch, packed_message
from metatxn.wire.errors import InvalidArgument, MetatxnError
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, PayloadKind
from metatxn.wire.record_batches import HEADER

BATCH_BYTES = 1024 * 1024
BATCH_MESSAGES = 1000
RECORD_BYTES = 6
"""What a message takes in an entry beside its content and its prefix, at most."""
STICKY_MESSAGES = 100
"""At least so many messages without a key go to one segment before the next segment's turn, so that they share entries;
and those of a small transaction need one intent."""


@dataclass(slots=True)
class Outgoing:
    """A queued message. `future` is of the kind that its sender can wait for."""

    key: str | None
    prefix: bytes
    content: bytes
    future: asyncio.Future[str] | concurrent.futures.Future[str]
    number: int = 0


class MessageFormat:
    """Messages without a key go to one segment until an entry of them is on its way, and then to the next one."""

    kind = PayloadKind.BATCH

    def __init__(self) -> None:
        self._turn = 0
        self._in_turn = 0
        """The number of messages without a key that went to the segment whose turn it is."""
        self._known: tuple[Layout, str] | None = None
        """That segment, in this layout."""

    def size(self, item: Outgoing) -> int:
        return len(item.prefix) + len(item.content) + RECORD_BYTES

    def keys(self, items: Iterable[Outgoing]) -> set[Hashable]:
        return {item.key for item in items}

    def split(self, item: Outgoing, layout: Layout) -> Iterable[tuple[str, Outgoing]]:
        if item.key is not None:
            return ((layout.segment_of(item.key), item),)
        if self._in_turn >= BATCH_MESSAGES:
            self._next_turn()
        self._in_turn += 1
        if self._known is None or self._known[0] is not layout:
            self._known = layout, layout.any_segment(self._turn)
        return ((self._known[1], item),)

    def encode(self, items: list[Outgoing]) -> tuple[bytes, int]:
        if self._in_turn >= STICKY_MESSAGES:
            self._next_turn()
        return pack_batch([(item.prefix, item.content) for item in items])

    def _next_turn(self) -> None:
        self._turn, self._in_turn, self._known = self._turn + 1, 0, None

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
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r})"

    async def send(
        self,
        value: Any,
        key: str | None = None,
        txn: AsyncTransaction | None = None,
        properties: dict[str, str] | None = None,
        *,
        deliver_at: datetime | None = None,
    ) -> asyncio.Future[str]:
        """Queue one message, waiting while too much is pending. The future returns the position of its entry once that
        is durable. A queued message is sent even if the future is cancelled.

        `value` is anything that JSON can hold, or bytes. With `deliver_at`, a time with a time zone, shared and
        key_shared subscriptions deliver the message at that time; others, and readers, do not wait. Raises `TypeError`
        or `ValueError` for a value that is not JSON, `NotFound` for a topic that does not exist, and the transaction's
        first failure if it has one: such a transaction cannot be committed.
        """
        if self._loop is None:  # asking for it each time costs as much as half of the rest
            self._loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = self._loop.create_future()
        outgoing = self.outgoing(value, key, properties, future, deliver_at)
        if txn is None:
            if not self.delivery.put_at_once(outgoing, None):
                await self.delivery.put(outgoing, None)
            return future
        txn.joined_by(self.delivery)
        with inside(txn):
            if not self.delivery.put_at_once(outgoing, txn.id):
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
        deliver_at: datetime | None = None,
    ) -> Outgoing:
        deliver_at_ms = None if deliver_at is None else milliseconds("deliver_at", deliver_at)
        return Outgoing(key, *packed_message(value, key, properties, deliver_at_ms), future)
