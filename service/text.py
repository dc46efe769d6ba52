"""What text the services take, wherever it comes from. For use as validators of wire models and parameters."""

from __future__ import annotations


def encodable(value: str) -> str:
    """Raises `ValueError` for half of a surrogate pair: JSON can spell it, UTF-8 cannot."""
    if any(0xD800 <= ord(char) < 0xE000 for char in value):
        raise ValueError("holds half of a surrogate pair, which is no text")
    return value


def no_control_characters(value: str) -> str:
    """Raises `ValueError` for control characters, and as `encodable`."""
    if any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in value):
        raise ValueError("must not hold control characters")
    return encodable(value)
