"""Goal: records that take several requests are of one revision, whatever is written between two of the requests, and a
read of very many of them ends as long as ZooKeeper answers.

Method: a write is applied when the first request has been answered and the second one has not been sent. Then all
history is removed, too, again and again, and the time that each request has is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from metastore.backends import zookeeper_reads
from metastore.backends.zookeeper_connection import OPERATIONS_PER_READ, Reading
from metastore.backends.zookeeper_wire import get_data
from metastore.types import Record
from tests.metastore.zookeeper.conftest import OpenStore
from tests.servers import ZooKeeperServer

KEYS = [f"/{number:04d}" for number in range(OPERATIONS_PER_READ + 1)]
FIRST, CREATED, LAST = KEYS[0], KEYS[1], KEYS[-1]


@pytest.mark.parametrize("trimmed", [False, True])
async def test_records_are_of_one_revision_whatever_is_written_between_two_requests(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, trimmed: bool
) -> None:
    """Also if the log does not tell it any more: then they are read again."""
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
            if trimmed:
                await store.compact()
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


@pytest.mark.parametrize("how", ["range", "records"])
async def test_a_read_of_very_many_records_follows_the_log_and_has_the_time_of_a_request_for_each_group(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    root = f"/very-many-{how}"
    store, other = await open_store(zookeeper_server, root), await open_store(zookeeper_server, root)
    keys = [f"/{number}" for number in range(6)]
    batch = store.batch()
    for key in keys:
        batch = batch.put(key, b"before")
    await store.apply(batch)
    monkeypatch.setattr(zookeeper_reads, "OPERATIONS_PER_READ", 2)
    monkeypatch.setattr(zookeeper_reads, "REQUESTS_TOGETHER", 1)
    wanted = {get_data(store._paths.record(key)) for key in keys}
    read, times, groups = store._connection.read, list[float](), 0

    async def interrupted(operations: Sequence[bytes], deadline: float) -> Reading:
        nonlocal groups
        if not wanted.issuperset(operations):
            return await read(operations, deadline)
        groups += 1
        if groups > 1:  # the log has been followed up to here
            await other.compact()
        reading = await read(operations, deadline)
        times.append(deadline)
        await other.apply(other.batch().put(keys[0], b"after %d" % groups).delete(keys[groups]))
        return reading

    monkeypatch.setattr(store._connection, "read", interrupted)
    found: dict[str, Record | None] = {}
    if how == "range":
        found.update((record.key, record) for record in (await store.scan("/")).records)
    else:
        deadline = store._loop.time() + store._deadline_s
        snapshot = await store._snapshots.records(keys, deadline)
        found.update((key, record) for key, record in snapshot.records.items() if record)
    assert groups == 3, "nothing was read again"
    assert times == sorted(set(times)), "each group has a deadline of its own"
    monkeypatch.undo()
    assert list(found.values()) == (await store.scan("/")).records
    assert {key: record.value for key, record in found.items() if record} == {
        keys[0]: b"after 3",
        **dict.fromkeys(keys[4:], b"before"),
    }


async def test_a_page_that_turns_out_too_small_is_read_again(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted while the page was read leaves room for records that nobody has asked for."""
    store = await open_store(zookeeper_server, "/too-small")
    keys = [f"/{number}" for number in range(6)]
    batch = store.batch()
    for key in keys:
        batch = batch.put(key, b"")
    await store.apply(batch)
    wanted = {get_data(store._paths.record(key)) for key in keys}
    read, contents = store._connection.read, 0

    async def interrupted(operations: Sequence[bytes], deadline: float) -> Reading:
        nonlocal contents
        if wanted.issuperset(operations):
            contents += 1
            if contents == 1:
                await store.apply(store.batch().delete(keys[1]))
        return await read(operations, deadline)

    monkeypatch.setattr(store._connection, "read", interrupted)
    page = await store.range("/", "0", limit=2)
    assert ([record.key for record in page.records], page.more) == ([keys[0], keys[2]], True)
    assert contents == 2
