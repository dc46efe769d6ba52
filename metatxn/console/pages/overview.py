"""The first page: what runs, what is open, what goes through, and what is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.responses import Response

import metatxn
from metatxn.console.throughput import Together
from metatxn.console.visit import Values, Visit
from metatxn.health import (
    HANGING_MS,
    AskedService,
    processes_of,
    service_problems,
    topic_problems,
)
from metatxn.wire.coordinator import TransactionHeader
from metatxn.wire.models import Process, ThroughputAnswer

MOST_STUCK = 20
MOST_TOPICS = 100
"""The most topics that are searched for segments without a broker."""


async def overview(visit: Visit) -> Response:
    return await visit.live_page("overview.html", lambda: _load(visit))


async def unserved(visit: Visit) -> Response:
    """The part of the page that takes a little longer: segments that no broker serves, of the first topics by name."""
    try:
        cluster = await visit.client.cluster()
        topics, more = await visit.client.topics(limit=MOST_TOPICS).page_at(None)
    except metatxn.MetatxnError as error:
        return visit.fragment("problem.html", "live", error=error)
    brokers = [broker.url for broker in cluster.brokers]
    problems = [problem for topic in topics for problem in topic_problems(topic, brokers)]
    return visit.fragment(
        "unserved.html", "part", problems=problems[:MOST_STUCK], number=len(problems), topics=len(topics), more=more
    )


async def _load(visit: Visit) -> Values:
    services = await asked_services(visit)
    statuses = [service.status for service in services if service.status is not None]
    told, stuck = await asyncio.gather(_throughputs(visit, services), _stuck(visit))
    together = Together(told, visit.site.now_ms())
    return {
        "services": services,
        "store": next((status.store for status in statuses if status.store), None),
        "open": next((status.open_transactions for status in statuses if status.open_transactions), None),
        "problems": list(service_problems(services)),
        "stuck": stuck,
        "more_stuck": len(stuck) == MOST_STUCK,
        "rates": together,
        "plots": together.plots(),
        "now_ms": visit.site.now_ms(),
    }


async def asked_services(visit: Visit) -> list[AskedService]:
    """All services with what they say, asked at once."""
    cluster = await visit.client.cluster()
    return list(await asyncio.gather(*(_asked(visit, name, each) for name, each in processes_of(cluster))))


async def _asked(visit: Visit, name: str, process: Process) -> AskedService:
    try:
        return AskedService(name, process, await visit.client.service_status(process.url))
    except metatxn.MetatxnError as error:
        return AskedService(name, process, silence=str(error))


async def _throughputs(visit: Visit, services: Iterable[AskedService]) -> list[ThroughputAnswer]:
    """The throughput of the services that answer and are new enough to report it."""
    asked = [visit.client.throughput(each.process.url) for each in services if each.status is not None]
    told = await asyncio.gather(*asked, return_exceptions=True)
    return [answer for answer in told if isinstance(answer, ThroughputAnswer)]


async def _stuck(visit: Visit) -> list[TransactionHeader]:
    """Transactions that are open for more than a minute, as far as the caller may see them. None if the list cannot be
    had: the services are listed anyway."""
    open_ = visit.client.transactions("OPEN", older_than_ms=HANGING_MS, limit=MOST_STUCK)
    try:
        found, _ = await open_.page_at(None)
    except metatxn.MetatxnError:
        return []
    return sorted(found, key=lambda header: header.created_ms or 0)
