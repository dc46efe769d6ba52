"""The services of a cluster, asked at once, also while the metadata store is away."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import TypeVar

import metatxn
from metatxn.health import processes_of
from metatxn.members import ANSWER_WITHIN_S, ClusterMembers, told_members
from metatxn.wire.models import Process

MOST_AT_ONCE = 100

T = TypeVar("T")


def members_of(client: metatxn.Client, url: str) -> ClusterMembers:
    """The services of the cluster of the service at `url`. Raises `ServiceUnreachable` if that does not answer."""
    (status,) = asked_at_once([("service", Process(id=url, url=url))], lambda each: client.service_status(each.url))
    if isinstance(status, metatxn.NotFound):  # a release that does not tell it
        return ClusterMembers(processes_of(client.cluster(patient=False)))
    if isinstance(status, metatxn.MetatxnError):
        raise status
    return told_members(url, status, client.cluster(patient=False) if status.store is not None else None)


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
