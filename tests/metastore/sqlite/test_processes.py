"""Goal: one process serves a file, and no acknowledged apply is lost when it is killed.

Method: real processes and `kill -9`. A child writes down what was acknowledged before anybody can kill it for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from metastore.backends.sqlite import SqliteStore
from metastore.backends.sqlite_statements import FORMAT_VERSION
from metastore.errors import InvalidBatch, StoreInUse, StoreMissing, StoreUnavailable, StoreUnusable

WRITER = """
import asyncio, sys
from metastore.backends.sqlite import SqliteStore

async def main(path, round_number):
    store = await SqliteStore.open(path)
    await store.ephemeral("/live/writer", b"", 1000)
    async def write(name):
        number = 0
        while True:
            key = f"{round_number}-{name}-{number}"
            await store.apply(store.batch().create(f"/left/{key}", b"x" * 50).create(f"/right/{key}", b""))
            print(key, flush=True)
            number += 1
    await asyncio.gather(*(write(name) for name in range(20)))

asyncio.run(main(*sys.argv[1:]))
"""

OPENER = """
import asyncio, sys
from metastore.backends.sqlite import SqliteStore
from metastore.errors import StoreInUse

async def main(path):
    try:
        await SqliteStore.open(path)
    except StoreInUse as refused:
        print(refused)

asyncio.run(main(*sys.argv[1:]))
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)


async def test_a_second_process_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    store = await SqliteStore.open(path)
    other = start(OPENER, str(path))
    answer, _ = await asyncio.to_thread(other.communicate)
    assert other.returncode == 0
    assert str(path) in answer and str(os.getpid()) in answer and "stop that process" in answer
    await store.close()
    await (await SqliteStore.open(path)).close()


async def test_a_second_store_in_the_same_process_is_refused_by_any_name(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "x.db")
    (tmp_path / "link.db").symlink_to(tmp_path / "x.db")
    for name in ("x.db", "link.db", "../" + tmp_path.name + "/x.db"):
        with pytest.raises(StoreInUse):
            await SqliteStore.open(tmp_path / name)
    await store.apply(store.batch().put("/a", b""))
    await store.close()


async def test_no_child_process_inherits_the_lock(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "x.db")
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        await store.close()
        await (await SqliteStore.open(tmp_path / "x.db")).close()
    finally:
        child.kill()
        child.wait()


async def test_the_lock_file_stays(tmp_path: Path) -> None:
    inodes = set()
    for _ in range(3):
        await (await SqliteStore.open(tmp_path / "x.db")).close()
        inodes.add((tmp_path / "x.db.lock").stat().st_ino)
    assert len(inodes) == 1


async def test_every_acknowledged_apply_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    acknowledged: set[str] = set()
    revision = 0
    for round_number in range(5):
        writer = start(WRITER, str(path), str(round_number))
        assert writer.stdout is not None
        # Each round dies after another number of answers, in the middle of a group.
        for _ in range(30 + 37 * round_number):
            acknowledged.add((await asyncio.to_thread(writer.stdout.readline)).strip())
        writer.send_signal(signal.SIGKILL)
        rest, _ = await asyncio.to_thread(writer.communicate)
        acknowledged.update(rest[: rest.rfind("\n") + 1].split())

        store = await SqliteStore.open(path)
        left = {record.key.rpartition("/")[2] for record in (await store.scan("/left/")).records}
        right = {record.key.rpartition("/")[2] for record in (await store.scan("/right/")).records}
        assert acknowledged <= left, "an acknowledged apply is gone"
        assert left == right, "half of an apply"
        assert await store.get("/live/writer") is None
        assert await store.current_revision() > revision
        revision = await store.current_revision()
        await store.close()


async def test_ephemeral_records_of_a_former_life_are_gone_and_others_are_not(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "x.db")
    await store.ephemeral("/live/1", b"", 1000)
    await store.ephemeral("/live/2", b"", 1000)
    await store.apply(store.batch().put("/live/2", b"plain now").put("/other", b""))
    before = await store.current_revision()
    await store.close()
    store = await SqliteStore.open(tmp_path / "x.db")
    assert [record.key for record in (await store.scan("/")).records] == ["/live/2", "/other"]
    assert await store.current_revision() > before
    await store.close()


async def test_versions_and_first_survive(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "x.db")
    await store.apply(store.batch().put("/twice", b""))
    await store.apply(store.batch().put("/twice", b"").put("/once", b""))
    before = (await store.scan("/")).records
    await store.close()
    store = await SqliteStore.open(tmp_path / "x.db")
    assert (await store.scan("/")).records == before
    await store.close()


async def test_history_does_not_survive_and_a_watch_says_so(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "x.db")
    applied = await store.apply(store.batch().put("/a", b""))
    await store.close()
    store = await SqliteStore.open(tmp_path / "x.db")
    async with store.watch("/", applied.revision) as watch:
        assert type(await anext(watch)).__name__ == "Resync"
    start = await store.current_revision()
    async with store.watch("/", start + 1) as watch:
        applied = await store.apply(store.batch().put("/a", b""))
        assert (await anext(watch)).revision == applied.revision
    await store.close()


async def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"this is not a database, but it is long enough to be looked at" * 20)
    foreign = tmp_path / "foreign.db"
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('CREATE TABLE t (x)')",
            foreign,
        ],
        check=True,
    )
    for path in (tmp_path / "text.db", foreign):
        before = path.read_bytes()
        with pytest.raises(StoreUnusable):
            await SqliteStore.open(path)
        assert path.read_bytes() == before


async def test_a_file_of_a_later_release_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    await (await SqliteStore.open(path)).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
        connection.commit()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreUnusable, match="was written by a newer version"):
            await SqliteStore.open(path, read_only=read_only)
        assert path.read_bytes() == before


async def test_a_path_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable):
        await SqliteStore.open(tmp_path / "file" / "x.db")
    (tmp_path / "dir").mkdir()
    with pytest.raises(StoreUnavailable):
        await SqliteStore.open(tmp_path / "dir")


async def test_a_cancelled_open_gives_the_file_back(tmp_path: Path) -> None:
    for turns in range(4):
        opening = asyncio.create_task(SqliteStore.open(tmp_path / "x.db"))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await (await SqliteStore.open(tmp_path / "x.db")).close()


async def test_read_only_looks_into_a_file_that_is_being_served(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "x.db")
    await store.apply(store.batch().put("/a", b"1"))
    looking = await SqliteStore.open(tmp_path / "x.db", read_only=True)
    assert [record.value for record in (await looking.scan("/")).records] == [b"1"]
    with pytest.raises(InvalidBatch):
        await looking.apply(looking.batch().put("/a", b"2"))
    await store.apply(store.batch().put("/a", b"3"))
    assert [record.value for record in (await looking.scan("/")).records] == [b"3"]
    await looking.close()
    await store.close()
    with pytest.raises(StoreMissing):
        await SqliteStore.open(tmp_path / "none.db", read_only=True)
    (tmp_path / "empty.db").touch()  # opened to be written, it would be made a store
    with pytest.raises(StoreMissing, match="is empty"):
        await SqliteStore.open(tmp_path / "empty.db", read_only=True)
    assert (tmp_path / "empty.db").stat().st_size == 0
