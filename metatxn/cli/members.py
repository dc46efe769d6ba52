"""Which services a cluster has, and what each of them says, also while the metadata store is away."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import metatxn
from metatxn.health import AskedService, processes_of
from metatxn.wire.models import KnownServices, Process

ANSWER_WITHIN_S = 6.0
"""How long a person waits for these answers. A service waits half as long for the store."""
MOST_AT_ONCE = 100

T = TypeVar("T")


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


def members_of(client: metatxn.Client, url: str) -> ClusterMembers:
    """The services of the cluster of the service at `url`. Raises `ServiceUnreachable` if that does not answer."""
    (status,) = asked_at_once([("service", Process(id=url, url=url))], lambda each: client.service_status(each.url))
    if isinstance(status, metatxn.NotFound):  # a release that does not tell it
        return ClusterMembers(processes_of(client.cluster(patient=False)))
    if isinstance(status, metatxn.MetatxnError):
        raise status
    if status.store is not None:
        found = processes_of(client.cluster(patient=False))
        if any(name == status.service for name, _ in found):
            return ClusterMembers(found)
        asked = AskedService(status.service, Process(id=url, url=url), status)
        return ClusterMembers([*found, (asked.name, asked.process)], unannounced=asked)
    known = status.last_known or KnownServices(coordinators=[], brokers=[])
    return ClusterMembers(processes_of(known) or [(status.service, Process(id=url, url=url))], blind=True)


def asked_at_once(
    services: Sequence[tuple[str, Process]], ask: Callable[[Process], T]
) -> list[T | metatxn.MetatxnError]:
    """What `ask` returns or raises for each of the services, all of which are asked at the same time."""
    pool = concurrent.futures.ThreadPoolExecutor(MOST_AT_ONCE)
    try:
        asked = [pool.submit(ask, process) for _, process in services]
        concurrent.futures.wait(asked, ANSWER_WITHIN_S)
        outcomes: list[T | metatxn.MetatxnError] = []
        for one, (_, process) in zip(asked, services, strict=True):
            try:
                outcomes.append(one.result(0))
            except TimeoutError:
                silence = f"{process.url} did not answer within {ANSWER_WITHIN_S:g} s"
                outcomes.append(metatxn.ServiceUnreachable(silence))
            except metatxn.MetatxnError as error:
                outcomes.append(error)
        return outcomes
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # threads that still wait are woken when the client is closed
