"""A subscription that consumers share by key: the messages of a key are given in their order, and while one consumer
has some of them no other gets any.

A message follows those before it under its key: each is acknowledged for good, or the same consumer was given it and
has not returned it, perhaps in an answer to a copy of its request. What a consumer has acknowledged in a transaction
stays its own until the decision. What it has not acknowledged stays its own until it may have returned: when somebody
returned any message of the key, or aborted what others of it were acknowledged in, or it was silent for as long as a
session lasts. Who has what is only known to the owner of a segment, so this is not judged where a segment or the home
has had another owner.

Nothing follows a message that is to be delivered later, and segments that take over do not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from metastore.txn import paths
from metatxn.wire.names import MessageId
from tests.simulation.history import Delivered, History, Returned

SESSION_S = 30.0


def check(history: History) -> Iterable[str]:
    if history.delivered:
        story = _Story(history)
        for delivered in history.delivered:
            for message_id, key in delivered.keys.items():
                if not delivered.copied:
                    yield from story.out_of_order(delivered, message_id, key)
                yield from story.at_two(delivered, message_id, key)


class _Place(NamedTuple):
    """Where a message lies, among those of its key: segments in the order in which they took over."""

    segment: int
    ledger: int
    entry: int
    message: int


class _Story:
    def __init__(self, history: History) -> None:
        self._history = history
        (self._topic,) = {topic for topic, _ in history.pipes}
        self._segments = {name: number for number, name in enumerate(history.layouts[self._topic])}
        self._order = self._orders()
        self._delayed = {
            _Place(self._segments[seen.segment], *seen.position, seen.index)
            for seen in history.visible_in(self._topic)
            if seen.id in history.due_s
        }
        self._key_of = {each: key for delivered in history.delivered for each, key in delivered.keys.items()}

    def _orders(self) -> dict[str, list[_Place]]:
        """Of each key the messages that can be read in the end."""
        found = sorted(
            (seen.key, _Place(self._segments[seen.segment], *seen.position, seen.index))
            for seen in self._history.visible_in(self._topic)
        )
        return {key: [place for _, place in each] for key, each in groupby(found, lambda pair: pair[0])}

    def _place(self, message_id: str) -> _Place:
        parsed = MessageId.parse(message_id)
        return _Place(self._segments[parsed.segment], parsed.position.ledger, parsed.position.entry, parsed.index)

    # -- in order ----------------------------------------------------------------------------------------------

    def out_of_order(self, delivered: Delivered, message_id: str, key: str) -> Iterator[str]:
        place = self._place(message_id)
        before = {each for each in self._order[key] if each < place} - self._delayed
        if missing := before - self._had(delivered, message_id) - self._acknowledged(delivered.at_revision):
            yield f"{delivered} comes with {message_id} at {place} of {key} before {sorted(missing)}"

    def _had(self, delivered: Delivered, message_id: str) -> set[_Place]:
        """What its consumer was given before, and has not returned."""
        had: set[_Place] = set()
        for other in self._history.delivered:
            if other.consumer == delivered.consumer and other is not delivered and other.answered <= delivered.asked:
                had |= {self._place(each) for each in other.keys if not self._returned(each, other, delivered)}
        ids = list(delivered.keys)
        return had | {self._place(each) for each in ids[: ids.index(message_id)]}

    def _returned(self, message_id: str, given: Delivered, until: Delivered) -> bool:
        return any(
            returned.answered is not None and given.answered <= returned.asked and returned.answered <= until.asked
            for returned in self._history.returned
            if message_id in returned.ids and not self._stayed(message_id, returned, until)
        )

    def _stayed(self, message_id: str, returned: Returned, until: Delivered) -> bool:
        """Whether a transaction that is open all the while may have acknowledged it by then, so that it could not be
        returned."""
        decisions = self._history.decisions
        return any(
            message_id in ids
            and ((answered := ids[message_id]) is None or answered <= returned.asked)
            and (txn_id not in decisions or decisions[txn_id].revision > until.floor)
            for txn_id, ids in self._history.taken.items()
        )

    def _acknowledged(self, revision: int) -> set[_Place]:
        """For good, perhaps."""
        decisions = self._history.decisions
        return {
            self._place(each)
            for txn_id, ids in self._history.taken.items()
            if txn_id in decisions and decisions[txn_id].committed and decisions[txn_id].revision <= revision
            for each in ids
        }

    # -- at one consumer ---------------------------------------------------------------------------------------

    def at_two(self, delivered: Delivered, message_id: str, key: str) -> Iterator[str]:
        for other in self._history.delivered:
            if other.consumer == delivered.consumer or other.answered >= delivered.asked:
                continue
            for held in (each for each, its_key in other.keys.items() if its_key == key):
                stable = self._one_owner(held, delivered) and self._one_owner(message_id, delivered)
                if self._beside(held, message_id):
                    continue
                if stable and (self._reserved(held, other, delivered) or self._still_has(other, held, key, delivered)):
                    yield f"{delivered} has {message_id} of {key} while {other} has {held}"

    def _beside(self, held: str, message_id: str) -> bool:
        """Whether they lie in different segments, of which the earlier one has delivered its message later."""
        places = sorted((self._place(held), self._place(message_id)))
        return places[0].segment < places[1].segment and places[0] in self._delayed

    def _one_owner(self, message_id: str, delivered: Delivered) -> bool:
        home = next(name for name, number in self._segments.items() if number == 0)
        owners = (paths.segment_owner(name) for name in (home, MessageId.parse(message_id).segment))
        return all(
            sum(revision <= delivered.at_revision for revision, _ in self._history.states[owner]) <= 1
            for owner in owners
        )

    def _reserved(self, message_id: str, other: Delivered, delivered: Delivered) -> bool:
        """Whether a transaction that is open all the while has acknowledged it, for the other consumer."""
        decisions = self._history.decisions
        return any(
            (answered := ids.get(message_id)) is not None
            and answered < delivered.asked
            and not self._had_since(other, message_id, delivered.consumer, answered)
            and (txn_id not in decisions or decisions[txn_id].revision > delivered.at_revision)
            for txn_id, ids in self._history.taken.items()
        )

    def _had_since(self, other: Delivered, message_id: str, consumer: str, until: float) -> bool:
        """Whether it went from the other consumer to this one, which may have acknowledged it itself."""
        return any(
            each.consumer == consumer
            and message_id in each.keys
            and each.asked < until
            and other.answered < each.answered  # a request may wait long for what another one returns
            for each in self._history.delivered
        )

    def _still_has(self, other: Delivered, message_id: str, key: str, delivered: Delivered) -> bool:
        """Whether the other consumer still has it, however late anything arrived."""
        history, decisions = self._history, self._history.decisions
        returned = any(
            self._key_of.get(each) == key and returned.asked < delivered.answered
            for returned in history.returned
            for each in returned.ids
        )
        ended = any(
            message_id in ids or (not decisions[txn_id].committed and key in map(self._key_of.get, ids))
            for txn_id, ids in history.taken.items()
            if txn_id in decisions and decisions[txn_id].revision <= delivered.at_revision
        )
        return not returned and not ended and delivered.answered < other.asked + min(SESSION_S, history.ack_timeout_s)
