"""Point reads that wait together are one request, and each gets its own keys. Method: a server that is a function."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from metastore.backends.etcd_group_reads import IN_FLIGHT, Found, GroupReads
from metastore.errors import StoreUnavailable
from metastore.types import Record


class Server:
    """Answers when it is told to. Remembers what each request asked for."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def read(self, keys: Sequence[str]) -> Found:
        self.requests.append(list(keys))
        revision = len(self.requests)
        await self.may_answer.wait()
        if self.error:
            raise self.error
        return [Record(key, key.encode(), revision, True) for key in keys], revision


async def all_asked(server: Server, requests: int) -> None:
    while len(server.requests) < requests:
        await asyncio.sleep(0)


async def test_reads_asked_for_together_are_one_request() -> None:
    server = Server()
    server.may_answer.set()
    reads = GroupReads(server.read, keys_per_read=100)
    answers = await asyncio.gather(*(reads.get([f"/{number}", "/same"]) for number in range(20)))
    assert len(server.requests) == 1
    for number, (records, revision) in enumerate(answers):
        assert [record.key for record in records if record] == [f"/{number}", "/same"]
        assert revision == 1


async def test_a_read_never_joins_a_request_that_was_sent() -> None:
    """It could be answered with what was there before it was asked for."""
    server = Server()
    reads = GroupReads(server.read, keys_per_read=100)
    first = asyncio.create_task(reads.get(["/a"]))
    await all_asked(server, 1)
    second = asyncio.create_task(reads.get(["/a"]))
    await all_asked(server, 2)
    server.may_answer.set()
    assert ((await first)[1], (await second)[1]) == (1, 2)


async def test_a_request_holds_no_more_keys_than_it_may() -> None:
    server = Server()
    server.may_answer.set()
    reads = GroupReads(server.read, keys_per_read=5)
    await asyncio.gather(*(reads.get(["/a", "/b"]) for _ in range(7)))
    assert all(len(request) <= 5 for request in server.requests)
    assert sum(map(len, server.requests)) == 14


async def test_what_waits_while_all_requests_are_under_way_goes_together() -> None:
    server = Server()
    reads = GroupReads(server.read, keys_per_read=100)
    waiting = []
    for number in range(IN_FLIGHT):
        waiting.append(asyncio.create_task(reads.get(["/a"])))
        await all_asked(server, number + 1)
    waiting += [asyncio.create_task(reads.get(["/b"])) for _ in range(9)]
    server.may_answer.set()
    await asyncio.gather(*waiting)
    assert server.requests[IN_FLIGHT:] == [["/b"] * 9]


async def test_a_failure_reaches_every_member_and_the_next_read_goes_on() -> None:
    server = Server()
    server.may_answer.set()
    server.error = StoreUnavailable("away")
    reads = GroupReads(server.read, keys_per_read=100)
    failed = await asyncio.gather(*(reads.get(["/a"]) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in failed] == [StoreUnavailable] * 3
    server.error = None
    assert (await reads.get(["/a"]))[0][0] is not None
    await reads.close()


async def test_a_reader_that_gives_up_disturbs_nobody() -> None:
    server = Server()
    reads = GroupReads(server.read, keys_per_read=100)
    impatient, patient = asyncio.create_task(reads.get(["/a"])), asyncio.create_task(reads.get(["/b"]))
    await all_asked(server, 1)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    server.may_answer.set()
    (record,), _ = await patient
    assert record is not None
    assert record.key == "/b"
