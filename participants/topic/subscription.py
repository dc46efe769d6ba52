"""A subscription at its home, the broker that delivers its messages, from all segments of the topic.

    consumer ──▶ home ─┬─▶ its own share
                       └─▶ the shares of other brokers

The home is the owner of the topic's first segment, which is the one with the lowest number. Only the home knows the
consumers, so that *exclusive* and *failover* hold for the whole topic, wherever its segments are served. Its requests
to the shares contain the number of that segment and the generation at which it owns it. A share that has served a later
home refuses them, and what an earlier home has delivered then returns. If the first segment is removed, the owner of
the next one becomes the home, as if the first one had moved there. So a home that was frozen, or does not know that it
has been replaced, delivers nothing to its consumers as soon as its successor has sent a request.

Acknowledging needs no home: the owner of each segment decides (see `Subscriptions.acknowledge`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from metastore.errors import MetastoreError
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metatxn.wire import errors
from metatxn.wire.broker import SubscriptionSegment
from metatxn.wire.errors import ErrorCode
from metatxn.wire.names import number_of_segment
from metatxn.wire.policies import UNLIMITED
from participants.broker.broker import Broker
from participants.common.signal import Signal
from participants.segment.segment import Segment
from participants.subscription.dead_letters import DeadLetters
from participants.subscription.definitions import Definition, Definitions
from participants.subscription.home import Home
from participants.subscription.sessions import ConsumerBusy, Sessions
from participants.subscription.share import LocalShare, TakeAnswer, TakeRequest, WaitRequest
from participants.subscription.taking import DeliveredMessage
from participants.topic.remote_share import RemoteShare
from participants.topic.shares import SubscriptionShares, shares_of

T = TypeVar("T")
RECEIVE_BYTES = 4 << 20
"""The most bytes in the answer to one `receive`, but at least one message."""
REMOTE_WAIT_S = 20.0
RETRY_S = 1.0
"""The time after which a failed request is repeated, unless an event says earlier that it can succeed."""


@dataclass(slots=True)
class _Round:
    """The result of one round over all shares. New messages can only come from `waiting` (what a wait at a remote share
    is for), from what `failed`, and from this broker's own segments."""

    messages: list[DeliveredMessage] = field(default_factory=list)
    waiting: list[tuple[RemoteShare, WaitRequest]] = field(default_factory=list)
    failed: errors.MetatxnError | None = None
    full: bool = False
    """Whether the consumer holds as many messages as it may."""
    others_hold: bool = False
    """Whether others have messages that are left, or are due for them."""


@dataclass(frozen=True, slots=True)
class Received:
    """The messages for a consumer. If there are none, `others_hold` says whether any are left that others have, or are
    due for."""

    messages: list[DeliveredMessage] = field(default_factory=list)
    others_hold: bool | None = None


