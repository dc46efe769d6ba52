"""The share of a subscription at one broker: the segments of its topic that this broker owns.

`LocalShare` is that of this broker; `RemoteShare` asks another broker for the same. Neither asks any further broker.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from metastore.errors import MetastoreError
from metatxn.wire import errors
from metatxn.wire.broker import BlockingMessage, SeekPreviewSegment, SubscriptionSegment
from metatxn.wire.ids import TxnId
from metatxn.wire.names import MessageId
from metatxn.wire.position import Position
from participants.subscription.dispatch import Blocking, Redelivered
from participants.subscription.home import Home
from participants.subscription.pending_acks import Ack
from participants.subscription.places import EARLIEST, Span, Start
from participants.subscription.segment_subscription import AckRefused, SegmentSubscription, acks_error
from participants.subscription.taking import FIRST_ATTACHED, DeliveredMessage, Taker


@dataclass(frozen=True, slots=True)
class AckRequest:
    """An acknowledgement of messages, or with `up_to` of everything up to a place of each segment, which is always
    cumulative. With `for_all` it stands for all consumers of the subscription, whether or not the messages were
    delivered; otherwise for the one consumer that received them."""

    ids: Sequence[MessageId] = ()
    cumulative: bool = False
    txn_id: TxnId | None = None
    writer: str | None = None
    up_to: Mapping[str, Position] = field(default_factory=dict)
    for_all: bool = False

    @property
    def segments(self) -> list[str]:
        """The segments in the order of the request."""
        return list(dict.fromkeys([*(each.segment for each in self.ids), *self.up_to]))

    def within(self, segments: Iterable[str]) -> AckRequest:
        """The part of the request that concerns these segments."""
        wanted = frozenset(segments)
        ids = [each for each in self.ids if each.segment in wanted]
        return replace(self, ids=ids, up_to={name: place for name, place in self.up_to.items() if name in wanted})


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """A request of the `home` of a subscription for messages for the consumer `session`: up to
    `limit` messages and about `max_bytes`, of `segments` in this order, as long as the consumer holds fewer than
    `most_held` messages of this share. Of all consumers up to the number `newest`, only `sessions` are present; later
    ones were unknown when this request was made."""

    home: Home
    session: int
    sessions: Sequence[int]
    newest: int
    segments: Sequence[str]
    limit: int
    max_bytes: int
    most_held: int | None = None

    @property
    def taker(self) -> Taker:
        return Taker(self.session, tuple(self.sessions))


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """A wait for messages of these segments; or, with a `taker`, for one that this consumer may have by key, or for the
    end of a segment that is not among those that have `ended`, as is known."""

    segments: tuple[str, ...]
    taker: Taker | None = None
    ended: tuple[str, ...] = ()


@dataclass(slots=True)
class TakeAnswer:
    """What was taken. `ended` are segments of which nothing is left except what is to be delivered later, so that those
    that take over may be read. `held` is the number of messages of this share that the consumer holds now, and `full`
    means that it may hold no more. `others_hold` says whether messages of the share were delivered to others, or are
    due for them, and are not acknowledged."""

    messages: list[DeliveredMessage] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    held: int = 0
    full: bool = False
    others_hold: bool = False


def just_moved(segment_id: str) -> errors.MetatxnError:
    return errors.StoreUnavailable(
        f"segment {segment_id} has just moved to another broker",
        action="Try again in a moment; nothing happened.",
        segment=segment_id,
    )


class LocalShare:
    """The share of this broker as it is now. `parts` is keyed by segment."""

    def __init__(self, parts: Mapping[str, SegmentSubscription]) -> None:
        self._parts = parts

    @property
    def segments(self) -> Iterable[str]:
        return self._parts.keys()

    # -- receiving ---------------------------------------------------------------------------------------------

    async def take(self, wanted: TakeRequest) -> TakeAnswer:
        """Take messages. Raises the failure of a segment only if nothing was taken, because delivered messages must
        reach the consumer."""
        answer, failure = TakeAnswer(), None
        for part in self._parts.values():
            part.dispatch.serve(wanted.home, wanted.sessions, wanted.newest)
        may_hold = wanted.limit if wanted.most_held is None else wanted.most_held - self._held_by(wanted.session)
        limit = min(wanted.limit, may_hold)
        for segment_id in wanted.segments:
            room = wanted.max_bytes - sum(each.size_bytes for each in answer.messages)
            if len(answer.messages) >= limit or room <= 0:
                break
            part = self._parts[segment_id]
            try:
                answer.messages += await part.dispatch.take(wanted.taker, limit - len(answer.messages), room)
                if await part.has_ended():
                    answer.ended.add(segment_id)
            except (errors.MetatxnError, MetastoreError) as error:
                failure = failure or error
        if failure is not None and not answer.messages:
            raise failure
        answer.held = self._held_by(wanted.session)
        left = sum(len(part.deliveries) - part.deliveries.not_due for part in self._parts.values())
        answer.others_hold = left > answer.held
        answer.full = wanted.most_held is not None and answer.held >= wanted.most_held
        for part in self._parts.values():
            part.dispatch.refused_more |= answer.full
        return answer

    def _held_by(self, session: int) -> int:
        return sum(part.deliveries.number_held(session) for part in self._parts.values())

    def knows_home(self, home: Home) -> bool:
        """Whether every part has served this home."""
        return all(part.dispatch.knows_home(home) for part in self._parts.values())

    def assert_serves(self, segments: Iterable[str]) -> None:
        """The parts of these segments. Raises STORE_UNAVAILABLE if one of them is no longer here."""
        for segment_id in segments:
            if segment_id not in self._parts:
                raise just_moved(segment_id)

    async def wait(self, wanted: WaitRequest, wait_s: float) -> None:
        """Wait until there is news, or `wait_s` has passed."""
        parts = [self._parts[segment_id] for segment_id in wanted.segments]
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            changes = [part.segment.changed.next() for part in parts]
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or any(part.is_gone or _has_news(part, wanted) for part in parts):
                return
            await asyncio.wait(changes, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    # -- acknowledging -----------------------------------------------------------------------------------------

    async def acknowledge(self, request: AckRequest) -> None:
        """Acknowledge all of the request, or nothing if any message conflicts or the kind does not fit the
        subscription."""
        self._assert_fits(request)
        await self.acknowledge_all(await self._acks(request), request.txn_id, for_all=request.for_all)

    async def acknowledge_all(
        self,
        acks: Sequence[tuple[SegmentSubscription, list[Ack]]],
        txn_id: TxnId | None,
        *,
        for_all: bool = False,
    ) -> None:
        """Like `acknowledge`, for acknowledgements that fit their subscription."""
        if txn_id is not None:
            for part, wanted in acks:
                await part.assure_order(txn_id, wanted)
        await self._check(acks, txn_id, for_all=for_all)
        # Nothing is awaited between the last check and the reservations: the first one wins, on all segments.
        if txn_id is not None:
            for part, wanted in acks:
                part.reserve(txn_id, wanted)
        outcomes = await asyncio.gather(
            *(part.acknowledge(wanted) if txn_id is None else part.store_acks(txn_id, wanted) for part, wanted in acks),
            return_exceptions=True,
        )
        if errors := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
            raise acks_error(errors, len(outcomes))

    def _assert_fits(self, request: AckRequest) -> None:
        """Raises INVALID_ARGUMENT for an acknowledgement that covers messages of other consumers: if messages of one
        segment are delivered to several consumers, none of them can know what it would acknowledge for the others.
        Pulsar refuses it, too."""
        if request.for_all or not (request.cumulative or request.up_to):
            return
        for part in map(self._parts.__getitem__, request.segments):
            if part.definition.record.type in ("shared", "key_shared"):
                raise errors.InvalidArgument(
                    f"kind: subscription {part.definition.name} is shared, so a cumulative acknowledgement would cover "
                    "messages of other consumers",
                    action="Acknowledge each message with kind `individual`; or, to acknowledge for all consumers, set "
                    "`for_all`.",
                    field="kind",
                    subscription=part.definition.name,
                )

    async def _check(
        self, acks: Sequence[tuple[SegmentSubscription, list[Ack]]], txn_id: TxnId | None, *, for_all: bool
    ) -> None:
        """Raises as `SegmentSubscription.check` does. Nothing is awaited after the last check.

        The header of a transaction that conflicts is read before anyone is refused because of it: a successor whose
        connect aborted it acknowledges the same messages at once, and may be faster than the watch event. Each segment
        has its own reservations. Those of a broker that gives a message up are waited for.
        """
        asked: set[tuple[SegmentSubscription, TxnId | None]] = set()
        while True:
            try:
                for part, wanted in acks:
                    part.check(txn_id, wanted, for_all)
                return
            except AckRefused as refused:
                if await refused.part.until_given_up(refused.holder):
                    continue
                conflict = refused.part, refused.holder
                if refused.holder in (None, txn_id) or conflict in asked:
                    raise
                asked.add(conflict)
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
            if wanted := await self._parts[segment_id].acks_up_to(place, request.writer):
                acks.append((self._parts[segment_id], wanted))
        return acks

    async def redeliver(self, ids: Sequence[MessageId] | None) -> Redelivered:
        if ids is None:
            returned = [await part.redeliver(None) for part in self._parts.values()]
        else:
            returned = [await self._parts[name].redeliver(found) for name, found in _by_segment(ids).items()]
        return sum(returned, Redelivered())

    # -- looking -----------------------------------------------------------------------------------------------

    async def look(self) -> list[SubscriptionSegment]:
        return [await _shown(part) for part in self._parts.values()]

    async def preview(
        self, starts: Mapping[str, Start], within: Mapping[str, Span] | None = None
    ) -> list[SeekPreviewSegment]:
        """What a move there would do; a segment that is missing would begin with its earliest entry. Given `within`, on
        these segments only, and between these places."""
        parts = self._parts if within is None else {name: self._parts[name] for name in within}
        return [
            await _preview(part, starts.get(name, EARLIEST), within[name] if within is not None else None)
            for name, part in parts.items()
        ]


def _has_news(part: SegmentSubscription, wanted: WaitRequest) -> bool:
    """Nothing new can come for consumers to which nothing is delivered."""
    if not part.attached.admits_home:
        return False
    waits_for_end = wanted.taker is not None and part.segment.id not in wanted.ended
    return part.dispatch.has_more(wanted.taker) or (waits_for_end and part.dispatch.ended)


async def _shown(part: SegmentSubscription) -> SubscriptionSegment:
    """The progress as a broker shows it to others: the consumer of a blocking message is the number of its session."""
    counts = await part.dispatch.counts()
    size_bytes = part.dispatch.backlog_bytes
    oldest_ms = await part.dispatch.oldest_ms() if counts.backlog or counts.pending else None
    return SubscriptionSegment(
        segment=part.segment.id,
        mark_delete=str(part.segment.ledgers.shown(counts.mark_delete)),
        backlog=counts.backlog,
        unacked=counts.unacked,
        attached=dict(part.attached.held),
        delayed=part.deliveries.not_due,
        redelivered=part.deliveries.redelivered,
        held={
            str(session): part.deliveries.number_held(session)
            for session in part.deliveries.consumers
            if session < FIRST_ATTACHED
        },
        pending_acks={str(txn_id): number for txn_id, number in counts.pending.items()},
        blocking=_blocking(part.dispatch.blocking()),
        backlog_bytes=size_bytes if oldest_ms is not None else 0,
        oldest_ms=oldest_ms,
    )


async def _preview(part: SegmentSubscription, start: Start, within: Span | None) -> SeekPreviewSegment:
    found = await part.dispatch.moved(start, within)
    return SeekPreviewSegment(
        segment=part.segment.id,
        position=str(found.place.position),
        messages=found.messages,
        again=found.again,
        skipped=found.skipped,
    )


def _blocking(found: Blocking | None) -> BlockingMessage | None:
    if found is None:
        return None
    return BlockingMessage(
        position=str(found.place.position),
        index=found.place.message,
        consumer=None if found.consumer is None else str(found.consumer),
        txn_id=None if found.holder is None else str(found.holder),
    )


def _by_segment(ids: Iterable[MessageId]) -> dict[str, list[tuple[Position, int]]]:
    found: dict[str, list[tuple[Position, int]]] = defaultdict(list)
    for each in ids:
        found[each.segment].append((each.position, each.index))
    return found
