"""What one broker has of a subscription: the segments of its topic that are owned there.

`LocalShare` is that of this broker; `RemoteShare` asks another one for the same. Neither ever asks anybody else.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from metastore.errors import MetastoreError
from metatxn.wire import errors
from metatxn.wire.broker import SubscriptionSegment
from metatxn.wire.ids import TxnId
from metatxn.wire.names import MessageId
from metatxn.wire.position import Position
from participants.subscription.dispatch import DeliveredMessage
from participants.subscription.pending_acks import Ack
from participants.subscription.segment_subscription import AckRefused, SegmentSubscription, acks_error


@dataclass(frozen=True, slots=True)
class AckRequest:
    """Messages, or with `up_to` everything up to a place of each segment; the latter is always cumulative. With
    `for_all` it speaks for all consumers of the subscription, whoever was given the messages, if anybody was; without
    it for the one that was."""

    ids: Sequence[MessageId] = ()
    cumulative: bool = False
    txn_id: TxnId | None = None
    writer: str | None = None
    up_to: Mapping[str, Position] = field(default_factory=dict)
    for_all: bool = False

    @property
    def segments(self) -> list[str]:
        """In the order in which they were asked for."""
        return list(dict.fromkeys([*(each.segment for each in self.ids), *self.up_to]))

    def within(self, segments: Iterable[str]) -> AckRequest:
        """The part of it that concerns these segments."""
        wanted = frozenset(segments)
        ids = [each for each in self.ids if each.segment in wanted]
        return replace(self, ids=ids, up_to={name: place for name, place in self.up_to.items() if name in wanted})


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """What the home of a subscription, at the generation `home`, wants for the consumer `session`: up to `limit`
    messages and about `max_bytes`, of `segments` in this order. Of all consumers up to the one numbered `newest` only
    `sessions` are there; of later ones it was not known yet when this was written."""

    home: int
    session: int
    sessions: Sequence[int]
    newest: int
    segments: Sequence[str]
    limit: int
    max_bytes: int


@dataclass(slots=True)
class TakeAnswer:
    """`ended`: segments that had nothing left, and never will."""

    messages: list[DeliveredMessage] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)


class LocalShare:
    """Of this broker, as it is at this moment. `parts` by segment."""

    def __init__(self, parts: Mapping[str, SegmentSubscription]) -> None:
        self._parts = parts

    @property
    def segments(self) -> Iterable[str]:
        return self._parts.keys()

    # -- receiving ---------------------------------------------------------------------------------------------

    async def take(self, wanted: TakeRequest) -> TakeAnswer:
        """Raises the failure of a segment only when nothing was given: what was given must reach the consumer."""
        answer, failure = TakeAnswer(), None
        for part in self._parts.values():
            part.dispatch.serve(wanted.home, wanted.sessions, wanted.newest)
        for segment_id in wanted.segments:
            room = wanted.max_bytes - sum(each.size_bytes for each in answer.messages)
            if len(answer.messages) >= wanted.limit or room <= 0:
                break
            part = self._parts[segment_id]
            try:
                answer.messages += await part.dispatch.take(wanted.session, wanted.limit - len(answer.messages), room)
            except (errors.MetatxnError, MetastoreError) as error:
                failure = failure or error
                continue
            if part.dispatch.ended:
                answer.ended.add(segment_id)
        if failure is not None and not answer.messages:
            raise failure
        return answer

    def knows_home(self, home: int) -> bool:
        """All of it has served this one."""
        return all(part.dispatch.knows_home(home) for part in self._parts.values())

    def assert_serves(self, segments: Iterable[str]) -> None:
        """Raises STORE_UNAVAILABLE when one of these is not here any more."""
        for segment_id in segments:
            if segment_id not in self._parts:
                raise errors.StoreUnavailable(
                    f"segment {segment_id} has just moved to another broker",
                    action="Try again in a moment; nothing happened.",
                    segment=segment_id,
                )

    async def wait(self, segments: Sequence[str], wait_s: float) -> None:
        """Until one of these segments has something to give, or `wait_s` is over."""
        parts = [self._parts[segment_id] for segment_id in segments]
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            changes = [part.segment.changed.next() for part in parts]
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or any(part.dispatch.has_more or part.is_gone for part in parts):
                return
            await asyncio.wait(changes, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    # -- acknowledging -----------------------------------------------------------------------------------------

    async def acknowledge(self, request: AckRequest) -> None:
        """All of it, or nothing when any message conflicts, or its kind does not fit the subscription."""
        self._assert_fits(request)
        acks = await self._acks(request)
        await self._check(request, acks)
        # From the last check to the reservations nothing is awaited: who comes first wins, on all segments.
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
        if errors := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
            raise acks_error(errors, len(outcomes))

    def _assert_fits(self, request: AckRequest) -> None:
        """Raises INVALID_ARGUMENT for one that covers what other consumers have: where messages of one segment are
        given to several of them, none can tell what it would lose for the others. Pulsar refuses it likewise."""
        if request.for_all or not (request.cumulative or request.up_to):
            return
        for part in map(self._parts.__getitem__, request.segments):
            if part.definition.record.type == "shared":
                raise errors.InvalidArgument(
                    f"kind: subscription {part.definition.name} is shared, so a cumulative acknowledgement would cover "
                    "what other consumers have",
                    action="Acknowledge each message, with kind `individual`; or, to speak for all consumers, say "
                    "`for_all`.",
                    field="kind",
                    subscription=part.definition.name,
                )

    async def _check(self, request: AckRequest, acks: Iterable[tuple[SegmentSubscription, list[Ack]]]) -> None:
        """Raises what `SegmentSubscription.check` does. Nothing is awaited behind the last check.

        The header of a transaction that is in the way is read before anybody is refused because of it: a successor
        whose connect aborted it acknowledges the same messages at once, and may be faster than the watch that tells us.
        """
        asked = {request.txn_id}
        while True:
            try:
                for part, wanted in acks:
                    part.check(request.txn_id, wanted, request.for_all)
                return
            except AckRefused as refused:
                if refused.holder is None or refused.holder in asked:
                    raise
                asked.add(refused.holder)
                if not await refused.part.freed_by_abort(refused.holder):
                    raise

    async def _acks(self, request: AckRequest) -> list[tuple[SegmentSubscription, list[Ack]]]:
        acks: list[tuple[SegmentSubscription, list[Ack]]] = []
        for segment_id, ids in _by_segment(request.ids).items():
            part = self._parts[segment_id]
            if request.cumulative:
                ((position, index),) = ids
                acks.append((part, [await part.cumulative_ack(position, index, request.writer)]))
            else:
                acks.append((part, await part.single_acks(ids, request.writer)))
        for segment_id, place in request.up_to.items():
            if wanted := self._parts[segment_id].acks_up_to(place, request.writer):
                acks.append((self._parts[segment_id], wanted))
        return acks

    async def redeliver(self, ids: Sequence[MessageId] | None) -> int:
        if ids is None:
            return sum(part.dispatch.redeliver() for part in self._parts.values())
        return sum(self._parts[segment_id].dispatch.redeliver(found) for segment_id, found in _by_segment(ids).items())

    # -- looking -----------------------------------------------------------------------------------------------

    async def look(self) -> list[SubscriptionSegment]:
        return [await _shown(part) for part in self._parts.values()]


async def _shown(part: SegmentSubscription) -> SubscriptionSegment:
    counts = await part.dispatch.counts()
    return SubscriptionSegment(
        segment=part.segment.id,
        mark_delete=str(part.segment.ledgers.shown(counts.mark_delete)),
        backlog=counts.backlog,
        unacked=counts.unacked,
        pending_acks={str(txn_id): number for txn_id, number in counts.pending.items()},
    )


def _by_segment(ids: Iterable[MessageId]) -> dict[str, list[tuple[Position, int]]]:
    found: dict[str, list[tuple[Position, int]]] = defaultdict(list)
    for each in ids:
        found[each.segment].append((each.position, each.index))
    return found
