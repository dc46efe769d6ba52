"""A server that is restored from a backup takes clients that have seen more of it. So a connection is compared before
it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metastore.api import telling_others
from metastore.backends.zookeeper_connection import LostError, _went_back
from metastore.backends.zookeeper_wire import MultiRead, Stat, Sync
from metastore.errors import OutcomeUnknown, StoreUnavailable, StoreWentBack
from tests.metastore.zookeeper.conftest import OpenStore
from tests.metastore.zookeeper.faults import end_session
from tests.participants.restored.backups import ZooKeeper, ensemble_of_one
from tests.servers import ZooKeeperServer


@pytest.fixture(params=["alone", "ensemble"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ZooKeeperServer]:
    directory = tmp_path / "zookeeper"
    with ZooKeeperServer(directory) if request.param == "alone" else ensemble_of_one(directory) as started:
        yield started


async def test_nothing_is_read_from_or_written_into_a_restored_server(
    server: ZooKeeperServer, open_store: OpenStore, tmp_path: Path
) -> None:
    """Also by one who has written nothing before the backup, and with what has waited for a connection."""
    first = await open_store(server, "/x")
    await first.apply(first.batch().put("/a", b"before"))
    backup = ZooKeeper(server, tmp_path / "zookeeper")
    backup.back_up_hot()
    store = await open_store(server, "/x")
    await store.ephemeral("/here", b"", 10_000)
    for number in range(3):
        await store.apply(store.batch().put("/a", b"%d" % number))
    revision, seen = await store.current_revision(), server.zxid()
    server.kill()
    waiting = [
        asyncio.create_task(store.apply(store.batch().put("/b", b""))),
        asyncio.create_task(store.get("/a")),
    ]
    await asyncio.to_thread(backup.restore_under, seen)
    await backup.answers(store)
    for answer in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(answer, StoreUnavailable | OutcomeUnknown), answer
    assert store.lost_writes is not None
    for call in (store.get("/a"), store.apply(store.batch().put("/b", b"")), store.range("/", "0")):
        with pytest.raises(StoreWentBack, match="went back in time"):
            await call
    with telling_others():
        found = await store.get_many(["/a", "/b", "/here"])
        assert [record.value if record else None for record in found.records.values()] == [b"before", None, None]
        assert found.revision < revision
        await store.apply(store.batch().put("/mark", b""))


@pytest.mark.parametrize("lost", ["sync", "answer"])
async def test_a_connection_that_is_lost_while_it_is_compared_is_compared_again(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """kazoo may say so before it says that there is no connection."""
    store = await open_store(zookeeper_server)
    await store.apply(store.batch().put("/a", b"1"))
    connection, read_back = store._connection, asyncio.Event()
    send = connection.send

    def send_or_lose(request: Any) -> asyncio.Future[Any]:
        if not isinstance(request, Sync if lost == "sync" else MultiRead):
            return send(request)
        monkeypatch.undo()
        read_back.set()
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answered.set_exception(LostError("by the test"))
        answered.exception()
        return answered

    monkeypatch.setattr(connection, "send", send_or_lose)
    await end_session(store)
    await read_back.wait()
    record = await store.get("/a")
    assert record is not None and record.value == b"1"


def stat(version: int, mzxid: int) -> Stat:
    return Stat(0, mzxid, 0, 0, version, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("version", "mzxid", "behind"),
    [
        (5, 50, False),
        (6, 60, False),
        (4, 60, True),  # in a later epoch
        (6, 49, True),
        (4, 49, True),
    ],
)
def test_neither_the_applies_nor_the_revision_may_be_fewer(version: int, mzxid: int, behind: bool) -> None:
    assert (_went_back(stat(5, 50), stat(version, mzxid)) is not None) is behind


def test_the_number_of_applies_may_wrap_around() -> None:
    assert _went_back(stat((1 << 31) - 1, 50), stat(-(1 << 31) + 1, 60)) is None
    assert _went_back(stat(-(1 << 31) + 1, 50), stat((1 << 31) - 1, 60)) is not None


def test_a_store_without_a_root_is_behind() -> None:
    assert _went_back(stat(5, 50), None) is not None
