"""The first page: what runs, what is open, what goes through, and what is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.responses import Response

import metatxn
from metatxn.console.services import AskedCluster, asked_cluster
from metatxn.console.throughput import Together
from metatxn.console.visit import Values, Visit
from metatxn.health import HANGING_MS, AskedService, topic_problems
from metatxn.wire.coordinator import TransactionHeader
from metatxn.wire.models import ThroughputAnswer

MOST_STUCK = 20
MOST_TOPICS = 100
"""The most topics that are searched for segments without a broker."""


async def overview(visit: Visit) -> Response:
    return await visit.live_page("overview.html", lambda: _load(visit))


async def unserved(visit: Visit) -> Response:
    """The part of the page that takes a little longer: segments that no broker serves, of the first topics by name."""
    try:
        cluster = await visit.client.cluster(patient=False)
        topics, more = await visit.client.topics(limit=MOST_TOPICS).page_at(None)
    except metatxn.MetatxnError as error:
        return visit.fragment("problem.html", "live", error=await visit.cause(error))
    brokers = [broker.url for broker in cluster.brokers]
    problems = [problem for topic in topics for problem in topic_problems(topic, brokers)]
    return visit.fragment(
        "unserved.html", "part", problems=problems[:MOST_STUCK], number=len(problems), topics=len(topics), more=more
    )


async def _load(visit: Visit) -> Values:
    asked = await asked_cluster(visit)
    told, stuck = await asyncio.gather(_throughputs(visit, asked.services), _stuck(visit, asked))
    together = Together(told, visit.site.now_ms())
    return {
        "services": asked.services,
        "store": asked.store,
        "away": asked.store_away,
        "open": asked.open_transactions,
        "problems": asked.problems,
        "stuck": stuck,
        "more_stuck": len(stuck) == MOST_STUCK,
        "rates": together,
        "plots": together.plots(),
        "now_ms": visit.site.now_ms(),
    }


async def _throughputs(visit: Visit, services: Iterable[AskedService]) -> list[ThroughputAnswer]:
    """The throughput of the services that answer and are new enough to report it."""
    asked = [visit.client.throughput(each.process.url) for each in services if each.status is not None]
    told = await asyncio.gather(*asked, return_exceptions=True)
    return [answer for answer in told if isinstance(answer, ThroughputAnswer)]


async def _stuck(visit: Visit, asked: AskedCluster) -> list[TransactionHeader]:
    """Transactions that are open for more than a minute, as far as the caller may see them. None if the list cannot be
    had: the services are listed anyway."""
    if asked.members.blind:
        return []
    open_ = visit.client.transactions("OPEN", older_than_ms=HANGING_MS, limit=MOST_STUCK)
    try:
        found, _ = await open_.page_at(None)
    except metatxn.MetatxnError:
        return []
    return sorted(found, key=lambda header: header.created_ms or 0)
