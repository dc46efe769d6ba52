"""Dispatch of a `key_shared` subscription on one owned segment: each consumer gets the keys that it is due for.

A message is delivered if its consumer is due for the key (see `assignment`), if no other consumer has a message of it,
and if everything before it under the key is acknowledged or at the same consumer. So it does not matter for the order
who is due, which other brokers may see differently, and which changes when consumers come and go: a key passes to its
next consumer only once the last one has nothing of it (DESIGN §5.10).

A message that returns takes the later ones of its key along, so that they follow it again. What is acknowledged in an
undecided transaction holds its key, also after the segment was opened again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from metatxn.wire.frames import RawFrame
from metatxn.wire.ids import TxnId
from participants.messages.payloads import key_hashes, message_count
from participants.subscription.assignment import Assignment, assignment
from participants.subscription.dispatch import Blocking, Dispatch
from participants.subscription.keyed_deliveries import KeyedDeliveries
from participants.subscription.places import Place, Span
from participants.subscription.taking import Taker, Taking


class KeyedDispatch(Dispatch):
    _deliveries: KeyedDeliveries
    _present: tuple[int, ...] = ()
    """The consumers that were present at the last request."""
    _held_before: dict[TxnId, dict[int, Place]] | None = None
    """The keys that transactions hold since before the segment was opened, each with a message that they have
    acknowledged. What they have acknowledged since is in `_deliveries`. None until it is read."""

    # -- giving ------------------------------------------------------------------------------------------------

    async def deliver(self, taking: Taking) -> None:
        if self._held_before is None:
            self._held_before = await self._keys_held_before()
            self._forget_decided()
        self._present = taking.taker.present
        was_full = self._deliveries.full
        try:
            await super().deliver(taking)
        finally:
            if was_full and not self._deliveries.full:
                self._segment.changed.notify()  # others can read on

    async def _keys_held_before(self) -> dict[TxnId, dict[int, Place]]:
        found: dict[TxnId, dict[int, Place]] = {}
        for known in self._pending:
            keys = found[known.txn_id] = {}
            for position in sorted({ack.position for ack in known.acks if not ack.cumulative}):
                frame = await self.frame(position)
                for index, key in enumerate(key_hashes(frame) if frame is not None else ()):
                    place = Place.at(position)._replace(message=index)
                    if place in known.ranges:
                        keys.setdefault(key, place)
        return found

    async def _choose_waiting(self, taking: Taking) -> None:
        may_have, waiting = self._keys_for(taking.taker), self._deliveries.waiting(self._deliveries.next_read)
        taken: Counter[int] = Counter()
        for position in dict.fromkeys(place.position for place, key in waiting if may_have(key)):
            if not taking.room:
                return
            frame = await self.frame(position)
            if frame is not None:
                taking.choose(frame, self._waiting_of(frame, taking.room, taking.taker, taken))
            else:  # it has been trimmed meanwhile
                self.delete(Span(Place.at(position), Place.behind(position)))

    def _waiting_of(self, frame: RawFrame, room: int, taker: Taker, taken: Counter[int] | None = None) -> list[int]:
        return self._next_in(frame, self._deliveries.next_read, room, taker, taken)

    def _next_of_entry(self, frame: RawFrame, at: Place, taking: Taking, due_ms: Mapping[int, int]) -> Place:
        """Read messages of an entry from `at` on, as far as the bound allows, and deliver of them as many as there is
        room for. Returns the place after those that were read."""
        size, keys = message_count(frame), key_hashes(frame)
        while at.position == frame.position and not self._deliveries.far_ahead:
            if at not in self._cursor:
                key, later_ms = keys[at.message], due_ms.get(at.message)
                if self._pending.holder(at) is not None:
                    self._deliveries.pass_over(at, size, key, later_ms)
                elif later_ms is not None:
                    self._deliveries.put_off(at, size, later_ms, key)
                else:
                    self._deliveries.read_ahead(at, size, key)
            at = Place.behind(frame.position) if at.message + 1 == size else at._replace(message=at.message + 1)
        self._give(frame, self._next_in(frame, at, taking.room, taking.taker), taking)
        return at

    def _next_in(
        self, frame: RawFrame, before: Place, room: int, taker: Taker, taken: Counter[int] | None = None
    ) -> list[int]:
        return self._deliveries.next_in(frame.position, before, room, self._keys_for(taker), taken)

    def _keys_of(self, frame: RawFrame) -> Sequence[int]:
        return key_hashes(frame)

    def _keys_for(self, taker: Taker) -> Callable[[int], bool]:
        """The keys of which the consumer may have the next message now."""
        assigned = assignment(taker.present)

        def may_have(key: int) -> bool:
            if assigned.consumer_of(key) != taker.session or self._holder_before(key) is not None:
                return False
            return all(holder == taker.session for holder in self._deliveries.holders(key))

        return may_have

    def _holder_before(self, key: int) -> TxnId | None:
        """The undecided transaction that holds the key since before the segment was opened."""
        return next((txn_id for txn_id, keys in (self._held_before or {}).items() if key in keys), None)

    def _forget_decided(self) -> None:
        held = self._held_before or {}
        for txn_id in [txn_id for txn_id in held if self._pending.get(txn_id) is None]:
            del held[txn_id]

    # -- taking back -------------------------------------------------------------------------------------------

    def delete(self, span: Span) -> None:
        before, was_crowded = len(self._deliveries), self._deliveries.crowded
        super().delete(span)
        if len(self._deliveries) < before:
            self._segment.changed.notify()  # a key may be free, or the segment at its end
        if was_crowded and not self._deliveries.crowded:
            self._set_timer()

    def give_back(self, places: Iterable[Place], *, failed: bool = False) -> list[Place]:
        """Return messages. Also called at the end of each transaction, with what returns of it, if anything."""
        self._forget_decided()
        asked = list(places)
        later = [place for place in self._deliveries.later(asked) if self._pending.holder(place) is None]
        self._deliveries.withdraw(later)
        super().give_back(later)  # nothing is known against them: they only follow those that were asked for
        if later:
            self.recount()
        super().give_back(asked, failed=failed)
        return later

    def holders_before(self, spans: Iterable[Span]) -> set[TxnId]:
        before = self._deliveries.up_to(spans)
        return {holder for place in before if (holder := self._pending.holder(place)) is not None}

    # -- looking -----------------------------------------------------------------------------------------------

    def has_more(self, taker: Taker | None) -> bool:
        """Whether the consumer could take a message, or there is something to be read."""
        if self._has_unread() or self._held_before is None:
            return True
        if taker is None:
            return False
        may_have = self._keys_for(taker)
        return any(may_have(key) for _, key in self._deliveries.waiting(self._deliveries.next_read))

    @property
    def ended(self) -> bool:
        """Whether everything that the segment will ever contain is acknowledged, except what is to be delivered later:
        until then a key may be at a consumer that is not the one to which a segment that takes over would deliver
        it."""
        return len(self._deliveries) == self._deliveries.not_due and self._segment.ended_at(
            max(self._deliveries.next_read, self._cursor.mark_delete).last_before
        )

    def blocking(self) -> Blocking | None:
        """The first message that keeps others of its key from a consumer that is due for them. If there is none and
        nothing more may be read ahead: the first message that its consumer does not come for."""
        assigned, first = assignment(self._present), None
        for place, key in self._deliveries.waiting(self._deliveries.next_read):
            if (blocking := self._blocking(key, assigned)) is not None:
                return blocking
            first = first or Blocking(place, assigned.consumer_of(key), None)
        return first if self._deliveries.far_ahead else None

    def _blocking(self, key: int, assigned: Assignment) -> Blocking | None:
        if (txn_id := self._holder_before(key)) is not None:
            assert self._held_before is not None
            return Blocking(self._held_before[txn_id][key], None, txn_id)
        held = self._deliveries.first_held(key)
        if held is None or all(holder == assigned.consumer_of(key) for holder in self._deliveries.holders(key)):
            return None
        place, consumer = held
        return Blocking(place, consumer, self._pending.holder(place))
