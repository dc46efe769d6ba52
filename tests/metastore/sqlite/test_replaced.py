"""A file that is replaced by a backup of itself under the process that serves it is served no more."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from metastore.api import telling_others
from metastore.backends.sqlite import SqliteStore
from metastore.errors import StoreWentBack

Call = Callable[[SqliteStore], Awaitable[object]]

CALLS: dict[str, Call] = {
    "read": lambda store: store.get("/a"),
    "range": lambda store: store.range("/", "0"),
    "write": lambda store: store.apply(store.batch().put("/b", b"")),
    "number": lambda store: store.put_sequential("/n/", b""),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    """It is further than its backup."""
    store = await SqliteStore.open(file)
    await store.apply(store.batch().put("/a", b"before"))
    copied(file, backup_of(file))
    for _ in range(3):
        await store.apply(store.batch().put("/a", b"after"))
    yield store
    await store.close()


def backup_of(file: Path) -> Path:
    return file.with_name("backup.db")


def copied(source: Path, target: Path) -> None:
    """By SQLite, as `.backup` and `.restore` do it."""
    with closing(sqlite3.connect(source)) as read, closing(sqlite3.connect(target)) as written:
        read.backup(written)


async def refused(store: SqliteStore, *calls: Call, why: str) -> None:
    for answer in await asyncio.gather(*(call(store) for call in calls), return_exceptions=True):
        assert isinstance(answer, StoreWentBack) and why in str(answer), answer


@each_call
async def test_a_file_that_was_restored_is_neither_read_nor_written(store: SqliteStore, file: Path, call: Call) -> None:
    """Whatever comes first, and whatever waits with it; but the other processes can be told."""
    copied(backup_of(file), file)
    await refused(store, call, call, why="it was at revision 5, and now it is at revision 2")
    await refused(store, *CALLS.values(), why="it was at revision 5")
    assert store.lost_writes is not None
    with telling_others():
        record = await store.get("/a")
        assert record is not None and record.value == b"before"
        assert await store.get("/b") is None
        assert (await store.apply(store.batch().put("/mark", b""))).revision == 3
        assert await store.get("/a") == record, "and not what was written before"
    await refused(store, *CALLS.values(), why="it was at revision 5")


async def test_what_waits_beside_what_tells_the_others_is_refused(store: SqliteStore, file: Path) -> None:
    copied(backup_of(file), file)
    calls = [asyncio.ensure_future(store.get("/a")), asyncio.ensure_future(store.apply(store.batch().put("/b", b"")))]
    await asyncio.sleep(0)  # they are submitted
    with telling_others():
        await store.apply(store.batch().put("/mark", b""))
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, StoreWentBack)
    with telling_others():
        assert await store.get("/b") is None
        assert await store.get("/mark") is not None


@each_call
@pytest.mark.parametrize("gone", [True, False], ids=["removed", "exchanged"])
async def test_a_file_that_lost_its_name_is_used_no_more(
    store: SqliteStore, file: Path, call: Call, gone: bool
) -> None:
    """Not even to tell: nobody would read it."""
    if gone:
        file.unlink()
    else:
        backup_of(file).replace(file)
    await refused(store, call, call, why="another file is in the place of x.db, or none")
    await refused(store, *CALLS.values(), why="another file")
    with telling_others(), pytest.raises(StoreWentBack):
        await store.apply(store.batch().put("/mark", b""))


async def test_who_only_looks_does_not_mind(store: SqliteStore, file: Path) -> None:
    """It remembers nothing that could go back."""
    looking = await SqliteStore.open(file, read_only=True)
    await looking.get("/a")
    copied(backup_of(file), file)
    record = await looking.get("/a")
    assert record is not None and record.value == b"before"
    await looking.close()
