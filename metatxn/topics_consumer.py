"""Consuming several topics, or all whose names match a pattern, as one: a consumer of each, and one of them at a time
gives the next message."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from metatxn.consumer import AsyncConsumer
from metatxn.reader import Message
from metatxn.transaction import AsyncTransaction
from metatxn.wire.errors import InvalidArgument, MetatxnError, NotFound

LOOK_EVERY_S = 60.0
"""The time between two searches for new topics that match a pattern."""
ASK_S = 1.0
"""How long each topic is asked at a time."""


class AsyncTopicsConsumer:
    """A consumer of several topics, made by `AsyncClient.subscribe_topics`, for one task. It has the methods of
    `AsyncConsumer`; messages are acknowledged on the topic that they come from. Messages of one topic come in its
    order, and the topics take turns.
    """

    def __init__(
        self,
        subscription: str,
        look: Callable[[], Awaitable[Iterable[str]]],
        subscribe: Callable[[str, bool], Awaitable[AsyncConsumer]],
        look_every_s: float,
    ) -> None:
        """`look` returns the topics. `subscribe` makes a consumer of one; its second argument says whether the topic
        was found later than the others."""
        self.subscription = subscription
        self.closed = False
        self._look_for_topics = look
        self._subscribe = subscribe
        self._look_every_s = look_every_s
        self._look_at_s = -math.inf
        self._consumers: dict[str, AsyncConsumer] = {}
        """The consumers by topic. The one whose turn is next comes first."""
        self._asked: dict[str, asyncio.Task[Message | None]] = {}
        """The requests of these that are under way, or whose message has not been taken yet."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topics}, {self.subscription!r})"

    @property
    def topics(self) -> list[str]:
        """The topics that are consumed now."""
        return sorted(self._consumers)

    @property
    def others_hold(self) -> bool:
        """Whether messages were left in any topic, when `receive` found none; see `AsyncConsumer`."""
        return any(each.others_hold for each in self._consumers.values())

    # -- topics ------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Look for topics now. This also happens while messages are received. Raises the errors of the listing, and of
        subscribing."""
        first = self._look_at_s == -math.inf
        for topic in await self._look_for_topics():
            if topic not in self._consumers:
                self._consumers[topic] = await self._subscribe(topic, not first)
        self._look_at_s = asyncio.get_running_loop().time() + self._look_every_s

    # -- receiving ---------------------------------------------------------------------------------------------

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """Wait for the next message of any topic. Returns None if there was none within `timeout_s`.

        Raises as `AsyncConsumer.receive` does, but a topic that was found by a pattern and is deleted is left out.
        """
        now = asyncio.get_running_loop().time
        deadline = math.inf if timeout_s is None else now() + timeout_s
        while not self.closed:
            if now() >= self._look_at_s:
                await self.look()
            left_s = max(0.0, deadline - now())
            asked = self._ask(min(ASK_S, left_s))
            if (message := self._taken()) is not None:
                return message
            waits_s = min(left_s, self._look_at_s - now(), math.inf if self._asked else ASK_S)
            if left_s == 0 and asked:
                await asyncio.wait(asked)
            elif self._asked:
                await asyncio.wait(
                    self._asked.values(),
                    timeout=None if waits_s == math.inf else max(0.0, waits_s),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            else:
                await asyncio.sleep(max(0.0, waits_s))
            if left_s == 0:
                return self._taken()
        return None

    async def receive_many(self, limit: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Wait for the next messages, as `receive` does, and return up to `limit` of those that are there then."""
        if limit < 1:
            raise InvalidArgument(f"limit: {limit} is below 1", field="limit")
        first = await self.receive(timeout_s)
        found = [] if first is None else [first]
        while found and len(found) < limit and (message := self._taken()) is not None:
            found.append(message)
        return found

    async def __aiter__(self) -> AsyncIterator[Message]:
        while not self.closed:
            if (message := await self.receive()) is not None:
                yield message

    def _ask(self, wait_s: float) -> list[asyncio.Task[Message | None]]:
        """Ask every topic that has not been asked yet and has nothing more prefetched."""
        asked = []
        for topic, consumer in self._consumers.items():
            if topic not in self._asked and not consumer.has_prefetched:
                task = self._asked[topic] = asyncio.create_task(consumer.receive(wait_s))
                task.add_done_callback(_retrieved)
                asked.append(task)
        return asked

    def _taken(self) -> Message | None:
        """The next message that has been fetched."""
        for topic, consumer in list(self._consumers.items()):
            asked = self._asked.get(topic)
            if asked is not None and not asked.done():
                continue
            message = self._result(topic) if asked is not None else None
            if message is None and topic in self._consumers:
                message = consumer.prefetched()
            if message is not None:
                self._consumers[topic] = self._consumers.pop(topic)  # it is the last one's turn
                return message
        return None

    def _result(self, topic: str) -> Message | None:
        try:
            return self._asked.pop(topic).result()
        except NotFound:
            if self._look_every_s == math.inf:
                raise
            del self._consumers[topic]
            return None

    # -- acknowledging -----------------------------------------------------------------------------------------

    async def acknowledge(
        self, message: Message | Sequence[Message], txn: AsyncTransaction | None = None, writer: str | None = None
    ) -> None:
        """See `AsyncConsumer.acknowledge`. Messages of several topics are not acknowledged in one step, unless they are
        in one transaction."""
        for consumer, messages in self._by_topic(message):
            await consumer.acknowledge(messages, txn, writer)

    async def acknowledge_cumulative(
        self, message: Message, txn: AsyncTransaction | None = None, writer: str | None = None
    ) -> None:
        """See `AsyncConsumer.acknowledge_cumulative`."""
        for consumer, _ in self._by_topic(message):
            await consumer.acknowledge_cumulative(message, txn, writer)

    async def negative_acknowledge(self, message: Message | Sequence[Message]) -> None:
        """See `AsyncConsumer.negative_acknowledge`."""
        for consumer, messages in self._by_topic(message):
            await consumer.negative_acknowledge(messages)

    def _by_topic(self, message: Message | Sequence[Message]) -> list[tuple[AsyncConsumer, list[Message]]]:
        """The messages with their consumers. Raises `InvalidArgument` for a message of a topic that is not consumed."""
        found: dict[str, list[Message]] = {}
        for each in [message] if isinstance(message, Message) else message:
            found.setdefault(each.topic, []).append(each)
        for topic in found:
            if topic not in self._consumers:
                raise InvalidArgument(f"message: this does not consume topic {topic}", field="message")
        return [(self._consumers[topic], messages) for topic, messages in found.items()]

    # -- moving and closing ------------------------------------------------------------------------------------

    async def seek(self, to: Literal["earliest", "latest"] | datetime, *, force: bool = False) -> None:
        """Move the subscription of every topic, one after the other, as `AsyncConsumer.seek` does."""
        await self._stop_asking()
        for consumer in self._consumers.values():
            await consumer.seek(to, force=force)

    async def close(self) -> None:
        """Close. Messages that are not acknowledged are redelivered at once. Idempotent."""
        self.closed = True
        await self._stop_asking()
        outcomes = await asyncio.gather(*(each.close() for each in self._consumers.values()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
                raise outcome

    async def _stop_asking(self) -> None:
        asked = list(self._asked.values())
        self._asked.clear()
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with contextlib.suppress(MetatxnError) if error is not None else contextlib.nullcontext():
            await self.close()


def _retrieved(asked: asyncio.Task[Message | None]) -> None:
    if not asked.cancelled():
        asked.exception()
