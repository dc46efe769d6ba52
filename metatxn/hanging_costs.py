"""What hanging transactions cost: what readers cannot see until one of them ends, and what it keeps from consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from metatxn.paging import Listing
from metatxn.wire.broker import SegmentDetail, SubscriptionInfo, SubscriptionSummary
from metatxn.wire.coordinator import HangingTransaction, TouchedSegment
from metatxn.wire.errors import MetatxnError
from metatxn.wire.names import topic_of_segment

W = TypeVar("W", bound=Hashable)
R = TypeVar("R")

MOST_ASKED_SEGMENTS = 60
"""The most segments that are asked what waits on them, for all transactions together."""
MOST_ASKED_TOPICS = 20
MOST_ASKED_SUBSCRIPTIONS = 20
MOST_COUNTED_SUBSCRIPTIONS = 1_000
"""The subscriptions of a topic are counted up to this number."""


class BrokerQuestions(Protocol):
    """What is asked: the part of `AsyncClient` that it needs."""

    async def segment(self, segment: str, *, max_open: int | None = None) -> SegmentDetail: ...

    def subscriptions(self, topic: str, *, limit: int | None = None) -> Listing[SubscriptionSummary]: ...

    async def subscription(self, topic: str, subscription: str) -> SubscriptionInfo: ...


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """A place where a transaction holds something. `first` means that the readers of the segment wait for it; then
    `entries` and `size_bytes` are what waits there. `waits` means that they wait for another one first. `messages` are
    those that it has acknowledged on the subscription. None where it is not known, or makes no sense."""

    segment: str
    subscription: str | None
    group: str | None
    after: str | None
    first: bool = False
    waits: bool = False
    entries: int | None = None
    size_bytes: int | None = None
    messages: int | None = None


@dataclass(frozen=True, slots=True)
class HangingCost:
    """A hanging transaction with what it holds in all these places. `entries` and `size_bytes` are what readers cannot
    see because of it, `messages` what it has acknowledged, and `subscriptions` are those of the topics to which it has
    written, and those on which it has acknowledged. None where it is not known."""

    txn: HangingTransaction
    places: Sequence[HeldPlace]
    entries: int | None
    size_bytes: int | None
    messages: int | None
    subscriptions: int | None


@dataclass(frozen=True, slots=True)
class _Known:
    """What the brokers say; what is missing is not known."""

    segments: Mapping[str, SegmentDetail]
    names: Mapping[str, frozenset[str]]
    """The subscriptions, by topic."""
    subscriptions: Mapping[tuple[str, str], SubscriptionInfo]


async def hanging_costs(
    client: BrokerQuestions, found: Iterable[HangingTransaction], within_s: float | None = None
) -> list[HangingCost]:
    """What each of these transactions costs, as far as the brokers say so within this time."""
    found = list(found)
    written = dict.fromkeys(at.segment for txn in found for at in txn.touched if at.after is not None)
    acked = dict.fromkeys(
        (topic_of_segment(at.segment), at.subscription) for txn in found for at in txn.touched if at.subscription
    )
    segments = list(written)[:MOST_ASKED_SEGMENTS]
    topics = list(dict.fromkeys(map(topic_of_segment, written)))[:MOST_ASKED_TOPICS]
    subscriptions = [(topic, name) for topic, name in acked if name is not None][:MOST_ASKED_SUBSCRIPTIONS]

    async def names_of(topic: str) -> frozenset[str]:
        page, _ = await client.subscriptions(topic, limit=MOST_COUNTED_SUBSCRIPTIONS).page_at(None)
        return frozenset(each.name for each in page)

    details, names, infos = await asyncio.gather(
        _known(segments, lambda each: client.segment(each, max_open=0), within_s),
        _known(topics, names_of, within_s),
        _known(subscriptions, lambda each: client.subscription(*each), within_s),
    )
    known = _Known(details, names, infos)
    return [_cost(txn, known) for txn in found]


async def _known(wanted: Sequence[W], ask: Callable[[W], Awaitable[R]], within_s: float | None) -> Mapping[W, R]:
    """The answers, all asked at once; those that do not come are missing."""

    async def asked(each: W) -> R | None:
        try:
            async with asyncio.timeout(within_s):
                return await ask(each)
        except (MetatxnError, TimeoutError):
            return None

    answers = await asyncio.gather(*map(asked, wanted))
    return {each: answer for each, answer in zip(wanted, answers, strict=True) if answer is not None}


def _cost(txn: HangingTransaction, known: _Known) -> HangingCost:
    places = [_place(txn, at, known) for at in txn.touched]
    first = [place for place in places if place.first]
    written = [at for at in txn.touched if at.after is not None]
    unknown = not first and any(at.segment not in known.segments for at in written)
    topics = {topic_of_segment(at.segment) for at in written}
    held = {(topic, name) for topic in topics for name in known.names.get(topic, ())}
    held |= {(topic_of_segment(at.segment), at.subscription) for at in txn.touched if at.subscription}
    messages = [place.messages for place in places if place.subscription is not None]
    return HangingCost(
        txn,
        sorted(places, key=lambda place: not place.first),
        None if unknown else sum(place.entries or 0 for place in first),
        None if unknown else sum(place.size_bytes or 0 for place in first),
        None if None in messages else sum(number or 0 for number in messages),
        None if topics - known.names.keys() else len(held),
    )


def _place(txn: HangingTransaction, at: TouchedSegment, known: _Known) -> HeldPlace:
    where = (at.segment, at.subscription, at.group, at.after)
    if at.subscription is not None:
        info = known.subscriptions.get((topic_of_segment(at.segment), at.subscription))
        on_it = next((each for each in info.segments if each.segment == at.segment), None) if info is not None else None
        return HeldPlace(*where, messages=on_it.pending_acks.get(txn.txn_id or "", 0) if on_it is not None else None)
    detail = known.segments.get(at.segment) if at.after is not None else None
    if detail is None or detail.pinned_by is None:
        return HeldPlace(*where)
    if detail.pinned_by != txn.txn_id:
        return HeldPlace(*where, waits=True)
    return HeldPlace(*where, first=True, entries=detail.waiting_entries, size_bytes=detail.waiting_bytes)
