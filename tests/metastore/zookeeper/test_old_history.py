"""Goal: history that is removed costs a watch at most a `Resync` and a writer at most its certainty: no change goes
unnoticed, and no apply that took effect is refused.

Method: logs are removed, as those of clients that are gone, and compacted while their writers are at work and lose
replies. First one interleaving at a time, then random ones, of which the evidence of the watch storms is taken.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from metastore.backends import zookeeper_group_commit, zookeeper_history
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.backends.zookeeper_log import GapError, LogReader, entry_name
from metastore.backends.zookeeper_wire import get_children
from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.types import Applied, Resync
from tests.extent import usually
from tests.metastore.storms.evidence import PREFIX, Journal, Witness, write
from tests.metastore.zookeeper.conftest import OpenStore
from tests.metastore.zookeeper.faults import Send, before, delivered, haunt, inject, refused, reply_lost
from tests.servers import ZooKeeperServer

Maintenance = Callable[[ZooKeeperStore], Awaitable[None]]


async def remove_idle(store: ZooKeeperStore) -> None:
    """Take every log for one that nobody has written for long."""
    await store._history.remove_idle_logs()


MAINTENANCE: dict[str, Maintenance] = {"idle logs": remove_idle, "compaction": ZooKeeperStore.compact}


@pytest.fixture(autouse=True)
def everybody_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_history, "IDLE_LOG_MS", -1_000_000_000)


async def two(server: ZooKeeperServer, open_store: OpenStore) -> tuple[ZooKeeperStore, ZooKeeperStore]:
    """A writer, and one that removes history."""
    writer = await open_store(server)
    remover = await open_store(server, writer._paths.root)
    await writer.apply(writer.batch().put("/a", b"0"))
    return writer, remover


async def logs(store: ZooKeeperStore) -> dict[str, int]:
    """How many entries each log has."""
    history = store._history
    return {home: len(await history._entries(home)) for home in await history._homes()}


async def test_idle_logs_are_removed_and_their_clients_begin_new_ones(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    writer, remover = await two(zookeeper_server, open_store)
    start = await writer.current_revision()
    before_that = await logs(remover)
    async with remover.watch("/", start + 1) as watch:
        await remove_idle(remover)
        assert await logs(remover) == {}
        applied = await writer.apply(writer.batch().put("/a", b"1"))
        assert (await anext(watch)).revision == applied.revision, "anyone who was up to date has missed nothing"
    after_that = await logs(remover)
    assert list(after_that.values()) == [1] and after_that.keys().isdisjoint(before_that)
    async with remover.watch("/", start) as watch:
        assert isinstance(await anext(watch), Resync)


@pytest.mark.parametrize("applies", [1, 3])
@pytest.mark.parametrize("moment", ["before its entries are listed", "before they are deleted"])
async def test_a_log_whose_writer_wakes_up_stays(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, moment: str, applies: int
) -> None:
    writer, remover = await two(zookeeper_server, open_store)
    start = await writer.current_revision()
    applied: list[Applied] = []

    async def wake_up() -> None:
        if not applied:
            applied.extend([await writer.apply(writer.batch().put("/a", b"1")) for _ in range(applies)])

    if moment == "before they are deleted":
        inject(remover, before(wake_up))
    else:
        (home,), ask = await logs(remover), remover._connection.read

        async def read(operations: Any, deadline: float) -> Any:
            if get_children(home) in operations:
                await wake_up()
            return await ask(operations, deadline)

        remover._connection.read = read  # type: ignore[method-assign]
    await remove_idle(remover)
    assert applied
    assert list((await logs(remover)).values()) in ([applies], [applies + 1])
    async with remover.watch("/", start + 1) as watch:
        for one in applied:
            assert (await anext(watch)).revision == one.revision, "no change is missing"
    await writer.apply(writer.batch().put("/a", b"2"))


@pytest.mark.parametrize("moment", ["before its fence", "behind its fence"])
@pytest.mark.parametrize("maintenance", MAINTENANCE)
async def test_an_apply_whose_reply_was_lost_is_never_denied_for_want_of_its_entry(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, maintenance: str, moment: str
) -> None:
    writer, remover = await two(zookeeper_server, open_store)

    moments = [moment]

    async def with_maintenance(request: Any, send: Send) -> Any:
        this_one = moments.pop() if moments else None
        if this_one == "before its fence":
            await MAINTENANCE[maintenance](remover)
        answer = await send(request)
        if this_one == "behind its fence":
            await MAINTENANCE[maintenance](remover)
        return answer

    inject(writer, reply_lost, on_fences=with_maintenance)
    (answer,) = await asyncio.gather(writer.apply(writer.batch().create("/b", b"1")), return_exceptions=True)
    assert isinstance(answer, Applied if maintenance == "compaction" else OutcomeUnknown)
    record = await writer.get("/b")
    assert record is not None and record.value == b"1"
    await writer.apply(writer.batch().replace(record, b"2"))


async def test_a_log_is_removed_whole_or_keeps_its_newest_entry(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remover dies half-way. What it leaves must still tell the writer whether its last request was applied."""
    monkeypatch.setattr(zookeeper_history, "DELETED_AT_ONCE", 2)
    writer, remover = await two(zookeeper_server, open_store)
    newest = 5
    for number in range(newest):
        await writer.apply(writer.batch().put("/a", b"%d" % number))
    for survived in itertools.count():
        inject(remover, *[delivered] * survived, refused)
        try:
            await remove_idle(remover)
        except StoreUnavailable:
            (log,) = await logs(remover)
            assert f"{log}/{entry_name(newest)}" in await remover._history._entries(log)
        else:
            break
    assert survived > 2
    assert await logs(remover) == {}


