"""Servers and stores of tests that know they talk to etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from metastore.backends.etcd import EtcdStore
from metastore.backends.options import EtcdOptions
from tests.metastore.opening import opener
from tests.servers import EtcdServer

OpenStore = Callable[..., Awaitable[EtcdStore]]
SMALL = ("--quota-backend-bytes", str(16 << 20), "--backend-batch-interval", "10ms")
"""Flags of a server that is soon full, and soon sees it: etcd learns how large its file is when it writes to it."""


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server that the test may kill, freeze and compact."""
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Opens stores of a server, under a fresh root; they are closed behind the test."""
    async with opener(EtcdStore.open, EtcdOptions) as open_one:
        yield open_one
