"""Goal: a stream that gRPC never ends holds up nobody: leases are renewed, and watches go on.

Method: the channels of the member in use are closed, as when it was silent for a whole call, after a stream was made
and before it has begun, some turns of the event loop later each time. Found by chaos: a broker that was cut off for a
moment was not announced any more, and never again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_leases import LeasedRecord
from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.types import Changes
from tests.metastore.etcd.conftest import OpenStore
from tests.servers import EtcdServer

TURNS = (0, 1, 2, 6)


def closed_after(store: EtcdStore, turns: int, make: Callable[..., Any]) -> Callable[..., Any]:
    """Makes streams. The channels of the first one are closed after this many turns."""
    first, closing = True, list[asyncio.Task[None]]()

    async def close() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await store._connection.members.in_use.reconnect()

    def made(**options: Any) -> Any:
        nonlocal first
        stream = make(**options)
        if first:
            first = False
            closing.append(asyncio.get_running_loop().create_task(close()))
        return stream

    return made


@pytest.mark.parametrize("turns", TURNS)
async def test_a_lease_is_renewed_whenever_its_channel_was_closed(
    etcd_server: EtcdServer, open_store: OpenStore, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metastore.backends.etcd_connection.HUNG_S", 0.1)
    store = await open_store(etcd_server)
    record = await store.ephemeral("/live", b"here", 60_000)
    assert isinstance(record, LeasedRecord)
    record._deadline_s = 1.0
    leases = store._connection.leases
    monkeypatch.setattr(leases, "LeaseKeepAlive", closed_after(store, turns, leases.LeaseKeepAlive))
    async with asyncio.timeout(30):
        for _ in range(2):  # the first round may fail, and the second must not
            try:
                await record.renew()
                return
            except StoreUnavailable:
                continue
    raise AssertionError("it was not renewed")


@pytest.mark.parametrize("turns", TURNS)
async def test_a_watch_goes_on_whenever_its_channel_was_closed(
    etcd_server: EtcdServer, open_store: OpenStore, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metastore.backends.etcd_watches.CREATED_WITHIN_S", 0.5)
    store = await open_store(etcd_server)
    watches = store._connection.watches
    monkeypatch.setattr(watches, "Watch", closed_after(store, turns, watches.Watch))
    async with asyncio.timeout(30), store.watch("/a/", await store.current_revision() + 1) as watch:
        with suppress(OutcomeUnknown):  # its channel may be the one that is closed
            await store.apply(store.batch().put("/a/1", b""))
        await store.apply(store.batch().put("/a/1", b""))
        assert isinstance(await anext(watch), Changes)
