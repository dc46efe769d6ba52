"""The address of an entry: `ledger:entry`, ordered by ledger, then by entry.

Entry -1 is the position just before the first entry of a ledger. It is a bound, never the position of a frame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_TEXT = re.compile(r"(0|[1-9][0-9]{0,19}):(-1|0|[1-9][0-9]{0,19})", re.ASCII)
_LIMIT = 1 << 64


@dataclass(frozen=True, slots=True, order=True)
class Position:
    ledger: int
    entry: int

    def __post_init__(self) -> None:
        assert 0 <= self.ledger < _LIMIT and -1 <= self.entry < _LIMIT, (self.ledger, self.entry)

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote, such as `3:17` or `3:-1`. Raises `ValueError` for anything else."""
        match = _TEXT.fullmatch(text)
        if match is None or int(match[1]) >= _LIMIT or int(match[2]) >= _LIMIT:
            raise ValueError(f"{text!r} is not a position: <ledger>:<entry> is expected, such as 3:17")
        return cls(int(match[1]), int(match[2]))

    @property
    def before(self) -> Position:
        """The position one entry down; at the lowest, the one before the first entry, which has nothing before it
        itself."""
        assert self.entry >= 0, self
        return Position(self.ledger, self.entry - 1)

    @property
    def next(self) -> Position:
        return Position(self.ledger, self.entry + 1)
