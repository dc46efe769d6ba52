"""`/readyz` says that the store answers and that the watch lives (issue of the coordinator), and who shares the sweeps.

Method: what can become of the announcement, and of the watch that shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from coordinator import presence as module
from coordinator.presence import Presence
from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.types import Changes, Revision
from metastore.watches import QueueWatch
from metatxn.wire.ids import TxnId
from tests.coordinator.stores import FaultyStore, unavailable


async def becomes(condition: Callable[[], bool]) -> None:
    """A watch needs some turns of the event loop."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def test_ready_while_the_announcement_is_seen(truth: MemoryStore) -> None:
    """A frozen process whose lease has ended is not ready until it is announced again."""
    presence = Presence(truth, "p/1")
    assert "watch" in presence.waiting_for, "it has not started"
    await presence.start("http://here")
    assert presence.waiting_for == {}
    own = await truth.get(paths.coordinator_process("p/1"))
    assert own is not None
    await truth.apply(truth.batch().delete(own.key))
    await becomes(lambda: "watch" in presence.waiting_for)
    await truth.apply(truth.batch().put(own.key, own.value))
    await becomes(lambda: presence.waiting_for == {})
    await presence.stop()
    await presence.stop()


async def test_not_ready_while_the_watch_shows_nothing(truth: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store answers every request; only what changes is not heard of."""
    monkeypatch.setattr(module, "_SEEN_WITHIN_SECONDS", 0.01)
    store = FaultyStore(truth)

    def deaf(prefix: str, from_revision: Revision):  # type: ignore[no-untyped-def]
        return truth.watch("/elsewhere/", from_revision)

    monkeypatch.setattr(store, "watch", deaf)
    service = CoordinatorService(store)
    await service.presence.start("http://here")
    transport = httpx.ASGITransport(app=service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, list(answer.json()["waiting_for"])) == (503, ["watch"])
    await service.presence.stop()


class Held:
    """A watch that was alive, and from `hold` on keeps what it should deliver."""

    def __init__(self, store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._watch: QueueWatch | None = None
        self._deliver: Callable[[Changes], None] | None = None
        self.kept: list[Changes] = []

        def watch(prefix: str, from_revision: Revision) -> QueueWatch:
            self._watch = store.truth.watch(prefix, from_revision)  # type: ignore[assignment]
            return self._watch  # type: ignore[return-value]

        monkeypatch.setattr(store, "watch", watch)

    def hold(self) -> None:
        assert self._watch is not None
        self._deliver = self._watch.offer
        self._monkeypatch.setattr(self._watch, "offer", self.kept.append)

    def release(self) -> None:
        assert self._deliver is not None
        for changes in self.kept:
            self._deliver(changes)


@pytest.mark.parametrize("late", [True, False])
async def test_not_ready_once_the_watch_is_dead(
    truth: MemoryStore, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """It has shown the own announcement, and dies: as soon as there is something that it does not show, this is said.
    One that is only late is waited for."""
    monkeypatch.setattr(module, "_CAUGHT_UP_WITHIN_SECONDS", 60 if late else 0.05)
    store = FaultyStore(truth)
    watch = Held(store, monkeypatch)
    service = CoordinatorService(store)
    await service.presence.start("http://here")
    transport = httpx.ASGITransport(app=service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
        watch.hold()
        assert (await client.get("/readyz")).status_code == 200, "it has missed nothing"
        other = Presence(truth, "other")
        await other.start("http://other")
        looking = asyncio.create_task(client.get("/readyz"))
        await becomes(lambda: bool(watch.kept))
        if late:
            watch.release()
        answer = await looking
        assert (answer.status_code, answer.json()["waiting_for"]) == (
            (200, {}) if late else (503, {"watch": "it does not show the latest changes in the store"})
        )
        truth._log.resync(await truth.current_revision(), "a gap")
        await becomes(lambda: service.presence.resyncs == 1)
        assert (await client.get("/readyz")).json() == {"ready": True, "waiting_for": {}}
        await other.stop()
    await service.presence.stop()


async def test_not_ready_while_the_store_does_not_answer(http: httpx.AsyncClient, store: FaultyStore) -> None:
    store.before_reads.append(unavailable)
    answer = await http.get("/readyz")
    assert (answer.status_code, list(answer.json()["waiting_for"])) == (503, ["metadata store"])
    assert (await http.get("/readyz")).json() == {"ready": True, "waiting_for": {}}


async def test_a_gap_of_the_watch_is_counted_and_healed(truth: MemoryStore) -> None:
    """`metatxn_watch_resyncs_total`. The announcement is still there after the gap, so the process is still ready."""
    store = FaultyStore(truth)
    service = CoordinatorService(store)
    await service.presence.start("http://here")
    assert resyncs(service) == 0
    truth._log.resync(await truth.current_revision(), "a gap")
    await becomes(lambda: resyncs(service) == 1)
    await becomes(lambda: service.presence.waiting_for == {})
    await service.presence.stop()


def resyncs(service: CoordinatorService) -> float | None:
    return service.metrics.registry.get_sample_value("metatxn_watch_resyncs_total")


async def test_the_share_follows_the_announcements(truth: MemoryStore) -> None:
    """Alone everything; of two each the half, and no transaction nobody's."""
    ids = [TxnId(0, number) for number in range(1, 11)]
    first, second = Presence(truth, "a"), Presence(truth, "b")
    await first.start("http://a")
    assert all(map(first.share(), ids))
    await second.start("http://b")
    await becomes(lambda: sum(map(first.share(), ids)) == 5)
    assert [one(txn_id) != other(txn_id) for one, other in [(first.share(), second.share())] for txn_id in ids] == [
        True
    ] * 10
    await first.stop()
    await becomes(lambda: all(map(second.share(), ids)))
    await second.stop()
