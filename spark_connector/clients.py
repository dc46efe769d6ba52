"""One client per (service, token) and process. Spark reuses its Python workers, so connections outlive tasks."""

from __future__ import annotations

import os
from functools import lru_cache

import metatxn


def client(url: str, token: str | None) -> metatxn.Client:
    # A forked child must not share sockets with its parent, hence the process id.
    return _client(os.getpid(), url, token)


@lru_cache(maxsize=16)
def _client(_pid: int, url: str, token: str | None) -> metatxn.Client:
    return metatxn.connect(url, token=token)


@lru_cache(maxsize=64)
def check_reachable(url: str, token: str | None) -> None:
    """Before a query starts: a wrong port is known at once. Later failures are given time, services restart."""
    client(url, token).cluster(patient=False)
