"""The messages of a segment, also those that readers do not see: undecided, aborted, or void."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.downloads import download
from metatxn.console.live import is_live
from metatxn.console.values import ValueNode, cell_text, tree_of
from metatxn.console.visit import Values, Visit, time_of_form
from metatxn.stored import looking
from metatxn.stored.files import FILE_FORMS
from metatxn.stored.looking import LookedThrough, PageStart, StoredMessage, WantedMessages, look_through
from metatxn.stored.where import VALUE_COLUMN, parsed_where
from metatxn.topics import arrow_schema
from metatxn.wire.broker import SegmentDetail, TopicInfo, hash_of_key
from metatxn.wire.coordinator import TransactionHeader
from metatxn.wire.position import Position

MOST_COLUMNS = 12
"""The most columns of a table. The tree of a message has the others."""
PAGE_CHARACTERS = 110_000
ROW_CHARACTERS = 900
"""About as much HTML as a row needs beside its value."""
COLOURS = {"readable": "ok", "undecided": "warn", "waits": "info"}
"""The colours of the states of messages; that of all others is `bad`."""
MOST_OWN = 20
MOST_OF_KEY = 10
FILTERS = ("segment", "show", "key", "where")
PLACES = ("at", "after", "before", "skip")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page was asked for. Without a place it shows the latest messages, and follows new ones."""

    topic: TopicInfo
    segments: Sequence[str]
    segment: str
    wanted: WantedMessages
    filters: Mapping[str, str]
    follows: bool
    of_key: Sequence[str] = ()
    """The segments to which the key belongs that is looked for, the active one first."""

    @property
    def elsewhere(self) -> list[tuple[str, str]]:
        """The other segments of the key, each with the address of its page."""
        others = [each for each in self.of_key if each != self.segment][:MOST_OF_KEY]
        return [(each, f"{self.path}?{urlencode({**self.filters, 'segment': each})}") for each in others]

    @property
    def path(self) -> str:
        return f"/console/topics/{quote(self.topic.name, safe='')}/messages"

    def url(self, place: PageStart | None = None, **more: str) -> str:
        at = {"after": str(place.after)} if place is not None else {}
        if place is not None and place.skip:
            at["skip"] = str(place.skip)
        return f"{self.path}?{urlencode({**self.filters, **at, **more})}"

    def older(self, start: PageStart, detail: SegmentDetail) -> str | None:
        """The address of the page of what was stored before this one, if there is something."""
        begins = min(start.after, Position.parse(detail.last_position)).next
        if start.skip:
            begins = begins.next
        return self.url(before=str(begins)) if begins > Position.parse(detail.first_position) else None

    @property
    def columns(self) -> list[str]:
        schema = self.topic.topic_schema
        return [each.name for each in schema.fields or []] if schema is not None else []


@dataclass(frozen=True, slots=True)
class MessageRow:
    message: StoredMessage
    colour: str
    tree: ValueNode
    cells: Sequence[str]


class MessageRows:
    """The rows of a page, as many as fit into it."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.rows: list[MessageRow] = []
        self._columns = columns
        self._weight = 0

    def fits(self, message: StoredMessage) -> bool:
        """See `Fits`."""
        tree = tree_of(message.content.value)
        weight = ROW_CHARACTERS + tree.weight() + 200 * min(len(message.content.properties), 10)
        if self.rows and self._weight + weight > PAGE_CHARACTERS:
            return False
        self._weight += weight
        cells = _cells(message.content.value, self._columns)
        self.rows.append(MessageRow(message, COLOURS.get(message.state, "bad"), tree, cells))
        return True


async def messages(visit: Visit) -> Response:
    asked = await _asked(visit)
    if visit.by_script:  # it asks whether the page can be shown
        await _stretch(visit, asked, await visit.client.segment(asked.segment, max_open=0))
        return Response()
    offered = {} if is_live(visit.request) else await _offered(visit, asked)
    seen: tuple[object, Values] = None, {}

    async def load() -> Values:
        """Load what readers see, which changes only with the ends of the segment."""
        nonlocal seen
        detail = await visit.client.segment(asked.segment, max_open=0)
        ends = (detail.first_position, detail.max_read_position, detail.last_position)
        if seen[0] != ends or asked.wanted.everything:
            start, until = await _stretch(visit, asked, detail)
            rows, horizon = MessageRows(asked.columns[:MOST_COLUMNS]), Position.parse(detail.max_read_position)
            found = await look_through(visit.client, asked.segment, start, horizon, asked.wanted, until, rows.fits)
            if until is not None and found.next is None:
                found = replace(found, next=PageStart(until))
            shown = _shown(asked, start, found, rows.rows, detail)
            seen = ends, {**offered, **shown, "downloads": _downloads(asked, start, found)}
        return seen[1]

    if asked.follows:
        return await visit.live_page("messages.html", load)
    return visit.page("messages.html", **await load())


async def download_messages(visit: Visit) -> Response:
    """The messages that a page shows, whole."""
    asked, form = await _asked(visit), visit.query("as")
    if form not in FILE_FORMS:
        raise metatxn.InvalidArgument(f"as: {form!r} is not one of {', '.join(FILE_FORMS)}", field="as")
    detail = await visit.client.segment(asked.segment, max_open=0)
    start, _ = await _stretch(visit, asked, detail)
    until = _position("until", visit.query("until"))
    horizon = Position.parse(detail.max_read_position)
    rows = MessageRows(asked.columns[:MOST_COLUMNS])
    found = await look_through(visit.client, asked.segment, start, horizon, asked.wanted, until, rows.fits)
    return download(form, asked.topic, asked.segment, found.messages)


async def _asked(visit: Visit) -> Asked:
    topic = await visit.client.topic(visit.part("topic"))
    segments = [each.segment for each in topic.segments]
    active = [each.segment for each in topic.segments if each.state == "active"]
    key, where = visit.query("key"), visit.query("where")
    of_key = _segments_of(topic, key) if key else []
    segment = visit.query("segment") or (of_key or active or segments or [""])[0]
    if segment not in segments:
        raise metatxn.InvalidArgument(f"segment: {segment!r} is not a segment of this topic", field="segment")
    show = visit.query("show") or "readable"
    if show not in ("readable", "all"):
        raise metatxn.InvalidArgument(f"show: {show!r} is not readable or all", field="show")
    filters = {"segment": segment, "show": show, "key": key, "where": where}
    schema = arrow_schema(topic.topic_schema)
    wanted = WantedMessages(show == "all", key or None, parsed_where(where) if where else None, schema)
    given = {name: value for name, value in filters.items() if value}
    return Asked(topic, segments, segment, wanted, given, not any(map(visit.query, PLACES)), of_key)


def _segments_of(topic: TopicInfo, key: str) -> list[str]:
    """The segments that contain the hash of a key, the active one first; none where another system's clients decide."""
    hash_value = hash_of_key(key)
    found = [each for each in topic.segments if each.range[0] <= hash_value <= each.range[1]]
    return [each.segment for each in sorted(found, key=lambda each: each.state != "active")]


