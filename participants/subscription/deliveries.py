"""The unacknowledged messages that one subscription has read from a segment: which consumer has each, and how often it
was delivered.

There is no I/O and no clock: the time is passed in, in seconds. Messages are read once, in order, up to `next_read`.
Everything before that is acknowledged, or outstanding in one of these states:

    held by a consumer ──returned──▶ delayed ──ripe──▶ waiting for redelivery ──▶ held …
         │       ▲                      │                    │         ▲ ▲
         └───────┴──── PENDING_ACK ─────┴────────────────────┘         │ perhaps delivered by an earlier owner
                                              later ──its time came────┘

PENDING_ACK is decided by `PendingAcks`, not here: such a message is neither held, delayed nor waiting. What a consumer
has held for the ack timeout returns by itself (`ripen`), and what returns may be delayed first, by the back-off of its
subscription. A message that was returned more often than `max_redeliveries` does not wait: it is reported as dead.
What is to be delivered *later*, at a time that its producer has given, is put aside when it is read. These times are of
the wall clock, in milliseconds; all others are of a clock that is never set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from sortedcontainers import SortedDict, SortedSet

from metatxn.wire.position import Position
from participants.subscription.delivery_counts import Counted, DeliveryCounts
from participants.subscription.places import START, Place, Span, message_span
from participants.subscription.redelivery import Redelivery

MAX_OUTSTANDING = 50_000
"""The most unacknowledged messages of one segment. No more are read then, which bounds the memory."""
MAX_LATER = 100_000
"""The most messages besides them whose time has not come. Each takes some 400 bytes of memory."""
DUE_AT_ONCE = 1_000
"""If more messages become due at the same time, they do so in several turns of the event loop."""


@dataclass(slots=True)
class Delivery:
    """A message of an entry that has `size` messages. It was delivered `times` times; of these, `earlier` by earlier
    owners of the segment."""

    size: int
    times: int
    earlier: int = 0
    consumer: int | None = None
    """The number of its consumer's session, see `Sessions`."""
    dead: bool = False
    """It is being sent to the dead-letter topic, and not to a consumer."""
    withdrawn: int = 0
    """How often it returned only because an earlier message of its key did."""
    key: int | None = None
    """The hash of its key, where consumers get messages by key."""
    due_ms: int | None = None
    """It is not delivered until that time, and no consumer has it."""
    at_s: float | None = None
    """While it is held: when it returns by itself. Otherwise it is delayed: when it may be delivered again."""


