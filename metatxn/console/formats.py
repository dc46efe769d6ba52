"""How values look on a page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, unquote

from markupsafe import Markup, escape

from metatxn.wire.errors import InvalidArgument, MetatxnError
from metatxn.wire.names import topic_of_segment
from metatxn.words import count_text, duration, short_id, size_text

FIELDS = {
    "after": "After position",
    "as": "Download as",
    "at": "Time",
    "kind": "Value is",
    "older": "Begun",
    "timeout_ms": "Is aborted after",
    "txn_id": "Transaction",
}
"""The names on a page of fields that have another name there than in a request."""
_FIELD = re.compile(r"[\w.]+:", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def span(ms: float | None) -> str:
    """A duration, also a short one: `3d 4h`, `8s`, `120 ms`."""
    if ms is None:
        return "–"
    return f"{round(ms)} ms" if ms < 1_000 else duration(int(ms))


def size(number: int | None) -> str:
    return "–" if number is None else size_text(number)


def count(number: float | None) -> str:
    return "–" if number is None else count_text(number)


def rate(number: float | None) -> str:
    return "–" if number is None else f"{count(number)}/s"


def time_tag(at_ms: int | None) -> str | Markup:
    """A point in time, which the page shows in the zone of its reader, and exactly when it is pointed at."""
    if at_ms is None:
        return "–"
    try:
        at = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return str(at_ms)
    exact = at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"
    shown = at.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" title="{} · {}">{} UTC</time>').format(exact, exact, at_ms, shown)


def ago(at_ms: int | None, now_ms: int) -> str:
    return "–" if at_ms is None else span(max(0, now_ms - at_ms))


def wrong_text(error: MetatxnError) -> str:
    """What is wrong, with the name that a field has on the page."""
    field = error.members.get("field")
    rest = error.detail.removeprefix(f"{field}: ")
    return error.detail if rest == error.detail or field not in FIELDS else f"{FIELDS[field]}: {rest}"


def next_step(error: MetatxnError) -> str:
    """What to do about an error. What programs are told about a field says nothing to a person."""
    default = isinstance(error, InvalidArgument) and error.action == InvalidArgument.action
    return "" if default else error.action


def path_part(text: str) -> str:
    """A name as one segment of a path."""
    return quote(text, safe="")


def pretty_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def topic_of(segment: str) -> str:
    """The topic in a segment's id, or all of a text that is not an id."""
    return topic_of_segment(segment) or segment


def plain_topic(name: str) -> str:
    """A topic's name as people say it: without `public/default/`."""
    return name.removeprefix("public/default/")


def segment_part(segment: str) -> str:
    """The part of the id that tells a segment of a topic from the others: `0000-7fff-2`."""
    return segment.rpartition("/")[2]


def sentence(text: str) -> str:
    """A sentence, unless it begins with the name of a field."""
    begun = text if _FIELD.match(text) else text[:1].upper() + text[1:]
    return begun if begun.endswith((".", "!", "?")) else f"{begun}."


def coded(text: str) -> Markup:
    """A text in which `this` is something to type: on the command line, or in a program."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def plural(number: int, one: str, many: str | None = None) -> str:
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


FILTERS: Mapping[str, Callable[..., Any]] = {
    "ago": ago,
    "coded": coded,
    "count": count,
    "wrong_text": wrong_text,
    "next_step": next_step,
    "part": path_part,
    "plain_topic": plain_topic,
    "plural": plural,
    "pretty_json": pretty_json,
    "rate": rate,
    "segment_part": segment_part,
    "short_id": short_id,
    "sentence": sentence,
    "size": size,
    "span": span,
    "time": time_tag,
    "topic_of": topic_of,
    "unescaped": unquote,
}
