"""Transaction ids: 128 bits as in PIP-31.

    | 16 bits coordinator id | 112 bits number, from leased blocks, starting at 1 |

The text form is 32 lower-case hexadecimal digits, so key order is numeric order. The first four are the id of the
coordinator that began the transaction: one that it was started with, or one that it found free
(`coordinator.presence`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_COORDINATOR_DIGITS = 4
COORDINATORS = 1 << 4 * _COORDINATOR_DIGITS
"""The number of coordinator ids, which begin at 0."""
_SEQUENCE_BITS = 112
_TEXT = re.compile(r"[0-9a-f]{32}", re.ASCII)


class TxnId(str):
    """The id is a text, because it is in every key and every answer, and is compared and looked up as text."""

    __slots__ = ()

    def __new__(cls, coordinator: int, sequence: int) -> Self:
        assert 0 <= coordinator < COORDINATORS, coordinator
        assert 0 <= sequence < 1 << _SEQUENCE_BITS, sequence
        return super().__new__(cls, f"{coordinator << _SEQUENCE_BITS | sequence:032x}")

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]  # for copies, which call `__new__`
        return self.coordinator, self.sequence

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: type[Any], _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Parse a field or a parameter of this type once, when its request is parsed."""
        return core_schema.no_info_after_validator_function(cls.parse, core_schema.str_schema())

    @property
    def coordinator(self) -> int:
        return int(self[:_COORDINATOR_DIGITS], 16)

    @property
    def sequence(self) -> int:
        return int(self[_COORDINATOR_DIGITS:], 16)

    @classmethod
    @lru_cache(maxsize=4096)  # The same id is parsed as a parameter, as a key, and for its records.
    def parse(cls, text: str) -> Self:
        """The id in a text. Raises `ValueError` unless it is 32 lower-case hexadecimal digits."""
        if not _TEXT.fullmatch(text):
            raise ValueError(f"{text!r} is not a transaction id: 32 lower-case hexadecimal digits are expected")
        return super().__new__(cls, text)
