"""Goal: a reply that is lost costs nobody a wrong answer, and a request that is late takes effect never.

Method: faults between the store and the connection: the request or the reply is lost, the request arrives twice, or
after the fence. Then each answer is compared with what the store holds.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metastore.api import telling_others
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.backends.zookeeper_log import LogReader
from metastore.backends.zookeeper_wire import Culprit, Multi, MultiRead, delete_op, get_children
from metastore.errors import CheckFailed, OutcomeUnknown, StoreUnavailable, StoreWentBack
from metastore.types import Absent, Applied, AtVersion, Batch, EmptyRange, FirstVersion
from tests.metastore.zookeeper.conftest import OpenStore
from tests.metastore.zookeeper.faults import (
    Fault,
    Late,
    Send,
    delivered,
    delivered_twice,
    inject,
    reply_lost,
    request_lost,
    together,
)
from tests.servers import ZooKeeperServer


async def mixed_group(store: ZooKeeperStore) -> tuple[list[Batch], list[type]]:
    """Applies of every kind that may travel together, and what must become of each."""
    await store.apply(store.batch().put("/old/1", b"1").put("/old/2", b"2").put("/gone/1", b"").put("/gone/2", b""))
    await store.apply(store.batch().put("/set/1", b""))
    old = await store.get("/old/1")
    assert old is not None
    return [
        store.batch().create("/new/1", b""),
        store.batch().create("/old/2", b"lost"),
        store.batch().replace(old, b"3"),
        store.batch().check(AtVersion("/none", old.version)).put("/new/2", b""),
        store.batch().delete("/gone/1"),
        store.batch().delete_range("/gone/2", "/gone/3"),
        store.batch().check(FirstVersion("/set/1"), EmptyRange("/empty/", "/empty0")).put("/set/2", b""),
        store.batch().check(Absent("/new/3"), EmptyRange("/old/", "/old0")).put("/new/4", b""),
        store.batch().put("/new/5", b""),
    ], [Applied, CheckFailed, Applied, CheckFailed, Applied, Applied, Applied, CheckFailed, Applied]


@pytest.mark.parametrize(
    "faults",
    [
        [reply_lost],
        [delivered_twice],
        [request_lost],
        [request_lost, request_lost],
        [request_lost, reply_lost],
        [request_lost, delivered_twice],
        [request_lost, delivered, reply_lost],
    ],
    ids=lambda faults: "+".join(fault.__name__ for fault in faults),
)
async def test_every_member_gets_its_true_answer(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, faults: list[Fault]
) -> None:
    store = await open_store(zookeeper_server)
    batches, expected = await mixed_group(store)
    inject(store, *faults)
    answers = await together(store, batches)
    assert [type(answer) for answer in answers] == expected
    found = {record.key: record for record in (await store.scan("/")).records}
    assert sorted(found) == ["/new/1", "/new/5", "/old/1", "/old/2", "/set/1", "/set/2"]
    assert found["/new/1"].first and found["/old/1"].value == b"3"
    assert isinstance(answers[0], Applied) and answers[0].revision == found["/new/1"].version
    assert isinstance(answers[1], CheckFailed) and answers[1].current == found["/old/2"]
    # What comes behind it finds the log as it should be.
    await store.apply(store.batch().create("/after", b""))


async def test_a_request_that_lost_against_the_fence_never_lands(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(zookeeper_server)
    late = Late()
    inject(store, late)
    applied = await store.apply(store.batch().put("/a", b"once"))
    for _ in range(3):
        (outcome,) = await late.deliver()
        assert outcome == Culprit(0, -103)
        await store.apply(store.batch().put("/b", b""))
    record = await store.get("/a")
    assert record is not None and record.first and record.version == applied.revision


async def test_a_number_that_was_fenced_off_hides_nothing_behind_it(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    """Who reads the log goes on behind it at once: the next round begins behind all that was there in this one."""
    store = await open_store(zookeeper_server)
    await store.apply(store.batch().put("/known", b""))
    reader = LogReader(store._connection, store._paths, await store.current_revision())
    await reader.advance(store._deadline())
    await store.apply(store.batch().put("/before", b""))
    inject(store, request_lost)
    await store.apply(store.batch().put("/behind", b""))
    changes, _ = await reader.advance(store._deadline())
    assert [event.key for each in changes for event in each.events] == ["/before", "/behind"]


async def test_a_late_request_that_is_faster_than_its_fence_is_found(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    """The request sits in the server while the fence is on its way, and takes effect first."""
    store = await open_store(zookeeper_server)
    await store.apply(store.batch().put("/before", b""))
    late = Late()

    async def overtaken(request: Any, send: Send) -> Any:
        await late.deliver()
        return await send(request)

    inject(store, late, on_fences=overtaken)
    applied = await store.apply(store.batch().create("/a", b"once"))
    record = await store.get("/a")
    assert record is not None and record.first and record.version == applied.revision


async def test_a_fence_whose_reply_is_lost_and_one_that_is_late(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(zookeeper_server)
    fences: list[Fault] = [Late(), reply_lost, delivered]
    late = fences[0]
    assert isinstance(late, Late)

    async def fence(request: Any, send: Send) -> Any:
        return await (fences.pop(0) if fences else delivered)(request, send)

    inject(store, reply_lost, on_fences=fence)
    await store.apply(store.batch().create("/a", b""))
    await late.deliver()
    # The version of the log is not what the store thinks: that is definite, and mended.
    await store.apply(store.batch().create("/b", b""))
    assert [record.key for record in (await store.scan("/")).records] == ["/a", "/b"]


async def test_what_waits_behind_a_request_in_doubt_keeps_its_order(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    lost, settle = asyncio.Event(), asyncio.Event()
    store = await open_store(zookeeper_server, on_lost=lost.set)
    await store.apply(store.batch().put("/before", b""))

    async def held(request: Any, send: Send) -> Any:
        await settle.wait()
        return await send(request)

    inject(store, reply_lost, on_fences=held)
    first = asyncio.create_task(store.apply(store.batch().create("/a", b"1")))
    await lost.wait()
    second = asyncio.create_task(store.apply(store.batch().create("/a", b"2")))
    assert await store.get("/a") is not None, "reads do not wait"
    assert not first.done() and not second.done()
    settle.set()
    await first
    with pytest.raises(CheckFailed):
        await second


async def test_a_deadline_that_passes_in_doubt_is_unknown_and_settled_later(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    settle = asyncio.Event()
    store = await open_store(zookeeper_server, deadline_ms=1_500)
    await store.apply(store.batch().put("/before", b""))

    async def held(request: Any, send: Send) -> Any:
        await settle.wait()
        return await request_lost(request, send)

    fences: list[Fault] = [held]

    async def fence(request: Any, send: Send) -> Any:
        return await (fences.pop() if fences else delivered)(request, send)

    inject(store, reply_lost, on_fences=fence)
    with pytest.raises(OutcomeUnknown) as unknown:
        await store.apply(store.batch().create("/a", b""))
    assert not unknown.value.definite
    with pytest.raises(StoreUnavailable):
        await store.apply(store.batch().create("/b", b""))  # waits behind it, and was not sent
    settle.set()
    await store.apply(store.batch().create("/c", b""))
    assert [record.key for record in (await store.scan("/")).records] == ["/a", "/before", "/c"]


async def test_no_duplicate_event_from_a_request_sent_again(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(zookeeper_server)
    start = await store.current_revision()
    inject(store, request_lost, reply_lost, delivered_twice, delivered)
    async with store.watch("/", start + 1) as watch:
        applied = [await store.apply(store.batch().create(f"/{name}", b"")) for name in "abc"]
        assert [(await anext(watch)).revision for _ in applied] == [one.revision for one in applied]


async def go_back(store: ZooKeeperStore) -> None:
    """As an ensemble does that loses what it had acknowledged: the log of `store` is as it was at the beginning."""
    ((writer,),) = await store._connection.ask(MultiRead([get_children(store._paths.log)]), store._deadline())
    home = f"{store._paths.log}/{writer}"
    (entries,) = await store._connection.ask(MultiRead([get_children(home)]), store._deadline())
    lost = [delete_op(f"{home}/{entry}") for entry in entries]
    (done,) = await store._connection.ask(
        Multi([*lost, delete_op(home), store._paths.create(home, b"0")]), store._deadline()
    )
    assert not isinstance(done, Culprit)


@pytest.mark.parametrize("faults", [[], [request_lost]], ids=["the next request", "a fence"])
async def test_an_ensemble_that_forgets_what_it_acknowledged_is_told(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, faults: list[Fault]
) -> None:
    """The request of the fence might still arrive, and its version be reached again: it is neither denied nor sent
    again."""
    store = await open_store(zookeeper_server)
    for _ in range(3):
        await store.apply(store.batch().put("/a", b""))
    assert store.lost_writes is None
    await go_back(store)
    inject(store, *faults)
    (answer,) = await together(store, [store.batch().put("/b", b"")])
    assert isinstance(answer, OutcomeUnknown if faults else Applied)
    assert store.lost_writes is not None and "was at version 3, and now it is at version 0" in store.lost_writes
    with pytest.raises(StoreWentBack):
        await store.apply(store.batch().create("/c", b""))
    with telling_others():
        await store.apply(store.batch().create("/c", b""))
