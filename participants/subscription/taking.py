"""A request of a consumer for messages, while it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from metatxn.wire.broker import ReceivedMessage
from metatxn.wire.frames import RawFrame
from participants.messages.payloads import message_count
from participants.subscription.places import Place


@dataclass(frozen=True, slots=True)
class DeliveredMessage:
    """A message for a consumer. `size_bytes` is its share of the entry."""

    message: ReceivedMessage
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Taker:
    """A consumer that takes messages: the number of its session, and those of all consumers that are present."""

    session: int
    present: tuple[int, ...]


class Chosen(NamedTuple):
    """Messages of one entry, by their indexes, that are about to be delivered."""

    frame: RawFrame
    indexes: Sequence[int]

    @property
    def places(self) -> list[Place]:
        return [Place.at(self.frame.position)._replace(message=index) for index in self.indexes]


@dataclass(slots=True)
class Taking:
    """`given` has up to `limit` messages, and may exceed `max_bytes` by one entry."""

    taker: Taker
    limit: int
    max_bytes: int
    given: list[DeliveredMessage] = field(default_factory=list)
    size_bytes: int = 0
    """Of what is given and chosen."""

    chosen: list[Chosen] = field(default_factory=list)
    """What is given next, if nothing happens to it meanwhile."""
    _chosen: int = 0
    """The number of its messages."""

    @property
    def room(self) -> int:
        """How many more messages may be chosen or given."""
        return 0 if self.size_bytes >= self.max_bytes else self.limit - len(self.given) - self._chosen

    def choose(self, frame: RawFrame, indexes: Sequence[int]) -> None:
        self.chosen.append(Chosen(frame, indexes))
        self._chosen += len(indexes)
        self.size_bytes += share_bytes(frame) * len(indexes)

    def take_chosen(self) -> list[Chosen]:
        """They are given now, as far as that is still possible."""
        chosen, self.chosen, self._chosen = self.chosen, [], 0
        self.size_bytes -= sum(share_bytes(each.frame) * len(each.indexes) for each in chosen)
        return chosen

    def give(self, messages: Sequence[DeliveredMessage]) -> None:
        self.given += messages
        self.size_bytes += sum(each.size_bytes for each in messages)


def share_bytes(frame: RawFrame) -> int:
    """The share that each message has of its entry."""
    return len(frame.data) // message_count(frame)
