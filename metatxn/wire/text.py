"""What text the services take, wherever it comes from. For use as validators of wire models and parameters."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def encodable(value: str) -> str:
    """Raises `ValueError` for half of a surrogate pair: JSON can spell it, UTF-8 cannot."""
    if _SURROGATE.search(value):
        raise ValueError("holds half of a surrogate pair, which is no text")
    return value


def no_control_characters(value: str) -> str:
    """Raises `ValueError` for control characters, and as `encodable`."""
    if _CONTROL.search(value):
        raise ValueError("must not hold control characters")
    return encodable(value)
