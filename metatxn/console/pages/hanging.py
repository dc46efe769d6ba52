"""Transactions that have been open for long, and what each one costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.pages.ending import needs_force
from metatxn.console.pages.transactions import AGES
from metatxn.console.visit import Values, Visit
from metatxn.wire.broker import SegmentDetail
from metatxn.wire.coordinator import HangingTransaction, TouchedSegment
from metatxn.wire.names import topic_of_segment

PER_PAGE = 25
MOST_SEGMENTS = 60
"""The most segments of a page that are looked at."""
MOST_TOPICS = 20
SHOWN_PLACES = 4
WORDS = (("1m", "a minute"), ("10m", "10 minutes"), ("1h", "an hour"), ("1d", "a day"))


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """A place where a transaction holds readers back. `first` means that the readers of the segment wait for this
    transaction, and `waits` that they wait for another one first."""

    segment: str
    subscription: str | None
    group: str | None
    first: bool
    waits: bool


@dataclass(frozen=True, slots=True)
class Cost:
    """A hanging transaction and what it holds back. None where that is not known."""

    txn: HangingTransaction
    places: Sequence[HeldPlace]
    more: bool
    entries: int | None
    size_bytes: int | None
    subscriptions: int | None
    needs_force: bool


async def hanging(visit: Visit) -> Response:
    token = visit.query("page") or None
    age = visit.query("age") or "1m"
    if age not in AGES:
        raise metatxn.InvalidArgument(f"age: {age!r} is not one of {', '.join(AGES)}", field="age")

    async def load() -> Values:
        found, next_token = await visit.client.hanging(AGES[age], limit=PER_PAGE).page_at(token)
        return {
            "items": await _costs(visit, found),
            "age": age,
            "ages": WORDS,
            "turned": token is not None,
            "first": _url(age, None) if token else None,
            "next": _url(age, next_token) if next_token else None,
        }

    return await visit.live_page("hanging.html", load)


def _url(age: str, token: str | None) -> str:
    return f"/console/hanging?{urlencode({'age': age} | ({'page': token} if token else {}))}"


async def _costs(visit: Visit, found: Iterable[HangingTransaction]) -> list[Cost]:
    found = list(found)
    written = dict.fromkeys(at.segment for txn in found for at in txn.touched if at.after is not None)
    segments = list(written)[:MOST_SEGMENTS]
    topics = list(dict.fromkeys(map(topic_of_segment, segments)))[:MOST_TOPICS]
    details = await asyncio.gather(*(_detail(visit, segment) for segment in segments))
    numbers = await asyncio.gather(*(_subscriptions(visit, topic) for topic in topics))
    known = {detail.segment: detail for detail in details if detail is not None}
    numbered = dict(zip(topics, numbers, strict=True))
    return [_cost(txn, known, numbered, needs_force(visit, txn)) for txn in found]


async def _detail(visit: Visit, segment: str) -> SegmentDetail | None:
    try:
        return await visit.client.segment(segment, max_open=0)
    except metatxn.MetatxnError:
        return None


async def _subscriptions(visit: Visit, topic: str) -> int | None:
    try:
        found, _ = await visit.client.subscriptions(topic).page_at(None)
    except metatxn.MetatxnError:
        return None
    return len(found)


def _cost(
    txn: HangingTransaction,
    details: Mapping[str, SegmentDetail],
    subscriptions: Mapping[str, int | None],
    force: bool,
) -> Cost:
    places = [_place(txn, at, details.get(at.segment)) for at in txn.touched]
    first = [details[place.segment] for place in places if place.first]
    topics = {topic_of_segment(at.segment) for at in txn.touched if at.after is not None}
    numbers = [subscriptions.get(topic) for topic in sorted(topics)]
    unknown = any(at.after is not None and at.segment not in details for at in txn.touched)
    return Cost(
        txn,
        sorted(places, key=lambda place: not place.first)[:SHOWN_PLACES],
        len(places) > SHOWN_PLACES or bool(txn.more_touched),
        None if unknown and not first else sum(detail.waiting_entries for detail in first),
        None if unknown and not first else sum(detail.waiting_bytes for detail in first),
        None if None in numbers else sum(number for number in numbers if number is not None),
        force,
    )


def _place(txn: HangingTransaction, at: TouchedSegment, detail: SegmentDetail | None) -> HeldPlace:
    written = at.after is not None and detail is not None
    first = written and detail is not None and detail.pinned_by == txn.txn_id
    waits = written and detail is not None and detail.pinned_by not in (None, txn.txn_id)
    return HeldPlace(at.segment, at.subscription, at.group, first, waits)
