"""The services of a cluster: what each of them does, and how it is drained."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.services import AskedCluster, asked_cluster
from metatxn.console.visit import MadeChange, SentForm, Values, Visit
from metatxn.health import STORE_ACTION, AskedService, per_second
from metatxn.wire.models import BrokerInfo, ServiceStatus, ThroughputAnswer

PATH = "/console/cluster"
MOST_SERVICES = 100
SEGMENTS_PER_PAGE = 50
LATELY_MS = 60_000


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """A service in the table. `broker` is what only administrators see of a broker; `rates` are those of the last
    minute."""

    asked: AskedService
    rates: Mapping[str, float]
    broker: BrokerInfo | None = None

    @property
    def status(self) -> ServiceStatus | None:
        return self.asked.status

    @property
    def state(self) -> tuple[str, str]:
        """The state as a word, and its colour."""
        if self.status is None:
            return "does not answer", "bad"
        if not self.status.ready:
            return "not ready", "warn"
        if self.broker is not None and self.broker.state != "serving":
            return self.broker.state, "warn"
        return ("draining", "warn") if self.status.draining else ("serving", "ok")


async def cluster(visit: Visit) -> Response:
    async def load() -> Values:
        asked = await asked_cluster(visit)
        rows = await asyncio.gather(*(_row(visit, asked, each) for each in asked.services[:MOST_SERVICES]))
        return {
            "coordinators": [row for row in rows if row.asked.name == "coordinator"],
            "brokers": [row for row in rows if row.asked.name == "broker"],
            "more": max(0, len(asked.services) - MOST_SERVICES),
            "store": asked.store,
            "away": asked.store_away,
            "away_action": STORE_ACTION,
            "may_drain": visit.access.admin and not visit.site.read_only,
        }

    return await visit.live_page("cluster.html", load)


async def _row(visit: Visit, asked: AskedCluster, service: AskedService) -> ServiceRow:
    if service.status is None:
        return ServiceRow(service, {})
    told, broker = await asyncio.gather(_throughput(visit, service), _broker(visit, asked, service))
    return ServiceRow(service, per_second(told, LATELY_MS) if told is not None and told.samples else {}, broker)


async def _throughput(visit: Visit, service: AskedService) -> ThroughputAnswer | None:
    try:
        return await visit.client.throughput(service.process.url)
    except metatxn.MetatxnError:
        return None


async def _broker(visit: Visit, asked: AskedCluster, service: AskedService) -> BrokerInfo | None:
    if service.name != "broker" or not visit.access.admin or asked.members.blind:
        return None
    try:
        return await visit.client.broker(service.process.id)
    except metatxn.MetatxnError:
        return None


async def broker_segments(visit: Visit) -> Response:
    """The segments of one broker. For administrators."""
    broker_id, token = visit.part("broker_id"), visit.query("page") or None
    broker = await visit.client.broker(broker_id)
    found, next_token = await visit.client.broker_segments(broker_id, limit=SEGMENTS_PER_PAGE).page_at(token)
    path = f"{PATH}/brokers/{quote(broker_id, safe='')}"
    return visit.page(
        "broker.html",
        broker=broker,
        segments=found,
        turned=token is not None,
        first=path if token else None,
        next=f"{path}?{urlencode({'page': next_token})}" if next_token else None,
    )


async def drain_broker(visit: Visit, form: SentForm) -> MadeChange:
    broker_id = visit.part("broker_id")
    if form.get("sure") != "yes":
        raise metatxn.InvalidArgument("sure: confirm that the other brokers are to take its segments", field="sure")
    with visit.recording("broker.drain", {"broker_id": broker_id}):
        found = await visit.client.drain_broker(broker_id)
    stays = "" if found.shared else " Its segments stay, because its files are local; new topics go to other brokers."
    return MadeChange(f"Broker {broker_id} is {found.state}.{stays}", PATH)


async def undrain_broker(visit: Visit, _: SentForm) -> MadeChange:
    broker_id = visit.part("broker_id")
    with visit.recording("broker.undrain", {"broker_id": broker_id}):
        found = await visit.client.undrain_broker(broker_id)
    return MadeChange(f"Broker {broker_id} is {found.state}.", PATH)
