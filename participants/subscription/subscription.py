"""One subscription over all segments of its topic that this broker owns: consumers, and requests that span segments."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from metastore.txn.ids import TxnId
from participants.broker.names import MessageId
from participants.ledger.position import Position
from participants.records import TopicRecord
from participants.segment.segment import Segment
from participants.signal import Signal
from participants.subscription.dead_letters import DeadLetters
from participants.subscription.definitions import Definition
from participants.subscription.pending_acks import Ack
from participants.subscription.segment_subscription import Counts, Given, SegmentSubscription
from participants.subscription.sessions import ConsumerBusy, Sessions
from service.problems import ErrorCode, ServiceError

RECEIVE_BYTES = 4 << 20
"""What one `receive` answers at most, but at least one message."""


@dataclass(frozen=True, slots=True)
class AckRequest:
    """Messages, or with `up_to` everything up to a place of each segment; the latter is always cumulative."""

    ids: Sequence[MessageId] = ()
    cumulative: bool = False
    txn_id: TxnId | None = None
    writer: str | None = None
    up_to: Mapping[str, Position] = field(default_factory=dict)


class Subscription:
    """Made by `Subscriptions`. `layout` answers the topic as it is now, `segment` one that is served here.

    Raises, in every method: STORE_UNAVAILABLE while a segment is not open, NOT_OWNER when another broker has all of
    them, NOT_FOUND once it is dropped.
    """

    def __init__(
        self,
        definition: Definition,
        *,
        layout: Callable[[str], Awaitable[TopicRecord]],
        segment: Callable[[str], Awaitable[Segment]],
        dead_letters: DeadLetters,
        session_timeout_ms: int,
    ) -> None:
        self.definition = definition
        self._layout = layout
        self._segment = segment
        self._dead_letters = dead_letters
        self._sessions = Sessions(definition.record.type, session_timeout_ms / 1000)
        self._changed = Signal()
        self._expiry: asyncio.TimerHandle | None = None
        self._turn = 0
        self.gone = False
        """It is dropped, or its topic is deleted."""
        self._parts: list[SegmentSubscription] = []
        """As they were found last."""
        self._elsewhere: dict[str, ServiceError] = {}
        """NOT_OWNER, by segment, for those that another broker has."""

    @property
    def consumers(self) -> list[str]:
        return self._sessions.consumers

    # -- receiving ---------------------------------------------------------------------------------------------

    async def receive(self, consumer: str, limit: int, wait_ms: int) -> list[Given]:
        """Up to `limit` messages, waiting up to `wait_ms` for the first one. With a `limit` of 0 the consumer only
        shows that it is there.

        Raises ALREADY_EXISTS when the subscription is exclusive and another consumer has it.
        """
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        with self._present(consumer):
            while True:
                changes = [self._changed.next()]
                parts = await self._find_parts()
                changes += [part.segment.changed.next() for part in parts]
                given = await self._take(parts, consumer, limit) if self._sessions.may_receive(consumer) else []
                left = deadline - asyncio.get_running_loop().time()
                if given or left <= 0 or not limit:
                    return given
                await asyncio.wait(changes, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    @contextmanager
    def _present(self, consumer: str) -> Iterator[None]:
        time = asyncio.get_running_loop().time
        try:
            self._sessions.enter(consumer, time())
        except ConsumerBusy as busy:
            raise ServiceError(
                ErrorCode.ALREADY_EXISTS,
                f"subscription {self.definition.name} is exclusive, and consumer {busy.holder} has it",
                action="Wait until that consumer is gone, or use a failover or shared subscription.",
                consumer=busy.holder,
            ) from None
        try:
            yield
        finally:
            self._sessions.exit(consumer, time())
            self._watch_silence()

    async def _take(self, parts: Sequence[SegmentSubscription], consumer: str, limit: int) -> list[Given]:
        """From every segment in turn, so that none starves; children once their parents have nothing left."""
        self._turn += 1
        turn = self._turn % max(len(parts), 1)
        left = [*parts[turn:], *parts[:turn]]
        given: list[Given] = []
        while due := [part for part in left if self._is_due(part, parts)]:
            left = [part for part in left if part not in due]
            for part in due:
                room = RECEIVE_BYTES - sum(each.size_bytes for each in given)
                if len(given) >= limit or room <= 0:
                    return given
                try:
                    given += await part.take(consumer, limit - len(given), room)
                except ServiceError:
                    if not given:
                        raise
                    return given  # what other segments gave must reach the consumer
        return given

    def _is_due(self, part: SegmentSubscription, parts: Sequence[SegmentSubscription]) -> bool:
        """Where order is promised, the messages of a parent come before those of its children."""
        if self.definition.record.type == "shared":
            return True
        parents = part.segment.record.parents
        return all(other.read_to_the_end for other in parts if other.segment.id in parents)

    def leave(self, consumer: str) -> None:
        """The consumer is gone: what it holds returns. Idempotent."""
        if self._sessions.leave(consumer):
            self._gone([consumer])

    def _watch_silence(self) -> None:
        """One timer, for whoever is silent for the longest time."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        at = self._sessions.next_expiry_s()
        if at is not None and not self.gone:
            self._expiry = asyncio.get_running_loop().call_at(at, self._expire)

    def _expire(self) -> None:
        self._gone(self._sessions.expire(asyncio.get_running_loop().time()))
        self._watch_silence()

    def _gone(self, consumers: Sequence[str]) -> None:
        for part in self._parts:
            for consumer in consumers:
                part.consumer_gone(consumer)
        self._changed.notify()

    # -- acknowledging -----------------------------------------------------------------------------------------

    async def acknowledge(self, request: AckRequest) -> None:
        """All of it, or nothing when any message conflicts. Returns once it is durable; inside a transaction, once
        its operations are.

        Raises INVALID_ARGUMENT for an id that is no message of this topic, NOT_OWNER for one of a segment that another
        broker has, TXN_CONFLICT, EXPIRED_TRANSACTION, TXN_NOT_FOUND, OUTCOME_UNKNOWN: send it again, that is harmless.
        """
        parts = {part.segment.id: part for part in await self._find_parts()}
        acks: list[tuple[SegmentSubscription, list[Ack]]] = []
        for segment_id, ids in self._by_segment(request.ids, parts).items():
            part = parts[segment_id]
            if request.cumulative:
                ((position, index),) = ids
                acks.append((part, [await part.cumulative_ack(position, index, request.writer)]))
            else:
                acks.append((part, await part.single_acks(ids, request.writer)))
        for segment_id, place in request.up_to.items():
            self._assert_part(segment_id, parts, f"positions: {segment_id}")
            if wanted := parts[segment_id].acks_up_to(place, request.writer):
                acks.append((parts[segment_id], wanted))
        # From here to the reservations nothing is awaited: who comes first wins, on all segments.
        for part, wanted in acks:
            part.check(request.txn_id, wanted)
        if request.txn_id is not None:
            for part, wanted in acks:
                part.reserve(request.txn_id, wanted)
        outcomes = await asyncio.gather(
            *(
                part.acknowledge(wanted) if request.txn_id is None else part.store_acks(request.txn_id, wanted)
                for part, wanted in acks
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def redeliver(self, ids: Sequence[MessageId] | None) -> int:
        """Messages that consumers hold, these or all, are given again. Answers how many. Raises INVALID_ARGUMENT."""
        parts = {part.segment.id: part for part in await self._find_parts()}
        if ids is None:
            return sum(part.redeliver() for part in parts.values())
        return sum(parts[segment].redeliver(found) for segment, found in self._by_segment(ids, parts).items())

    def _by_segment(
        self, ids: Iterable[MessageId], parts: dict[str, SegmentSubscription]
    ) -> dict[str, list[tuple[Position, int]]]:
        found: dict[str, list[tuple[Position, int]]] = defaultdict(list)
        for message_id in ids:
            self._assert_part(message_id.segment, parts, f"message_ids: {message_id}")
            found[message_id.segment].append((message_id.position, message_id.index))
        return found

    def _assert_part(self, segment_id: str, parts: Mapping[str, SegmentSubscription], named: str) -> None:
        """Raises NOT_OWNER, or INVALID_ARGUMENT when what was `named` is in no segment of this topic."""
        if (not_owner := self._elsewhere.get(segment_id)) is not None:
            raise not_owner
        if segment_id not in parts:
            problem = f"{named} is not in topic {self.definition.topic}"
            raise ServiceError(ErrorCode.INVALID_ARGUMENT, problem, field=named.partition(":")[0])

    # -- looking -----------------------------------------------------------------------------------------------

    async def counts(self) -> list[tuple[SegmentSubscription, Counts]]:
        return [(part, await part.counts()) for part in await self._find_parts()]

    # -- life --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.gone = True
        if self._expiry is not None:
            self._expiry.cancel()
        self._changed.notify()

    async def _find_parts(self) -> list[SegmentSubscription]:
        """One for each segment that this broker owns. A segment that was opened again has given nothing yet."""
        if self.gone:
            raise self.definition.missing()
        try:
            parts, elsewhere = await self._look_for_parts()
        except ServiceError as error:
            if error.code is ErrorCode.NOT_FOUND:
                self.close()
            raise
        if not parts and elsewhere:
            raise next(iter(elsewhere.values()))
        self._parts, self._elsewhere = parts, elsewhere
        return parts

    async def _look_for_parts(self) -> tuple[list[SegmentSubscription], dict[str, ServiceError]]:
        parts: list[SegmentSubscription] = []
        elsewhere: dict[str, ServiceError] = {}
        for segment_id in (await self._layout(self.definition.topic)).segments:
            try:
                segment = await self._segment(segment_id)
            except ServiceError as error:
                if error.code is not ErrorCode.NOT_OWNER:
                    raise
                elsewhere[segment_id] = error
                continue
            part = await segment.subscriptions.get(self.definition)
            part.on_dead = self._dead_letters.send
            parts.append(part)
        return parts, elsewhere
