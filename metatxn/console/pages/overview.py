"""The first page: what runs, what is open, and what is wrong."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

import metatxn
from metatxn.console.visit import Values, Visit


async def overview(visit: Visit) -> Response:
    return await visit.live_page("overview.html", lambda: _load(visit))


async def _load(visit: Visit) -> Values:
    cluster = await visit.client.cluster()
    named = [("coordinator", each) for each in cluster.coordinators] + [("broker", each) for each in cluster.brokers]
    statuses = await asyncio.gather(*(_status(visit, process.url) for _, process in named))
    services = [(kind, process, status) for (kind, process), status in zip(named, statuses, strict=True)]
    known = [status for status in statuses if status is not None]
    return {
        "services": services,
        "store": next((status.store for status in known if status.store), None),
        "open": next((status.open_transactions for status in known if status.open_transactions), None),
    }


async def _status(visit: Visit, url: str) -> metatxn.ServiceStatus | None:
    try:
        return await visit.client.service_status(url)
    except metatxn.MetatxnError:
        return None
