"""The subscriptions of a topic, and one of them: how far it is behind, and who has what."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.live import is_live
from metatxn.console.pages.topics import details_of
from metatxn.console.visit import Values, Visit
from metatxn.redrive import reader_name
from metatxn.subscription_totals import SubscriptionTotals
from metatxn.wire.broker import SubscriptionInfo, SubscriptionSegment, SubscriptionSummary

ALL_PATH = "/console/subscriptions"
PER_PAGE = 25
COUNTED_WITHIN_S = 0.15
"""How long the page waits for numbers; those missing by then follow. A broker that has just started counts what is kept
of a topic once."""
MOST_SEGMENTS = 50
MOST_CONSUMERS = 100
MOST_TRANSACTIONS = 50
MOST_LETTER_SEGMENTS = 10
"""The segments of a dead-letter topic that are asked for what they have."""


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """A subscription in the list. `detail` is None if its home does not answer, or has not counted yet."""

    summary: SubscriptionSummary
    detail: SubscriptionInfo | None
    counted: bool = True

    @property
    def lag(self) -> SubscriptionTotals | None:
        return SubscriptionTotals.of(self.detail.segments) if self.detail is not None else None


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer, and how many messages it holds on how many segments."""

    name: str
    held: int
    segments: int
    blocked: bool


@dataclass(frozen=True, slots=True)
class PendingRow:
    """An open transaction that has acknowledged messages, and on how many segments."""

    txn_id: str
    messages: int
    segments: int


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """The dead-letter topic of a subscription. `entries` is None if the caller may not see them, or no broker answers.
    `left` are the messages of all subscriptions there that a re-drive of this one has not looked at yet; None if it was
    never driven, or that is not known."""

    topic: str
    entries: int | None
    left: int | None
    may_redrive: bool


def subscriptions_url(topic: str, token: str | None = None) -> str:
    url = f"/console/topics/{quote(topic, safe='')}/subscriptions"
    return f"{url}?{urlencode({'page': token})}" if token else url


def subscription_url(topic: str, name: str) -> str:
    return f"{subscriptions_url(topic)}/{quote(name, safe='')}"


async def topic_subscriptions(visit: Visit) -> Response:
    token = visit.query("page") or None

    async def load() -> Values:
        topic = await visit.client.topic(visit.part("topic"))
        found, next_token = await visit.client.subscriptions(topic.name, limit=PER_PAGE).page_at(token)
        follows = token is None and not is_live(visit.request)
        within_s = COUNTED_WITHIN_S if follows else None
        return {
            "topic": topic,
            "rows": await asyncio.gather(*(_row(visit, topic.name, each, within_s) for each in found)),
            "turned": token is not None,
            "first": subscriptions_url(topic.name) if token else None,
            "next": subscriptions_url(topic.name, next_token) if next_token else None,
            "now_ms": visit.site.now_ms(),
        }

    return await visit.live_page("subscriptions.html", load)


async def all_subscriptions(visit: Visit) -> Response:
    """Those of all topics that the caller may consume."""
    text, token = visit.query("text"), visit.query("page") or None
    query = {"text": text} if text else {}

    async def load() -> Values:
        found, next_token = await visit.client.all_subscriptions(text=text or None, limit=PER_PAGE).page_at(token)
        within_s = COUNTED_WITHIN_S if token is None and not is_live(visit.request) else None
        return {
            "rows": await asyncio.gather(*(_row(visit, each.topic, each, within_s) for each in found)),
            "text": text,
            "turned": token is not None,
            "first": f"{ALL_PATH}?{urlencode(query)}" if token else None,
            "next": f"{ALL_PATH}?{urlencode(query | {'page': next_token})}" if next_token else None,
            "now_ms": visit.site.now_ms(),
        }

    return await visit.live_page("all_subscriptions.html", load)


async def _row(visit: Visit, topic: str, summary: SubscriptionSummary, within_s: float | None) -> SubscriptionRow:
    try:
        async with asyncio.timeout(within_s):
            return SubscriptionRow(summary, await _detail(visit, topic, summary.name))
    except TimeoutError:
        return SubscriptionRow(summary, None, counted=False)


async def _detail(visit: Visit, topic: str, name: str) -> SubscriptionInfo | None:
    try:
        return await visit.client.subscription(topic, name)
    except metatxn.MetatxnError:
        return None


async def one_subscription(visit: Visit) -> Response:
    topic, name = visit.part("topic"), visit.part("subscription")
    may_wait = is_live(visit.request) or visit.query("wait") == "yes"

    async def load() -> Values:
        async with asyncio.timeout(None if may_wait else COUNTED_WITHIN_S):
            found = await visit.client.subscription(topic, name)
        pending, consumers = _pending(found.segments), _consumers(found)
        return {
            "found": found,
            "lag": SubscriptionTotals.of(found.segments),
            "consumers": consumers[:MOST_CONSUMERS],
            "more_consumers": len(consumers) - MOST_CONSUMERS,
            "pending": pending[:MOST_TRANSACTIONS],
            "more_pending": len(pending) - MOST_TRANSACTIONS,
            "segments": found.segments[:MOST_SEGMENTS],
            "more_segments": len(found.segments) - MOST_SEGMENTS,
            "letters": await _dead_letters(visit, found),
            "may_change": may_consume(visit, found.topic),
            "now_ms": visit.site.now_ms(),
        }

    try:
        return await visit.live_page("subscription.html", load)
    except TimeoutError:
        return visit.page("counting.html", topic=topic, name=name, url=f"{subscription_url(topic, name)}?wait=yes")


def _consumers(found: SubscriptionInfo) -> Sequence[ConsumerRow]:
    """The consumers, those that hold most first."""
    held: Counter[str] = Counter()
    places: Counter[str] = Counter()
    for segment in found.segments:
        for name, number in (*segment.held.items(), *segment.attached.items()):
            held[name] += number
            places[name] += number > 0
    rows = [
        ConsumerRow(name, held[name], places[name], name in found.blocked) for name in dict.fromkeys(found.consumers)
    ]
    return sorted(rows, key=lambda row: (-row.held, row.name))


def _pending(segments: Iterable[SubscriptionSegment]) -> Sequence[PendingRow]:
    """The open transactions, those that have acknowledged most first."""
    messages: Counter[str] = Counter()
    places: Counter[str] = Counter()
    for segment in segments:
        messages.update(segment.pending_acks)
        places.update(segment.pending_acks.keys())
    return [PendingRow(txn_id, number, places[txn_id]) for txn_id, number in messages.most_common()]


async def _dead_letters(visit: Visit, found: SubscriptionInfo) -> DeadLetterTopic | None:
    name = found.dead_letter_topic
    if name is None:
        return None
    may = may_consume(visit, name) and visit.access.may("produce", found.topic)
    mover = await _detail(visit, name, reader_name(found))
    left = sum(each.backlog for each in mover.segments) if mover is not None else None
    try:
        segments = [each.segment for each in (await visit.client.topic(name)).segments]
    except metatxn.MetatxnError:
        return DeadLetterTopic(name, None, left, may)
    details = await details_of(visit, segments[:MOST_LETTER_SEGMENTS])
    known = len(details) == len(segments)
    return DeadLetterTopic(name, sum(each.entries for each in details.values()) if known else None, left, may)


def may_consume(visit: Visit, topic: str) -> bool:
    """Whether the caller is offered what takes that right, and changes something."""
    return visit.access.may("consume", topic) and not visit.site.read_only
