"""Transaction ids: 128 bits as in PIP-31.

    | 16 bits coordinator id | 112 bits number, from leased blocks, starting at 1 |

Text form: 32 lower-case hex digits, so that key order is numeric order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

_SEQUENCE_BITS = 112
_TEXT = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class TxnId:
    coordinator: int
    sequence: int
    text: str = field(init=False, repr=False, compare=False)
    """As `str`; it is in every key, so it is made once."""

    def __post_init__(self) -> None:
        assert 0 <= self.coordinator < 1 << 16, self.coordinator
        assert 0 <= self.sequence < 1 << _SEQUENCE_BITS, self.sequence
        object.__setattr__(self, "text", f"{self.coordinator << _SEQUENCE_BITS | self.sequence:032x}")

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    @classmethod
    @lru_cache(maxsize=4096)  # The same id is parsed as a parameter, as a key, and for its records.
    def parse(cls, text: str) -> Self:
        """Raises `ValueError` unless `text` is 32 lower-case hex digits."""
        if not _TEXT.fullmatch(text):
            raise ValueError(f"{text!r} is not a transaction id: 32 lower-case hex digits are expected")
        number = int(text, 16)
        return cls(number >> _SEQUENCE_BITS, number & ((1 << _SEQUENCE_BITS) - 1))
