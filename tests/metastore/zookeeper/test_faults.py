"""Goal: a server that dies, freezes or forgets the session costs time, never the truth, and no call waits forever.

Method: a real server is killed and frozen under load. Every answer is compared with what it holds at the end, and a
cache that only a watch feeds with a full scan.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metastore.backends.options import ZooKeeperOptions
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.backends.zookeeper_wire import Culprit, MultiRead, Sync
from metastore.errors import MetastoreError, OutcomeUnknown, StoreUnavailable
from metastore.types import Applied, Event, Resync
from metastore.watches import Mirror
from tests.metastore.zookeeper.conftest import OpenStore, children
from tests.metastore.zookeeper.faults import end_session
from tests.servers import ZooKeeperServer, free_port

SESSION_MS = 1_500


async def connection_is(store: ZooKeeperStore, state: bool) -> None:
    """Return when the store knows that it is connected, or not."""
    changed = asyncio.Event()
    store._connection.on_state.append(lambda _: changed.set())
    while store._connection.ready != state:
        changed.clear()
        await changed.wait()


async def test_nothing_is_sent_while_the_server_is_away(own_server: ZooKeeperServer, open_store: OpenStore) -> None:
    store = await open_store(own_server, deadline_ms=1_500)
    await store.apply(store.batch().put("/before", b""))
    own_server.kill()
    await connection_is(store, False)
    with pytest.raises(StoreUnavailable):
        await store.apply(store.batch().put("/away", b""))
    for call in (store.get("/away"), store.scan("/")):
        with pytest.raises(StoreUnavailable):
            await call
    await asyncio.to_thread(own_server.start)
    later = await open_store(own_server, store._paths.root)
    assert [record.key for record in (await later.scan("/")).records] == ["/before"]


async def test_an_answer_out_of_order_costs_the_connection_only(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(zookeeper_server)
    await store.apply(store.batch().put("/a", b"0"))
    lost = asyncio.Event()
    store._connection.on_state.append(lambda connected: None if connected else lost.set())
    never_sent = (Sync("/"), None, 0)
    store._connection._client._pending.append(never_sent)
    await store.apply(store.batch().put("/a", b"1"))
    assert lost.is_set()
    record = await store.get("/a")
    assert record is not None and record.value == b"1"


async def test_an_answer_that_never_comes_is_unknown_and_settled_later(
    own_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(own_server, deadline_ms=1_500, session_timeout_ms=SESSION_MS)
    await store.apply(store.batch().put("/a", b"0"))
    own_server.freeze()
    try:
        with pytest.raises(OutcomeUnknown):
            await store.apply(store.batch().put("/a", b"1"))
        with pytest.raises(StoreUnavailable):
            await store.apply(store.batch().put("/a", b"2"))  # behind the one in doubt
        with pytest.raises(StoreUnavailable):
            await store.get("/a")
        await connection_is(store, False)
    finally:
        own_server.thaw()
    while True:
        try:
            await store.apply(store.batch().put("/a", b"3"))
            break
        except StoreUnavailable:
            continue
    record = await store.get("/a")
    assert record is not None and record.value == b"3"


async def test_no_host_that_answers_is_an_error_in_time() -> None:
    with pytest.raises(StoreUnavailable):
        await ZooKeeperStore.open([f"127.0.0.1:{free_port()}"], options=ZooKeeperOptions(deadline_ms=200))


async def test_a_request_that_is_never_answered_is_an_error_in_time(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(zookeeper_server)
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(store._connection, "send", lambda request: loop.create_future())
    with pytest.raises(StoreUnavailable, match="no answer in time") as given_up:
        await store._connection.ask(MultiRead([]), loop.time())
    assert given_up.value.definite


@pytest.mark.parametrize("answer", [Culprit(1, -2), [None, None, None]], ids=["refused", "without a root"])
async def test_an_answer_from_which_nothing_can_be_learnt_is_asked_for_again(
    zookeeper_server: ZooKeeperServer,
    open_store: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
    answer: Culprit | list[None],
) -> None:
    store = await open_store(zookeeper_server)
    await store.apply(store.batch().put("/a", b"1"))
    send = store._connection.send

    async def answered_otherwise(request: MultiRead) -> Any:
        await send(request)
        return answer

    def send_once(request: Any) -> asyncio.Future[Any]:
        if not isinstance(request, MultiRead):
            return send(request)
        monkeypatch.undo()
        return asyncio.ensure_future(answered_otherwise(request))

    monkeypatch.setattr(store._connection, "send", send_once)
    record = await store.get("/a")
    assert record is not None and record.value == b"1"


async def test_the_next_host_takes_over(own_server: ZooKeeperServer) -> None:
    store = await ZooKeeperStore.open([f"127.0.0.1:{free_port()}", own_server.endpoint], "/several")
    await store.apply(store.batch().put("/a", b""))
    await store.close()


async def test_a_watch_outlives_its_session_without_a_gap(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(zookeeper_server)
    other = await open_store(zookeeper_server, store._paths.root)
    start = await store.current_revision()
    async with store.watch("/", start + 1) as watch:
        applied = [await other.apply(other.batch().put("/a", b"1"))]
        assert (await anext(watch)).revision == applied[0].revision
        ending = asyncio.create_task(end_session(store))
        applied += [await other.apply(other.batch().put("/a", str(number).encode())) for number in range(20)]
        await ending
        applied += [await store.apply(store.batch().put("/a", b"own"))]
        assert [(await anext(watch)).revision for _ in applied[1:]] == [one.revision for one in applied[1:]]


async def test_a_log_trimmed_behind_a_lost_session_is_a_resync(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(zookeeper_server)
    other = await open_store(zookeeper_server, store._paths.root)
    await other.apply(other.batch().put("/a", b""))
    start = await store.current_revision()
    async with store.watch("/", start + 1) as watch:
        first = await other.apply(other.batch().put("/a", b"1"))
        assert (await anext(watch)).revision == first.revision
        store._feeds[0].stop()  # the process was away, and so was its feed
        await asyncio.gather(store._feeds[0]._task, return_exceptions=True)
        await other.apply(other.batch().put("/a", b"2"))
        await other.compact()
        await end_session(store)
        store._feeds[0]._task = asyncio.create_task(store._feeds[0]._run())
        item = await anext(watch)
        assert isinstance(item, Resync)
        applied = await other.apply(other.batch().put("/a", b"3"))
        assert item.revision < applied.revision == (await anext(watch)).revision


async def test_an_entry_of_the_log_that_cannot_be_read_is_a_resync(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(zookeeper_server)
    other = await open_store(zookeeper_server, store._paths.root)
    start = await store.current_revision()
    async with store.watch("/", start + 1) as watch:
        store._feeds[0].stop()  # it would have read the entry before it is damaged
        await asyncio.gather(store._feeds[0]._task, return_exceptions=True)
        damaged = await other.apply(other.batch().put("/a", b"1"))
        (log,) = (f"{store._paths.log}/{writer}" for writer in await children(store, store._paths.log))
        (entry,) = await children(store, log)
        await asyncio.to_thread(store._connection._client.set, f"{log}/{entry}", b"\1\0\0\0\2/")
        store._feeds[0]._task = asyncio.create_task(store._feeds[0]._run())
        item = await anext(watch)
        assert isinstance(item, Resync) and f"entry of revision {damaged.revision} ends" in item.reason
        applied = await other.apply(other.batch().put("/a", b"2"))
        assert item.revision < applied.revision == (await anext(watch)).revision


async def test_an_ephemeral_record_ends_with_its_session_and_is_put_again(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(zookeeper_server)
    other = await open_store(zookeeper_server, store._paths.root)
    start = await store.current_revision()
    held = await store.ephemeral("/live/1", b"here", 1_000)
    async with other.watch("/live/", start + 1) as watch:
        first = await anext(watch)
        await end_session(store)
        # The other store deletes it, or the owner has been faster and has written it again.
        revision = first.revision
        record = None
        while record is None or record.version == first.revision:
            item = await anext(watch)
            assert not isinstance(item, Resync) and item.revision > revision
            revision = item.revision
            record = item.events[-1].record
        assert record.value == b"here"
        await held.close()
        item = await anext(watch)
        assert not isinstance(item, Resync) and item.events == (Event("/live/1", None),)
    assert await other.get("/live/1") is None


async def test_the_ephemeral_records_of_the_dead_are_removed_by_others(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    watcher = await open_store(zookeeper_server)
    dying = await open_store(zookeeper_server, watcher._paths.root)
    await dying.ephemeral("/live/1", b"", 1_000)
    await dying.ephemeral("/live/2", b"", 1_000)
    await watcher.apply(watcher.batch().put("/live/2", b"mine now"))
    start = await watcher.current_revision()
    async with watcher.watch("/live/", start + 1) as watch:
        await dying._connection.close()
        item = await anext(watch)
    assert not isinstance(item, Resync) and item.events == (Event("/live/1", None),)
    assert [record.key for record in (await watcher.scan("/live/")).records] == ["/live/2"]
    # Also when nobody was there to see it.
    alone = await open_store(zookeeper_server)
    root = alone._paths.root
    await alone.ephemeral("/live/1", b"", 1_000)
    await alone._connection.close()
    later = await open_store(zookeeper_server, root)
    assert later._ephemerals is not None
    await later._ephemerals.reap()
    assert await later.get("/live/1") is None
    assert await children(later, later._paths.held) == []


async def test_answers_and_cache_are_true_after_many_deaths(own_server: ZooKeeperServer, open_store: OpenStore) -> None:
    """Writers that never repeat a key, a cache fed by a watch, and a server that is killed and frozen meanwhile."""
    root = "/storm"
    writers = [await open_store(own_server, root, deadline_ms=1_500, session_timeout_ms=SESSION_MS) for _ in range(2)]
    reader = await open_store(own_server, root, session_timeout_ms=SESSION_MS)
    answers: dict[str, Applied | MetastoreError] = {}
    cached: dict[str, int] = {}
    stormy = True
    ended = asyncio.Event()

    def take(event: Event) -> None:
        if event.record is None:
            del cached[event.key]
        else:
            assert event.record.version > cached.get(event.key, 0), "a duplicate, or out of order"
            cached[event.key] = event.record.version
        if event.key == "/k/end":
            ended.set()

    async def write(name: int) -> None:
        store = writers[name % 2]
        number = 0
        while stormy:
            key = f"/k/{name:02d}/{number:06d}"
            number += 1
            batch = store.batch().create(key, b"").put(f"/last/{name}", key.encode())
            try:
                answers[key] = await store.apply(batch)
            except MetastoreError as error:
                answers[key] = error

    async def answered(count: int) -> None:
        """Until this many more applies were successful."""
        goal = count + sum(isinstance(answer, Applied) for answer in answers.values())
        while sum(isinstance(answer, Applied) for answer in answers.values()) < goal:
            await reader.current_revision()

    mirror = Mirror(reader, "/k/", take)
    async with mirror.running():
        tasks = [asyncio.create_task(write(name)) for name in range(16)]
        for _ in range(3):
            await answered(200)
            own_server.kill()
            await asyncio.to_thread(own_server.start)
            await answered(200)
            own_server.freeze()
            await connection_is(writers[0], False)
            own_server.thaw()
        stormy = False
        await asyncio.gather(*tasks)
        while True:
            try:
                await writers[0].apply(writers[0].batch().put("/k/end", b""))
                break
            except MetastoreError:
                continue
        await ended.wait()
        stored = {record.key: record.version for record in (await reader.scan("/k/")).records}
        assert cached == stored
    for key, answer in answers.items():
        if isinstance(answer, Applied):
            assert stored[key] == answer.revision
        elif answer.definite:
            assert key not in stored, answer
