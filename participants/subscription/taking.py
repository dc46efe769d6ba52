"""A request of a consumer for messages, while it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from metatxn.wire.broker import MAX_ENTRY_MESSAGES, ReadMessage, ReceivedMessage
from metatxn.wire.frames import RawFrame
from metatxn.wire.position import Position
from participants.messages.payloads import message_count, read_bytes, read_messages
from participants.subscription.places import Place

FIRST_ATTACHED = 1 << 48
"""The number of the first consumer that is attached to the owner of a segment. No session of a home has such a
number."""


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
        position = self.frame.position
        return [Place(position.ledger, position.entry, index) for index in self.indexes]


@dataclass(slots=True)
class Taking:
    """The messages for a request. `given` has up to `limit` messages, and may exceed `max_bytes` by one entry."""

    taker: Taker
    limit: int
    max_bytes: int
    given: list[DeliveredMessage] = field(default_factory=list)
    number: int = 0
    """The bytes of the messages that were given."""
    size_bytes: int = 0
    """The bytes of what is given and chosen."""

    chosen: list[Chosen] = field(default_factory=list)
    """The messages that are given next, if nothing happens to them meanwhile."""
    _chosen: int = 0
    """The number of its messages."""

    @property
    def room(self) -> int:
        """How many more messages may be chosen or given."""
        return 0 if self.size_bytes >= self.max_bytes else self.limit - self.number - self._chosen

    def choose(self, frame: RawFrame, indexes: Sequence[int]) -> None:
        self.chosen.append(Chosen(frame, indexes))
        self._chosen += len(indexes)
        self.size_bytes += share_bytes(frame) * len(indexes)

    def take_chosen(self) -> list[Chosen]:
        """Give the chosen messages now, as far as that is still possible."""
        chosen, self.chosen, self._chosen = self.chosen, [], 0
        self.size_bytes -= sum(share_bytes(each.frame) * len(each.indexes) for each in chosen)
        return chosen

    def made_of(self, segment: str, chosen: Chosen) -> Any:
        """The form in which these messages are given."""
        return read_messages(segment, chosen.frame, chosen.indexes)

    def give(self, made: Any, times: Sequence[int], share: int) -> None:
        """How often each message was delivered before. `share` is its share of the entry's bytes."""
        self.given += [DeliveredMessage(_received(*each), share) for each in zip(made, times, strict=True)]
        self.number += len(times)
        self.size_bytes += share * len(times)


@dataclass(slots=True)
class DeliveredEntry:
    """Messages of one entry for a consumer, by their indexes. `times` is how often one of them was delivered before, at
    most."""

    frame: RawFrame
    indexes: list[int]
    times: int


@dataclass(slots=True)
class TakingEntries(Taking):
    """A request of a consumer that reads entries itself: it gets all messages of an entry that it may have, and so may
    exceed `limit` by an entry, too."""

    entries: dict[Position, DeliveredEntry] = field(default_factory=dict)

    @property
    def room(self) -> int:
        full = self.size_bytes >= self.max_bytes or self.number + self._chosen >= self.limit
        return 0 if full else MAX_ENTRY_MESSAGES

    def made_of(self, segment: str, chosen: Chosen) -> Any:
        return chosen

    def give(self, made: Any, times: Sequence[int], share: int) -> None:
        frame, indexes = made
        known = self.entries.setdefault(frame.position, DeliveredEntry(frame, [], 0))
        # What returns while entries are read may be delivered again in the same answer.
        known.indexes = sorted({*known.indexes, *indexes})
        known.times = max(known.times, *times)
        self.number += len(times)
        self.size_bytes += share * len(times)


def _received(message: ReadMessage, redelivery_count: int) -> ReceivedMessage:
    return ReceivedMessage(**vars(message), redelivery_count=redelivery_count)


def share_bytes(frame: RawFrame) -> int:
    """The share that each message has of its entry, as its readers have it in memory."""
    return read_bytes(frame) // message_count(frame)
