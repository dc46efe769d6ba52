"""Messages on their way to an entry."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

from metatxn.topics import Layout
from metatxn.wire.batches import PackedMessage, pack_batch, unpacked_messages
from metatxn.wire.errors import InvalidArgument, MetatxnError
from metatxn.wire.frames import NO_SEQUENCE, PayloadKind
from metatxn.wire.record_batches import Codec

BATCH_MESSAGES = 1000
RECORD_BYTES = 6
"""The most that a message takes in an entry besides its content and its prefix."""
STICKY_MESSAGES = 100
"""At least this many messages without a key go to one segment before the next segment's turn, so that they share
entries; and those of a small transaction need only one intent."""


class Together:
    """What becomes of messages that are sent together. `future` tells their positions, in order, or the first failure;
    it is of the kind that its sender can wait for."""

    def __init__(self, future: asyncio.Future[list[str]] | concurrent.futures.Future[list[str]], count: int) -> None:
        self._future = future
        self._positions = [""] * count
        self._left = count

    def landed(self, places: Collection[int], outcome: str | MetatxnError) -> None:
        """The messages at these places are durable at this position, or have failed. Each place lands once."""
        if self._future.done():
            return  # another one has failed, or nobody waits
        if not isinstance(outcome, str):
            self._future.set_exception(outcome)
            self._future.exception()  # retrieved, see `MessageFormat.done`
            return
        for place in places:
            self._positions[place] = outcome
        self._left -= len(places)
        if self._left == 0:
            self._future.set_result(self._positions)


@dataclass(slots=True)
class Outgoing:
    """A queued message. `future` is of the kind that its sender can wait for, or that of several messages."""

    whole: ClassVar[bool] = False
    key: str | None
    prefix: bytes
    content: bytes
    future: asyncio.Future[str] | concurrent.futures.Future[str] | Together
    sequence: int = NO_SEQUENCE
    """The message's own sequence, if the producer is sequenced."""
    place: int = 0
    """Its place among those that are sent together."""
    number: int = 0


@dataclass(slots=True, eq=False)
class Portion:
    """Messages that are sent together, and go to one segment: an entry by itself, which is encoded already."""

    whole: ClassVar[bool] = True
    payload: bytes
    places: Sequence[int]
    keys: set[str | None]
    home: str | None
    """The segment of all keys. Messages without a key have none."""
    together: Together
    sequence: int = NO_SEQUENCE
    """Messages of a sequenced producer are not sent together."""
    number: int = 0

    def messages(self) -> list[Outgoing]:
        """The messages, one by one."""
        return [
            Outgoing(key, *packed, self.together, place=place)
            for place, (key, packed) in zip(self.places, unpacked_messages(self.payload), strict=True)
        ]


Queued = Outgoing | Portion


def check_compression(compression: str | None) -> None:
    """Raises `InvalidArgument` for what is not a codec."""
    if compression is not None and compression not in get_args(Codec):
        raise InvalidArgument(
            f"compression: is {compression!r}, not one of {', '.join(get_args(Codec))}", field="compression"
        )


class MessageFormat:
    """Messages without a key go to one segment until an entry of them is on its way, and then to the next one."""

    kind = PayloadKind.BATCH

    def __init__(self, compression: Codec | None = None) -> None:
        self._compression = compression
        self._turn = 0
        self._in_turn = 0
        """The number of messages without a key that went to the segment whose turn it is."""
        self._known: tuple[Layout, str] | None = None
        """The segment whose turn it is, in this layout."""

    def size(self, item: Queued) -> int:
        if isinstance(item, Portion):
            return len(item.payload)
        return len(item.prefix) + len(item.content) + RECORD_BYTES

    def keys(self, items: Iterable[Queued]) -> set[Hashable]:
        found: set[Hashable] = set()
        for item in items:
            if isinstance(item, Portion):
                found |= item.keys
            else:
                found.add(item.key)
        return found

    def split(self, item: Queued, layout: Layout) -> Iterable[tuple[str, Queued]]:
        if isinstance(item, Portion):
            return self._split(item, layout)
        if item.key is not None:
            return ((layout.segment_of(item.key), item),)
        if self._in_turn >= BATCH_MESSAGES:
            self._next_turn()
        self._in_turn += 1
        if self._known is None or self._known[0] is not layout:
            self._known = layout, layout.any_segment(self._turn)
        return ((self._known[1], item),)

    def _split(self, portion: Portion, layout: Layout) -> Iterable[tuple[str, Queued]]:
        if portion.home is None:
            self._next_turn()
            return ((layout.any_segment(self._turn), portion),)
        if portion.home in layout.names:  # the range of a segment never changes
            return ((portion.home, portion),)
        return [piece for each in portion.messages() for piece in self.split(each, layout)]

    def encode(self, items: Sequence[Queued]) -> tuple[bytes, int]:
        if isinstance(first := items[0], Portion):
            return first.payload, len(first.places)
        if self._in_turn >= STICKY_MESSAGES:
            self._next_turn()
        return self.pack([(item.prefix, item.content) for item in items if isinstance(item, Outgoing)])

    def pack(self, messages: Iterable[PackedMessage]) -> tuple[bytes, int]:
        """The payload of an entry of these messages, and their number."""
        return pack_batch(messages, self._compression)

    def _next_turn(self) -> None:
        self._turn, self._in_turn, self._known = self._turn + 1, 0, None

    def done(self, items: Sequence[Queued], outcome: str | MetatxnError) -> None:
        for item in items:
            if isinstance(item, Portion):
                item.together.landed(item.places, outcome)
            elif isinstance(future := item.future, Together):
                future.landed((item.place,), outcome)
            elif future.cancelled():
                continue
            elif isinstance(outcome, str):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
                future.exception()  # retrieved: `flush` and the commit raise it for those who do not wait
