"""Dispatch of the messages of one subscription on one owned segment: delivering, returning, and counting what is left.

Used only from the event loop of its process. Messages that are PENDING_ACK (the term of PIP-31) are not delivered.

Where messages are given up, every delivery is counted before it takes place (see `DeliveryCounts`):

    read ──▶ announced, in advance for many entries ──▶ delivered
    waits for redelivery ──▶ chosen ──▶ counted ──▶ does it still wait? ──▶ delivered
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from metastore.errors import MetastoreError
from metatxn.wire import errors
from metatxn.wire.frames import RawFrame
from metatxn.wire.ids import TxnId
from metatxn.wire.names import MessageId
from metatxn.wire.position import Position
from participants.messages.delivery_times import delivery_times
from participants.messages.payloads import message_count
from participants.segment.segment import Segment
from participants.subscription.cursor import Cursor
from participants.subscription.deliveries import Deliveries
from participants.subscription.delivery_counts import DeliveryCounts
from participants.subscription.home import NO_HOME, Home
from participants.subscription.isolated_view import IsolatedView
from participants.subscription.message_counts import MessageCounts
from participants.subscription.pending_acks import PendingAckStore
from participants.subscription.places import START, Place, Span, Start, entry_span
from participants.subscription.ranges import RangeSet
from participants.subscription.taking import FIRST_ATTACHED, Chosen, DeliveredMessage, Taker, Taking, share_bytes

READ_BYTES = 1 << 20
LOOK_AT_CLOCK_S = 60.0
"""How long a message may be late if the wall clock is set forward."""
LOOK_BYTES = 1 << 16
"""The bytes that are read at once to find the first entry that is not hidden."""


@dataclass(frozen=True, slots=True)
class Redelivered:
    """How many messages will be redelivered, and which of them only because of others."""

    count: int = 0
    withdrawn: Sequence[str] = ()

    def __add__(self, other: Redelivered) -> Redelivered:
        return Redelivered(self.count + other.count, [*self.withdrawn, *other.withdrawn])


@dataclass(frozen=True, slots=True)
class Blocking:
    """A message that keeps later ones from being delivered, and who has it: a consumer, an undecided transaction, or
    neither while it is on its way to the dead-letter topic."""

    place: Place
    consumer: int | None
    holder: TxnId | None


@dataclass(slots=True)
class Counts:
    """The number of messages that can be read and are not acknowledged: all of them, those that were delivered and are
    not PENDING_ACK, and those that are PENDING_ACK, by transaction."""

    mark_delete: Position
    backlog: int = 0
    unacked: int = 0
    pending: defaultdict[TxnId, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(frozen=True, slots=True)
class Moved:
    """What would happen to the messages that can be read if the subscription began at `place`: those that would be
    delivered, how many of these are acknowledged now, and those that would not be and are not acknowledged."""

    place: Place
    messages: int
    again: int
    skipped: int


class Dispatch:
    """`deliveries` has what consumers hold; the cursor and the pending acknowledgements determine what is left to
    deliver."""

    def __init__(
        self,
        segment: Segment,
        name: str,
        cursor: Cursor,
        pending: PendingAckStore,
        deliveries: Deliveries,
        message_counts: MessageCounts,
        view: IsolatedView,
        counts: DeliveryCounts | None,
        *,
        delays: bool,
        assert_serving: Callable[[], None],
        on_dead: Callable[[Sequence[Place]], None],
        persist: Callable[[], Awaitable[None]],
    ) -> None:
        """`name` is that of the subscription. With `delays` messages are delivered at the times that their producers
        have given. `on_dead` is called with messages that were delivered too often. `counts` are made durable by
        `persist`; None: deliveries are counted in memory only."""
        self._segment = segment
        self._name = name
        self._cursor = cursor
        self._pending = pending
        self._deliveries = deliveries
        self._message_counts = message_counts
        self._view = view
        self._stored_counts = counts
        self._delays = delays
        self._assert_serving = assert_serving
        self._on_dead = on_dead
        self._persist = persist
        self.reading = asyncio.Lock()
        """The lock that is held while messages are delivered."""
        self.admits: Callable[[int], bool] = lambda _: True
        """Whether a consumer may have messages, see `AttachedConsumers`."""
        self._home = NO_HOME
        self._timer: asyncio.TimerHandle | None = None
        self.refused_more = False
        """A consumer that holds as much as it may was refused more: those that wait are told when something is
        acknowledged."""

    # -- giving ------------------------------------------------------------------------------------------------

    def serve(self, home: Home, consumers: Collection[int], newest: int) -> None:
        """This home of the subscription now delivers the messages: of all consumers up to `newest`,
        only to `consumers`. What any other consumer holds returns.

        Raises STORE_UNAVAILABLE for a home that has been replaced.
        """
        if home < self._home:
            raise errors.StoreUnavailable(
                f"another broker delivers subscription {self._name} now",
                action="Try again in a moment; nothing happened.",
                subscription=self._name,
            )
        succeeded, self._home = home > self._home, home
        for consumer in self._deliveries.consumers:
            if consumer < FIRST_ATTACHED and (succeeded or (consumer <= newest and consumer not in consumers)):
                self.consumer_gone(consumer)

    def knows_home(self, home: Home) -> bool:
        """Whether it has served this home."""
        return self._home == home

    async def take(self, taker: Taker, limit: int, max_bytes: int) -> list[DeliveredMessage]:
        """Messages for a consumer: first those that wait for redelivery, and then new ones, in order. They may exceed
        `max_bytes` by one entry."""
        taking = Taking(taker, limit, max_bytes)
        await self.deliver(taking)
        # A message that is returned while an entry is read may be delivered to this very consumer again. In one
        # transaction it would count twice, because the second acknowledgement succeeds like the first.
        return list({each.message.message_id: each for each in taking.given}.values())

    async def deliver(self, taking: Taking) -> None:
        """Like `take`, in whatever form the messages have in `taking`."""
        async with self.reading:
            self._assert_serving()
            if not self.admits(taking.taker.session):
                return
            if self._deliveries.become_due(self._segment.clock()):
                self._segment.changed.notify()  # they may be more than this consumer takes
            try:
                await self._give_again(taking)
                more = True
                while more and taking.room and not self._deliveries.full:
                    more = await self._read_on(taking)
            except errors.MetatxnError:
                if not taking.number:
                    raise  # raised next time: delivered messages must reach the consumer
            finally:
                self._set_timer()

    async def _give_again(self, taking: Taking) -> None:
        """Deliver what waits for redelivery, as far as there is room."""
        await self._choose_waiting(taking)
        places = [place for each in taking.chosen for place in each.places]
        if places:
            await self._count(places)
        for frame, indexes in taking.take_chosen():
            due = self._waiting_of(frame, taking.room, taking.taker)
            self._give(frame, [index for index in due if index in indexes], taking)
        if any((delivery := self._deliveries.get(place)) and delivery.consumer is None for place in places):
            self.recount()  # they were acknowledged or reserved meanwhile

    async def _choose_waiting(self, taking: Taking) -> None:
        """Choose from what waits for redelivery."""
        at = START
        while (room := taking.room) and (place := self._deliveries.first_waiting(at)) is not None:
            frame = await self.frame(place.position)
            if frame is not None:
                taking.choose(frame, self._waiting_of(frame, room, taking.taker))
            else:  # it has been trimmed meanwhile
                self.delete(entry_span(place.position))
            at = Place.behind(place.position)

    def _waiting_of(self, frame: RawFrame, room: int, taker: Taker) -> list[int]:
        """Up to `room` messages of the entry that wait for redelivery to this consumer."""
        return [place.message for place in self._deliveries.waiting_in(frame.position)[:room]]

    async def _read_on(self, taking: Taking) -> bool:
        """Deliver messages of the next page. Returns whether there is more to read."""
        at = self._skip_to(
            max(self._deliveries.next_read, self._cursor.mark_delete), Place.behind(self._segment.ledgers.start)
        )
        at = self._cursor.next_left(at)
        try:
            page = await self._view.page(at.read_after, READ_BYTES)
        except errors.PositionTrimmed:
            return True  # it was trimmed meanwhile; continue after it
        if self._stored_counts is not None:
            again = [frame for frame in page.frames if self._stored_counts.perhaps_given(frame.position)]
            if again:
                self._read_back(again, at)
                await self._give_again(taking)
                return True
        for frame in page.frames:
            self._deliveries.next_read = at = self._skip_to(at, Place.at(frame.position))
            if not taking.room:
                return True
            await self._announce(frame, taking.room)
            size, due_ms = message_count(frame), self._times_of(frame)
            while (
                at.position == frame.position and at.message < size and taking.room and not self._deliveries.far_ahead
            ):
                at = self._next_of_entry(frame, at, taking, due_ms)
            if at.position == frame.position and at.message < size:
                self._deliveries.next_read = at
                return True
            at = self._skip_to(at, Place.behind(frame.position))
        self._deliveries.next_read = self._skip_to(at, Place.behind(page.next))
        return not page.end

    def _times_of(self, frame: RawFrame) -> Mapping[int, int]:
        """Which messages of an entry, by their indexes, are delivered later, and when."""
        times = delivery_times(frame) if self._delays else None
        if times is None:
            return {}
        now_ms = self._segment.clock()
        return {index: time_ms for index, time_ms in enumerate(times) if time_ms is not None and time_ms > now_ms}

    def _next_of_entry(self, frame: RawFrame, at: Place, taking: Taking, due_ms: Mapping[int, int]) -> Place:
        """Deliver messages of an entry, from `at` on, as far as there is room. Returns the place after them."""
        position, size, room = frame.position, message_count(frame), taking.room
        indexes: list[int] = []
        index = at.message
        if not (due_ms or len(self._pending) or self._cursor.overlaps(Span(at, Place.behind(position)))):
            indexes = list(range(index, min(size, index + room)))  # as below, where there is nothing to ask for each
            index += len(indexes)
        while index < size and len(indexes) < room and not self._deliveries.far_ahead:
            place = Place(position.ledger, position.entry, index)
            if place not in self._cursor:
                if self._pending.holder(place) is not None:
                    self._deliveries.pass_over(place, size, due_ms=due_ms.get(index))
                elif index in due_ms:
                    self._deliveries.put_off(place, size, due_ms[index])
                else:
                    indexes.append(index)
            index += 1
        self._give(frame, indexes, taking)
        return Place.behind(position) if index == size else at._replace(message=index)

    def _give(self, frame: RawFrame, indexes: Sequence[int], taking: Taking) -> None:
        if not indexes:
            return
        size, share, now_s = message_count(frame), share_bytes(frame), asyncio.get_running_loop().time()
        given, consumer = taking.made_of(self._segment.id, Chosen(frame, indexes)), taking.taker.session
        times = [self._deliveries.give(place, size, consumer, now_s) for place in Chosen(frame, indexes).places]
        self._segment.traffic.went_out(len(times), len(frame.data) * len(times) // size)
        self._segment.traffic.redelivered(sum(before > 0 for before in times))
        taking.give(given, times, share)

    # -- counting ----------------------------------------------------------------------------------------------

    async def _announce(self, frame: RawFrame, room: int) -> None:
        """Messages of the entry are about to be delivered for the first time. Raises STORE_UNAVAILABLE."""
        if self._stored_counts is not None and not self._stored_counts.announces(frame.position):
            self._stored_counts.announce(frame.position, room)
            await self._until_stored()

    async def _count(self, places: Sequence[Place]) -> None:
        """These messages are about to be delivered. The first delivery was announced. Raises STORE_UNAVAILABLE."""
        if self._stored_counts is not None and any(map(self._must_be_counted, places)):
            self._stored_counts.count(self._deliveries.counted(frozenset(places)), self._deliveries.next_read)
            try:
                await self._until_stored()
            except (errors.MetatxnError, asyncio.CancelledError):
                self.recount()  # the write may have taken effect, or may yet
                raise

    async def _until_stored(self) -> None:
        try:
            await self._persist()
        except MetastoreError as error:
            self._assert_serving()
            raise errors.StoreUnavailable(
                f"messages of subscription {self._name} cannot be counted: {error}",
                action="Try again in a moment; nothing was delivered.",
                subscription=self._name,
            ) from None
        self._assert_serving()

    def recount(self) -> None:
        """Correct the counts: fewer deliveries count than it seemed; this is stored in the background."""
        if self._stored_counts is not None:
            self._stored_counts.count(self._deliveries.counted(), self._deliveries.next_read)
            self._segment.spawn(self._store_counts())

    async def _store_counts(self) -> None:
        with suppress(MetastoreError):  # the write is repeated
            await self._persist()

    def _must_be_counted(self, place: Place) -> bool:
        delivery = self._deliveries.get(place)
        return (delivery is not None and delivery.times > 0) or (
            self._stored_counts is not None and self._stored_counts.perhaps_given(place.position)
        )

    def _read_back(self, frames: Sequence[RawFrame], at: Place) -> None:
        """Read entries, from `at` on, of which an earlier owner has perhaps delivered messages. These wait for
        redelivery."""
        dead: list[Place] = []
        for frame in frames:
            at = self._skip_to(at, Place.at(frame.position))
            size, keys, due_ms = message_count(frame), self._keys_of(frame), self._times_of(frame)
            while at.position == frame.position and at.message < size and not self._deliveries.far_ahead:
                key = keys[at.message] if keys is not None else None
                if self._come_back(at, size, key, due_ms.get(at.message)):
                    dead.append(at)
                at = Place.behind(frame.position) if at.message + 1 == size else at._replace(message=at.message + 1)
            if at.position == frame.position and at.message < size:
                break
            at = self._skip_to(at, Place.behind(frame.position))
        self._deliveries.next_read = at
        if dead:
            self._on_dead(dead)

    def _come_back(self, place: Place, size: int, key: int | None, due_ms: int | None) -> bool:
        """Note a message. Returns whether it was delivered too often."""
        if place in self._cursor:
            return False
        if self._pending.holder(place) is not None:
            self._deliveries.pass_over(place, size, key, due_ms)
            return False
        return self._deliveries.come_back(place, size, key, due_ms)

    def _keys_of(self, frame: RawFrame) -> Sequence[int] | None:
        """The hashes of the keys of an entry's messages, where messages are delivered by key."""
        return None

    # -- passing over ------------------------------------------------------------------------------------------

    def _skip_to(self, at: Place, end: Place) -> Place:
        """Skip to `end`, and return the later place. What is in between is never shown to readers, so it counts as
        acknowledged."""
        if at < end:
            self.delete(Span(at, end))
        return max(at, end)

    def delete(self, span: Span) -> None:
        self._cursor.add(span)
        self._deliveries.gone(span)
        if self.refused_more:
            self.refused_more = False
            self._segment.changed.notify()

    async def frame(self, position: Position) -> RawFrame | None:
        """The entry at `position`, or None if readers may not see it."""
        if position <= self._segment.ledgers.start or position.entry < 0:
            return None
        try:
            page = await self._view.page(position.before, 1)
        except errors.PositionTrimmed:
            return None
        frame = page.frames[0] if page.frames else None
        return frame if frame is not None and frame.position == position else None

    # -- taking back -------------------------------------------------------------------------------------------

    def redeliver(self, ids: Iterable[tuple[Position, int]] | None = None, consumer: int | None = None) -> Redelivered:
        """Redeliver these messages, or all that consumers hold, or of both those that one `consumer` holds. Those that
        are PENDING_ACK are not affected."""
        if ids is None:
            places = self._deliveries.held()
        else:
            wanted = (Place.at(position)._replace(message=index) for position, index in ids)
            places = [
                p for p in wanted if (known := self._deliveries.get(p)) is not None and known.consumer is not None
            ]
        if consumer is not None:
            held = set(self._deliveries.held_by(consumer))
            places = [place for place in places if place in held]
        back = [place for place in places if self._pending.holder(place) is None]
        withdrawn = self.give_back(back, failed=True)
        return Redelivered(len(back) + len(withdrawn), [self._message_id(place) for place in withdrawn])

    def holders_of(self, ids: Iterable[tuple[Position, int]] | None = None) -> set[TxnId]:
        """The transactions in which these messages are PENDING_ACK, or any."""
        if ids is None:
            return {known.txn_id for known in self._pending}
        places = (Place.at(position)._replace(message=index) for position, index in ids)
        return {holder for place in places if (holder := self._pending.holder(place)) is not None}

    def holders_before(self, spans: Iterable[Span]) -> set[TxnId]:
        """The transactions in which messages are PENDING_ACK that must be delivered before these, if they return. There
        are such only where messages are delivered by key."""
        return set()

    def consumer_gone(self, consumer: int) -> None:
        back = []
        for place in self._deliveries.held_by(consumer):
            if self._pending.holder(place) is None:
                back.append(place)
            else:
                self._deliveries.let_go(place)
        self.give_back(back)

    def give_back(self, places: Iterable[Place], *, failed: bool = False) -> list[Place]:
        """Return messages, which are delayed if their consumers have `failed` to process them. Returns the others that
        return with them."""
        if dead := self._deliveries.returned(places, asyncio.get_running_loop().time() if failed else None):
            self._on_dead(dead)
        self._set_timer()
        self._segment.changed.notify()
        return []

    def _set_timer(self) -> None:
        """Act when the first of the messages was held for too long, or delayed for long enough, or when the time of the
        first one comes. The wall clock may be set meanwhile, so it is looked at again now and then."""
        self.close()
        loop, times_s = asyncio.get_running_loop(), []
        if (at_s := self._deliveries.next_s) is not None:
            times_s.append(at_s)
        if (due_ms := self._deliveries.next_due_ms) is not None:
            times_s.append(loop.time() + min((due_ms - self._segment.clock()) / 1000, LOOK_AT_CLOCK_S))
        if times_s:
            self._timer = loop.call_at(min(times_s), self._on_time)

    def _on_time(self) -> None:
        with suppress(errors.MetatxnError):  # the broker that serves the segment now redelivers everything
            self._assert_serving()
            self._deliveries.become_due(self._segment.clock())
            overdue = self._deliveries.ripen(asyncio.get_running_loop().time())
            self.give_back([place for place in overdue if self._pending.holder(place) is None], failed=True)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _message_id(self, place: Place) -> str:
        return str(MessageId(self._segment.id, place.position, place.message))

    # -- looking -----------------------------------------------------------------------------------------------

    async def counts(self) -> Counts:
        """The current counts. What was read is counted in memory, and the rest by `MessageCounts`."""
        while True:
            with suppress(errors.PositionTrimmed):
                return await self._counts()

    async def _counts(self) -> Counts:
        self._assert_serving()
        start = self._segment.ledgers.start
        self._skip_to(START, Place.behind(start))
        at = max(self._deliveries.next_read, self._cursor.mark_delete)
        unread = RangeSet(self._cursor.gaps(Span(at, Place.behind(self._view.end))))
        pieces: list[tuple[TxnId | None, Span]] = [(None, span) for span in unread]
        found = Counts(self._cursor.mark_delete.last_before, backlog=len(self._deliveries))
        for known in self._pending:
            for held in known.spans():
                if taken := self._deliveries.count(held):
                    found.pending[known.txn_id] += taken
                pieces += [(known.txn_id, span) for span in unread.between(*held)]
        found.unacked = found.backlog - sum(found.pending.values()) - self._deliveries.undelivered
        # From here on nothing is looked at that could change meanwhile.
        sums = await self._message_counts.before({place for _, span in pieces for place in span}, start)
        for holder, span in pieces:
            if messages := sums[span.end] - sums[span.start]:
                if holder is None:
                    found.backlog += messages
                else:
                    found.pending[holder] += messages
        return found

    async def moved(self, to: Start, within: Span | None = None) -> Moved:
        """What a move there would do now, or what it would do `within` these places, each at the beginning of an entry.
        What was read is counted in memory, as by `counts`."""
        while True:
            with suppress(errors.PositionTrimmed):
                return await self._moved(to, within)

    async def _moved(self, to: Start, within: Span | None) -> Moved:
        self._assert_serving()
        start = self._segment.ledgers.start
        self._skip_to(START, Place.behind(start))
        first, end = Place.behind(start), max(Place.behind(self._view.end), Place.behind(start))
        place = min(max(to.place, first), end)
        counts = self._message_counts
        if within is not None:
            first, end = max(within.start, first), min(within.end, end)
            # Those of the whole segment would count everything between these places and what they know already.
            counts = MessageCounts(self._view.page)
        if within is not None and first >= end:
            return Moved(place, 0, 0, 0)
        at = max(self._deliveries.next_read, self._cursor.mark_delete)
        begin = min(max(place, first), end)
        given = list(Cursor(begin, [(begin, to.acked)]).gaps(Span(begin, end)))
        kept = [span for each in given for span in self._cursor.gaps(Span(max(at, each.start), each.end))]
        unread = list(self._cursor.gaps(Span(max(at, first), end)))
        left, skipped = sum(map(self._deliveries.count, given)), self._deliveries.count(Span(first, end))
        # From here on nothing is looked at that could change meanwhile.
        sums = await counts.before({each for span in (*given, *kept, *unread) for each in span}, start)

        def counted(spans: Iterable[Span]) -> int:
            return sum(sums[span.end] - sums[span.start] for span in spans)

        messages, left = counted(given), left + counted(kept)
        skipped += counted(unread) - left
        return Moved(place, messages, messages - left, skipped)

    @property
    def end(self) -> Position:
        """The last entry that consumers can see now."""
        return self._view.end

    @property
    def backlog_bytes(self) -> int:
        """The size of the entries after the mark-delete position, up to the horizon."""
        ledgers = self._segment.ledgers
        after, up_to = max(self._cursor.mark_delete.last_before, ledgers.start), self._view.end
        return ledgers.bytes_between(after, up_to) if after < up_to else 0

    async def oldest_ms(self) -> int | None:
        """When the first entry after the mark-delete position was published that readers can see, if there is one."""
        at = max(self._cursor.mark_delete.last_before, self._segment.ledgers.start)
        with suppress(errors.PositionTrimmed):
            while True:
                page = await self._view.page(at, LOOK_BYTES)
                if page.frames or page.end:
                    return page.frames[0].publish_ms if page.frames else None
                at = page.next
        return None

    def has_more(self, taker: Taker | None) -> bool:
        """Whether a message waits for redelivery or something was not read yet. Which consumer asks makes a difference
        only where messages are delivered by key."""
        return self._deliveries.first_waiting() is not None or self._has_unread()

    def _has_unread(self) -> bool:
        at = max(self._deliveries.next_read, self._cursor.mark_delete)
        return at < Place.behind(self._view.end) and not self._deliveries.full

    def blocking(self) -> Blocking | None:
        """What keeps messages from being delivered, only where they are delivered by key."""
        return None

    async def drained(self) -> bool:
        """Whether everything that the segment will ever contain is acknowledged. If so, that is durable: then the
        segments that take over may be delivered in order. While it only waits for acknowledgements, the next one
        notifies `changed`. Raises the store's errors."""
        if not self.ended:
            return False
        if not self._segment.ended_at(self._cursor.mark_delete.last_before):
            self.refused_more = True
            return False
        await self._persist()
        return True

    @property
    def ended(self) -> bool:
        """Whether everything that the segment will ever contain was delivered at least once."""
        return not self._deliveries.undelivered and self._segment.ended_at(
            max(self._deliveries.next_read, self._cursor.mark_delete).last_before
        )
