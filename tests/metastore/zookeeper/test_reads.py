"""Goal: records that take several requests are of one revision, whatever is written between two of the requests.

Method: a write is applied when the first request has been answered and the second one has not been sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from metastore.backends.zookeeper_connection import OPERATIONS_PER_READ, Reading
from tests.metastore.zookeeper.conftest import OpenStore
from tests.servers import ZooKeeperServer

KEYS = [f"/{number:04d}" for number in range(OPERATIONS_PER_READ + 1)]
FIRST, CREATED, LAST = KEYS[0], KEYS[1], KEYS[-1]


async def test_records_are_of_one_revision_whatever_is_written_between_two_requests(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(zookeeper_server)
    await store.apply(store.batch().put(FIRST, b"before").put(LAST, b"before"))
    read, requests, answered = store._connection.read, 0, asyncio.Event()

    async def interrupted(operations: Sequence[bytes], deadline: float) -> Reading:
        nonlocal requests
        requests += 1
        if requests == 2:
            await answered.wait()
            monkeypatch.undo()
            await store.apply(store.batch().delete(FIRST).put(CREATED, b"new").put(LAST, b"after").put("/other", b""))
        reading = await read(operations, deadline)
        answered.set()
        return reading

    monkeypatch.setattr(store._connection, "read", interrupted)
    snapshot = await store.get_many(KEYS)
    assert requests == 2
    found = {key: record.value for key, record in snapshot.records.items() if record}
    assert found == {CREATED: b"new", LAST: b"after"}
    assert list(snapshot.records) == KEYS
    assert await store.get_many(KEYS) == snapshot, "versions and revision, too"
