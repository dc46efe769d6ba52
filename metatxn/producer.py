"""Sending messages: JSON values or bytes, routed by key, and batched by time, by size and while an earlier batch is in
flight."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Any, Self

from metatxn.connection import Connection
from metatxn.delivery import Batching, OrderedDelivery
from metatxn.exclusive import HeldTopic
from metatxn.outgoing import BATCH_MESSAGES, MessageFormat, Outgoing, Queued, Together
from metatxn.reader import milliseconds
from metatxn.sequenced import SequencedDelivery
from metatxn.together import PORTION_MESSAGES, queued_together
from metatxn.transaction import AsyncTransaction, inside
from metatxn.wire.batches import packed_message
from metatxn.wire.errors import InvalidArgument, MetatxnError
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, NO_SEQUENCE
from metatxn.wire.record_batches import HEADER, Codec

BATCH_BYTES = 1024 * 1024
MAX_SEQUENCE = 2**53 - 1


def message_batching(max_messages: int | None, max_bytes: int, linger_ms: float, max_pending_bytes: int) -> Batching:
    """The batching with these limits. Raises `InvalidArgument`."""
    for name, number, top in (
        ("max_entry_messages", 1 if max_messages is None else max_messages, None),
        ("max_entry_bytes", max_bytes, MAX_PAYLOAD_BYTES),
        ("max_pending_bytes", max_pending_bytes, None),
    ):
        if number < 1 or (top is not None and number > top):
            raise InvalidArgument(f"{name}: must be at least 1" + (f" and at most {top}" if top else ""), field=name)
    if not 0 <= linger_ms <= 3_600_000:
        raise InvalidArgument("linger_ms: must be between 0 and an hour", field="linger_ms")
    return Batching(
        max(1, max_bytes - HEADER.size),
        BATCH_MESSAGES if max_messages is None else max_messages,
        linger_ms / 1000,
        max_pending_bytes,
        max_together=PORTION_MESSAGES if max_messages is None else max_messages,
    )


class AsyncProducer:
    """A producer of one topic. Messages of one key in one transaction are appended in the order in which they were
    sent. To order messages of different transactions, wait for the futures, or use `flush`."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        name: str | None,
        batching: Batching,
        *,
        sequenced: bool = False,
        hold: HeldTopic | None = None,
        compression: Codec | None = None,
    ) -> None:
        """Raises `InvalidArgument`. A sequenced producer has no `hold`."""
        self.topic = topic
        self.name = name
        self._sequenced = sequenced
        self._hold = hold
        self.last_sequence = NO_SEQUENCE
        """The last sequence that was sent, if this is sequenced."""
        self._batching = batching
        self._form = MessageFormat(compression)
        self.delivery: OrderedDelivery[Queued]
        if not sequenced:
            self.delivery = OrderedDelivery(connection, topic, self._form, batching, name=name, hold=hold)
        elif not name:
            raise InvalidArgument("name: a sequenced producer needs one", field="name")
        else:
            self.delivery = SequencedDelivery(connection, topic, name, batching, compression)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._joined: AsyncTransaction | None = None
        """The transaction of the last message that was in one: it knows of this producer already."""

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
        sequence: int | None = None,
    ) -> asyncio.Future[str]:
        """Queue one message, waiting while too much is pending. The future returns the position of its entry once that
        is durable. A queued message is sent even if the future is cancelled.

        `value` is anything that JSON can hold, or bytes. With `deliver_at`, a time with a time zone, shared and
        key_shared subscriptions deliver the message at that time; others, and readers, do not wait. `sequence` is for
        a sequenced producer. Raises `TypeError` or `ValueError` for a value that is not JSON, `NotFound` for a topic
        that does not exist, and the transaction's first failure if it has one: such a transaction cannot be committed.
        """
        if self._loop is None:  # asking for it each time costs as much as half of the rest
            self._loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = self._loop.create_future()
        outgoing = self.outgoing(value, key, properties, future, deliver_at, sequence, inside=txn is not None)
        if txn is None:
            if not self.delivery.put_at_once(outgoing, None):
                await self.delivery.put(outgoing, None)
            self.last_sequence = outgoing.sequence
            return future
        if txn is not self._joined:
            txn.joined_by(self.delivery)
            self._joined = txn
        try:  # what `inside` does, without an object for each message
            if not self.delivery.put_at_once(outgoing, txn_id := txn.id):
                await self.delivery.put(outgoing, txn_id)
        except BaseException as error:
            txn.failed(error)
            raise
        return future

    async def send_many(
        self, values: Iterable[Any], keys: Iterable[str | None] | None = None, txn: AsyncTransaction | None = None
    ) -> asyncio.Future[list[str]]:
        """Queue messages, those of each key in this order, as `send` does for each of them, and wait while too much is
        pending. `keys` has a key or None for each value. The future returns the positions of their entries, in the
        order of `values`, once all messages are durable, or raises the first failure; then others may be durable,
        unless they are in a transaction, which can no longer be committed.

        From some hundred messages for each segment on this takes a third of the CPU time of as many `send`. The whole
        list is encoded before anything is sent, and the event loop has to wait for that. If a value is not JSON, or
        `keys` has another length, nothing is sent. Raises the errors of `send`.
        """
        if txn is not None:
            txn.joined_by(self.delivery)
        txn_id = txn.id if txn is not None else None
        with inside(txn):
            await self.delivery.open()
            self.delivery.check(txn_id)
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        messages = self.together(values, keys, future)
        with inside(txn):
            while messages:
                await self.delivery.space()
                self.delivery.add([each := messages.popleft()], txn_id)
                if each.whole:
                    await asyncio.sleep(0)  # it can be sent
        return future

    async def flush(self) -> None:
        """Wait until everything sent so far is durable. Raises the first failure since the last flush; the failure of a
        transaction is also raised by its commit."""
        await self.delivery.flush(everything=True)

    async def close(self) -> None:
        """Flush, and accept no more messages. An exclusive producer then gives its topic back."""
        try:
            await self.delivery.close()
        finally:
            if self._hold is not None:
                await self._hold.release()

    @property
    def epoch(self) -> int | None:
        """The epoch of an exclusive producer: a later one of the topic has a higher epoch."""
        return self._hold.epoch if self._hold is not None else None

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
        deliver_at: datetime | None,
        sequence: int | None,
        *,
        inside: bool,
    ) -> Outgoing:
        if self._sequenced or sequence is not None:
            self._check_sequence(sequence, inside=inside)
        deliver_at_ms = None if deliver_at is None else milliseconds("deliver_at", deliver_at)
        packed = packed_message(value, key, properties, deliver_at_ms)
        return Outgoing(key, *packed, future, NO_SEQUENCE if sequence is None else sequence)

    def together(
        self,
        values: Iterable[Any],
        keys: Iterable[str | None] | None,
        future: asyncio.Future[list[str]] | concurrent.futures.Future[list[str]],
    ) -> deque[Queued]:
        """The messages of one `send_many`. If there are none, the future has its result. The topic's layout is known.
        Raises `InvalidArgument`, and the errors of `packed_message`."""
        if self._sequenced:
            raise InvalidArgument(
                "sequence: each message of a sequenced producer has its own",
                action="Send them one by one: send(value, sequence=…).",
                field="sequence",
            )
        if isinstance(values, str | bytes | bytearray | memoryview | Mapping):
            raise InvalidArgument(f"values: is one {type(values).__name__}, not a list of values", field="values")
        values = list(values)
        keys = [None] * len(values) if keys is None else list(islice(keys, len(values) + 1))
        if len(keys) != len(values):
            raise InvalidArgument(f"keys: are not as many as the {len(values)} values", field="keys")
        if not values:
            future.set_result([])

        layout = self.delivery.layout
        assert layout is not None
        return queued_together(values, keys, layout, self._form, self._batching, Together(future, len(values)))

    def _check_sequence(self, sequence: int | None, *, inside: bool) -> None:
        if not self._sequenced:
            raise InvalidArgument(
                "sequence: the producer is not sequenced",
                action="Open it as client.producer(topic, name, sequenced=True).",
                field="sequence",
            )
        if inside:
            raise InvalidArgument(
                "txn: sequences are those of messages outside transactions",
                action="Begin the transaction with a key and a version instead: what is committed is not done again.",
                field="txn",
            )
        if sequence is None or not 0 <= sequence <= MAX_SEQUENCE:
            raise InvalidArgument(f"sequence: {sequence} is not between 0 and {MAX_SEQUENCE}", field="sequence")
        if sequence <= self.last_sequence:
            raise InvalidArgument(f"sequence: {sequence} is not above {self.last_sequence}", field="sequence")
