"""Goal: a watch survives its server, and says so when it could not keep up with it.

Method: the server is killed and started again under a watch; while its clients find nobody it serves another port,
where the test writes and compacts, so that what the watch has missed is certain and not a matter of time. What other
versions of the server do to a stream is done to the stream of this one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_stubs import WatchResponse
from metastore.types import Changes, Event, Resync
from metastore.watches import Mirror
from tests.metastore.etcd.conftest import OpenStore
from tests.servers import EtcdServer, free_port

ROOT = "/watched"


async def away(server: EtcdServer, keys: list[str], *, compact: bool) -> None:
    """Restart the server elsewhere, put `keys`, maybe compact, and bring it back."""
    port = free_port()
    server.kill()
    await asyncio.to_thread(server.start, port)
    other = await EtcdStore.open([f"127.0.0.1:{port}"], ROOT)
    for key in keys:
        await other.apply(other.batch().put(key, b"away"))
    await other.close()
    if compact:
        await asyncio.to_thread(server.compact, port)
    server.kill()
    await asyncio.to_thread(server.start)


async def test_a_watch_resumes_behind_what_it_delivered(own_server: EtcdServer, open_store: OpenStore) -> None:
    store = await open_store(own_server, ROOT)
    async with store.watch("/a/", await store.current_revision() + 1) as watch:
        await store.apply(store.batch().put("/a/1", b""))
        seen = [await anext(watch)]
        await away(own_server, ["/a/2", "/b/1", "/a/3"], compact=False)
        seen += [await anext(watch), await anext(watch)]
        await store.apply(store.batch().put("/a/4", b""))
        seen += [await anext(watch)]
    keys = [event.key for item in seen if isinstance(item, Changes) for event in item.events]
    assert keys == ["/a/1", "/a/2", "/a/3", "/a/4"]


async def test_a_compaction_past_the_watch_is_announced(own_server: EtcdServer, open_store: OpenStore) -> None:
    store = await open_store(own_server, ROOT)
    async with store.watch("/a/", await store.current_revision() + 1) as watch:
        await store.apply(store.batch().put("/a/1", b""))
        assert isinstance(await anext(watch), Changes)
        await away(own_server, ["/a/2", "/a/3"], compact=True)
        resync = await anext(watch)
        assert isinstance(resync, Resync)
        applied = await store.apply(store.batch().put("/a/4", b""))
        assert applied.revision > resync.revision
        changes = await anext(watch)
        assert isinstance(changes, Changes) and changes.revision == applied.revision


async def test_a_mirror_equals_the_store_after_restart_and_compaction(
    own_server: EtcdServer, open_store: OpenStore
) -> None:
    store = await open_store(own_server, ROOT)
    changed: dict[str, asyncio.Event] = {key: asyncio.Event() for key in ("/a/kept", "/a/away", "/a/after")}

    def on_change(event: Event) -> None:
        if event.key in changed:
            changed[event.key].set()

    await store.apply(store.batch().put("/a/kept", b"").put("/a/dropped", b""))
    mirror = Mirror(store, "/a/", on_change)
    async with mirror.running():
        await store.apply(store.batch().delete("/a/dropped"))
        await away(own_server, ["/a/away"], compact=True)
        await changed["/a/away"].wait()
        await store.apply(store.batch().put("/a/after", b""))
        await changed["/a/after"].wait()
        assert mirror.resyncs == 1
        found = await store.scan("/a/")
        assert dict(mirror.records) == {record.key: record for record in found.records}


async def test_one_server_watch_for_all_of_a_prefix(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    store = await open_store(etcd_server)
    start = await store.current_revision() + 1
    async with store.watch("/a/", start) as one, store.watch("/a/", start) as two:
        assert len(store._feeds) == 1
        applied = await store.apply(store.batch().put("/a/1", b""))
        assert (await anext(one)).revision == (await anext(two)).revision == applied.revision
        late = store.watch("/a/", applied.revision)
        assert len(store._feeds) == 1 and (await anext(late)).revision == applied.revision
        await late.close()
        earlier = store.watch("/a/", start - 1)
        assert len(store._feeds) == 2 and (await anext(earlier)).revision == applied.revision
        await earlier.close()
        assert len(store._feeds) == 1
    assert store._feeds == []


async def test_a_large_revision_arrives_whole(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    """The server cuts what is above 2 MiB into fragments, between any two events. These are 100 kB each, so every
    fragment but the last ends behind its twentieth event, in the middle of a revision that has seven."""
    store = await open_store(etcd_server)
    start = await store.current_revision() + 1
    applied = []
    for part in range(6):
        batch = store.batch()
        for number in range(7):
            batch.put(f"/a/{part}/{number}", bytes(100_000))
        applied.append((await store.apply(batch)).revision)
    fragments: list[bool] = []

    def note(response: WatchResponse) -> list[WatchResponse]:
        fragments.append(response.fragment)
        return [response]

    streamed(store, note)
    async with store.watch("/a/", start) as watch:
        items = [await anext(watch) for _ in applied]
    assert [(item.revision, len(item.events)) for item in items if isinstance(item, Changes)] == [
        (revision, 7) for revision in applied
    ]
    assert any(fragments), "nothing was cut"


async def test_what_a_server_repeats_is_told_once(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    """As before 3.4.24, which may send events a second time (etcd issue 15271)."""
    store = await open_store(etcd_server)
    before: list[WatchResponse] = []

    def again(response: WatchResponse) -> list[WatchResponse]:
        before.append(response)
        return list(before)

    streamed(store, again)
    async with store.watch("/a/", await store.current_revision() + 1) as watch:
        (feed,) = store._feeds
        for _ in range(3):  # each is seen before the next one, so that none comes in one response with another
            applied = await store.apply(store.batch().put("/a/1", b""))
            item = asyncio.ensure_future(anext(watch))
            await asyncio.wait({item, feed._task}, return_when=asyncio.FIRST_COMPLETED)
            assert item.done(), "the watch has died"
            assert item.result().revision == applied.revision
    assert len(before) >= 3, "nothing was repeated"


def streamed(store: EtcdStore, change: Callable[[WatchResponse], Sequence[WatchResponse]]) -> None:
    """Every response to a watch of `store` becomes what `change` makes of it."""
    real = store._connection.watches.Watch

    def watch(**options: Any) -> Changed:
        return Changed(real(**options), change)

    store._connection.watches.Watch = watch


class Changed:
    """A stream of watch responses, of which each is replaced by others."""

    def __init__(self, real: Any, change: Callable[[WatchResponse], Sequence[WatchResponse]]) -> None:
        self._real = real
        self._change = change
        self._ready: deque[WatchResponse] = deque()
        self.write = real.write
        self.cancel = real.cancel
        self.done_writing = real.done_writing

    async def read(self) -> object:
        while not self._ready:
            response = await self._real.read()
            if not isinstance(response, WatchResponse):
                return response
            self._ready += self._change(response)
        return self._ready.popleft()


async def test_an_ephemeral_record_comes_back_when_its_lease_was_lost(
    etcd_server: EtcdServer, open_store: OpenStore
) -> None:
    store = await open_store(etcd_server)
    ephemeral = await store.ephemeral("/live", b"here", 2_000)
    record = await store.get("/live")
    assert record is not None
    async with store.watch("/live", record.version + 1) as watch:
        lease = f"{ephemeral._lease:x}"  # type: ignore[attr-defined]
        await asyncio.to_thread(etcd_server.etcdctl, "lease", "revoke", lease)
        gone, back = await anext(watch), await anext(watch)
        assert isinstance(gone, Changes) and [event.record for event in gone.events] == [None]
        assert isinstance(back, Changes) and [event.record.value for event in back.events if event.record] == [b"here"]
        await ephemeral.close()
        assert isinstance(await anext(watch), Changes)
    assert await store.get("/live") is None


async def test_an_ephemeral_record_whose_lease_has_ended_is_closed_already(
    etcd_server: EtcdServer, open_store: OpenStore
) -> None:
    """As after a pause of the process: nothing is left to revoke, and that is no failure of the server."""
    store = await open_store(etcd_server)
    ephemeral = await store.ephemeral("/live", b"here", 60_000)
    lease = f"{ephemeral._lease:x}"  # type: ignore[attr-defined]
    await asyncio.to_thread(etcd_server.etcdctl, "lease", "revoke", lease)
    await ephemeral.close()
    assert await store.get("/live") is None
