"""The text that the services accept, wherever it comes from. These functions validate wire models and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def encodable(value: str) -> str:
    """Raises `ValueError` for half of a surrogate pair, which JSON can express and UTF-8 cannot."""
    if _SURROGATE.search(value):
        raise ValueError("contains half of a surrogate pair, which is not valid text")
    return value


def no_control_characters(value: str) -> str:
    """Raises `ValueError` for control characters, and the errors of `encodable`."""
    if _CONTROL.search(value):
        raise ValueError("must not contain control characters")
    return encodable(value)


def split_outside_brackets(text: str) -> Iterator[str]:
    """The parts between the commas outside brackets: `price:decimal128(10, 2),at:timestamp[us]` has two."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character in "<([") - (character in ">)]")
        if character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
