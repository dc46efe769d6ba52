"""Topic names, segment ids, message ids and browse tokens."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, Self

from participants.ledger.position import Position

DEFAULT_NAMESPACE = "public/default"


def topic_name(text: str) -> str:
    """`tenant/namespace/topic`; a bare name means `public/default/<name>`. Raises `ValueError`."""
    parts = text.split("/")
    if len(parts) == 1:
        parts = [*DEFAULT_NAMESPACE.split("/"), text]
    if len(parts) != 3 or not all(parts):
        raise ValueError("a topic is named tenant/namespace/topic, or by a bare name without a slash")
    if any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in text):
        raise ValueError("must not hold control characters")
    return "/".join(parts)


def segment_id(topic: str, low: int, high: int, number: int) -> str:
    """`segment://tenant/namespace/topic/<lo>-<hi>-<n>`, with the inclusive hash range in hex; `n` is never reused."""
    return f"segment://{topic}/{low:04x}-{high:04x}-{number}"


@dataclass(frozen=True, slots=True)
class MessageId:
    """Opaque to clients: one URL-safe string that names segment, ledger, entry and index in the entry's batch."""

    segment: str
    position: Position
    index: int

    def __str__(self) -> str:
        return _encode([self.segment, str(self.position), self.index])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ValueError`."""
        match _decode(text, "message id"):
            case [str(segment), str(position), int(index)] if index >= 0:
                return cls(segment, Position.parse(position), index)
        raise ValueError(f"{text!r} is not a message id")


@dataclass(frozen=True, slots=True)
class BrowseToken:
    """How far a browse of a topic has come: per segment the entry that was read up to, and how many messages of the
    entry behind it."""

    places: dict[str, tuple[Position, int]]

    def __str__(self) -> str:
        return _encode({segment: [str(position), taken] for segment, (position, taken) in self.places.items()})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ValueError`."""
        found = _decode(text, "browse token")
        if not isinstance(found, dict):
            raise ValueError(f"{text!r} is not a browse token: pass `next` of an earlier answer")
        places = {}
        for segment, place in found.items():
            match place:
                case [str(position), int(taken)] if taken >= 0:
                    places[segment] = (Position.parse(position), taken)
                case _:
                    raise ValueError(f"{text!r} is not a browse token: pass `next` of an earlier answer")
        return cls(places)


def _encode(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def _decode(text: str, what: str) -> Any:
    try:
        return json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise ValueError(f"{text!r} is not a {what}") from None