async def test_a_fence_never_lowers_the_floor_of_a_log(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost request had trimmed the log: who has not read so far must be told, also before the next request."""
    monkeypatch.setattr(zookeeper_group_commit, "KEPT_ENTRIES", 3)
    writer, reader = await two(zookeeper_server, open_store)
    start = await reader.current_revision()
    for _ in range(2):
        await writer.apply(writer.batch().put("/a", b""))
    inject(writer, reply_lost, reply_lost)
    for _ in range(2):
        await writer.apply(writer.batch().put("/a", b""))
    with pytest.raises(GapError):
        await LogReader(reader._connection, reader._paths, start).advance(reader._deadline())


@pytest.mark.parametrize("seed", usually(range(2), range(4)))
async def test_nothing_is_missed_and_nothing_denied_whatever_removes_history_meanwhile(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(zookeeper_group_commit, "KEPT_ENTRIES", 5)
    dice, journal, rounds = random.Random(seed), Journal(), 3
    witness_store = await open_store(zookeeper_server)
    remover = await open_store(zookeeper_server, witness_store._paths.root)
    writers = [await open_store(zookeeper_server, witness_store._paths.root) for _ in range(3)]

    async def maintain() -> None:
        await dice.choice(list(MAINTENANCE.values()))(remover)

    async def work(store: ZooKeeperStore, dice: random.Random) -> None:
        for _ in range(4):
            await write(store, journal, dice)
            if dice.random() < 0.1:
                await maintain()

    start = await witness_store.current_revision()
    witness = Witness(start)
    async with witness_store.watch(PREFIX, start + 1) as watch:
        following = asyncio.create_task(witness.follow(watch))
        for store in writers:
            haunt(store, random.Random(dice.random()), maintain)
        for _ in range(rounds):
            await asyncio.gather(*(work(store, random.Random(dice.random())) for store in writers for _ in range(3)))
            # On a slow machine a witness may learn of a whole round by `Resync`. Once it has caught up, it must be
            # told of the next change itself.
            for _ in range(2):
                end = await witness_store.apply(witness_store.batch().put(f"{PREFIX}end", journal.token()))
                await witness.reaches(end.revision)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    verdict = witness.verdict(journal)
    assert (verdict.lost, verdict.duplicates, verdict.invented) == (0, 0, 0), verdict
    assert verdict.events >= rounds, verdict
