"""Topic names, segment ids, message ids and browse tokens."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, Self

from metatxn.wire.position import Position

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


def topic_of_segment(segment: str) -> str:
    """The topic in a segment's id; of what is no such id something that no topic is called."""
    return segment.removeprefix("segment://").rpartition("/")[0]


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
class ReadPlace:
    """Where a read of a segment goes on: `ledger:entry`, or `ledger:entry@revision` behind a snapshot page.

    What a snapshot has passed over may become visible later, *below* the place it has come to. So the place of a
    snapshot holds its revision, and is good for no other read.
    """

    position: Position
    revision: int | None = None

    def __str__(self) -> str:
        return f"{self.position}@{self.revision}" if self.revision is not None else str(self.position)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ValueError`."""
        position, at, revision = text.partition("@")
        if at and not (revision.isascii() and revision.isdecimal() and len(revision) < 20):
            raise ValueError(f"{text!r} is not a place to go on from: <ledger>:<entry>[@<revision>] is expected")
        return cls(Position.parse(position), int(revision) if at else None)


@dataclass(frozen=True, slots=True)
class BrowseToken:
    """How far a browse of a topic has come: per segment the entry that was read up to, and how many messages of the
    entry behind it. `revision` as in `ReadPlace`. With `ends` it stands in the compacted view up to these places."""

    places: dict[str, tuple[Position, int]]
    revision: int | None = None
    ends: dict[str, Position] | None = None

    def __str__(self) -> str:
        places = {segment: [str(position), taken] for segment, (position, taken) in self.places.items()}
        parts: list[Any] = [places, self.revision]
        if self.ends is not None:
            parts.append({segment: str(end) for segment, end in self.ends.items()})
        return _encode(parts)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ValueError`."""
        wrong = ValueError(f"{text!r} is not a browse token: pass `next` of an earlier answer")
        view: dict[str, Any] | None = None
        match _decode(text, "browse token"):
            case [dict(found), None | int() as revision] if found:
                pass
            case [dict(found), None | int() as revision, dict(view)] if found and found.keys() <= view.keys():
                pass
            case _:
                raise wrong
        if view is not None and not all(isinstance(end, str) for end in view.values()):
            raise wrong
        ends = {segment: Position.parse(end) for segment, end in view.items()} if view is not None else None
        places = {}
        for segment, place in found.items():
            match place:
                case [str(position), int(taken)] if taken >= 0:
                    places[segment] = (Position.parse(position), taken)
                case _:
                    raise wrong
        return cls(places, revision, ends)


def page_token(name: str) -> str:
    """Where a list by name goes on."""
    return _encode([name])


def parse_page_token(text: str) -> str:
    """Raises `ValueError`."""
    match _decode(text, "page token"):
        case [str(name)]:
            return name
    raise ValueError(f"{text!r} is not a page token: pass `next_page_token` of an earlier answer")


def _encode(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def _decode(text: str, what: str) -> Any:
    try:
        return json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise ValueError(f"{text!r} is not a {what}") from None
