"""Consuming a subscription: messages are delivered until they are acknowledged, inside a transaction or outside."""

from __future__ import annotations

import asyncio
import contextlib
import math
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self

from metatxn.answers import parsed
from metatxn.connection import Connection, post
from metatxn.http import Call, json_body, path_of
from metatxn.reader import Message, message_of, milliseconds
from metatxn.transaction import AsyncTransaction, inside
from metatxn.wire.broker import MAX_SESSION_TIMEOUT_MS, ReceiveAnswer, RedeliverAnswer, SeekAnswer
from metatxn.wire.errors import ExpiredTransaction, InvalidArgument, MetatxnError, NotFound, TransactionConflict
from metatxn.wire.names import MessageId

PREFETCH_MESSAGES = 100
MAX_MESSAGES = 1000
"""The most that a broker is asked for at once."""
WAIT_MS = 1000
SESSION_TIMEOUT_S = 30.0
SIGNS_OF_LIFE = 3
"""The signs of life that a consumer shows in the time after which a broker treats a silent one as gone."""
MAX_IDS = 10_000
ACKS_SETTLED_BY = (ExpiredTransaction, NotFound)
"""An aborted transaction acknowledges nothing, and a dropped subscription has nothing left to acknowledge."""


def subscription_path(topic: str, subscription: str, *more: str) -> str:
    return path_of("topics", topic, "subscriptions", subscription, *more)


SeekTarget = Literal["earliest", "latest"] | datetime | Mapping[str, str]
"""The place to which a subscription is moved: an end of the topic, a time with a time zone, or for every segment the
position of the first entry to be delivered."""


LONGEST_COUNT_S = 1.0
"""The time for which one request for a preview counts."""


def seek_call(
    topic: str,
    subscription: str,
    to: SeekTarget | None,
    revision: int | None = None,
    *,
    force: bool = False,
    preview: bool = False,
    for_ms: int | None = None,
) -> Call:
    if (to is None) == (revision is None):
        raise InvalidArgument("give either `to` or `revision`", field="to")
    body: dict[str, Any] = {"revision": revision, "force": force or None, "for_ms": for_ms}
    if isinstance(to, datetime):
        body["at_ms"] = milliseconds("to", to)
    elif isinstance(to, str):
        body["to"] = to
    elif to is not None:
        body["positions"] = dict(to)
    return post(subscription_path(topic, subscription, "seek", *(["preview"] if preview else [])), body)


