"""Places between the messages of a segment: `ledger:entry:message`, in their order.

A place is just before the message that it names. What is acknowledged, pending or skipped is a half-open range of
places, so that single messages, whole entries, and everything up to an entry all have the same form:

    message 2 of entry 1:7, which has 10         [1:7:2, 1:7:3)
    messages 2 to 5 of it                        [1:7:2, 1:7:6)
    the last message of it                       [1:7:9, 1:8:0)     so that it touches the next entry
    the whole entry                              [1:7:0, 1:8:0)
    everything up to message 2                   [0:0:0, 1:7:3)
"""

from __future__ import annotations

from typing import NamedTuple, Self

from metatxn.wire.position import Position


class Place(NamedTuple):
    ledger: int
    entry: int
    message: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.message}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a place. Raises `ValueError`."""
        ledger, entry, message = map(int, text.split(":"))
        return cls(ledger, entry, message)

    @classmethod
    def at(cls, position: Position) -> Self:
        """The place before the first message of the entry at `position`."""
        return cls(position.ledger, position.entry, 0)

    @classmethod
    def behind(cls, position: Position) -> Self:
        """The place before the first message of the entry after `position`, which may be a bound."""
        return cls(position.ledger, position.entry + 1, 0)

    @property
    def position(self) -> Position:
        """The position of the entry of the message."""
        return Position(self.ledger, self.entry)

    @property
    def read_after(self) -> Position:
        """The position after which a read begins with the entry of the message."""
        return Position(self.ledger, self.entry - 1)

    @property
    def last_before(self) -> Position:
        """The last entry that is completely before this place, or a bound if there is none in its ledger."""
        return Position(self.ledger, self.entry - 1)


START = Place(0, 0, 0)


class Span(NamedTuple):
    """The places from `start` up to, but not including, `end`."""

    start: Place
    end: Place


class Start(NamedTuple):
    """Where a subscription begins on a segment. What is in `acked`, all of it after `place`, counts as acknowledged."""

    place: Place
    acked: tuple[Span, ...] = ()


EARLIEST = Start(START)


def message_span(position: Position, index: int, size: int, last: int | None = None) -> Span:
    """The span of message `index` of an entry that has `size` messages, or of all from it up to `last`."""
    last = index if last is None else last
    assert 0 <= index <= last < size
    start = Place(position.ledger, position.entry, index)
    return Span(start, Place.behind(position) if last == size - 1 else start._replace(message=last + 1))


def entry_span(position: Position) -> Span:
    return Span(Place.at(position), Place.behind(position))
