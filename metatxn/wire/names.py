"""Topic names, segment ids, message ids, browse tokens and lists of columns."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote, unquote

from metatxn.wire.position import Position
from metatxn.wire.text import encodable

DEFAULT_NAMESPACE = "public/default"
TopicFormat = Literal["kafka", "pulsar"]
"""The systems whose clients may write to a topic besides ours."""


LISTENER_NAME = "[a-z][a-z0-9-]{0,63}"
"""A regular expression."""


_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def topic_name(text: str) -> str:
    """`tenant/namespace/topic`; a bare name means `public/default/<name>`. Raises `ValueError` for any other text."""
    parts = text.split("/")
    if len(parts) == 1:
        parts = [*DEFAULT_NAMESPACE.split("/"), text]
    if len(parts) != 3 or not all(parts):
        raise ValueError("a topic is named tenant/namespace/topic, or by a bare name without a slash")
    if _CONTROL_CHARACTERS.search(text):
        raise ValueError("must not contain control characters")
    return "/".join(parts)


def namespace_of(topic: str) -> str:
    """The `tenant/namespace` of a topic's full name."""
    return topic.rpartition("/")[0]


def namespace_part(text: str) -> str:
    """The name of a tenant, or of a namespace without its tenant. Raises `ValueError` for any other text."""
    topic_name(f"{text}/namespace/topic")
    return text


def namespace_name(text: str) -> str:
    """`tenant/namespace`. Raises `ValueError` for any other text."""
    if text.count("/") != 1:
        raise ValueError("a namespace is named tenant/namespace")
    topic_name(f"{text}/topic")
    return text


def segment_id(topic: str, low: int, high: int, number: int) -> str:
    """`segment://tenant/namespace/topic/<lo>-<hi>-<n>`, with the inclusive hash range in hexadecimal; `n` is never
    reused. A range above 0xffff contains no hash of a key (DESIGN §5.20)."""
    return f"segment://{topic}/{low:04x}-{high:04x}-{number}"


def topic_of_segment(segment: str) -> str:
    """The topic in a segment's id. For a text that is not a segment id, it is a name that no topic can have."""
    return segment.removeprefix("segment://").rpartition("/")[0]


class SegmentParts(NamedTuple):
    """The parts of a segment's id. Of two segments of a topic whose ranges overlap, the one with the lower number is an
    ancestor of the other."""

    topic: str
    range: tuple[int, int]
    number: int

    def overlaps(self, other: SegmentParts) -> bool:
        return self.range[0] <= other.range[1] and other.range[0] <= self.range[1]

    @classmethod
    def parse(cls, segment: str) -> SegmentParts:
        """The parts of an id. Raises `ValueError` if `segment` is not a segment's id."""
        match = _SEGMENT.fullmatch(segment)
        if match is None:
            raise ValueError(f"{segment!r} is not a segment's id")
        topic, low, high, number = match.groups()
        return cls(topic, (int(low, 16), int(high, 16)), int(number))


def number_of_segment(segment: str) -> int:
    """The number in a segment's id, or -1 for a text that is not a segment id."""
    try:
        return SegmentParts.parse(segment).number
    except ValueError:
        return -1