class Deliveries:
    def __init__(self, start: Place, redelivery: Redelivery, counts: DeliveryCounts | None = None) -> None:
        """`counts` are those of earlier owners."""
        self.next_read = start
        self._redelivery = redelivery
        self._counts = counts or DeliveryCounts()
        self._outstanding: SortedDict[Place, Delivery] = SortedDict()
        self._waiting: SortedSet[Place] = SortedSet()
        self._held: dict[int, set[Place]] = {}
        """The held messages, by consumer."""
        self._timed: SortedSet[tuple[float, Place]] = SortedSet()
        """The messages to which something happens at a time, see `Delivery.at_s`."""
        self._later: SortedSet[tuple[int, Place]] = SortedSet()
        """The messages whose time has not come."""
        self._ahead: set[Place] = set()
        """The messages that wait, and that this owner has never delivered."""
        self._again: set[Place] = set()
        """The messages that were delivered more than once."""

    def __len__(self) -> int:
        """The number of outstanding messages."""
        return len(self._outstanding)

    @property
    def full(self) -> bool:
        return len(self._outstanding) - self.not_due >= MAX_OUTSTANDING or self.far_ahead

    @property
    def not_due(self) -> int:
        """The number of messages whose time has not come."""
        return len(self._later)

    @property
    def far_ahead(self) -> bool:
        """Whether as many messages as allowed were read and cannot be delivered yet."""
        return self.not_due >= MAX_LATER

    @property
    def crowded(self) -> bool:
        """Whether nothing more may become due, because too much waits for its consumers."""
        return False

    @property
    def undelivered(self) -> int:
        """The number of messages that were read and that this owner has never delivered."""
        return len(self._ahead) + self.not_due

    @property
    def redelivered(self) -> int:
        """The number of outstanding messages that were delivered more than once, as far as is known here."""
        return len(self._again)

    def waits(self, span: Span) -> bool:
        """Whether a message of `span` has to be delivered before it can be acknowledged in a transaction. What has
        returned does not: its last consumer may still acknowledge it."""
        if not self.undelivered:
            return False
        return any(place in self._ahead or self._outstanding[place].due_ms is not None for place in self._within(span))

    def items(self) -> Iterable[tuple[Place, Delivery]]:
        return self._outstanding.items()

    def get(self, place: Place) -> Delivery | None:
        return self._outstanding.get(place)

    def size_of(self, position: Position) -> int | None:
        """The number of messages of an entry, if one of them is outstanding."""
        first = next(self._within(Span(Place.at(position), Place.behind(position))), None)
        return self._outstanding[first].size if first is not None else None

    # -- giving ------------------------------------------------------------------------------------------------

    def first_waiting(self, start: Place = START) -> Place | None:
        """The first message at or after `start` that waits for redelivery."""
        return next(self._waiting.irange(start), None)

    def waiting_in(self, position: Position) -> list[Place]:
        """The messages of one entry that wait for redelivery, in order."""
        return list(self._waiting.irange(Place.at(position), Place.behind(position), inclusive=(True, False)))

    def give(self, place: Place, size: int, consumer: int, now_s: float) -> int:
        """Deliver a message to `consumer`. Returns how often it was delivered before."""
        delivery = self._outstanding.setdefault(place, Delivery(size, 0))
        delivery.times += 1
        self._hold(place, delivery, consumer, at_s=self._redelivery.returns_at(now_s))
        return delivery.times - 1

    def put_off(self, place: Place, size: int, due_ms: int, key: int | None = None) -> None:
        """A message that was read and is delivered at this time, or later."""
        self._enter(place, Delivery(size, 0, key=key, due_ms=due_ms))
        self._hold(place, self._outstanding[place], None, waiting=True)

    def pass_over(self, place: Place, size: int, key: int | None = None, due_ms: int | None = None) -> None:
        """Record a message that is PENDING_ACK when it is read for the first time: it was delivered by an earlier
        owner, or acknowledged for all."""
        self._enter(place, Delivery(size, max(1, self._counts.given_before(place)), key=key, due_ms=due_ms))

    def come_back(self, place: Place, size: int, key: int | None = None, due_ms: int | None = None) -> bool:
        """A message that an earlier owner has perhaps delivered waits for redelivery, or until its time. Returns
        whether it is dead, because it was delivered too often."""
        times = self._counts.given_before(place)
        self._enter(place, Delivery(size, times, times, key=key, due_ms=due_ms))
        return bool(self.returned([place]))

    def _enter(self, place: Place, delivery: Delivery) -> None:
        self._outstanding.setdefault(place, delivery)

    # -- taking back -------------------------------------------------------------------------------------------

    def gone(self, span: Span) -> None:
        """These messages are acknowledged."""
        for place in list(self._within(span)):
            self._hold(place, self._outstanding[place], None)
            self._again.discard(place)
            del self._outstanding[place]

    def reserved(self, span: Span) -> None:
        """These messages are PENDING_ACK: their consumer keeps them, but no one receives them until the transaction
        ends."""
        for place in self._within(span):
            if self._has_returned(place):
                self._hold(place, self._outstanding[place], None)

    def places_in(self, span: Span) -> list[Place]:
        return list(self._within(span))

    def count(self, span: Span) -> int:
        """The number of outstanding messages in `span`."""
        return self._outstanding.bisect_left(span.end) - self._outstanding.bisect_left(span.start)

    @property
    def consumers(self) -> list[int]:
        """The consumers that hold messages."""
        return list(self._held)

    def held_by(self, consumer: int) -> list[Place]:
        return sorted(self._held.get(consumer, ()))

    def number_held(self, consumer: int) -> int:
        return len(self._held.get(consumer, ()))

    def let_go(self, place: Place) -> None:
        """The consumer of this message is gone while it is PENDING_ACK."""
        self._hold(place, self._outstanding[place], None)

    def held(self) -> list[Place]:
        """The messages that any consumer holds."""
        return sorted(place for places in self._held.values() for place in places)

    def counted(self, begun: Collection[Place] = ()) -> list[Counted]:
        """How often all messages were delivered, in ranges; `begun` are about to be delivered once more. What is
        acknowledged may be in any range, because it is not delivered again."""
        found: list[Counted] = []
        for place, delivery in self._outstanding.items():
            times = delivery.times - delivery.withdrawn + (place in begun)
            end = message_span(place.position, place.message, delivery.size).end
            if found and found[-1].times == times:
                found[-1] = found[-1]._replace(end=end)
            else:
                found.append(Counted(place, end, times))
        return found

    def has_dead(self, span: Span) -> bool:
        return any(self._outstanding[place].dead for place in self._within(span))

    def returned(self, places: Iterable[Place], failed_s: float | None = None) -> list[Place]:
        """Return messages, which then wait for redelivery. With `failed_s` their consumers have failed to process them
        at that time, so that they are delayed. Returns those that were delivered too often and are dead from now
        on."""
        dead = []
        for place in places:
            delivery = self._outstanding.get(place)
            if delivery is None or delivery.dead:
                continue
            counted = delivery.times - delivery.withdrawn
            most = self._redelivery.max_redeliveries
            if most is not None and counted > most:
                delivery.dead = True
                dead.append(place)
            delayed = failed_s is not None and not delivery.dead
            at_s = self._redelivery.due_at(failed_s, counted) if delayed and failed_s is not None else None
            self._hold(place, delivery, None, waiting=not delivery.dead, at_s=at_s)
        return dead

    @property
    def next_due_ms(self) -> int | None:
        """When the time of a message comes, if it may become due then."""
        return self._later[0][0] if self._later and not self.crowded else None

    def become_due(self, now_ms: int) -> bool:
        """Messages whose time has come wait for delivery, up to `DUE_AT_ONCE` of them. Returns whether there are
        any."""
        moved = 0
        while moved < DUE_AT_ONCE and (due_ms := self.next_due_ms) is not None and due_ms <= now_ms:
            _, place = self._later.pop(0)
            delivery = self._outstanding[place]
            delivery.due_ms = None
            self._due(place, delivery)
            moved += 1
        return moved > 0

    def _due(self, place: Place, delivery: Delivery) -> None:
        self._hold(place, delivery, None, waiting=True)

    @property
    def next_s(self) -> float | None:
        """When there is something to `ripen`."""
        return self._timed[0][0] if self._timed else None

    def ripen(self, now_s: float) -> list[Place]:
        """What was delayed until now waits for redelivery. Returns what consumers have held for the ack timeout; they
        still hold it, for as long again."""
        overdue = []
        while self._timed and self._timed[0][0] <= now_s:
            place = self._timed[0][1]
            delivery = self._outstanding[place]
            if delivery.consumer is None:
                self._hold(place, delivery, None, waiting=True)
            else:
                self._hold(place, delivery, delivery.consumer, at_s=self._redelivery.returns_at(now_s))
                overdue.append(place)
        return overdue

    def _has_returned(self, place: Place) -> bool:
        """Whether the message waits for delivery, or is delayed until it may."""
        delivery = self._outstanding[place]
        delayed = delivery.consumer is None and (delivery.at_s is not None or delivery.due_ms is not None)
        return place in self._waiting or delayed

    def _hold(
        self,
        place: Place,
        delivery: Delivery,
        consumer: int | None,
        *,
        waiting: bool = False,
        at_s: float | None = None,
    ) -> None:
        """Assign the message to this consumer, or to none; then it may wait for delivery, from `at_s` or its time
        on."""
        if delivery.due_ms is not None:
            (self._later.add if waiting else self._later.discard)((delivery.due_ms, place))
            return
        if delivery.at_s is not None:
            self._timed.discard((delivery.at_s, place))
        if at_s is not None:
            self._timed.add((at_s, place))
        delivery.at_s = at_s
        if delivery.consumer is not None:
            held = self._held[delivery.consumer]
            held.discard(place)
            if not held:
                del self._held[delivery.consumer]
        if consumer is not None:
            self._held.setdefault(consumer, set()).add(place)
        delivery.consumer = consumer
        if waiting and at_s is None:
            self._waiting.add(place)
        else:
            self._waiting.discard(place)
        if delivery.times > 1:
            self._again.add(place)
        if waiting and delivery.times == delivery.earlier:
            self._ahead.add(place)
        else:
            self._ahead.discard(place)

    def _within(self, span: Span) -> Iterator[Place]:
        return self._outstanding.irange(span.start, span.end, inclusive=(True, False))
