"""The services of a cluster with what each of them says, also while the metadata store is away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import metatxn
from metatxn.console.visit import STATUS_TIMEOUT_S, Visit
from metatxn.health import AskedService, HealthProblem, StoreAway, service_problems, store_away, unannounced_problem
from metatxn.members import ClusterMembers, told_members
from metatxn.wire.models import OpenTransactions, Process, ServiceStatus, StoreStatus


@dataclass(frozen=True, slots=True)
class AskedCluster:
    """All services with what they say. While the members are `blind`, they are those that the coordinator of this
    console knew last, and nothing that is in the store is known."""

    members: ClusterMembers
    services: Sequence[AskedService]

    @property
    def statuses(self) -> list[ServiceStatus]:
        return [service.status for service in self.services if service.status is not None]

    @property
    def store(self) -> StoreStatus | None:
        return next((status.store for status in self.statuses if status.store), None)

    @property
    def store_away(self) -> StoreAway | None:
        return store_away(self.services)

    @property
    def open_transactions(self) -> OpenTransactions | None:
        return next((status.open_transactions for status in self.statuses if status.open_transactions), None)

    @property
    def problems(self) -> list[HealthProblem]:
        unannounced = self.members.unannounced
        return [*service_problems(self.services), *([unannounced_problem(unannounced)] if unannounced else [])]


async def asked_cluster(visit: Visit) -> AskedCluster:
    """The coordinator of this console is asked first, and then all services at once, also that one: what they say of
    their clocks is compared. Raises `ServiceUnreachable` if that coordinator does not answer."""
    client, url = visit.client_with(STATUS_TIMEOUT_S), visit.site.url
    own = await client.service_status(url)
    members = told_members(url, own, await client.cluster(patient=False) if own.store is not None else None)

    async def asked(name: str, process: Process) -> AskedService:
        try:
            status = await client.service_status(process.url)
        except metatxn.MetatxnError as error:
            return AskedService(name, process, silence=str(error))
        return AskedService(name, process, status)

    return AskedCluster(members, await asyncio.gather(*(asked(*each) for each in members.services)))
