"""When a disk has too little room for new messages.

    0 ────────────────────── watermark ───────── capacity
      everything is written      │   new messages are refused; the rest is for what goes on: decisions, the ends of
                                 │   ledgers, indexes of hidden entries, and trims, which give room back

The disk is measured now and then. What was admitted since the last measurement counts as written, so that nothing
depends on how often that is. Where nothing can be measured, as in an object store, nothing is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PERCENT = 90


@dataclass(frozen=True, slots=True)
class Space:
    used_bytes: int
    capacity_bytes: int


class Watermark:
    """At `percent` of the disk no more messages are admitted; 100 means that only the disk itself refuses them."""

    def __init__(self, percent: int = DEFAULT_PERCENT) -> None:
        self._percent = percent
        self.space: Space | None = None
        """The used space as last measured; None in an object store."""
        self._admitted = 0

    def measured(self, space: Space | None) -> None:
        self.space = space
        self._admitted = 0

    def admits(self, size: int) -> bool:
        """Whether a message of `size` bytes may be written, which then counts."""
        if self.refusal is not None:
            return False
        self._admitted += size
        return True

    @property
    def refusal(self) -> str | None:
        """Why no more messages are admitted, or None if they are."""
        if self.space is None or self._percent >= 100:
            return None
        used, capacity = self.space.used_bytes + self._admitted, self.space.capacity_bytes
        if 100 * used < self._percent * capacity:
            return None
        return (
            f"{used} of {capacity} bytes of the disk are used, and from {self._percent} % on no more messages are taken"
        )
