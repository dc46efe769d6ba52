"""Messages that are sent together.

    values, keys ──▶ lines, one for each segment ──▶ portions that fill an entry, encoded at once
                                                └──▶ the rest, one by one, which shares entries with others

A message that waits is several objects, which Python makes one by one and the garbage collector visits as long as they
wait. A portion is one, however many messages it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from metatxn.delivery import Batching
from metatxn.outgoing import RECORD_BYTES, MessageFormat, Outgoing, Portion, Queued, Together
from metatxn.topics import Layout
from metatxn.wire.batches import PackedMessage, packed_message

PORTION_MESSAGES = 10_000
"""Larger entries take less of the brokers' time for each message. It is more than `BATCH_MESSAGES`, because none of
these messages waits for the others."""
LEAST_PORTION = 100
"""Fewer messages that fill an entry are queued one by one: entries with so few are not many."""


@dataclass(slots=True)
class _Line:
    """The messages of one segment, or those without a key, in order."""

    home: tuple[Layout, str] | None
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
            self.end(full=True)
        self.places.append(place)
        self.keys.append(key)
        self.packed.append(packed)
        self.size += size

    def end(self, *, full: bool) -> None:
        """End an entry."""
        if full and len(self.packed) >= LEAST_PORTION:
            payload, _ = self.form.pack(self.packed)
            keys, size = set(self.keys), self.batching.max_bytes
            self.cut.append(Portion(payload, self.places, keys, self.home, self.receipt, size))
        else:
            self.cut += [
                Outgoing(key, *packed, self.receipt, place=place)
                for place, key, packed in zip(self.places, self.keys, self.packed, strict=True)
            ]
        self.places, self.keys, self.packed, self.size = [], [], [], 0


def queued_together(
    values: Sequence[Any],
    keys: Sequence[str | None],
    layout: Layout,
    form: MessageFormat,
    batching: Batching,
    receipt: Together,
) -> list[Queued]:
    """The messages, in an order to be queued in. Raises the errors of `packed_message`, and `NotFound` if there is no
    segment for a key."""
    lines: dict[str | None, _Line] = {}
    homes: dict[str | None, str | None] = {None: None}
    for place, (value, key) in enumerate(zip(values, keys, strict=True)):
        packed = packed_message(value, key, None)
        if key is not None and key not in homes:
            homes[key] = layout.segment_of(key)
        home = homes[key]
        line = lines.get(home)
        if line is None:
            line = lines[home] = _Line(None if home is None else (layout, home), form, batching, receipt)
        line.add(place, key, packed)
    for line in lines.values():
        line.end(full=len(line.packed) >= batching.max_items)
    return [each for turn in zip_longest(*(line.cut for line in lines.values())) for each in turn if each is not None]
