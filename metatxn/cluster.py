"""Which coordinators and brokers there are: one URL is enough to find the others."""

from __future__ import annotations

import asyncio
import random
from typing import Literal

from pydantic import ValidationError

from coordinator.api.models import Cluster, Process
from metatxn.errors import ServiceUnreachable
from metatxn.http import Call, FixedEndpoint, Http, json_of, path_of

Role = Literal["coordinator", "broker"]


class Directory:
    """Asks `/v1/cluster` when something is to be sent for the first time, and again when nobody listed answers."""

    def __init__(self, http: Http, url: str, randomness: random.Random) -> None:
        self._http = http
        self._randomness = randomness
        self._known = [url]
        self._urls: dict[Role, list[str]] = {}
        self._reading: asyncio.Task[Cluster] | None = None

    async def read(self, *, patient: bool = True) -> Cluster:
        """The cluster now, from the first service that answers; impatient: each known one is asked only once."""
        last: ServiceUnreachable | None = None
        for url in list(self._known):
            try:
                return await self._ask(url, patient=patient and url == self._known[-1])
            except ServiceUnreachable as error:
                last = error
        assert last is not None
        raise last

    async def _ask(self, url: str, *, patient: bool) -> Cluster:
        response = await self._http.request(FixedEndpoint(url), Call("GET", path_of("cluster")), patient=patient)
        try:
            cluster = Cluster.model_validate(json_of(response))
        except ValidationError as error:
            detail = f"{url} is no metatxn service: {error.error_count()} fields of its answer do not fit"
            raise ServiceUnreachable(detail, retriable=False) from error
        self._remember(url, cluster)
        return cluster

    def _remember(self, asked: str, cluster: Cluster) -> None:
        self._urls = {"coordinator": self._shuffled(cluster.coordinators), "broker": self._shuffled(cluster.brokers)}
        others = {process.url.rstrip("/") for process in [*cluster.coordinators, *cluster.brokers]}
        self._known = [asked, *sorted(others - {asked})]

    def _shuffled(self, processes: list[Process]) -> list[str]:
        return self._randomness.sample([process.url.rstrip("/") for process in processes], len(processes))

    async def url(self, role: Role) -> str:
        if not self._urls.get(role):
            await self._read_together()
        if urls := self._urls.get(role):
            return urls[0]
        raise ServiceUnreachable(
            f"no {role} is registered in the cluster of {self._known[0]}",
            action=f"Start one: metatxn {role} --help",
        )

    async def _read_together(self) -> None:
        """Whoever comes while the cluster is being read waits for that answer: a thousand requests ask once."""
        if self._reading is None:
            self._reading = asyncio.create_task(self.read(patient=False))
            self._reading.add_done_callback(self._read)
        await asyncio.shield(self._reading)

    def _read(self, reading: asyncio.Task[Cluster]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # those who wait get it; when they all were cancelled, it interests nobody

    def failed(self, role: Role, url: str) -> None:
        """The next one's turn; after the last one the list is read anew."""
        urls = self._urls.get(role, [])
        if url in urls:
            urls.remove(url)

    def last(self, role: Role, url: str) -> None:
        """Everybody else first."""
        urls = self._urls.get(role, [])
        if url in urls:
            urls.remove(url)
            urls.append(url)


class AnyOf:
    """An endpoint: any coordinator, or any broker."""

    def __init__(self, directory: Directory, role: Role) -> None:
        self._directory = directory
        self._role = role

    async def url(self) -> str:
        return await self._directory.url(self._role)

    def failed(self, url: str) -> None:
        self._directory.failed(self._role, url)

    def unavailable(self, url: str) -> None: ...

    def moved(self, url: str) -> None: ...