class Subscription:
    """One incarnation of a subscription at one generation of its home. Made by `Subscriptions`.

    Every method raises NOT_OWNER if another broker has become the home, STORE_UNAVAILABLE while a segment is not served
    anywhere, and NOT_FOUND once the subscription is dropped.
    """

    def __init__(
        self, broker: Broker, definition: Definition, home: Home, dead_letters: DeadLetters, session_timeout_ms: int
    ) -> None:
        self.definition = definition
        self.home = home
        self._broker = broker
        self._dead_letters = dead_letters
        self._sessions = Sessions(definition.record.type, session_timeout_ms / 1000)
        self._changed = Signal()
        self._expiry: asyncio.TimerHandle | None = None
        self._turn = 0
        self._closed: errors.MetatxnError | None = None
        self._parents: dict[str, Sequence[str]] = {}
        self._segment: Segment | None = None
        """The segment that makes this broker the home."""
        self._waits: dict[tuple[str, WaitRequest], asyncio.Task[None]] = {}
        self._held: dict[tuple[int, str | None], int] = {}
        """How many messages a session held at a broker (None is this one) when it was last asked."""
        self._unsure: set[int] = set()
        """The sessions that may have been given messages in an answer that was lost."""

    @property
    def consumers(self) -> list[str]:
        return self._sessions.consumers

    @property
    def closed(self) -> bool:
        return self._closed is not None

    # -- receiving ---------------------------------------------------------------------------------------------

    async def receive(
        self,
        consumer: str,
        limit: int,
        wait_ms: int,
        authorization: str | None = None,
        *,
        session_timeout_ms: int | None = None,
    ) -> Received:
        """Up to `limit` messages, waiting up to `wait_ms` for the first one. With a `limit` of 0 the consumer only
        shows that it is present. Its session times out after `session_timeout_ms` of silence, or the default.

        Raises ALREADY_EXISTS if the subscription is exclusive and has another consumer, and OUTCOME_UNKNOWN if messages
        for the consumer may have been lost on their way here: they return when it leaves.
        """
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        with self._present(consumer, session_timeout_ms) as session:
            while True:
                changes = [self._changed.next(), *self._broker.changes()]
                shares = await self._look(authorization)
                if not limit:
                    return Received()
                changes += [part.segment.changed.next() for part in shares.parts.values()]
                active = self._sessions.may_receive(session)
                found = await self._round(shares, session, limit) if active else _Round(others_hold=True)
                left = deadline - asyncio.get_running_loop().time()
                if found.messages or (left <= 0 and found.failed is None):
                    return Received(found.messages, None if found.messages else found.others_hold)
                if left <= 0 and found.failed is not None:
                    raise found.failed
                waits = [self._wait_at(*waiting) for waiting in found.waiting]
                timeout = left if found.failed is None and not found.full else min(left, RETRY_S)
                await asyncio.wait([*changes, *waits], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    @contextmanager
    def _present(self, consumer: str, session_timeout_ms: int | None) -> Iterator[int]:
        """The consumer's session, which cannot expire during its request."""
        time = asyncio.get_running_loop().time
        try:
            timeout_s = None if session_timeout_ms is None else session_timeout_ms / 1000
            session = self._sessions.enter(consumer, time(), timeout_s)
        except ConsumerBusy as busy:
            raise errors.AlreadyExists(
                f"subscription {self.definition.name} is exclusive, and consumer {busy.holder} has it",
                action="Wait until that consumer is gone, or use a failover or shared subscription.",
                consumer=busy.holder,
            ) from None
        try:
            if session in self._unsure:
                self._unsure.discard(session)
                raise self._lost_on_the_way("an earlier answer of another broker was lost")
            yield session
        finally:
            self._sessions.exit(consumer, session, time())
            self._watch_silence()

    async def _round(self, shares: SubscriptionShares, session: int, limit: int) -> _Round:
        """Take messages from every share in turn, so that none starves. Where order is promised, a segment is read once
        its parents have been read to their end."""
        self._turn += 1
        found = _Round(failed=next(iter(shares.missing.values()), None))
        most_held = await self.most_held()
        parents = await self._parents_of(shares)
        existing = {*shares.missing, *(segment_id for share in shares.all for segment_id in share.segments)}
        left = {segment_id: share for share in _turned(shares.all, self._turn) for segment_id in share.segments}
        ended: set[str] = set()
        while due := {
            name: share
            for name, share in left.items()
            if ended.issuperset(existing.intersection(parents.get(name, ())))
        }:
            left = {name: share for name, share in left.items() if name not in due}
            for share in dict.fromkeys(due.values()):
                segments = _turned([name for name, owner in due.items() if owner is share], self._turn)
                room = RECEIVE_BYTES - sum(each.size_bytes for each in found.messages)
                if len(found.messages) >= limit or room <= 0:
                    return found
                wanted = TakeRequest(
                    self.home,
                    session,
                    self._sessions.numbers,
                    self._sessions.newest,
                    segments,
                    limit - len(found.messages),
                    room,
                    None if most_held is None else most_held - self._held_beside(session, share, shares),
                )
                try:
                    answer = await share.take(wanted)
                except errors.NotFound as error:
                    why = await self._end(error)
                    if not found.messages:
                        raise why from None
                    return found
                except (errors.MetatxnError, MetastoreError) as error:
                    if not self._may_go_on(error, found, session):
                        return found
                    continue
                found.messages += answer.messages
                ended |= answer.ended
                self._held[session, _broker_of(share)] = answer.held
                found.full |= answer.full
                found.others_hold |= answer.others_hold
                if isinstance(share, RemoteShare) and not answer.full:
                    found.waiting.append((share, self._waiting_for(wanted, answer)))
        return found

    async def most_held(self) -> int | None:
        """How many messages each consumer may hold, or None for any number."""
        most = (await self._broker.policies.recent(self.definition.topic)).max_unacked_per_consumer.value
        return None if most == UNLIMITED else most

    def _held_beside(self, session: int, share: LocalShare | RemoteShare, shares: SubscriptionShares) -> int:
        """How many messages the session holds at all other brokers. It may have acknowledged some since they were
        asked, and is then given more by a later round."""
        others = {_broker_of(each) for each in shares.all} - {_broker_of(share)}
        return sum(self._held.get((session, other), 0) for other in others)

    def _may_go_on(self, error: errors.MetatxnError | MetastoreError, found: _Round, session: int) -> bool:
        """Whether to continue after a share has failed. If it is only unavailable, others may have messages; otherwise
        the error is raised, unless messages were taken, which must reach the consumer."""
        code = error.code if isinstance(error, errors.MetatxnError) else None
        if isinstance(error, errors.MetatxnError) and code is ErrorCode.STORE_UNAVAILABLE:
            found.failed = error
            return True
        if not found.messages:
            raise self._lost_on_the_way(str(error)) if code is ErrorCode.OUTCOME_UNKNOWN else error
        if code is ErrorCode.OUTCOME_UNKNOWN:
            self._unsure.add(session)
        return False

    async def _parents_of(self, shares: SubscriptionShares) -> dict[str, Sequence[str]]:
        """The parents of each segment, which never change; some may not exist any more. Where no order is promised
        there are none."""
        if self.definition.record.type == "shared":
            return {}
        segments = [*shares.parts, *shares.missing, *(each for share in shares.elsewhere for each in share.segments)]
        unknown = {paths.segment(each): each for each in segments if each not in self._parents}
        for key, record in (await self._broker.store.get_each(unknown)).items():
            self._parents[unknown[key]] = SegmentRecord.decode(record.value).parents if record is not None else ()
        return self._parents

    def _waiting_for(self, wanted: TakeRequest, answer: TakeAnswer) -> WaitRequest:
        """What can be new at a share after this answer."""
        segments = tuple(sorted(wanted.segments))
        if self.definition.record.type != "key_shared":
            return WaitRequest(segments)
        return WaitRequest(segments, wanted.taker, tuple(sorted(answer.ended)))

    def _wait_at(self, share: RemoteShare, wanted: WaitRequest) -> asyncio.Task[None]:
        """Wait until the share has news. All consumers that wait for the same have one request in common. It ends with
        the home's segment."""
        assert self._segment is not None
        key = (share.url, wanted)
        waiting = self._waits.get(key)
        if waiting is None:
            waiting = self._waits[key] = self._segment.spawn(_waited(share, wanted))
            waiting.add_done_callback(lambda _: self._waits.pop(key))
        return waiting

    async def _look(self, authorization: str | None = None) -> SubscriptionShares:
        if self._closed is not None:
            raise self._closed
        try:
            self._segment = await home_of(self._broker, self.definition.topic)
            if as_home(self._segment) != self.home:
                raise self._succeeded()
            return await shares_of(self._broker, self.definition, self._dead_letters, authorization)
        except errors.NotFound as error:
            raise await self._end(error) from None

    async def _end(self, error: errors.NotFound) -> errors.MetatxnError:
        """End this incarnation. Returns the error for its requests."""
        why = await Definitions(self._broker.store).reason(self.definition, error)
        self.close(why)
        return why

    # -- consumers ---------------------------------------------------------------------------------------------

    def leave(self, consumer: str) -> None:
        """Remove a consumer that is gone; its messages go to the next request. Idempotent."""
        if self._sessions.leave(consumer):
            self._gone()

    def _watch_silence(self) -> None:
        """Set the timer for the consumer that has been silent for the longest time."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        at = self._sessions.next_expiry_s()
        if at is not None and self._closed is None:
            self._expiry = asyncio.get_running_loop().call_at(at, self._expire)

    def _expire(self) -> None:
        self._sessions.expire(asyncio.get_running_loop().time())
        self._gone()
        self._watch_silence()

    def _gone(self) -> None:
        self._unsure.intersection_update(self._sessions.numbers)
        self._held = {key: held for key, held in self._held.items() if key[0] in self._sessions.numbers}
        self._changed.notify()

    # -- looking -----------------------------------------------------------------------------------------------

    async def segments(self, authorization: str | None = None) -> list[SubscriptionSegment]:
        """The segments of the whole topic, in its order."""
        shares = await self._look(authorization)
        shares.assert_complete()
        shown = [each for part in await asyncio.gather(*(share.look() for share in shares.all)) for each in part]
        for each in shown:
            if each.blocking is not None and each.blocking.consumer is not None:
                each.blocking.consumer = self._sessions.consumer(int(each.blocking.consumer))
        order = {name: number for number, name in enumerate((await self._broker.topic(self.definition.topic)).segments)}
        names = self._sessions.names
        for each in shown:
            each.held = {names[int(number)]: held for number, held in each.held.items() if int(number) in names}
        return sorted(shown, key=lambda each: order.get(each.segment, len(order)))

    # -- life --------------------------------------------------------------------------------------------------

    def close(self, why: errors.MetatxnError | None = None) -> None:
        """End all waiting requests with `why`; by default, that another home has replaced this one."""
        self._closed = self._closed or why or self._succeeded()
        if self._expiry is not None:
            self._expiry.cancel()
        self._changed.notify()

    def _succeeded(self) -> errors.MetatxnError:
        return errors.StoreUnavailable(
            f"the delivery of subscription {self.definition.name} has begun again",
            action="Try again in a moment; unacknowledged messages are redelivered.",
            subscription=self.definition.name,
        )

    def _lost_on_the_way(self, reason: str) -> errors.MetatxnError:
        return errors.OutcomeUnknown(
            f"messages for this consumer may have been lost on their way: {reason}",
            action="Leave and return: then all messages of this consumer are redelivered.",
            subscription=self.definition.name,
        )


def _broker_of(share: LocalShare | RemoteShare) -> str | None:
    return share.url if isinstance(share, RemoteShare) else None


async def home_of(broker: Broker, topic: str) -> Segment:
    """The segment that makes this broker the home of the topic's subscriptions. Raises NOT_OWNER if another broker is
    the home, STORE_UNAVAILABLE while there is none, and NOT_FOUND."""

    async def first() -> Segment:
        return await broker.segment((await broker.topic(topic)).home)

    return await broker.in_layout(topic, first)


def as_home(segment: Segment) -> Home:
    """The home that this broker is by owning a segment."""
    return Home(number_of_segment(segment.id), segment.ownership.generation)


async def _waited(share: RemoteShare, wanted: WaitRequest) -> None:
    try:
        await share.wait(wanted, REMOTE_WAIT_S)
    except errors.MetatxnError:
        await asyncio.sleep(RETRY_S)


def _turned(items: Sequence[T], turn: int) -> list[T]:
    at = turn % max(len(items), 1)
    return [*items[at:], *items[:at]]
