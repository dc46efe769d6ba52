"""The client: one URL is enough to find everything else. Nothing is sent before it is needed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, get_args, overload
from urllib.parse import urlsplit

import pyarrow as pa

from metatxn import frames
from metatxn.ahead import BegunAhead
from metatxn.answers import parsed
from metatxn.cluster_requests import ClusterRequests
from metatxn.connection import Connection, post
from metatxn.consumer import (
    ACKS_SETTLED_BY,
    LONGEST_COUNT_S,
    SESSION_TIMEOUT_S,
    AsyncConsumer,
    SeekTarget,
    seek_call,
    subscription_path,
)
from metatxn.delivery import MAX_PENDING_BYTES
from metatxn.exclusive import SESSION_TIMEOUT_S as CLAIM_TIMEOUT_S
from metatxn.exclusive import HeldTopic
from metatxn.frames import FramesPage, SegmentFrames
from metatxn.hanging_costs import HangingCost, hanging_costs
from metatxn.http import Call, json_body, path_of
from metatxn.json_messages import encoded_message
from metatxn.outgoing import check_compression
from metatxn.paging import Listing, Paged
from metatxn.producer import BATCH_BYTES, AsyncProducer, message_batching
from metatxn.reader import AsyncReader, Message, milliseconds
from metatxn.redrive import count_letters, move_letters, reader_name
from metatxn.retry_later import put_off
from metatxn.stored.looking import StoredMessage
from metatxn.stored.messages import StoredMessages
from metatxn.table_writer import DEFAULT_ENTRY_BYTES, AsyncTableWriter
from metatxn.tables import OnError, read_topics
from metatxn.topic_requests import TopicRequests
from metatxn.topics_consumer import LOOK_EVERY_S, AsyncTopicsConsumer
from metatxn.transaction import AsyncTransaction, inside
from metatxn.transaction_requests import TransactionRequests
from metatxn.transport.api import Transport
from metatxn.wire.broker import (
    DEFAULT_MAX_REDELIVERIES,
    Isolation,
    PublishMessagesAnswer,
    SeekAnswer,
    SeekPreview,
    SubscriptionInfo,
    SubscriptionSummary,
    SubscriptionType,
)
from metatxn.wire.coordinator import HangingTransaction
from metatxn.wire.errors import (
    AlreadyExists,
    InvalidArgument,
    MetatxnError,
    NotFound,
)
from metatxn.wire.frames import Frame
from metatxn.wire.names import LISTENER_NAME
from metatxn.wire.record_batches import Codec


def connect_async(
    url: str,
    token: str | None = None,
    request_timeout_s: float = 30,
    *,
    ca: str | None = None,
    listener: str | None = None,
    transport: Transport | None = None,
    randomness: random.Random | None = None,
) -> AsyncClient:
    """A client of the cluster that the coordinator or broker at `url` belongs to. Nothing is sent yet.

    `token` is sent with every request. `ca` is a PEM file of authorities to trust in place of the usual ones; with an
    `https://` URL nothing is ever sent without TLS. `listener` is the name under which services announce the addresses
    that this client can reach; without it, they tell by the address that the client uses. `request_timeout_s` is the
    time for a request with all of its retries. For tests, `transport` replaces the network, and `randomness` is the
    source of names and jitter.
    """
    if not url.startswith(("http://", "https://")):
        raise InvalidArgument(
            f"url: {url!r} is not an http:// or https:// URL", action="Use one like http://127.0.0.1:8470."
        )
    if "@" in urlsplit(url).netloc:
        raise InvalidArgument(
            "url: contains a user or a password, which would be shown in errors", action="Use `token`."
        )
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise InvalidArgument("token: contains characters other than visible ASCII", field="token")
    if request_timeout_s <= 0:
        raise InvalidArgument("request_timeout_s: must be above 0", field="request_timeout_s")
    if listener is not None and not re.fullmatch(LISTENER_NAME, listener):
        raise InvalidArgument(
            f"listener: {listener!r} is not the name of a listener",
            action="Use one such as external.",
            field="listener",
        )
    options: dict[str, Any] = {"ca": ca, "listener": listener, "transport": transport, "randomness": randomness}
    return AsyncClient(Connection(url, token, request_timeout_s, **options))


class AsyncClient(TransactionRequests, TopicRequests, ClusterRequests):
    """The client for one event loop, made by `connect_async`. Every method that calls a service is awaited, and may
    raise any `MetatxnError`; the docstrings name the errors to expect. `Client` is the same for threads."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, BegunAhead(connection))
        self._producers: weakref.WeakKeyDictionary[AsyncProducer, None] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connection.directory.given_url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with contextlib.suppress(MetatxnError) if error is not None else contextlib.nullcontext():
            await self.close()

    async def close(self) -> None:
        """Flush every producer, abort the transactions that were begun and used here and never committed, then close
        the connections. Raises the first failure of a send. An abort that does not succeed within five seconds is left
        to the transaction's timeout."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.let_go)
            stack.push_async_callback(self._ahead.close)
            stack.push_async_callback(self._connection.abort_open)
            closing = {delivery: delivery.close for delivery in self._connection.sending}
            for close in (closing | {producer.delivery: producer.close for producer in self._producers}).values():
                stack.push_async_callback(close)

    async def let_go(self) -> None:
        """Close without a flush: what has not been sent yet is lost. Idempotent."""
        await self._connection.close()

    # -- data --------------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        name: str | None = None,
        max_entry_messages: int | None = None,
        *,
        max_entry_bytes: int = BATCH_BYTES,
        linger_ms: float = 0,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        sequenced: bool = False,
        compression: Codec | None = None,
    ) -> AsyncProducer:
        """A producer of messages. `name` is for people who look at entries.

        With `sequenced` each message is sent with a `sequence` of your own, outside transactions, in growing order. A
        program that was killed opens a producer of the same name and sends again, with the same keys and sequences,
        everything from the first message on that it does not know to be durable: what is there already is not
        appended again; its future may return a later position. After a failure such a producer takes nothing more: open
        another one, and go on in the same way.

        Messages share an entry up to `max_entry_messages` (1 turns batching off; by default 1,000, and 10,000 of those
        of one `send_many`) and `max_entry_bytes`: messages that are sent while an earlier entry is in flight, and, with
        `linger_ms`, those sent within that time. `send` waits while more than `max_pending_bytes` are not durable yet.
        With `compression` the messages of an entry are compressed together; `max_entry_bytes` counts them as they are
        before.
        """
        batching = message_batching(max_entry_messages, max_entry_bytes, linger_ms, max_pending_bytes)
        check_compression(compression)
        producer = AsyncProducer(self._connection, topic, name, batching, sequenced=sequenced, compression=compression)
        self._producers[producer] = None
        return producer

    async def exclusive_producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        fence: bool = False,
        wait: bool = False,
        session_timeout_s: float = CLAIM_TIMEOUT_S,
        max_entry_messages: int | None = None,
        max_entry_bytes: int = BATCH_BYTES,
        linger_ms: float = 0,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        compression: Codec | None = None,
    ) -> AsyncProducer:
        """A producer that has the topic to itself: once this returns, nothing that others have sent is appended any
        more, to any segment, so a program that then reads the topic to its end has read everything that was sent
        before. Everything else is refused with `NotAllowed` until this producer is closed, or has not been heard from
        for `session_timeout_s`.

        Raises `NotAllowed` if another program has the topic, unless `wait` is given, which waits for its end, or
        `fence`: then that program loses the topic, and what it sends is refused with `NotAllowed`. `name` is for people
        who look at the topic. The other options are those of `producer`. Raises `NotFound`.
        """
        batching = message_batching(max_entry_messages, max_entry_bytes, linger_ms, max_pending_bytes)
        check_compression(compression)
        hold = await HeldTopic.claim(self._connection, topic, name, session_timeout_s, fence=fence, wait=wait)
        producer = AsyncProducer(self._connection, topic, name, batching, hold=hold, compression=compression)
        self._producers[producer] = None
        return producer

    async def publish(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        properties: dict[str, str] | None = None,
        *,
        producer: str,
        sequence: int,
        deliver_at: datetime | None = None,
        deliver_after: timedelta | None = None,
    ) -> str:
        """Publish one message outside transactions, and return its id once it is durable. The same `producer` and
        `sequence` publish it once, however often and by whatever program this is repeated, as long as the brokers
        remember the sequence: they remember the last 1,000 of a producer in a segment. Use each sequence for one
        message only, in growing order; `producer` makes a batching producer with sequences of its own.

        `value` and `deliver_at` are as for `AsyncProducer.send`; `deliver_after` counts from the moment when the broker
        gets the message. Raises `NotFound`, and `TypeError` or `ValueError` for a value that is
        not JSON.
        """
        named = json.dumps({"producer": producer, "sequence": sequence}).encode()[1:]
        times_ms = {
            "deliver_at_ms": None if deliver_at is None else milliseconds("deliver_at", deliver_at),
            "deliver_after_ms": None if deliver_after is None else deliver_after // timedelta(milliseconds=1),
        }
        content = b'{"messages":[' + encoded_message(value, key, properties, times_ms) + b"]," + named
        call = Call("POST", path_of("topics", topic, "messages"), content=content)
        (message_id,) = parsed(PublishMessagesAnswer, await self._connection.broker(call)).message_ids
        return message_id

    async def reader(
        self,
        topic: str,
        start: str | datetime = "earliest",
        isolation: Isolation = "read_committed",
        follow: bool = False,
        revision: int | None = None,
        compacted: bool = False,
    ) -> AsyncReader:
        """A reader that iterates over messages from `earliest`, `latest`, the `token` of another reader, or a time with
        a time zone: then it begins with what was published at that time or later. A `compacted` one begins with the
        latest value of each key."""
        reader = AsyncReader(self._connection, topic, start, isolation, follow, revision, compacted)
        await reader.open(at_end=start == "latest")
        return reader

    async def subscribe(
        self,
        topic: str,
        subscription: str,
        type: SubscriptionType | None = None,
        initial: Literal["earliest", "latest"] | None = None,
        dead_letter_topic: str | None = None,
        max_redeliveries: int | None = None,
        name: str | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        *,
        ack_timeout_ms: int | None = None,
        redelivery_delay_ms: int | None = None,
        max_redelivery_delay_ms: int | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] | None = None,
    ) -> AsyncConsumer:
        """A consumer of a subscription. If it does not exist, it is created: shared, from the earliest message on,
        unless other settings are given. Raises `AlreadyExists` if settings are given, and a subscription with this name
        has others."""
        given = (type, initial, dead_letter_topic, max_redeliveries)
        times = (ack_timeout_ms, redelivery_delay_ms, max_redelivery_delay_ms)
        as_it_is = all(each is None for each in (*given, *times, isolation))
        with contextlib.suppress(AlreadyExists) if as_it_is else contextlib.nullcontext():
            await self.create_subscription(
                topic,
                subscription,
                type or "shared",
                initial or "earliest",
                dead_letter_topic,
                max_redeliveries,
                ack_timeout_ms=ack_timeout_ms,
                redelivery_delay_ms=redelivery_delay_ms,
                max_redelivery_delay_ms=max_redelivery_delay_ms,
                isolation=isolation or "read_committed",
            )
        return self.consumer(topic, subscription, name, session_timeout_s)

    async def subscribe_topics(
        self,
        topics: Sequence[str] | re.Pattern[str],
        subscription: str,
        type: SubscriptionType | None = None,
        initial: Literal["earliest", "latest"] | None = None,
        *,
        name: str | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        look_every_s: float = LOOK_EVERY_S,
    ) -> AsyncTopicsConsumer:
        """A consumer of several topics, with a subscription of the same name on each, which is created as `subscribe`
        does. With a pattern, these are the topics whose full name, such as `public/default/orders`, it matches from
        the beginning to the end; new ones are looked for every `look_every_s` seconds, and consumed from their earliest
        message on. To use settings other than these, create the subscription beforehand."""

        async def of(topic: str, later: bool) -> AsyncConsumer:
            start = partial(self.subscribe, topic, subscription, type, name=name, session_timeout_s=session_timeout_s)
            try:
                return await start("earliest" if later else initial)
            except AlreadyExists:  # perhaps from an earlier run, to which the topic was a later one
                return await start("earliest")

        async def look() -> list[str]:
            if not isinstance(topics, re.Pattern):
                return [(await self.topic(topic)).name for topic in topics]
            return [topic.name async for topic in self.topics() if topics.fullmatch(topic.name)]

        if isinstance(topics, str):
            raise InvalidArgument("topics: give a list of names, or re.compile(…)", field="topics")
        every_s = look_every_s if isinstance(topics, re.Pattern) else math.inf
        consumer = AsyncTopicsConsumer(subscription, look, of, every_s)
        await consumer.look()
        return consumer

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        type: SubscriptionType = "shared",
        initial: Literal["earliest", "latest"] = "earliest",
        dead_letter_topic: str | None = None,
        max_redeliveries: int | None = None,
        *,
        ack_timeout_ms: int | None = None,
        redelivery_delay_ms: int | None = None,
        max_redelivery_delay_ms: int | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    ) -> None:
        """Create a subscription if it does not exist. Raises `AlreadyExists` if one of this name has other settings.

        A message that was returned more than `max_redeliveries` times goes to the dead-letter topic. One that is not
        acknowledged within `ack_timeout_ms` returns by itself. What returns in this way, or by a negative
        acknowledgement, is redelivered after `redelivery_delay_ms`, doubled with each return up to
        `max_redelivery_delay_ms`.
        With `read_uncommitted`, consumers also get messages of transactions that are open or aborted."""
        body = {
            "type": type,
            "initial": initial,
            "dead_letter_topic": dead_letter_topic,
            "max_redeliveries": max_redeliveries,
            "ack_timeout_ms": ack_timeout_ms,
            "redelivery_delay_ms": redelivery_delay_ms,
            "max_redelivery_delay_ms": max_redelivery_delay_ms,
            "isolation": None if isolation == "read_committed" else isolation,
        }
        path = subscription_path(topic, subscription)
        call = Call(
            "PUT", path, content=json_body(body), settled_by=(AlreadyExists,)
        )  # a subscription with the same settings is a success
        await self._connection.home_of(topic, call)

    def consumer(
        self,
        topic: str,
        subscription: str,
        name: str | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
    ) -> AsyncConsumer:
        """A consumer of an existing subscription. `name` is unique by default; the broker treats two consumers with the
        same name as one. If this program is silent for `session_timeout_s` (1 to 3,600), because it is frozen or cut
        off, the messages that it holds are delivered to others."""
        return AsyncConsumer(self._connection, topic, subscription, name, session_timeout_s)

    def subscriptions(self, topic: str, *, limit: int | None = None) -> Listing[SubscriptionSummary]:
        """The subscriptions of a topic, ordered by name; a page has at most `limit` of them. Raises `NotFound`."""
        connection, path = self._connection, path_of("topics", topic, "subscriptions")
        return Listing(connection, connection.brokers, path, {"limit": limit}, SubscriptionSummary)

    def all_subscriptions(self, *, text: str | None = None, limit: int | None = None) -> Listing[SubscriptionSummary]:
        """The subscriptions of all topics that the caller may consume, ordered by topic and name; with `text`, those
        with this text in their name or in that of the topic, ignoring case. A page has at most `limit` of them."""
        connection, query = self._connection, {"text": text, "limit": limit}
        return Listing(connection, connection.brokers, path_of("subscriptions"), query, SubscriptionSummary)

    async def subscription(self, topic: str, subscription: str) -> SubscriptionInfo:
        """The progress of a subscription, and what is pending on it. Raises `NotFound`."""
        answer = await self._connection.home_of(topic, Call("GET", subscription_path(topic, subscription)))
        return parsed(SubscriptionInfo, answer)

    async def hanging_costs(
        self, found: Iterable[HangingTransaction], within_s: float | None = None
    ) -> list[HangingCost]:
        """What waits behind each of these transactions, as far as brokers say so within this time. What does not fit
        into a bounded number of requests is not known."""
        return await hanging_costs(self, found, within_s)

    async def acknowledge_up_to(
        self, topic: str, subscription: str, positions: Mapping[str, str], txn: AsyncTransaction
    ) -> None:
        """Acknowledge inside `txn`, on behalf of all consumers of the subscription, everything up to a position of each
        segment that readers could see.

        Raises `NotFound` if there is no such subscription, and `TransactionConflict`. Whatever is raised, `txn` must be
        aborted.
        """
        txn.check_takes_operations()
        body = {"kind": "cumulative", "positions": dict(positions), "for_all": True, "txn_id": txn.id}
        call = post(subscription_path(topic, subscription, "acks"), body, settled_by=ACKS_SETTLED_BY)
        with inside(txn):
            await self._connection.broker(call)

    async def seek(
        self,
        topic: str,
        subscription: str,
        to: SeekTarget | None = None,
        *,
        revision: int | None = None,
        force: bool = False,
    ) -> SeekAnswer:
        """Move a subscription, on all segments at once: everything before the new position is acknowledged, and
        everything after it is delivered, again or for the first time. `to` is an end of the topic, a time with a time
        zone, or for every segment the position of the first entry to be delivered. With `revision` instead, everything
        is delivered that a snapshot at this revision of the store does not show, and nothing of a transaction that it
        shows.

        Messages that consumers have received before stay with them, but they can no longer acknowledge them inside a
        transaction. Raises `NotFound`, and `TransactionConflict` if open transactions have acknowledged messages; with
        `force`, which requires the right `admin`, these are aborted.
        """
        call = seek_call(topic, subscription, to, revision, force=force)
        return parsed(SeekAnswer, await self._connection.home_of(topic, call))

    async def preview_seek(
        self,
        topic: str,
        subscription: str,
        to: SeekTarget | None = None,
        *,
        revision: int | None = None,
        for_s: float = math.inf,
        progress: Callable[[int], None] | None = None,
    ) -> SeekPreview:
        """What `seek` would do now, by segment: how many messages it would deliver, how many of them again, and how
        many it would never deliver; and for which open transactions it would be refused. Nothing changes.

        With a `revision`, everything that the topic still keeps is looked through, for about `for_s`. If that was not
        enough, the answer is not `complete` and its numbers are lower bounds, and the next call goes on counting.
        `progress` is told how many messages would be delivered at least. Raises `NotFound`."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + for_s
        while True:
            for_ms = int(1000 * min(LONGEST_COUNT_S, max(0, end_s - clock()))) if revision is not None else None
            call = seek_call(topic, subscription, to, revision, preview=True, for_ms=for_ms)
            found = parsed(SeekPreview, await self._connection.home_of(topic, call))
            if found.complete or clock() >= end_s:
                return found
            if progress is not None:
                progress(sum(each.messages for each in found.segments))

    async def redrive(
        self,
        topic: str,
        subscription: str,
        limit: int | None = None,
        *,
        for_s: float = math.inf,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Publish the dead letters of a subscription to its topic again, each exactly once, however often this is
        called: at most `limit` of them, and those that are begun within `for_s`. Returns how many there were;
        `progress` is told how many have been published so far. Raises `InvalidArgument` if the subscription has no
        dead-letter topic, and `AlreadyExists` while another call does the same."""
        to, dead = await self._dead_letters_of(topic, subscription)
        consumer = await self.subscribe(dead, reader_name(to), "exclusive", "earliest")
        async with consumer, self.producer(to.topic) as producer:
            return await move_letters(
                to, consumer, producer, self.transaction, math.inf if limit is None else limit, for_s, progress
            )

    async def preview_redrive(self, topic: str, subscription: str) -> int:
        """How many messages `redrive` would publish again now. Nothing changes; the dead-letter topic is read
        completely. Raises as `redrive` does."""
        to, dead = await self._dead_letters_of(topic, subscription)
        try:
            moved = await self.subscription(dead, reader_name(to))
        except NotFound:
            moved = None
        return await count_letters(to, aiter(await self.reader(dead)), moved)

    async def _dead_letters_of(self, topic: str, subscription: str) -> tuple[SubscriptionInfo, str]:
        found = await self.subscription(topic, subscription)
        if found.dead_letter_topic is None:
            raise InvalidArgument(
                f"subscription {subscription} has no dead-letter topic",
                action="Create one that has one: its dead letters are kept from then on.",
                subscription=subscription,
            )
        return found, found.dead_letter_topic

    async def retry_later(
        self,
        consumer: AsyncConsumer | AsyncTopicsConsumer,
        message: Message | Sequence[Message],
        after: timedelta,
        retry_topic: str,
        *,
        max_retries: int = DEFAULT_MAX_REDELIVERIES,
        dead_letter_topic: str | None = None,
        txn: AsyncTransaction | None = None,
    ) -> None:
        """Put off messages that `consumer` has received: publish them to `retry_topic`, to be delivered once `after`
        has passed, and acknowledge them, in one transaction, or in `txn`. A consumer of both topics, as made by
        `subscribe_topics`, gets them again; on the retry topic its subscription must be shared or key_shared.

        Each keeps its key and properties, counts in `metatxn.retries` how often it was put off, and names in
        `metatxn.origin-…` where it came from. One that was put off `max_retries` times goes to `dead_letter_topic`
        instead, if there is one. Raises `InvalidArgument`, `NotFound` for a topic that does not exist, and as
        `AsyncConsumer.acknowledge` does; then nothing was put off.
        """
        if after < timedelta(0):
            raise InvalidArgument(f"after: {after} is negative", field="after")
        messages = [message] if isinstance(message, Message) else list(message)
        async with contextlib.AsyncExitStack() as stack:
            producers: dict[str, AsyncProducer] = {}
            own = txn if txn is not None else await stack.enter_async_context(self.transaction())

            async def send(to: str, each: Message, properties: dict[str, str], due: datetime | None) -> object:
                if to not in producers:
                    producers[to] = await stack.enter_async_context(self.producer(to))
                return await producers[to].send(each.value, each.key, own, properties, deliver_at=due)

            await put_off(messages, consumer, own, send, retry_topic, after, max_retries, dead_letter_topic)

    async def drop_subscription(self, topic: str, subscription: str) -> None:
        """Drop a subscription and all of its state. Raises `NotFound`."""
        await self._connection.home_of(topic, Call("DELETE", subscription_path(topic, subscription)))

    def table_writer(
        self,
        topic: str,
        txn: AsyncTransaction | str | None = None,
        writer: str | None = None,
        key_column: str | None = None,
        max_entry_bytes: int = DEFAULT_ENTRY_BYTES,
        compression: Codec | None = None,
    ) -> AsyncTableWriter:
        """A writer of Arrow tables, inside a transaction or without one; without one, rows can be read as soon as their
        entry is durable. With `writer`, which requires a transaction, the rows count only if the commit lists that name
        or lists none. With `compression` the columns of an entry are compressed one by one; `max_entry_bytes` counts
        them as they are before."""
        return AsyncTableWriter(self._connection, topic, txn, writer, key_column, max_entry_bytes, compression)

    @overload
    async def read_table(
        self,
        topic: str,
        isolation: Isolation = ...,
        revision: int | None = ...,
        include_metadata: bool = ...,
        on_error: OnError = ...,
        columns: Sequence[str] | None = ...,
    ) -> pa.Table: ...

    @overload
    async def read_table(
        self,
        topic: list[str],
        isolation: Isolation = ...,
        revision: int | None = ...,
        include_metadata: bool = ...,
        on_error: OnError = ...,
        columns: Sequence[str] | None = ...,
    ) -> dict[str, pa.Table]: ...

    async def read_table(
        self,
        topic: str | list[str],
        isolation: Isolation = "read_committed",
        revision: int | None = None,
        include_metadata: bool = False,
        on_error: OnError = "raise",
        columns: Sequence[str] | None = None,
    ) -> pa.Table | dict[str, pa.Table]:
        """All visible rows of a topic, or of several topics. With `snapshot` they are one consistent cut at `revision`
        (default: now).

        A column never changes its type because of one message. A value of another type than its column raises
        `SchemaMismatch`, with the position of its entry and the column; or, as `on_error` says, it is `null`, or its
        message is left out (`skip`). Then a warning in the log counts them and names the first one. Without a schema
        the first values decide the type of a column.

        With `columns` the table has only these, in this order; of what was written as tables, brokers do not send the
        others. Raises `SchemaMismatch` for one that is not in the topic's schema. Without a schema a column that no
        message has is null.
        """
        if on_error not in get_args(OnError):
            raise InvalidArgument(f"on_error: is {on_error!r}, not one of raise, null, skip", field="on_error")
        topics = [topic] if isinstance(topic, str) else list(topic)
        if columns is not None and (isinstance(columns, str) or not len(set(columns)) == len(columns) > 0):
            raise InvalidArgument("columns: must be a list of different names, at least one", field="columns")
        tables = await read_topics(self._connection, topics, isolation, revision, include_metadata, on_error, columns)
        return tables[topic] if isinstance(topic, str) else tables

    def read_segment(
        self, segment_id: str, isolation: Isolation = "read_committed", revision: int | None = None
    ) -> Paged[Frame]:
        """Every visible entry of a segment, up to where nothing more is readable."""
        return SegmentFrames(self._connection, segment_id, isolation, revision)

    async def read_frames(
        self,
        segment_id: str,
        owner_url: str | None = None,
        after: str | None = None,
        isolation: Isolation = "read_committed",
        revision: int | None = None,
        max_bytes: int = frames.PAGE_BYTES,
        wait_ms: int = 0,
        columns: Sequence[str] | None = None,
    ) -> FramesPage:
        """One page of a segment's visible entries after the position `after`. Raises `PositionTrimmed`. With `columns`,
        tables may come without their other columns, except the one with the keys."""
        return await frames.read_frames(
            self._connection,
            segment_id,
            owner_url=owner_url,
            after=after,
            isolation=isolation,
            revision=revision,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            columns=columns,
        )

    def stored_messages(
        self,
        segment_id: str,
        *,
        after: str | None = None,
        everything: bool = True,
        key: str | None = None,
        where: str | None = None,
    ) -> Paged[StoredMessage]:
        """What is stored in a segment from the position `after` on, in order, up to what is its end when that is
        reached: also what readers do not see yet, or never, or with `everything=False` only what they see. With `key`
        and `where`, an expression over columns such as `amount >= 100 and country = "DE"`, only messages that match.

        Nothing is acknowledged. Raises `NotFound`, `PositionTrimmed`, and `InvalidArgument` for an expression that
        cannot be understood.
        """
        return StoredMessages(self, segment_id, after, everything, key, where)

    @staticmethod
    def decode_entry(frame: Frame, topic_schema: pa.Schema | None) -> pa.Table:
        """The rows of an entry in the topic's columns. Raises `SchemaMismatch`."""
        return frames.decode_entry(frame, topic_schema)
