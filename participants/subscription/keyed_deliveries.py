"""The unacknowledged messages of a `key_shared` subscription on one segment, also by key.

To `Deliveries` this adds messages that were read and not delivered yet, because another consumer is due for their key,
or has earlier messages of it. They wait like those that have returned:

    read ahead ──▶ waiting ──▶ held by a consumer …

What is to be delivered later takes part in the order of its key once its time has come, at its place.

A key counts by its hash, so two keys with the same hash are treated as one. It is *held* by the one that has a message
of it that does not wait: a consumer, or no one that is known here, for a message that is PENDING_ACK in a transaction
whose consumer is gone, or that is on its way to the dead-letter topic. Only a consumer that alone holds the key, or
that takes a free one, may have its next message, so the messages of a key are always at one consumer, in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from sortedcontainers import SortedSet

from metatxn.wire.position import Position
from participants.subscription.deliveries import Deliveries, Delivery
from participants.subscription.delivery_counts import DeliveryCounts
from participants.subscription.places import Place, Span
from participants.subscription.redelivery import Redelivery

LOOK_AHEAD = 2_000
"""The most messages of one segment that were read and not delivered yet. No more are read then."""


@dataclass(slots=True)
class _Key:
    """The unacknowledged messages of a key; those of them that wait, also while they are delayed; and how many of the
    others each consumer has."""

    places: SortedSet[Place] = field(default_factory=SortedSet)
    waiting: SortedSet[Place] = field(default_factory=SortedSet)
    holders: Counter[int | None] = field(default_factory=Counter)


class KeyedDeliveries(Deliveries):
    def __init__(self, start: Place, redelivery: Redelivery, counts: DeliveryCounts | None = None) -> None:
        super().__init__(start, redelivery, counts)
        self._keys: dict[int, _Key] = {}

    @property
    def far_ahead(self) -> bool:
        return super().far_ahead or self.crowded

    @property
    def crowded(self) -> bool:
        return len(self._ahead) >= LOOK_AHEAD

    def waits(self, span: Span) -> bool:
        """See `Deliveries`. What has returned may already be another consumer's turn, so it does wait."""
        return any(self._has_returned(place) for place in self._within(span))

    # -- reading ahead -----------------------------------------------------------------------------------------

    def read_ahead(self, place: Place, size: int, key: int) -> None:
        """A message that waits from now on until its consumer comes for it."""
        self._enter(place, Delivery(size, 0, key=key))
        delivery = self._outstanding[place]
        if not delivery.times:
            self._hold(place, delivery, None, waiting=True)

    def _enter(self, place: Place, delivery: Delivery) -> None:
        if place not in self._outstanding:
            self._outstanding[place] = delivery
            if delivery.due_ms is None:
                self._line_up(place, delivery)

    def _due(self, place: Place, delivery: Delivery) -> None:
        self._line_up(place, delivery)
        super()._due(place, delivery)

    def _line_up(self, place: Place, delivery: Delivery) -> None:
        """The message takes part in the order of its key, from its place or its time on."""
        assert delivery.key is not None
        found = self._keys.setdefault(delivery.key, _Key())
        found.places.add(place)
        found.holders[None] += 1

    # -- whose turn it is --------------------------------------------------------------------------------------

    def holders(self, key: int) -> Iterable[int | None]:
        """The consumers that have messages of the key. None stands for a transaction, or for the dead-letter topic."""
        return self._keys[key].holders.keys()

    def first_held(self, key: int) -> tuple[Place, int | None] | None:
        """The first message of the key that does not wait, and its consumer."""
        found = self._keys[key]
        place = next((each for each in found.places if each not in found.waiting), None)
        return None if place is None else (place, self._outstanding[place].consumer)

    def waiting(self, before: Place) -> Iterator[tuple[Place, int]]:
        """The messages that wait and are before this place, in order, and their keys."""
        for place in self._waiting.irange(None, before, inclusive=(True, False)):
            key = self._outstanding[place].key
            assert key is not None
            yield place, key

    def next_in(
        self,
        position: Position,
        before: Place,
        limit: int,
        may_have: Callable[[int], bool],
        taken: Counter[int] | None = None,
    ) -> list[int]:
        """The indexes of up to `limit` messages of one entry, before this place, that are the next ones of keys that a
        consumer may have. They are in order. `taken` counts those of each key that it will have before."""
        found: list[int] = []
        taken = Counter() if taken is None else taken
        for place in self.waiting_in(position):
            if place >= before or len(found) == limit:
                break
            key = self._outstanding[place].key
            assert key is not None
            if may_have(key) and self._keys[key].waiting[taken[key]] == place:
                taken[key] += 1
                found.append(place.message)
        return found

    def up_to(self, spans: Iterable[Span]) -> set[Place]:
        """The unacknowledged messages of the keys in `spans` up to the last one there of each key, without those that
        wait."""
        last = {
            self._outstanding[place].key: place
            for place in sorted(each for span in spans for each in self._within(span))
            if self._outstanding[place].due_ms is None
        }
        return {
            place
            for key, end in last.items()
            if key is not None
            for place in self._keys[key].places.irange(None, end)
            if not self._has_returned(place)
        }

    # -- taking back -------------------------------------------------------------------------------------------

    def later(self, places: Sequence[Place]) -> list[Place]:
        """The messages that consumers have, and that come after any of these under the same key."""
        first: dict[int, Place] = {}
        for place in places:
            known = self._outstanding.get(place)
            if known is not None and known.key is not None and known.due_ms is None:
                first[known.key] = min(place, first.get(known.key, place))
        asked = set(places)
        return [
            place
            for key, start in first.items()
            for place in islice(self._keys[key].places.irange(start), 1, None)
            if place not in asked and self._outstanding[place].consumer is not None
        ]

    def withdraw(self, places: Iterable[Place]) -> None:
        """These messages return only because of an earlier one, so this does not count against them."""
        for place in places:
            self._outstanding[place].withdrawn += 1

    # -- inside ------------------------------------------------------------------------------------------------

    def gone(self, span: Span) -> None:
        found = [(place, self._outstanding[place]) for place in self._within(span)]
        leaving = [(place, delivery.key) for place, delivery in found if delivery.due_ms is None]
        super().gone(span)
        for place, number in leaving:
            assert number is not None
            key = self._keys[number]
            self._release(key, None)
            key.places.discard(place)
            if not key.places:
                del self._keys[number]

    def _hold(
        self,
        place: Place,
        delivery: Delivery,
        consumer: int | None,
        *,
        waiting: bool = False,
        at_s: float | None = None,
    ) -> None:
        if delivery.due_ms is not None:
            super()._hold(place, delivery, consumer, waiting=waiting, at_s=at_s)
            return
        assert delivery.key is not None
        key, waited = self._keys[delivery.key], self._has_returned(place)
        if not waited:
            self._release(key, delivery.consumer)
        super()._hold(place, delivery, consumer, waiting=waiting, at_s=at_s)
        if waiting:
            key.waiting.add(place)
        else:
            key.waiting.discard(place)
            key.holders[consumer] += 1

    @staticmethod
    def _release(key: _Key, holder: int | None) -> None:
        key.holders[holder] -= 1
        if not key.holders[holder]:
            del key.holders[holder]