async def _stretch(visit: Visit, asked: Asked, detail: SegmentDetail) -> tuple[PageStart, Position | None]:
    """Where a page begins: some entries before a position, after one, at a time, or else with the latest ones; and the
    last position of the page, if that is known."""
    if before := _position("before", visit.query("before")):
        back = await visit.client.position_before(asked.segment, str(before), _latest(asked.wanted, detail))
        return PageStart(Position.parse(back.after)), before.before if before.entry >= 0 else before
    return await _start(visit, asked, detail), None


async def _start(visit: Visit, asked: Asked, detail: SegmentDetail) -> PageStart:
    if after := _position("after", visit.query("after")):
        skip = visit.query("skip") or "0"
        if not skip.isascii() or not skip.isdigit() or len(skip) > 9:
            raise metatxn.InvalidArgument(f"skip: {skip!r} is not a number of messages", field="skip")
        return PageStart(after, int(skip))
    if at := visit.query("at"):
        found = await visit.client.position_at(asked.segment, time_of_form("at", at))
        return PageStart(Position.parse(found.after))
    last, first = Position.parse(detail.last_position), Position.parse(detail.first_position).before
    return PageStart(max(Position(last.ledger, max(last.entry - _latest(asked.wanted, detail), -1)), first))


def _latest(wanted: WantedMessages, detail: SegmentDetail) -> int:
    """The number of entries on a page that follows new ones; of those that match, as many as one read has
    if all are of the same size."""
    if not wanted.filtered:
        return looking.MOST_ENTRIES
    fitting = looking.PAGE_BYTES * detail.entries // max(1, detail.size_bytes)
    return max(looking.MOST_ENTRIES, min(looking.MOST_ENTRIES_LOOKED_AT, fitting))


def _position(name: str, text: str) -> Position | None:
    try:
        return Position.parse(text) if text else None
    except ValueError as error:
        raise metatxn.InvalidArgument(f"{name}: {error}", field=name) from None


def _shown(
    asked: Asked, start: PageStart, found: LookedThrough, rows: Sequence[MessageRow], detail: SegmentDetail
) -> Values:
    columns = asked.columns
    return {
        "asked": asked,
        "detail": detail,
        "columns": columns[:MOST_COLUMNS],
        "more_columns": max(0, len(columns) - MOST_COLUMNS),
        "rows": rows,
        "found": found,
        "first": asked.url(PageStart(Position.parse(detail.first_position).before)),
        "older": asked.older(start, detail),
        "next": asked.url(found.next) if found.next is not None else None,
    }


def _cells(value: Any, columns: Sequence[str]) -> list[str]:
    row = value if isinstance(value, dict) else {VALUE_COLUMN: value}
    return [cell_text(row.get(name)) for name in columns]


def _downloads(asked: Asked, start: PageStart, found: LookedThrough) -> list[tuple[str, str]]:
    """The address of each download, with its name. None of them contains what comes later."""
    if not found.messages:
        return []
    pinned = asked.url(start, until=str(found.messages[-1].frame.position))
    url = pinned.replace("/messages?", "/messages/download?", 1)
    return [(f"{url}&as={form}", each.name) for form, each in FILE_FORMS.items()]


async def _offered(visit: Visit, asked: Asked) -> Values:
    """Whether the caller may produce, and its latest open transactions, in which it may write."""
    may_produce = visit.access.may("produce", asked.topic.name) and not visit.site.read_only
    return {"may_produce": may_produce, "own": await _own(visit) if may_produce else []}


async def _own(visit: Visit) -> list[TransactionHeader]:
    listing = visit.client.transactions("OPEN", owner=visit.access.principal, newest_first=True, limit=MOST_OWN)
    try:
        found, _ = await listing.page_at(None)
    except metatxn.MetatxnError:
        return []
    return [each for each in found if not each.prepared]
