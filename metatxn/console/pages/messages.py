"""The messages of a segment, also those that readers do not see: undecided, aborted, or void."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.entries import SeenEntry, seen_entries
from metatxn.console.visit import Visit
from metatxn.wire.broker import SegmentDetail
from metatxn.wire.contents import messages_of
from metatxn.wire.coordinator import TransactionHeader
from metatxn.wire.frames import Frame
from metatxn.wire.position import Position

MOST_ENTRIES = 50
MOST_MESSAGES = 100
"""Of a page. The first entry is shown with as many of its messages, however many it has."""
PAGE_BYTES = 256 << 10
MOST_READS = 20
LONGEST_VALUE = 1_000
SHOWN_BYTES = 64
MOST_SHOWN_OF_ENTRY = 1 << 20
"""A larger entry is not taken apart."""
STATES = {"OPEN": "undecided", "ABORTED": "aborted", "COMMITTED": "void"}


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """`state` and `kind`, its colour, say what readers see of it. `more` tells that the value is longer."""

    position: str
    index: int
    state: str
    kind: str
    txn_id: str | None
    key: str | None
    publish_ms: int
    value: str
    more: bool
    properties: Mapping[str, str]


async def messages(visit: Visit) -> Response:
    topic = await visit.client.topic(visit.part("topic"))
    segments = [each.segment for each in topic.segments]
    active = [each.segment for each in topic.segments if each.state == "active"]
    segment = visit.query("segment") or (active or segments or [""])[0]
    if segment not in segments:
        raise metatxn.InvalidArgument(f"segment: {segment!r} is none of this topic", field="segment")
    show = visit.query("show") or "readable"
    if show not in ("readable", "all"):
        raise metatxn.InvalidArgument(f"show: {show!r} is not readable or all", field="show")
    detail = await visit.client.segment(segment, max_open=0)
    after = await _after(visit, segment, detail)
    entries, more = await _entries(visit, segment, after, detail, everything=show == "all")
    shown, taken = _messages(entries, await _headers(visit, entries))
    path = f"/console/topics/{quote(topic.name, safe='')}/messages"
    place = {"segment": segment, "show": show}
    last = str(entries[taken - 1].frame.position) if taken else ""
    return visit.page(
        "messages.html",
        topic=topic,
        segments=segments,
        segment=segment,
        show=show,
        detail=detail,
        messages=shown,
        first=f"{path}?{urlencode(place | {'after': str(Position.parse(detail.first_position).before)})}",
        next=f"{path}?{urlencode(place | {'after': last})}" if more or 0 < taken < len(entries) else None,
    )


async def _after(visit: Visit, segment: str, detail: SegmentDetail) -> str:
    """The position before the first entry that was asked for: after a position, at a time, or else the latest ones."""
    if after := visit.query("after"):
        return after
    if at := visit.query("at"):
        try:
            return (await visit.client.position_at(segment, datetime.fromisoformat(at))).after
        except ValueError:
            raise metatxn.InvalidArgument(f"at: {at!r} is no time like 2026-03-02T09:04:00Z", field="at") from None
    last, first = Position.parse(detail.last_position), Position.parse(detail.first_position).before
    return str(max(Position(last.ledger, max(last.entry - MOST_ENTRIES, -1)), first))


async def _entries(
    visit: Visit, segment: str, after: str, detail: SegmentDetail, *, everything: bool
) -> tuple[list[SeenEntry], bool]:
    """Some entries behind a position, and whether there are more."""
    if not everything:
        page = await visit.client.read_frames(segment, after=after, max_bytes=PAGE_BYTES)
        frames = page.frames[:MOST_ENTRIES]
        return [SeenEntry(each, "readable") for each in frames], not page.end or len(frames) < len(page.frames)
    page = await visit.client.read_frames(segment, after=after, isolation="read_uncommitted", max_bytes=PAGE_BYTES)
    frames = page.frames[:MOST_ENTRIES]
    readable = await _readable(visit, segment, after, frames)
    found = list(seen_entries(frames, readable, Position.parse(detail.max_read_position)))
    return found, not page.end or len(frames) < len(page.frames)


async def _readable(visit: Visit, segment: str, after: str, frames: Sequence[Frame]) -> set[Position]:
    """The positions of those that readers get."""
    found: set[Position] = set()
    for _ in range(MOST_READS):
        if not frames or Position.parse(after) >= frames[-1].position:
            break
        page = await visit.client.read_frames(segment, after=after, max_bytes=PAGE_BYTES)
        found |= {each.position for each in page.frames}
        if page.end:
            break
        after = page.next
    return found


async def _headers(visit: Visit, entries: Sequence[SeenEntry]) -> dict[str, TransactionHeader]:
    """Of the transactions whose entries readers do not see, as far as the caller may see them."""
    wanted = dict.fromkeys(str(each.frame.txn_id) for each in entries if each.frame.txn_id and each.sight != "readable")
    found = await asyncio.gather(*(visit.client.attach(txn_id).refresh() for txn_id in wanted), return_exceptions=True)
    headers = zip(wanted, found, strict=True)
    return {txn_id: header for txn_id, header in headers if isinstance(header, TransactionHeader)}


def _messages(entries: Sequence[SeenEntry], headers: Mapping[str, TransactionHeader]) -> tuple[list[ShownMessage], int]:
    """The messages of the first entries, and the number of these entries."""
    shown: list[ShownMessage] = []
    for taken, entry in enumerate(entries):
        if shown and len(shown) + entry.frame.count > MOST_MESSAGES:
            return shown, taken
        shown += _of_entry(entry, headers)
    return shown, len(entries)


def _of_entry(entry: SeenEntry, headers: Mapping[str, TransactionHeader]) -> Iterator[ShownMessage]:
    frame = entry.frame
    txn_id = str(frame.txn_id) if frame.txn_id is not None else None
    state, kind = _state(entry, headers.get(txn_id or ""))
    for index, (key, value, properties) in enumerate(_contents(frame)):
        text, more = _text(value)
        yield ShownMessage(
            str(frame.position), index, state, kind, txn_id, key, frame.publish_ms, text, more, properties or {}
        )


def _contents(frame: Frame) -> Sequence[tuple[str | None, Any, Mapping[str, str] | None]]:
    """One that is too large, or that is not what it says, is shown as bytes."""
    if frame.size <= MOST_SHOWN_OF_ENTRY:
        try:
            found = messages_of(frame)
        except (ValueError, RecursionError):
            pass
        else:
            return list(zip(found.keys, found.values, found.properties, strict=True))[:MOST_MESSAGES]
    return [(None, bytes(frame.payload[: SHOWN_BYTES + 1]), None)]


def _state(entry: SeenEntry, header: TransactionHeader | None) -> tuple[str, str]:
    if entry.sight == "readable":
        return "readable", "ok"
    if entry.sight == "skipped":
        state = STATES[header.state] if header is not None and header.state != "OPEN" else "skipped"
        return state, "bad"
    return ("undecided", "warn") if header is not None and header.state == "OPEN" else ("waits", "info")


def _text(value: Any) -> tuple[str, bool]:
    if isinstance(value, bytes):
        return value[:SHOWN_BYTES].hex(" "), len(value) > SHOWN_BYTES
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return text[:LONGEST_VALUE], len(text) > LONGEST_VALUE