_SEGMENT = re.compile(r"segment://(.+)/([0-9a-f]{4,5})-([0-9a-f]{4,5})-(0|[1-9][0-9]{0,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class MessageId:
    """The id of a message: one URL-safe string, opaque to clients, that names the segment, ledger, entry and index in
    the entry's batch."""

    segment: str
    position: Position
    index: int

    def __str__(self) -> str:
        return _encode([self.segment, str(self.position), self.index])

    @classmethod
    def parse(cls, text: str) -> Self:
        """The id in a text. Raises `ValueError` if `text` is not a message id."""
        match _decode(text, "message id"):
            case [str(segment), str(position), int(index)] if index >= 0:
                return cls(segment, Position.parse(position), index)
        raise ValueError(f"{text!r} is not a message id")


def message_ids(segment: str, position: Position, indexes: Iterable[int]) -> list[str]:
    """The ids of messages of one entry, as text. They differ only in their ends, so most of each is encoded once."""
    start, rest = _shared_part(segment, position)
    return [start + _end_of_id(rest, index) for index in indexes]


def parse_message_ids(texts: Iterable[str]) -> list[MessageId]:
    """Parse each id as `MessageId.parse` does. Consecutive ids of one entry are recognized by their ends. Raises
    `ValueError`."""
    found: list[MessageId] = []
    start, rest = "", b""
    for text in texts:
        index = _index_at_end(rest, text[len(start) :]) if start and text.startswith(start) else None
        if index is None:
            found.append(MessageId.parse(text))
            start, rest = _shared_part(found[-1].segment, found[-1].position)
        else:
            found.append(MessageId(found[-1].segment, found[-1].position, index))
    return found


def _shared_part(segment: str, position: Position) -> tuple[str, bytes]:
    """The beginning of the ids of one entry's messages, as text, and the bytes after it that they also share."""
    head = b'[%b,"%b",' % (_in_json(segment), str(position).encode())
    shared = len(head) // 3 * 3  # base64 makes four characters of each three bytes, whatever follows
    return base64.urlsafe_b64encode(head[:shared]).decode(), head[shared:]


@lru_cache(maxsize=1 << 14)
def _index_at_end(rest: bytes, text: str) -> int | None:
    """The index of a message whose id ends in this way; None if `message_ids` would not write it so."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        index = int(raw[len(rest) : -1])
    except ValueError:
        return None
    return index if index >= 0 and _end_of_id(rest, index) == text else None


@lru_cache(maxsize=1 << 10)
def _in_json(segment: str) -> bytes:
    return json.dumps(segment).encode()


@lru_cache(maxsize=1 << 14)
def _end_of_id(rest: bytes, index: int) -> str:
    """The end of an id. `rest` is one of three, because every head has the same end."""
    return base64.urlsafe_b64encode(b"%b%d]" % (rest, index)).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """The place where a read of a segment continues: `ledger:entry`, or `ledger:entry@revision` after a page of a
    snapshot.

    Entries that a snapshot has passed over may become visible later, *below* the place that the snapshot has reached.
    So the place of a snapshot contains its revision, and is not valid for any other read.
    """

    position: Position
    revision: int | None = None

    def __str__(self) -> str:
        return f"{self.position}@{self.revision}" if self.revision is not None else str(self.position)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The place in a text. Raises `ValueError` if `text` is not such a place."""
        position, at, revision = text.partition("@")
        if at and not (revision.isascii() and revision.isdecimal() and len(revision) < 20):
            raise ValueError(
                f"{text!r} is not a place where a read can continue: <ledger>:<entry>[@<revision>] is expected"
            )
        return cls(Position.parse(position), int(revision) if at else None)


@dataclass(frozen=True, slots=True)
class ReadTime:
    """A read that begins with the first entry of each segment that was published at a time or later: `@<RFC 3339>`."""

    at_ms: int

    def __str__(self) -> str:
        return f"@{datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec='milliseconds')}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The time in a text. Raises `ValueError` if `text` is not such a time."""
        wrong = ValueError(f"{text!r} is not a time: @2026-11-22T10:00:00Z is expected, with a time zone")
        try:
            found = datetime.fromisoformat(text.removeprefix("@"))
        except ValueError:
            raise wrong from None
        if found.tzinfo is None:
            raise wrong
        return cls(max(0, round(found.timestamp() * 1000)))


def place_or_time(text: str) -> ReadPlace | ReadTime:
    """Raises `ValueError`."""
    return ReadTime.parse(text) if text.startswith("@") else ReadPlace.parse(text)


def token_or_time(text: str) -> BrowseToken | ReadTime:
    """Raises `ValueError`."""
    return ReadTime.parse(text) if text.startswith("@") else BrowseToken.parse(text)


@dataclass(frozen=True, slots=True)
class BrowseToken:
    """How far a browse of a topic has come: for each segment the entry up to which it was read, and the number of
    messages already taken from the entry after it. `revision` is as in `ReadPlace`. With `ends`, the browse is in the
    compacted view up to these positions."""

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
        """The token in a text. Raises `ValueError` if `text` is not a browse token."""
        wrong = ValueError(f"{text!r} is not a browse token: pass the `next` of an earlier answer")
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


MAX_PAGE_TOKEN = 16_384
"""The most characters of a page token: two names of 512 characters, however long they are in the key of a record."""


def short_page_token(text: str) -> str:
    """Raises `ValueError` for a page token that no list has. This is not a bound of the schema, because a text of that
    length outside ASCII is longer than a whole head of a request may be."""
    if len(text) > MAX_PAGE_TOKEN:
        raise ValueError(f"must have at most {MAX_PAGE_TOKEN} characters")
    return text


def page_token(name: str) -> str:
    """The token with which a list ordered by name continues after `name`."""
    return _encode([name])


def parse_page_token(text: str) -> str:
    """The name in a page token. Raises `ValueError` if `text` is not a page token."""
    match _decode(short_page_token(text), "page token"):
        case [str(name)]:
            return encodable(name)
    raise ValueError(f"{text!r} is not a page token: pass the `next_page_token` of an earlier answer")


def pair_token(first: str, second: str) -> str:
    """The token with which a list ordered by two names continues after these."""
    return _encode([first, second])


def parse_pair_token(text: str) -> tuple[str, str]:
    """The two names in a page token. Raises `ValueError` if `text` is not such a token."""
    match _decode(short_page_token(text), "page token"):
        case [str(first), str(second)]:
            return encodable(first), encodable(second)
    raise ValueError(f"{text!r} is not a page token: pass the `next_page_token` of an earlier answer")


MAX_COLUMN_LIST = 8_192
"""The most characters of a list of columns. Anyone who needs more of them reads them all."""


def column_list(columns: Iterable[str]) -> str | None:
    """The names of columns with commas between, percent-encoded one by one because they may contain commas; None if
    that is longer than a request may have it."""
    text = ",".join(quote(name, safe=" ") for name in columns)
    return text if len(text) <= MAX_COLUMN_LIST else None


def parse_column_list(text: str) -> list[str]:
    """The names in a list of columns. Raises `ValueError` for a name that is not UTF-8, and for a list that is too
    long."""
    if len(text) > MAX_COLUMN_LIST:
        raise ValueError(
            f"a list of columns has at most {MAX_COLUMN_LIST} characters: leave it out to read all of them"
        )
    return [unquote(name, errors="strict") for name in text.split(",")]


def _encode(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def _decode(text: str, what: str) -> Any:
    try:
        return json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise ValueError(f"{text!r} is not a {what}") from None
