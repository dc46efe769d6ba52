"""Messages on their way to an entry."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import get_args

from metatxn.topics import Layout
from metatxn.wire.batches import pack_batch
from metatxn.wire.errors import InvalidArgument, MetatxnError
from metatxn.wire.frames import NO_SEQUENCE, PayloadKind
from metatxn.wire.record_batches import Codec

BATCH_MESSAGES = 1000
RECORD_BYTES = 6
"""The most that a message takes in an entry besides its content and its prefix."""
STICKY_MESSAGES = 100
"""At least this many messages without a key go to one segment before the next segment's turn, so that they share
entries; and those of a small transaction need only one intent."""


@dataclass(slots=True)
class Outgoing:
    """A queued message. `future` is of the kind that its sender can wait for."""

    key: str | None
    prefix: bytes
    content: bytes
    future: asyncio.Future[str] | concurrent.futures.Future[str]
    sequence: int = NO_SEQUENCE
    """The message's own sequence, if the producer is sequenced."""
    number: int = 0


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

    def size(self, item: Outgoing) -> int:
        return len(item.prefix) + len(item.content) + RECORD_BYTES

    def keys(self, items: Iterable[Outgoing]) -> set[Hashable]:
        return {item.key for item in items}

    def split(self, item: Outgoing, layout: Layout) -> Iterable[tuple[str, Outgoing]]:
        if item.key is not None:
            return ((layout.segment_of(item.key), item),)
        if self._in_turn >= BATCH_MESSAGES:
            self._next_turn()
        self._in_turn += 1
        if self._known is None or self._known[0] is not layout:
            self._known = layout, layout.any_segment(self._turn)
        return ((self._known[1], item),)

    def encode(self, items: list[Outgoing]) -> tuple[bytes, int]:
        if self._in_turn >= STICKY_MESSAGES:
            self._next_turn()
        return pack_batch([(item.prefix, item.content) for item in items], self._compression)

    def _next_turn(self) -> None:
        self._turn, self._in_turn, self._known = self._turn + 1, 0, None

    def done(self, items: list[Outgoing], outcome: str | MetatxnError) -> None:
        for item in items:
            if item.future.cancelled():
                continue
            if isinstance(outcome, str):
                item.future.set_result(outcome)
            else:
                item.future.set_exception(outcome)
                item.future.exception()  # retrieved: `flush` and the commit raise it for those who do not wait
