"""Which services a cluster has, also while the metadata store is away: for the command line and the console.

Both ask one service for its status first. If the store answers it, the cluster is read as it is now. If not, the
services that it knew last are asked what they tell of themselves: they most likely run, and to ask for the cluster
would only take long, and fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metatxn.health import AskedService, processes_of
from metatxn.wire.models import Cluster, KnownServices, Process, ServiceStatus

ANSWER_WITHIN_S = 6.0
"""How long a person waits for the status of a service. A service waits half as long for the store."""


@dataclass(frozen=True, slots=True)
class ClusterMembers:
    """The services with their roles. `blind` means that the service that was asked does not reach the metadata store:
    they are those that it knew last, and only what services tell of themselves can be learned. `unannounced` is the
    service that was asked, if none of its role is announced: its session with the store has just ended, for example."""

    services: Sequence[tuple[str, Process]]
    blind: bool = False
    unannounced: AskedService | None = None

    @property
    def broker_urls(self) -> set[str]:
        return {process.url for name, process in self.services if name == "broker"}


def told_members(url: str, status: ServiceStatus, cluster: Cluster | None) -> ClusterMembers:
    """The services, as the service at `url` tells of them. `cluster` is what it then said of the cluster: None if its
    status says that it does not reach the store."""
    if cluster is not None:
        found = processes_of(cluster)
        if any(name == status.service for name, _ in found):
            return ClusterMembers(found)
        asked = AskedService(status.service, Process(id=url, url=url), status)
        return ClusterMembers([*found, (asked.name, asked.process)], unannounced=asked)
    known = status.last_known or KnownServices(coordinators=[], brokers=[])
    return ClusterMembers(processes_of(known) or [(status.service, Process(id=url, url=url))], blind=True)
