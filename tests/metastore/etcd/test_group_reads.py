"""Reads that wait together are one request, and each gets its own answers. Method: a server that is a function.

A read that takes several requests is of one revision: a real server, which compacts between two of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from metastore.backends.etcd import RECORDS_OF_FIRST_PAGE
from metastore.backends.etcd_group_reads import IN_FLIGHT, GroupReads
from metastore.backends.etcd_stubs import RangeRequest, RangeResponse
from metastore.errors import StoreUnavailable
from metastore.types import Applied, Revision
from tests.metastore.etcd.conftest import OpenStore
from tests.servers import EtcdServer


class Server:
    """Answers when it is told to. Remembers what each request asked for."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def read(self, keys: Sequence[str]) -> tuple[list[str], Revision]:
        self.requests.append(list(keys))
        revision = len(self.requests)
        await self.may_answer.wait()
        if self.error:
            raise self.error
        return [key.upper() for key in keys], revision


async def all_asked(server: Server, requests: int) -> None:
    while len(server.requests) < requests:
        await asyncio.sleep(0)


async def test_reads_asked_for_together_are_one_request() -> None:
    server = Server()
    server.may_answer.set()
    reads = GroupReads(server.read, reads_per_request=100)
    answers = await asyncio.gather(*(reads.read([f"/{number}", "/same"]) for number in range(20)))
    assert len(server.requests) == 1
    for number, (found, revision) in enumerate(answers):
        assert found == [f"/{number}", "/SAME"]
        assert revision == 1


async def test_a_read_never_joins_a_request_that_was_sent() -> None:
    """It could be answered with what was there before it was asked for."""
    server = Server()
    reads = GroupReads(server.read, reads_per_request=100)
    first = asyncio.create_task(reads.read(["/a"]))
    await all_asked(server, 1)
    second = asyncio.create_task(reads.read(["/a"]))
    await all_asked(server, 2)
    server.may_answer.set()
    assert ((await first)[1], (await second)[1]) == (1, 2)


async def test_a_request_holds_no_more_keys_than_it_may() -> None:
    server = Server()
    server.may_answer.set()
    reads = GroupReads(server.read, reads_per_request=5)
    await asyncio.gather(*(reads.read(["/a", "/b"]) for _ in range(7)))
    assert all(len(request) <= 5 for request in server.requests)
    assert sum(map(len, server.requests)) == 14


async def test_what_waits_while_all_requests_are_under_way_goes_together() -> None:
    server = Server()
    reads = GroupReads(server.read, reads_per_request=100)
    waiting = []
    for number in range(IN_FLIGHT):
        waiting.append(asyncio.create_task(reads.read(["/a"])))
        await all_asked(server, number + 1)
    waiting += [asyncio.create_task(reads.read(["/b"])) for _ in range(9)]
    server.may_answer.set()
    await asyncio.gather(*waiting)
    assert server.requests[IN_FLIGHT:] == [["/b"] * 9]


async def test_a_failure_reaches_every_member_and_the_next_read_goes_on() -> None:
    server = Server()
    server.may_answer.set()
    server.error = StoreUnavailable("away")
    reads = GroupReads(server.read, reads_per_request=100)
    failed = await asyncio.gather(*(reads.read(["/a"]) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in failed] == [StoreUnavailable] * 3
    server.error = None
    assert (await reads.read(["/a"]))[0][0] is not None
    await reads.close()


async def test_a_reader_that_gives_up_disturbs_nobody() -> None:
    server = Server()
    reads = GroupReads(server.read, reads_per_request=100)
    impatient, patient = asyncio.create_task(reads.read(["/a"])), asyncio.create_task(reads.read(["/b"]))
    await all_asked(server, 1)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    server.may_answer.set()
    assert (await patient)[0] == ["/B"]


async def test_what_is_compacted_away_between_two_parts_is_read_again(
    own_server: EtcdServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(own_server)
    keys = [f"/{number}" for number in range(300)]
    await store.apply(store.batch().put(keys[0], b"before").put(keys[-1], b"before"))
    find_at, revisions = store._find_at, []

    async def compacted(revision: Revision, wanted: Sequence[str]) -> list[RangeResponse]:
        revisions.append(revision)
        if len(revisions) == 1:
            await store.apply(store.batch().put(keys[0], b"after").put(keys[-1], b"after"))
            await asyncio.to_thread(own_server.compact)
        return await find_at(revision, wanted)

    monkeypatch.setattr(store, "_find_at", compacted)
    snapshot = await store.get_many(keys)
    values = {record.value for record in (snapshot.records[keys[0]], snapshot.records[keys[-1]]) if record}
    assert (values, len(snapshot.records)) == ({b"after"}, 300)
    assert snapshot.revision == revisions[1] > revisions[0]


async def test_what_is_compacted_away_between_two_pages_is_read_again(
    etcd_server: EtcdServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(etcd_server)
    keys = [f"/{number:02d}" for number in range(RECORDS_OF_FIRST_PAGE + 1)]
    await asyncio.gather(*(store.apply(store.batch().put(key, b"before")) for key in keys))
    ask, applied = store._ask, list[Applied]()

    async def compacted(method: Any, request: Any) -> Any:
        if isinstance(request, RangeRequest):  # the second page; the first one shares its request with other reads
            monkeypatch.undo()
            applied.append(await store.apply(store.batch().put(keys[0], b"after").put(keys[-1], b"after")))
            await asyncio.to_thread(etcd_server.compact)
        return await ask(method, request)

    monkeypatch.setattr(store, "_ask", compacted)
    found = await store.scan("/")
    assert [record.key for record in found.records] == keys
    assert found.records[0].value == found.records[-1].value == b"after"
    assert found.revision >= applied[0].revision
