"""Consuming a subscription: messages until they are acknowledged, in a transaction or for good."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from metatxn.answers import parsed
from metatxn.connection import Connection, post
from metatxn.http import Call, json_body, path_of
from metatxn.reader import Message, message_of
from metatxn.transaction import AsyncTransaction, inside
from metatxn.wire.broker import ReceiveAnswer
from metatxn.wire.errors import ExpiredTransaction, MetatxnError, NotFound, TransactionConflict
from metatxn.wire.names import MessageId

PREFETCH_MESSAGES = 100
WAIT_MS = 1000
SIGN_OF_LIFE_S = 10.0
"""A third of the time after which a broker takes a silent consumer for gone."""
MAX_IDS = 10_000
ACKS_SETTLED_BY = (ExpiredTransaction, NotFound)
"""What was aborted acknowledges nothing, and a subscription that is gone has nothing left to acknowledge."""


def subscription_path(topic: str, subscription: str, *more: str) -> str:
    return path_of("topics", topic, "subscriptions", subscription, *more)


class AsyncConsumer:
    """Use it from one task, and close it: what it holds then returns at once. Made by `AsyncClient.subscribe`.

    Iterating waits for messages for ever. The broker takes a consumer that shows no sign of life for gone and gives
    its messages to others, so a task shows one for as long as this object lives.
    """

    def __init__(self, connection: Connection, topic: str, subscription: str, name: str | None = None) -> None:
        self.topic = topic
        self.subscription = subscription
        self.name = name or f"consumer-{connection.new_name()}"
        self._given_name = name
        self._connection = connection
        self._received: deque[Message] = deque()
        self._held: dict[str, None] = {}
        """Ids of what was fetched and neither acknowledged nor given back, in the order in which it came."""
        self._alive = False
        self.closed = False

    # -- receiving ---------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, {self.subscription!r}, {self.name!r})"

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, waited for; None when there was none within `timeout_s`.

        Raises `AlreadyExists` while another consumer has an exclusive subscription, `NotFound` once it is dropped.
        """
        now = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else now() + timeout_s
        while (message := self.prefetched()) is None:
            left_ms = WAIT_MS if deadline is None else int(1000 * (deadline - now()))
            self._received.extend(await self._fetch(PREFETCH_MESSAGES, max(0, min(WAIT_MS, left_ms))))
            if not self._received and left_ms <= 0:
                return None
        return message

    def prefetched(self) -> Message | None:
        """The next message if it is here already. From any thread."""
        try:
            return self._received.popleft()
        except IndexError:
            return None

    async def __aiter__(self) -> AsyncIterator[Message]:
        while not self.closed:
            if (message := await self.receive()) is not None:
                yield message

    async def _fetch(self, limit: int, wait_ms: int) -> list[Message]:
        self._stay_alive()
        try:
            answer = await self._request(limit, wait_ms)
        except MetatxnError as error:
            if error.definite:
                raise
            await self._start_over()
            return []
        except asyncio.CancelledError:
            await self._start_over()
            raise
        # A new home gives again what is not acknowledged. Handed out twice it could be acknowledged twice in one
        # transaction, which succeeds like a retry, and what was made of it would be there twice.
        new = {each.message_id: each for each in answer.messages if each.message_id not in self._held}
        self._held |= dict.fromkeys(new)
        return [message_of(self.topic, each, each.redelivery_count) for each in new.values()]

    async def _request(self, limit: int, wait_ms: int) -> ReceiveAnswer:
        body = {"consumer": self.name, "max": limit, "wait_ms": wait_ms}
        path = subscription_path(self.topic, self.subscription, "receive")
        call = Call("POST", path, content=json_body(body), idempotent=False, wait_s=wait_ms / 1000)
        return parsed(ReceiveAnswer, await self._connection.home_of(self.topic, call))

    async def _start_over(self) -> None:
        """An answer was lost, and perhaps messages in it, which the broker believes to be here. So leave, and come
        back under another name; what was given returns, the messages that nobody has looked at yet too."""
        self._settle(message.message_id for message in self._received)
        self._received.clear()
        with contextlib.suppress(MetatxnError):
            await self._leave()
        self.name = f"{self._given_name or 'consumer'}-{self._connection.new_name()}"

    def _settle(self, message_ids: Iterable[str]) -> None:
        """They are not held any more, so they may come again."""
        for message_id in message_ids:
            self._held.pop(message_id, None)

    def _stay_alive(self) -> None:
        if not self._alive:
            self._alive = True
            self._connection.spawn(_show_life(weakref.ref(self)))

    # -- acknowledging -----------------------------------------------------------------------------------------

    async def acknowledge(
        self, message: Message | Sequence[Message], txn: AsyncTransaction | None = None, writer: str | None = None
    ) -> None:
        """These messages, durably; inside `txn` they count once it is committed, and return when it is aborted.

        Raises `TransactionConflict`, also for what a broker has given that does not serve the segment any more: it
        comes again; `ExpiredTransaction`. Whatever is raised, `txn` cannot be committed any more.
        """
        messages = [message] if isinstance(message, Message) else list(message)
        for start in range(0, len(messages), MAX_IDS):
            await self._acknowledge("individual", messages[start : start + MAX_IDS], txn, writer)

    async def acknowledge_cumulative(
        self, message: Message, txn: AsyncTransaction | None = None, writer: str | None = None
    ) -> None:
        """This message and all before it in its segment. As `acknowledge`.

        Raises `InvalidArgument` on a shared subscription, where other consumers may have what lies before it.
        """
        held = list(self._held)
        if message.message_id in self._held:  # those of other segments too, which may then come twice, as ever
            self._settle(held[: held.index(message.message_id)])
        await self._acknowledge("cumulative", [message], txn, writer)

    async def _acknowledge(
        self, kind: str, messages: Iterable[Message], txn: AsyncTransaction | None, writer: str | None
    ) -> None:
        message_ids = [each.message_id for each in messages]
        self._settle(message_ids)
        body: dict[str, Any] = {"kind": kind, "message_ids": message_ids, "writer": writer}
        if txn is not None:
            txn.check_takes_operations()
            body["txn_id"] = txn.id
        path = subscription_path(self.topic, self.subscription, "acks")
        with inside(txn):
            try:
                await self._connection.home_of(self.topic, post(path, body, settled_by=ACKS_SETTLED_BY))
            except TransactionConflict as conflict:
                if conflict.members.get("never_given"):
                    self._let_go_of(str(conflict.members["segment"]))
                raise

    def _let_go_of(self, segment: str) -> None:
        """It was opened again, and its broker knows of nobody who was given anything. What nobody has looked at yet
        would be refused like the first: it comes again."""
        for _ in range(len(self._received)):
            if (message := self.prefetched()) is None:
                return
            if MessageId.parse(message.message_id).segment == segment:
                self._settle([message.message_id])
            else:
                self._received.append(message)

    async def negative_acknowledge(self, message: Message | Sequence[Message]) -> None:
        """Give these messages again, to this consumer or another one."""
        messages = [message] if isinstance(message, Message) else list(message)
        for start in range(0, len(messages), MAX_IDS):
            ids = [each.message_id for each in messages[start : start + MAX_IDS]]
            self._settle(ids)
            path = subscription_path(self.topic, self.subscription, "redeliver")
            await self._connection.home_of(self.topic, post(path, {"message_ids": ids}))

    # -- life --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """What is not acknowledged returns at once. Idempotent."""
        if not self.closed:
            self.closed = True
            self._received.clear()
            await self._leave()

    async def _leave(self) -> None:
        path = subscription_path(self.topic, self.subscription, "consumers", self.name)
        await self._connection.home_of(self.topic, Call("DELETE", path))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with contextlib.suppress(MetatxnError) if error is not None else contextlib.nullcontext():
            await self.close()


async def _show_life(reference: weakref.ref[AsyncConsumer]) -> None:
    """Until the consumer is closed, or forgotten by its user."""
    while True:
        await asyncio.sleep(SIGN_OF_LIFE_S)
        consumer = reference()
        if consumer is None or consumer.closed:
            return
        with contextlib.suppress(MetatxnError):
            await consumer._request(0, 0)
        del consumer
