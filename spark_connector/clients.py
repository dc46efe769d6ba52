"""One client per service and process. Spark reuses its Python workers, so connections outlive tasks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache

import metatxn
from spark_connector.worker_memory import prepare_worker


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The URL of the services, the token, the authorities to trust (a PEM file; None: the usual ones), and the listener
    whose addresses can be reached (None: that of the URL)."""

    url: str
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    listener: str | None = None


def client(service: ServiceAddress) -> metatxn.Client:
    prepare_worker()
    # A forked child must not share sockets with its parent, so the key includes the process id.
    return _client(os.getpid(), service)


@lru_cache(maxsize=16)
def _client(_pid: int, service: ServiceAddress) -> metatxn.Client:
    return metatxn.connect(service.url, token=service.token, ca=service.ca, listener=service.listener)


@lru_cache(maxsize=64)
def check_reachable(service: ServiceAddress) -> None:
    """Check before a query starts, so that a wrong port is reported at once. Later failures are retried, because
    services restart."""
    client(service).cluster(patient=False)
