"""The list of topics, and one of them: its segments, and who holds back their readers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.tree import Tree
from metatxn.console.visit import Values, Visit
from metatxn.topic_totals import TopicTotals, active_segments, total_rates
from metatxn.wire.broker import OpenTransaction, SegmentDetail, SegmentInfo, TopicInfo
from metatxn.wire.names import number_of_segment
from metatxn.wire.policies import DEFAULTS, PolicyInfo

PER_PAGE = 25
MOST_LOOKED_AT = 40
"""The segments of a list of topics that are asked for their sizes before the page is there."""
MOST_FOLLOWING = 500
"""The same for the part of the page that follows if these are not all."""
MOST_SEGMENTS = 50
PATH = "/console/topics"
COUNT_PATH = "/console/topic-count"
SIZES_PATH = "/console/topic-sizes"


@dataclass(frozen=True, slots=True)
class TopicRow(TopicTotals):
    """A topic in the list. `policy` is None for those who may not see it."""

    policy: PolicyInfo | None


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment, and what its owner says: None if no broker serves it, or the caller may not read it."""

    info: SegmentInfo
    detail: SegmentDetail | None

    @property
    def holder(self) -> OpenTransaction | None:
        """The transaction that holds back its readers."""
        if self.detail is None or self.detail.pinned_by is None:
            return None
        return next((each for each in self.detail.open_transactions if each.txn_id == self.detail.pinned_by), None)


async def topics(visit: Visit) -> Response:
    text, token = visit.query("text"), visit.query("page") or None
    found, next_token = await visit.client.topics(text=text or None, limit=PER_PAGE).page_at(token)
    return visit.page(
        "topics.html",
        rows=await _rows(visit, found, MOST_LOOKED_AT),
        follows=_with_query(SIZES_PATH, text=text, page=token or "") if _active(found) > MOST_LOOKED_AT else None,
        text=text,
        counted_at=_with_query(COUNT_PATH, text=text),
        may_create=not visit.site.read_only and _may_create(visit.access),
        first=_with_query(PATH, text=text) if token else None,
        next=_with_query(PATH, text=text, page=next_token) if next_token else None,
    )


async def topic_sizes(visit: Visit) -> Response:
    """The list again, with more segments asked for their sizes."""
    text, token = visit.query("text"), visit.query("page") or None
    try:
        found, _ = await visit.client.topics(text=text or None, limit=PER_PAGE).page_at(token)
    except metatxn.MetatxnError as error:
        return visit.fragment("problem.html", "live", error=await visit.cause(error))
    return visit.fragment("topics.html", "list", rows=await _rows(visit, found, MOST_FOLLOWING), follows=None)


def _active(found: Iterable[TopicInfo]) -> int:
    return sum(len(active_segments(topic)) for topic in found)


async def topic_count(visit: Visit) -> Response:
    """The part of the page that takes a little longer: how many topics there are, or match."""
    text = visit.query("text")
    try:
        count = await visit.client.count_topics(text=text or None)
    except metatxn.MetatxnError as error:
        return visit.fragment("problem.html", "live", error=await visit.cause(error))
    return visit.fragment("topic_count.html", "part", count=count, text=text)


def _may_create(access: metatxn.AccessInfo) -> bool:
    return access.admin or any("admin" in rights for rights in access.topics.values())


def _with_query(path: str, **query: str) -> str:
    given = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


async def _rows(visit: Visit, found: Sequence[TopicInfo], most: int) -> list[TopicRow]:
    active = {topic.name: active_segments(topic) for topic in found}
    wanted = [name for names in active.values() for name in names][:most]
    details, policies = await asyncio.gather(
        details_of(visit, wanted), asyncio.gather(*(_policy(visit, topic.name) for topic in found))
    )
    return [
        TopicRow(topic, len(active[topic.name]), _known(details, active[topic.name]), policy)
        for topic, policy in zip(found, policies, strict=True)
    ]


def _known(details: Mapping[str, SegmentDetail], names: Sequence[str]) -> list[SegmentDetail]:
    return [details[name] for name in names if name in details]


async def details_of(visit: Visit, segments: Iterable[str]) -> dict[str, SegmentDetail]:
    """The segments, each with the transaction that holds back its readers. Those that cannot be had are missing."""
    found = await asyncio.gather(*(_detail(visit, segment) for segment in segments))
    return {detail.segment: detail for detail in found if detail is not None}


async def _detail(visit: Visit, segment: str) -> SegmentDetail | None:
    try:
        return await visit.client.segment(segment, max_open=1)
    except metatxn.MetatxnError:
        return None


async def one_topic(visit: Visit) -> Response:
    name = visit.part("topic")

    async def load() -> Values:
        found, policy = await asyncio.gather(visit.client.topic(name), _policy(visit, name))
        segments = sorted(found.segments, key=_order)[:MOST_SEGMENTS]
        details = await details_of(visit, (each.segment for each in segments))
        tree = Tree(found.segments, details)
        return {
            "topic": found,
            "policy": policy.model_dump() if policy else None,
            "settings": list(DEFAULTS),
            "rows": [SegmentRow(each, details.get(each.segment)) for each in segments],
            "more": len(found.segments) - len(segments),
            "active": [each.segment for each in segments if each.state == "active"],
            "all": [each.segment for each in segments],
            "tree": tree,
            "boxes": tree.boxes(),
            "total": _totals(details.values()),
            "rates": total_rates(details.values()),
            "may_change": visit.access.may("admin", found.name) and not visit.site.read_only,
            "now_ms": visit.site.now_ms(),
        }

    return await visit.live_page("topic.html", load)


def _order(segment: SegmentInfo) -> Any:
    """The order of segments: active ones first by their range, and then the latest of the others."""
    active = segment.state == "active"
    return not active, segment.range if active else (-number_of_segment(segment.segment), 0)


async def _policy(visit: Visit, name: str) -> PolicyInfo | None:
    try:
        return await visit.client.topic_policy(name)
    except (metatxn.NotAllowed, metatxn.NotFound):
        return None


def _totals(details: Iterable[SegmentDetail]) -> dict[str, int]:
    names = ("entries", "size_bytes", "waiting_entries", "waiting_bytes", "open_count")
    found = list(details)
    return {name: sum(getattr(each, name) for each in found) for name in names}
