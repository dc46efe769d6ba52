"""The coordinators and brokers of a cluster: one URL is enough to find the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Literal

from metatxn.answers import parsed
from metatxn.http import Call, FixedEndpoint, Http, path_of, pause_s
from metatxn.wire.coordinator import Cluster, Process
from metatxn.wire.errors import MetatxnError, ServiceUnreachable

BATCHES_SINCE = 2
"""The first cluster version whose services know binary batches."""

Role = Literal["coordinator", "broker"]


class Directory:
    """The directory of services. It requests `/v1/cluster` before the first request, and again when none of the listed
    services answers."""

    def __init__(self, http: Http, url: str, randomness: random.Random) -> None:
        self._http = http
        self._randomness = randomness
        self.given_url = url
        self._known = [url]
        self._version = 1
        self._urls: dict[Role, list[str]] = {}
        self._reading: asyncio.Task[Cluster] | None = None

    async def read(self, *, patient: bool = True) -> Cluster:
        """The cluster as it is now, from the first service that answers and can tell. With `patient=False` each known
        service is asked only once."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._http.timeout_s
        attempt = 1
        while True:
            try:
                return await self._ask_all()
            except MetatxnError as error:
                pause = pause_s(attempt, self._randomness)
                if not patient or not error.retriable or now() + pause >= deadline:
                    raise
            attempt += 1
            await asyncio.sleep(pause)

    async def _ask_all(self) -> Cluster:
        """Ask one service after another. Raises the error of the last one, or one that asking again would not
        change."""
        last: MetatxnError | None = None
        for url in list(self._known):
            try:
                return await self._ask(url)
            except MetatxnError as error:
                if not error.retriable and not isinstance(error, ServiceUnreachable):
                    raise
                last = error if last is None or error.retriable else last
        assert last is not None
        raise last

    async def _ask(self, url: str) -> Cluster:
        call = Call("GET", path_of("cluster"), for_directory=True)
        cluster = parsed(Cluster, await self._http.request(FixedEndpoint(url), call, patient=False))
        self._remember(url, cluster)
        return cluster

    def _remember(self, asked: str, cluster: Cluster) -> None:
        """Next time, ask the service that answered first. The given URL stays among the known ones: it may be that
        of a gateway, which no service lists."""
        self._version = max(self._version, cluster.version)
        self._urls = {"coordinator": self._shuffled(cluster.coordinators), "broker": self._shuffled(cluster.brokers)}
        others = {process.url.rstrip("/") for process in [*cluster.coordinators, *cluster.brokers]}
        for url in others:
            self._http.learned(url, asked)
        self._known = [asked, *sorted((others | {self.given_url}) - {asked})]

    def _shuffled(self, processes: Sequence[Process]) -> list[str]:
        """The URLs, each once: a process that was killed is announced for a while beside its successor."""
        urls = list(dict.fromkeys(process.url.rstrip("/") for process in processes))
        return self._randomness.sample(urls, len(urls))

    async def url(self, role: Role) -> str:
        if not self._urls.get(role):
            await self._read_together()
        if urls := self._urls.get(role):
            return urls[0]
        raise ServiceUnreachable(
            f"no {role} is registered in the cluster of {self._known[0]}",
            action=f"Start one; see `metatxn {role} --help`.",
        )

    async def _read_together(self) -> None:
        """Read the cluster. Requests that come meanwhile wait for the same answer, so a thousand requests ask once."""
        if self._reading is None:
            self._reading = asyncio.create_task(self.read(patient=False))
            self._reading.add_done_callback(self._read)
        await asyncio.shield(self._reading)

    def _read(self, reading: asyncio.Task[Cluster]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # the waiting requests get it; if all were cancelled, it is not needed

    async def knows_batches(self) -> bool:
        """Whether every service knows binary batches of messages. That may be out of date until the cluster is read
        again; then the client speaks JSON for longer than necessary. Raises the errors of `url`."""
        if not self._urls:
            await self._read_together()
        return self._version >= BATCHES_SINCE

    def failed(self, role: Role, url: str) -> None:
        """Use the next service from now on. After the last one the list is read again."""
        urls = self._urls.get(role, [])
        if url in urls:
            urls.remove(url)

    def last(self, role: Role, url: str) -> bool:
        """Try all other services first. Returns whether there are any."""
        urls = self._urls.get(role, [])
        if url in urls:
            urls.remove(url)
            urls.append(url)
        return urls[:1] not in ([], [url])


class AnyOf:
    """An endpoint: any coordinator, or any broker. A service that has lost its store answers but can do nothing, so the
    next one is tried."""

    def __init__(self, directory: Directory, role: Role) -> None:
        self._directory = directory
        self._role = role

    async def url(self) -> str:
        return await self._directory.url(self._role)

    def failed(self, url: str) -> None:
        self._directory.failed(self._role, url)

    def unavailable(self, url: str) -> bool:
        return self._directory.last(self._role, url)

    def answered(self, url: str) -> None: ...
