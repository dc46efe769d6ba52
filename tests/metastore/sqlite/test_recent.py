"""Goal: what a process answers without asking its database is what a read of the database could have found.

Method: random writes, some of which fail or are lost, with every read beside one that asks the database; and each
moment at which the two could differ.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from metastore.backends import sqlite_recent
from metastore.backends.sqlite import SqliteStore
from metastore.backends.sqlite_recent import DirectoryLook, RecentRecords
from metastore.errors import CheckFailed, MetastoreError, OutcomeUnknown, StoreUnavailable, StoreWentBack
from metastore.types import Absent, FirstVersion, Record
from metastore.watches import Written
from tests.metastore.sqlite.hooks import Hooks, disk_error, in_writer

KEYS = [f"/{directory}/{number}" for directory in ("a", "b") for number in range(6)]
STEPS = 250


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest.fixture
async def store(tmp_path: Path, hooks: Hooks) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "x.db", connect=hooks.connect)
    yield store
    hooks.before = hooks.after = lambda seen: None
    await store.close()


async def asked(store: SqliteStore) -> dict[str, Record]:
    """What the database has, which a range always asks."""
    return {record.key: record for record in (await store.range("/a/", "/c/")).records}


async def looks_around(store: SqliteStore, hooks: Hooks) -> None:
    """Ask for a key of each directory that there is not, and wait until it is known which keys there are."""
    for directory in ("/a/", "/b/"):
        await store.get(f"{directory}none")
    await store.range("/", "0")  # behind it in the same thread
    await asyncio.sleep(0)
    hooks.statements.clear()


@asynccontextmanager
async def held(store: SqliteStore, hooks: Hooks, key: str, *, committed: bool) -> AsyncIterator[None]:
    """A write of `key` is held just before it is committed, or just after that, before anybody hears of it."""
    reached, go_on = threading.Event(), threading.Event()

    def wait(seen: str) -> None:
        if seen == "COMMIT" and in_writer():
            reached.set()
            go_on.wait()

    setattr(hooks, "after" if committed else "before", wait)
    writing = asyncio.ensure_future(store.apply(store.batch().put(key, b"new")))
    await asyncio.to_thread(reached.wait)
    try:
        yield
    finally:
        go_on.set()
        await writing


@pytest.mark.parametrize("small", [False, True], ids=["usual bounds", "small bounds"])
@pytest.mark.parametrize("seed", range(6))
async def test_it_is_what_the_database_has(
    store: SqliteStore, hooks: Hooks, monkeypatch: pytest.MonkeyPatch, seed: int, small: bool
) -> None:
    if small:
        for name, bound in (("MAX_RECORDS", 3), ("MAX_VALUE_BYTES", 2), ("MAX_DIRECTORY_KEYS", 3)):
            monkeypatch.setattr(sqlite_recent, name, bound)
        for module in ("sqlite", "sqlite_statements"):
            monkeypatch.setattr(f"metastore.backends.{module}.MAX_DIRECTORY_KEYS", 3)
    rng, without_asking = random.Random(seed), 0

    def fail_sometimes(seen: str) -> None:
        if seen == "COMMIT" and in_writer() and rng.random() < 0.1:
            hooks.before = fail_the_look_as_well if rng.random() < 0.5 else fail_sometimes
            raise disk_error()

    def fail_the_look_as_well(seen: str) -> None:
        if "last_group'" in seen and seen.startswith("SELECT"):
            hooks.before = fail_sometimes
            raise disk_error()

    def fail_afterwards(seen: str) -> None:
        if seen == "COMMIT" and in_writer() and rng.random() < 0.05:
            hooks.before = fail_the_look_as_well if rng.random() < 0.5 else fail_sometimes
            raise disk_error()

    hooks.before, hooks.after = fail_sometimes, fail_afterwards
    for step in range(STEPS):
        await asyncio.gather(*(change(store, rng, step) for _ in range(rng.randrange(3))))
        wanted = rng.sample(KEYS, rng.randrange(1, 4))
        hooks.statements.clear()
        found = (await store.get_many(wanted)).records
        without_asking += not hooks.statements
        there = await asked(store)
        assert found == {key: there.get(key) for key in wanted}
    assert without_asking > (STEPS / 50 if small else STEPS / 4)


async def change(store: SqliteStore, rng: random.Random, step: int) -> None:
    batch, keys = store.batch(), rng.sample(KEYS, rng.randrange(1, 4))
    for key in keys:
        batch.put(key, b"%d" % step) if rng.random() < 0.7 else batch.delete(key)
    if rng.random() < 0.2:
        batch.check(Absent(rng.choice(KEYS)))
    if rng.random() < 0.1 and not any(key.startswith("/b/") for key in keys):
        batch.delete_range("/b/", "/b0")
    with suppress(CheckFailed, StoreUnavailable, OutcomeUnknown):
        await store.apply(batch)


async def test_a_record_that_was_written_and_one_that_there_is_not_cost_no_statement(
    store: SqliteStore, hooks: Hooks
) -> None:
    await store.apply(store.batch().put("/a/1", b"1").put("/a/2", b"2"))
    await looks_around(store, hooks)
    found = await store.get_many(["/a/1", "/b/other"])
    assert found.revision == await store.current_revision()
    assert found.records["/b/other"] is None
    assert found.records["/a/1"] == (await asked(store))["/a/1"]
    await store.apply(store.batch().delete("/a/1").put("/b/other", b""))
    hooks.statements.clear()
    found = await store.get_many(["/a/1", "/a/2", "/b/other"])
    assert hooks.statements == []
    assert [each and each.value for each in found.records.values()] == [None, b"2", b""]


async def test_it_does_not_go_back_behind_what_a_reader_was_told(store: SqliteStore, hooks: Hooks) -> None:
    """A commit is in the database, and so may be read there, before it is published."""
    await store.apply(store.batch().put("/a/1", b"old"))
    async with held(store, hooks, "/a/1", committed=True):
        before, told, after = await store.get("/a/1"), await asked(store), await store.get("/a/1")
    assert before is not None and before.value == b"old", "nobody had been told yet"
    assert after is not None and after.value == told["/a/1"].value == b"new"


async def test_a_commit_of_unknown_outcome_is_looked_up(store: SqliteStore, hooks: Hooks) -> None:
    await store.apply(store.batch().put("/a/1", b"old"))
    await looks_around(store, hooks)

    def lose(seen: str) -> None:
        if seen == "COMMIT":
            hooks.after, hooks.before = lambda seen: None, refuse_to_look
            raise disk_error()

    def refuse_to_look(seen: str) -> None:
        if seen.startswith("SELECT number"):
            hooks.before = lambda seen: None
            raise disk_error()

    hooks.after = lose
    with pytest.raises(OutcomeUnknown):
        await store.apply(store.batch().put("/a/1", b"new").put("/b/1", b""))
    with pytest.raises(CheckFailed) as caught:
        await store.apply(store.batch().check(Absent("/a/1")))
    assert caught.value.current is not None and caught.value.current.value == b"new"
    async with held(store, hooks, "/a/2", committed=False):
        record = await store.get("/a/1")
    assert record is not None and record.value == b"new", "somebody was told of it"
    found = (await store.get_many(["/a/1", "/b/1"])).records
    assert [each and each.value for each in found.values()] == [b"new", b""]


async def test_a_directory_is_looked_at_once(store: SqliteStore, hooks: Hooks) -> None:
    await asyncio.gather(*(store.get(f"/b/{number}") for number in range(10)))
    await store.range("/", "0")  # behind it in the same thread
    assert sum(statement.startswith("SELECT json_group_array") for statement in hooks.statements) == 1


async def test_a_look_at_a_directory_that_has_changed_meanwhile_proves_nothing(
    store: SqliteStore, hooks: Hooks
) -> None:
    looked, go_on = threading.Event(), threading.Event()

    def wait(seen: str) -> None:
        if seen.startswith("SELECT json_group_array"):
            looked.set()
            go_on.wait()

    hooks.after = wait
    assert await store.get("/c/1") is None
    await asyncio.to_thread(looked.wait)
    await store.apply(store.batch().put("/c/2", b"there"))
    for number in range(sqlite_recent.MAX_RECORDS):  # until it is known of the directory alone
        store._recent.published(Written(10 + number, [], {f"/d/{number}": b""}, ()))
    go_on.set()
    for _ in range(2):
        assert await store.get("/c/2") is not None


async def test_a_change_that_was_not_published_is_looked_up(store: SqliteStore, hooks: Hooks) -> None:
    """A listener has failed; the callers have learned their answers nevertheless."""
    await store.apply(store.batch().put("/a/1", b"old"))
    await looks_around(store, hooks)

    def fail(applies: int) -> None:
        raise ZeroDivisionError

    store.group_listeners.append(fail)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    applied = await store.apply(store.batch().put("/a/1", b"new").put("/b/1", b""))
    store.group_listeners.clear()
    found = await store.get_many(["/a/1", "/b/1"])
    assert [each and each.value for each in found.records.values()] == [b"new", b""]
    assert await store.current_revision() == found.revision == applied.revision


async def test_keys_outside_of_directories_are_always_looked_up(store: SqliteStore, hooks: Hooks) -> None:
    assert await store.get("/none") is None
    await store.apply(store.batch().put("/none/too", b""))
    hooks.statements.clear()
    assert await store.get("/none") is None
    assert hooks.statements


async def test_a_broken_disk_does_not_spoil_what_is_known(store: SqliteStore, hooks: Hooks) -> None:
    await store.apply(store.batch().put("/a/1", b"1"))

    def fail(seen: str) -> None:
        raise disk_error()

    hooks.before = fail
    record = await store.get("/a/1")
    assert record is not None and record.value == b"1"
    with pytest.raises(MetastoreError):
        await store.get("/a/none")
    hooks.before = lambda seen: None
    assert await store.get("/a/none") is None


def test_what_is_kept_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    recent, writes = RecentRecords(), 100
    recent.looked(looking_at(recent, "/k/x"), [])
    for revision in range(1, writes):
        recent.published(Written(revision, [], {f"/k/{revision}": b"x"}, ()))
    assert recent.find([f"/k/{writes - 1}", "/k/none"]) == {
        f"/k/{writes - 1}": Record(f"/k/{writes - 1}", b"x", writes - 1, True),
        "/k/none": None,
    }
    monkeypatch.setattr(sqlite_recent, "MAX_RECORDS", 5)
    monkeypatch.setattr(sqlite_recent, "MAX_DIRECTORY_KEYS", writes)
    for revision in range(writes, writes + 5):
        recent.published(Written(revision, [], {f"/k/{revision}": b"x" * 5_000 if revision % 2 else b"x"}, ()))
    assert recent.find(["/k/none"]) is None, "there are too many keys"
    assert recent.find([f"/k/{writes + 1}"]) is None, "it is too large"
    assert recent.find([f"/k/{writes + 4}"]) is not None
    looks = [recent.look_at(f"/{number}/x") for number in range(sqlite_recent.MAX_DIRECTORIES + 5)]
    assert looks.count(None) == 6, "one was known before"


def looking_at(recent: RecentRecords, key: str) -> DirectoryLook:
    look = recent.look_at(key)
    assert look is not None and recent.look_at(key) is None, "one looks at a time"
    return look


def test_a_look_that_failed_is_made_again_and_one_from_before_proves_nothing() -> None:
    recent = RecentRecords()
    recent.looked(looking_at(recent, "/k/x"), None)
    before = looking_at(recent, "/k/x")
    recent.forget()
    recent.looked(before, [])
    assert recent.find(["/k/x"]) is None
    recent.looked(looking_at(recent, "/k/x"), [])
    assert recent.find(["/k/x"]) == {"/k/x": None}
    assert recent.find(["/k/\ud800"]) is None, "it is no key"


def test_by_what_the_store_is_known_is_never_kept() -> None:
    recent = RecentRecords()
    recent.published(Written(2, [], {"/cluster/incarnation": b"x"}, ()))
    assert recent.find(["/cluster/incarnation"]) is None
    assert recent.look_at("/cluster/version") is None


async def test_whether_the_store_answers_is_asked_of_the_database(store: SqliteStore, hooks: Hooks) -> None:
    await store.apply(store.batch().put("/a/1", b"1"))

    def fail(seen: str) -> None:
        raise disk_error()

    hooks.before = fail
    with pytest.raises(StoreUnavailable):
        await store.current_revision()


@pytest.mark.parametrize("tells", ["a check that failed", "a check that held"])
async def test_it_does_not_go_back_behind_what_an_apply_has_told(store: SqliteStore, hooks: Hooks, tells: str) -> None:
    """Behind a commit of unknown outcome, which has taken effect; and a look at the directory began before it."""
    looked, go_on_looking = threading.Event(), threading.Event()

    def look(seen: str) -> None:
        if seen.startswith("SELECT json_group_array"):
            looked.set()
            go_on_looking.wait()

    await store.apply(store.batch().put("/a/1", b"old"))
    hooks.after = look
    assert await store.get("/b/none") is None
    await asyncio.to_thread(looked.wait)

    def lose(seen: str) -> None:
        if seen == "COMMIT" and in_writer():
            hooks.after, hooks.before = lambda seen: None, refuse_to_look
            raise disk_error()

    def refuse_to_look(seen: str) -> None:
        if seen.startswith("SELECT number") and in_writer():
            hooks.before = lambda seen: None
            raise disk_error()

    hooks.after = lose
    with pytest.raises(OutcomeUnknown):
        await store.apply(store.batch().put("/a/1", b"new").put("/b/1", b"new"))
    go_on_looking.set()
    await store.range("/", "/")  # behind the look
    if tells == "a check that failed":
        with pytest.raises(CheckFailed):
            await store.apply(store.batch().check(Absent("/b/1")))
    else:
        await store.apply(store.batch().check(FirstVersion("/b/1")))
    async with held(store, hooks, "/a/2", committed=False):
        found = await store.get_many(["/a/1", "/b/1"])
    assert [each and each.value for each in found.records.values()] == [b"new", b"new"]


async def test_what_others_have_written_into_the_file_is_looked_up(store: SqliteStore, tmp_path: Path) -> None:
    """Nobody may, but who does is not answered with two different records by `get` and by `range`."""
    await store.apply(store.batch().put("/a/1", b"ours"))
    with closing(sqlite3.connect(tmp_path / "x.db")) as other:
        other.execute("UPDATE records SET value = x'01' WHERE key = '/a/1'")
        other.commit()
    for _ in range(2):
        record = await store.get("/a/1")
        assert record is not None and record.value == b"\x01"
        await store.apply(store.batch().put("/a/2", b""))


async def test_a_read_tells_as_a_range_does(store: SqliteStore, hooks: Hooks) -> None:
    await store.apply(store.batch().put("/a/1", b"old"))
    async with held(store, hooks, "/a/1", committed=True):
        told, after = await store.get_many(["/a/1", "/a/none"]), await store.get("/a/1")
    assert after == told.records["/a/1"] and after is not None and after.value == b"new"


async def test_a_closed_store_and_one_that_is_refused_answer_nothing(store: SqliteStore) -> None:
    await store.apply(store.batch().put("/a/1", b"1"))
    store.refuse("it is another one")
    with pytest.raises(StoreWentBack):
        await store.get("/a/1")
    await store.close()
    with pytest.raises(MetastoreError):
        await store.get("/a/1")


async def test_a_loop_that_only_reads_lets_others_have_their_turn(store: SqliteStore) -> None:
    await store.apply(store.batch().put("/a/1", b"1"))
    turns: list[None] = []
    asyncio.get_running_loop().call_soon(turns.append, None)
    while not turns:
        await store.get("/a/1")
