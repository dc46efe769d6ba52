"""Messages that are sent together.

    values, keys ──▶ lines, one for each segment ──▶ portions that fill an entry, encoded at once
                                                └──▶ the rest, one by one, which shares entries with others

A message that waits is several objects, which Python makes one by one and the garbage collector visits as long as they
wait. A portion is one, however many messages it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from metatxn.delivery import Batching
from metatxn.outgoing import RECORD_BYTES, MessageFormat, Outgoing, Portion, Queued, Together
from metatxn.topics import Layout
from metatxn.wire.batches import PackedMessage, packed_message
from metatxn.wire.errors import NotFound

PORTION_MESSAGES = 10_000
"""Larger entries take less of the brokers' time for each message. It is more than `BATCH_MESSAGES`, because none of
these messages waits for the others."""
LEAST_PORTION = 100
"""Fewer messages of one segment are queued one by one, so that they share entries with others."""


@dataclass(slots=True)
class _Line:
    """The messages of one segment, or those without a key, in order."""

    home: str | None
    form: MessageFormat
    batching: Batching
    receipt: Together
    cut: list[Queued] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    packed: list[PackedMessage] = field(default_factory=list)
    size: int = 0

    def add(self, place: int, key: str | None, packed: PackedMessage) -> None:
        size = len(packed[0]) + len(packed[1]) + RECORD_BYTES
        if len(self.packed) >= self.batching.max_together or self.size + size > self.batching.max_bytes:
            self.end()
        self.places.append(place)
        self.keys.append(key)
        self.packed.append(packed)
        self.size += size

    def end(self) -> None:
        """End an entry."""
        if len(self.packed) >= LEAST_PORTION:
            payload, _ = self.form.pack(self.packed)
            self.cut.append(Portion(payload, self.places, set(self.keys), self.home, self.receipt))
        else:
            self.cut += map(self._alone, self.places, self.keys, self.packed)
        self.places, self.keys, self.packed, self.size = [], [], [], 0

    def _alone(self, place: int, key: str | None, packed: PackedMessage) -> Queued:
        return Outgoing(key, *packed, self.receipt, place=place)


def queued_together(
    values: Sequence[Any],
    keys: Sequence[str | None],
    layout: Layout,
    form: MessageFormat,
    batching: Batching,
    receipt: Together,
) -> deque[Queued]:
    """The messages, in an order to be queued in: those of each key as they are, and the segments in turns. Raises the
    errors of `packed_message`. Where a key has no segment, its message will fail."""
    lines: dict[str | None, _Line] = {}
    homes: dict[str | None, str | None] = {None: None}
    lost: list[Queued] = []
    for place, (value, key) in enumerate(zip(values, keys, strict=True)):
        packed = packed_message(value, key, None)
        try:
            if key is not None and key not in homes:
                homes[key] = layout.segment_of(key)
        except NotFound:
            lost.append(Outgoing(key, *packed, receipt, place=place))
            continue
        home = homes[key]
        line = lines.get(home)
        if line is None:
            line = lines[home] = _Line(home, form, batching, receipt)
        line.add(place, key, packed)
    for line in lines.values():
        line.end()
    turns = zip_longest(*(line.cut for line in lines.values()))
    return deque([*(each for turn in turns for each in turn if each is not None), *lost])