class AsyncConsumer:
    """A consumer, made by `AsyncClient.subscribe`, for one task. Close it, so that the messages it holds are
    redelivered at once.

    Iterating waits for messages indefinitely. The broker treats a consumer that shows no sign of life as gone and
    delivers its messages to others, so a task shows one for as long as this object lives.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        subscription: str,
        name: str | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
    ) -> None:
        if not 1 <= session_timeout_s <= MAX_SESSION_TIMEOUT_MS / 1000:
            raise InvalidArgument(
                f"session_timeout_s: {session_timeout_s} is not between 1 and {MAX_SESSION_TIMEOUT_MS // 1000}",
                field="session_timeout_s",
            )
        self.topic = topic
        self.subscription = subscription
        self.name = name or f"consumer-{connection.new_name()}"
        self.session_timeout_s = session_timeout_s
        self._given_name = name
        self._connection = connection
        self._received: deque[Message] = deque()
        self._held: dict[str, float] = {}
        """The ids of messages that were fetched and neither acknowledged nor returned, in the order in which they
        came, and when they were asked for."""
        self._ack_timeout_s = 0.0
        """The ack timeout of the subscription, or infinite without one. It is not known until the first answer."""
        self._alive = False
        self.closed = False
        self.others_hold = False
        """Whether messages were left, when `receive` found none, that other consumers or open transactions have, or
        that are due for other consumers; otherwise nothing was left then."""

    # -- receiving ---------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, {self.subscription!r}, {self.name!r})"

    async def receive_many(self, limit: int = PREFETCH_MESSAGES, timeout_s: float | None = None) -> list[Message]:
        """Wait for the next messages, as `receive` does, and return up to `limit` of those that are there then. The
        list is empty if there was none within `timeout_s`."""
        if limit < 1:
            raise InvalidArgument(f"limit: {limit} is below 1", field="limit")
        first = await self._next(limit, timeout_s)
        found = [] if first is None else [first]
        while found and len(found) < limit and (message := self.prefetched()) is not None:
            found.append(message)
        return found

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """Wait for the next message. Returns None if there was none within `timeout_s`; then `others_hold` says
        whether others have what is left.

        Raises `AlreadyExists` while another consumer has an exclusive subscription, and `NotFound` once the
        subscription is dropped.
        """
        return await self._next(1, timeout_s)

    async def _next(self, wanted: int, timeout_s: float | None) -> Message | None:
        """The next message. If nothing is prefetched, as many are fetched as the program wants now, or, if none of them
        can time out before the program has seen it, at least some."""
        now = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else now() + timeout_s
        while (message := self.prefetched()) is None:
            left_ms = WAIT_MS if deadline is None else int(1000 * (deadline - now()))
            limit = max(wanted, PREFETCH_MESSAGES) if self._ack_timeout_s == math.inf else wanted
            self._received.extend(await self._fetch(min(limit, MAX_MESSAGES), max(0, min(WAIT_MS, left_ms))))
            if not self._received and left_ms <= 0:
                return None
        return message

    def prefetched(self) -> Message | None:
        """The next message if it has already been fetched. May be called from any thread."""
        try:
            return self._received.popleft()
        except IndexError:
            return None

    @property
    def has_prefetched(self) -> bool:
        return bool(self._received)

    async def __aiter__(self) -> AsyncIterator[Message]:
        while not self.closed:
            if (message := await self.receive()) is not None:
                yield message

    async def _fetch(self, limit: int, wait_ms: int) -> list[Message]:
        self._stay_alive()
        now = asyncio.get_running_loop().time
        asked_s = now()
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
        self.others_hold = bool(answer.others_hold)
        timeout_ms = answer.ack_timeout_ms
        self._ack_timeout_s = math.inf if timeout_ms is None else timeout_ms / 1000
        # A new home redelivers what is not acknowledged. A message returned twice could be acknowledged twice in one
        # transaction, which succeeds like a retry, and its output would exist twice. After the ack timeout the program
        # may have lost the first one.
        since = now() - self._ack_timeout_s
        new = {each.message_id: each for each in answer.messages if self._held.get(each.message_id, since) <= since}
        for each in answer.messages:
            if each.message_id in new:
                self._settle([each.message_id])
            self._held[each.message_id] = asked_s
        return [message_of(self.topic, each, each.redelivery_count) for each in new.values()]

    async def _request(self, limit: int, wait_ms: int) -> ReceiveAnswer:
        body = {
            "consumer": self.name,
            "max": limit,
            "wait_ms": wait_ms,
            "session_timeout_ms": int(self.session_timeout_s * 1000),
        }
        path = subscription_path(self.topic, self.subscription, "receive")
        call = Call("POST", path, content=json_body(body), idempotent=False, wait_s=wait_ms / 1000)
        return parsed(ReceiveAnswer, await self._connection.home_of(self.topic, call))

    async def _start_over(self) -> None:
        """An answer was lost, and perhaps messages in it, which the broker believes to be here. So the consumer leaves
        and comes back under another name; what was delivered to it is redelivered, including messages that were fetched
        and not yet returned to the caller."""
        self._settle(message.message_id for message in self._received)
        self._received.clear()
        with contextlib.suppress(MetatxnError):
            await self._leave()
        self.name = f"{self._given_name or 'consumer'}-{self._connection.new_name()}"

    def _settle(self, message_ids: Iterable[str]) -> None:
        """These messages are no longer held, so they may come again."""
        for message_id in message_ids:
            self._held.pop(message_id, None)

    def _stay_alive(self) -> None:
        if not self._alive:
            self._alive = True
            self._connection.spawn(_show_life(weakref.ref(self), self.session_timeout_s / SIGNS_OF_LIFE))

    # -- acknowledging -----------------------------------------------------------------------------------------

    async def acknowledge(
        self, message: Message | Sequence[Message], txn: AsyncTransaction | None = None, writer: str | None = None
    ) -> None:
        """Acknowledge these messages durably. Inside `txn` that takes effect when it is committed; if it is aborted,
        the messages are redelivered.

        Raises `ExpiredTransaction`, and `TransactionConflict`, also if the broker that delivered a message no longer
        serves its segment: the message is then redelivered. Whatever is raised, `txn` can no longer be committed.
        """
        messages = [message] if isinstance(message, Message) else list(message)
        with inside(txn):
            if txn is not None:
                for each in messages:
                    txn.acknowledges(self.topic, self.subscription, each.message_id, each.redelivery_count)
        for start in range(0, len(messages), MAX_IDS):
            await self._acknowledge("individual", messages[start : start + MAX_IDS], txn, writer)

    async def acknowledge_cumulative(
        self, message: Message, txn: AsyncTransaction | None = None, writer: str | None = None
    ) -> None:
        """Acknowledge this message and all messages before it in its segment, as `acknowledge` does.

        Raises `InvalidArgument` on a shared or key_shared subscription, where other consumers may hold earlier
        messages.
        """
        held = list(self._held)
        if message.message_id in self._held:  # also those of other segments, which may then come twice, as always
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
            txn.used_by(writer)
            body["txn_id"] = txn.id
        path = subscription_path(self.topic, self.subscription, "acks")
        with inside(txn):
            try:
                await self._connection.home_of(self.topic, post(path, body, settled_by=ACKS_SETTLED_BY))
            except TransactionConflict as conflict:
                if conflict.members.get("never_given"):
                    await self._let_go_of(str(conflict.members["segment"]))
                raise

    async def _let_go_of(self, segment: str) -> None:
        """The segment was opened again, and its broker does not know to which consumers messages were delivered
        before. Messages that were fetched and not yet returned to the caller may date from before, and would be
        refused like the first one. The broker believes the later ones to be here, so it is asked to redeliver all."""
        dropped: list[Message] = []
        for _ in range(len(self._received)):
            if (message := self.prefetched()) is None:
                break
            (dropped if MessageId.parse(message.message_id).segment == segment else self._received).append(message)
        try:
            await self.negative_acknowledge(dropped)
        except MetatxnError:
            await self._start_over()

    async def negative_acknowledge(self, message: Message | Sequence[Message]) -> None:
        """Have these messages redelivered, to this consumer or another one."""
        messages = [message] if isinstance(message, Message) else list(message)
        for start in range(0, len(messages), MAX_IDS):
            ids = [each.message_id for each in messages[start : start + MAX_IDS]]
            self._settle(ids)
            path = subscription_path(self.topic, self.subscription, "redeliver")
            answer = await self._connection.home_of(self.topic, post(path, {"message_ids": ids}))
            self._take_back(parsed(RedeliverAnswer, answer).withdrawn)

    def _take_back(self, withdrawn: Sequence[str]) -> None:
        """These messages come again, after an earlier one of their key. Those that the caller has not received yet
        wait for that; it already has the others, which are not returned a second time."""
        coming = set(withdrawn)
        for _ in range(len(self._received) if coming else 0):
            if (message := self.prefetched()) is None:
                return
            if message.message_id in coming:
                self._settle([message.message_id])
            else:
                self._received.append(message)

    # -- life --------------------------------------------------------------------------------------------------

    async def seek(
        self, to: SeekTarget | None = None, *, revision: int | None = None, force: bool = False
    ) -> SeekAnswer:
        """Move the subscription, for all of its consumers, as `AsyncClient.seek` does. What was fetched here and not
        returned to the caller yet is forgotten, and comes again if it is after the new position."""
        call = seek_call(self.topic, self.subscription, to, revision, force=force)
        answer = await self._connection.home_of(self.topic, call)
        self._received.clear()
        self._held.clear()
        return parsed(SeekAnswer, answer)

    async def close(self) -> None:
        """Close. Messages that are not acknowledged are redelivered at once. Idempotent."""
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


async def _show_life(reference: weakref.ref[AsyncConsumer], pause_s: float) -> None:
    """Show signs of life until the consumer is closed, or no longer referenced."""
    while True:
        await asyncio.sleep(pause_s)
        consumer = reference()
        if consumer is None or consumer.closed:
            return
        with contextlib.suppress(MetatxnError):
            await consumer._request(0, 0)
        del consumer
