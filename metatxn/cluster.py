"""Which coordinators and brokers there are: one URL is enough to find the others."""

from __future__ import annotations

import random
import threading
from typing import Literal

from pydantic import ValidationError

from coordinator.api.models import Cluster, Process
from metatxn.errors import ServiceUnreachable
from metatxn.http import Call, FixedEndpoint, Http, json_of, path_of

Role = Literal["coordinator", "broker"]


class Directory:
    """Asks `/v1/cluster` when something is to be sent for the first time, and again when nobody listed answers."""

    def __init__(self, http: Http, url: str) -> None:
        self._http = http
        self._known = [url]
        self._lock = threading.Lock()
        self._urls: dict[Role, list[str]] = {}

    def read(self, *, patient: bool = True) -> Cluster:
        """The cluster now, from the first service that answers; impatient: each known one is asked only once."""
        last: ServiceUnreachable | None = None
        for url in list(self._known):
            try:
                return self._ask(url, patient=patient and url == self._known[-1])
            except ServiceUnreachable as error:
                last = error
        assert last is not None
        raise last

    def _ask(self, url: str, *, patient: bool) -> Cluster:
        response = self._http.request(FixedEndpoint(url), Call("GET", path_of("cluster")), patient=patient)
        try:
            cluster = Cluster.model_validate(json_of(response))
        except ValidationError as error:
            detail = f"{url} is no metatxn service: {error.error_count()} fields of its answer do not fit"
            raise ServiceUnreachable(detail, retriable=False) from error
        self._remember(url, cluster)
        return cluster

    def _remember(self, asked: str, cluster: Cluster) -> None:
        with self._lock:
            self._urls = {"coordinator": _shuffled(cluster.coordinators), "broker": _shuffled(cluster.brokers)}
            others = {process.url.rstrip("/") for process in [*cluster.coordinators, *cluster.brokers]}
            self._known = [asked, *sorted(others - {asked})]

    def url(self, role: Role) -> str:
        with self._lock:
            urls = self._urls.get(role)
        if not urls:
            self.read(patient=False)
            with self._lock:
                urls = self._urls.get(role)
        if not urls:
            raise ServiceUnreachable(
                f"no {role} is registered in the cluster of {self._known[0]}",
                action=f"Start one: metatxn {role} --help",
            )
        return urls[0]

    def failed(self, role: Role, url: str) -> None:
        """The next one's turn; after the last one the list is read anew."""
        with self._lock:
            urls = self._urls.get(role, [])
            if url in urls:
                urls.remove(url)

    def last(self, role: Role, url: str) -> None:
        """Everybody else first."""
        with self._lock:
            urls = self._urls.get(role, [])
            if url in urls:
                urls.remove(url)
                urls.append(url)


def _shuffled(processes: list[Process]) -> list[str]:
    return random.sample([process.url.rstrip("/") for process in processes], len(processes))


class AnyOf:
    """An endpoint: any coordinator, or any broker."""

    def __init__(self, directory: Directory, role: Role) -> None:
        self._directory = directory
        self._role = role

    def url(self) -> str:
        return self._directory.url(self._role)

    def failed(self, url: str) -> None:
        self._directory.failed(self._role, url)

    def unavailable(self, url: str) -> None: ...

    def moved(self, url: str) -> None: ...
