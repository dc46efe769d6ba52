"""The first page: what runs, what is open, what goes through, and what is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.responses import Response

import metatxn
from metatxn.console.services import AskedCluster, asked_cluster
from metatxn.console.throughput import throughput_plots
from metatxn.console.visit import Values, Visit
from metatxn.health import HANGING_MS, AskedService, hanging_problem, topic_problems
from metatxn.throughput import ThroughputOfAll
from metatxn.wire.coordinator import TransactionHeader
from metatxn.wire.models import ThroughputAnswer
from metatxn.words import duration

MOST_STUCK = 20
MOST_EXAMINED = 50
"""The oldest transactions of which it is asked what they hold."""
MOST_TOPICS = 100
"""The most topics that are searched for segments without a broker."""


@dataclass(frozen=True, slots=True)
class StuckTransaction:
    txn: TransactionHeader
    problem: str


@dataclass(frozen=True, slots=True)
class StuckTransactions:
    """Transactions that have been open for long. `more` means that not all are in the list, and `unknown` is why none
    can be known."""

    shown: Sequence[StuckTransaction]
    more: bool = False
    unknown: str = ""


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
    together = ThroughputOfAll(told, visit.site.now_ms())
    return {
        "services": asked.services,
        "store": asked.store,
        "away": asked.store_away,
        "open": asked.open_transactions,
        "problems": asked.problems,
        "stuck": stuck,
        "rates": together,
        "plots": throughput_plots(together),
        "now_ms": visit.site.now_ms(),
    }


async def _throughputs(visit: Visit, services: Iterable[AskedService]) -> list[ThroughputAnswer]:
    """The throughput of the services that answer and are new enough to report it."""
    asked = [visit.client.throughput(each.process.url) for each in services if each.status is not None]
    told = await asyncio.gather(*asked, return_exceptions=True)
    return [answer for answer in told if isinstance(answer, ThroughputAnswer)]


async def _stuck(visit: Visit, asked: AskedCluster) -> StuckTransactions:
    """Transactions that have been open for more than a minute. Administrators see what each of them holds, and those
    that hold something come first; others see their own. The oldest come first."""
    if asked.members.blind:
        return StuckTransactions(())
    try:
        return await (_hanging(visit) if visit.access.admin else _own(visit))
    except metatxn.MetatxnError as error:
        return StuckTransactions((), unknown=error.detail)


async def _hanging(visit: Visit) -> StuckTransactions:
    found, more = await visit.client.hanging(HANGING_MS, limit=MOST_EXAMINED).page_at(None)
    found.sort(key=lambda txn: not txn.touched)
    stuck = [StuckTransaction(txn, hanging_problem(txn).problem) for txn in found[:MOST_STUCK]]
    return StuckTransactions(stuck, more=more is not None or len(found) > MOST_STUCK)


async def _own(visit: Visit) -> StuckTransactions:
    open_ = visit.client.transactions(
        "OPEN", owner=visit.access.principal, older_than_ms=HANGING_MS, limit=MOST_EXAMINED
    )
    found, more = await open_.page_at(None)
    found.sort(key=lambda txn: txn.created_ms or 0)
    now_ms = visit.site.now_ms()
    stuck = [
        StuckTransaction(txn, f"open for {duration(now_ms - (txn.created_ms or 0))}") for txn in found[:MOST_STUCK]
    ]
    return StuckTransactions(stuck, more=more is not None or len(found) > MOST_STUCK)
