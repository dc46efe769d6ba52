"""Goal: a group is one durable transaction, and every answer about it is true, however the commit fails.

Method: the connection fails before or after the statement that matters; then the file is read by a new store.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from metastore.backends.sqlite import SqliteStore
from metastore.errors import CheckFailed, InvalidBatch, OutcomeUnknown, StoreClosed, StoreFull, StoreUnavailable
from metastore.types import Absent, Applied, Changes, Resync
from tests.metastore.sqlite.hooks import Hooks, disk_error


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets a hanging statement go on; set at the end in any case, or a failed test would hang too."""
    release = threading.Event()
    yield release
    release.set()


@pytest.fixture
async def store(tmp_path: Path, hooks: Hooks) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "x.db", connect=hooks.connect)
    hooks.statements.clear()
    yield store
    await store.close()


async def reopened_keys(store: SqliteStore, path: Path) -> list[str]:
    await store.close()
    again = await SqliteStore.open(path)
    keys = [record.key for record in (await again.scan("/")).records]
    await again.close()
    return keys


def fail_once(hooks: Hooks, statement: str, error: sqlite3.Error, *, after: bool) -> None:
    """Fail the next execution of `statement`, before SQLite sees it or after it has done it."""

    def hook(seen: str) -> None:
        if seen.startswith(statement):
            setattr(hooks, "after" if after else "before", lambda seen: None)
            raise error

    setattr(hooks, "after" if after else "before", hook)


def fail_always(hooks: Hooks, *statements: str) -> None:
    def hook(seen: str) -> None:
        if seen.startswith(statements):
            raise disk_error()

    hooks.before = hook


async def test_a_group_is_one_transaction(store: SqliteStore, hooks: Hooks) -> None:
    await asyncio.gather(*(store.apply(store.batch().put(f"/{n}", b"")) for n in range(200)))
    assert hooks.statements.count("BEGIN IMMEDIATE") == 1
    assert hooks.statements.count("COMMIT") == 1


async def test_applies_that_wait_for_a_commit_travel_together(
    store: SqliteStore, hooks: Hooks, release: threading.Event
) -> None:
    loop = asyncio.get_running_loop()
    committing = asyncio.Event()

    def hook(seen: str) -> None:
        if seen == "COMMIT":
            hooks.before = lambda seen: None
            loop.call_soon_threadsafe(committing.set)
            release.wait()

    hooks.before = hook
    first = asyncio.create_task(store.apply(store.batch().put("/first", b"")))
    await committing.wait()
    others = []
    for number in range(50):
        others.append(asyncio.create_task(store.apply(store.batch().put(f"/{number}", b""))))
        await asyncio.sleep(0)
    release.set()
    await asyncio.gather(first, *others)
    assert hooks.statements.count("COMMIT") == 2


async def test_a_group_that_changes_nothing_does_not_touch_the_disk(store: SqliteStore, hooks: Hooks) -> None:
    await store.apply(store.batch().put("/a", b""))
    hooks.statements.clear()
    with pytest.raises(CheckFailed):
        await store.apply(store.batch().create("/a", b""))
    await store.apply(store.batch().delete("/none"))
    assert "COMMIT" not in hooks.statements


async def test_every_commit_reaches_the_disk(tmp_path: Path, hooks: Hooks) -> None:
    store = await SqliteStore.open(tmp_path / "y.db", connect=hooks.connect)
    assert hooks.statements.count("PRAGMA synchronous = FULL") == len(hooks.connections)
    await store.close()
    outside = sqlite3.connect(tmp_path / "y.db")
    assert outside.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert outside.execute("PRAGMA encoding").fetchone() == ("UTF-8",)
    outside.close()


async def test_a_poisoned_apply_fails_alone(store: SqliteStore, hooks: Hooks, tmp_path: Path) -> None:
    """SQLite itself refuses one value, in the middle of its batch: its neighbours and their group do not notice, and
    what the batch has deleted before is there."""
    await store.apply(store.batch().create("/deleted", b""))
    hooks.statements.clear()
    batches = [store.batch().create(f"/k/{n:02d}", b"") for n in range(30)]
    batches[10].delete("/deleted").put("/poison", object()).put("/after", b"")  # type: ignore[arg-type]
    store.refuse_unfit = lambda batch: None  # type: ignore[method-assign]
    answers = await asyncio.gather(*(store.apply(batch) for batch in batches), return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, InvalidBatch)] == [10]
    assert hooks.statements.count("COMMIT") == 1
    kept = ["/deleted", *(f"/k/{n:02d}" for n in range(30) if n != 10)]
    assert await reopened_keys(store, tmp_path / "x.db") == kept


@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "SELECT key", "UPDATE meta SET number = CASE"])
async def test_an_error_before_the_commit_is_definite(
    store: SqliteStore, hooks: Hooks, tmp_path: Path, statement: str
) -> None:
    fail_once(hooks, statement, disk_error(), after=False)
    batches = [store.batch().put("/a", b""), store.batch().check(Absent("/a")).put("/b", b"")]
    answers = await asyncio.gather(*(store.apply(batch) for batch in batches), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable, StoreUnavailable]
    await store.apply(store.batch().put("/c", b""))
    assert await reopened_keys(store, tmp_path / "x.db") == ["/c"]


async def test_a_full_disk_is_definite_and_goes_on_once_there_is_space(
    store: SqliteStore, hooks: Hooks, tmp_path: Path
) -> None:
    pages = 64

    def limit(pages: int) -> None:
        # Only the connection's own thread may touch it, so the limit travels with the next statement.
        def hook(seen: str) -> None:
            if seen == "BEGIN IMMEDIATE":
                hooks.before = lambda seen: None
                sqlite3.Connection.execute(hooks.connections[0], f"PRAGMA max_page_count = {pages}")

        hooks.before = hook

    limit(pages)
    with pytest.raises(StoreFull) as full:
        await store.apply(store.batch().put("/large", bytes(1_000_000)))
    assert full.value.definite and full.value.retriable
    await store.apply(store.batch().put("/small", b""))
    limit(1_000_000)
    await store.apply(store.batch().put("/large", bytes(1_000_000)))
    assert await reopened_keys(store, tmp_path / "x.db") == ["/large", "/small"]


async def test_a_commit_that_failed_but_took_is_answered_as_done(
    store: SqliteStore, hooks: Hooks, tmp_path: Path
) -> None:
    async with store.watch("/", 1) as watch:
        assert isinstance(await anext(watch), Resync)
        fail_once(hooks, "COMMIT", disk_error(), after=True)
        batches = [store.batch().create("/a", b""), store.batch().create("/a", b"")]
        answers = await asyncio.gather(*(store.apply(batch) for batch in batches), return_exceptions=True)
        assert [type(answer) for answer in answers] == [Applied, CheckFailed]
        assert isinstance(answers[0], Applied)
        changes = await anext(watch)
        assert isinstance(changes, Changes) and changes.revision == answers[0].revision
    assert await reopened_keys(store, tmp_path / "x.db") == ["/a"]


async def test_a_commit_that_failed_and_did_not_take_is_definite_for_all(
    store: SqliteStore, hooks: Hooks, tmp_path: Path
) -> None:
    """The second apply lost against the first one's write, which is gone: it must not be told that it lost."""
    fail_once(hooks, "COMMIT", disk_error(), after=False)
    batches = [store.batch().create("/a", b""), store.batch().create("/a", b"")]
    answers = await asyncio.gather(*(store.apply(batch) for batch in batches), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable, StoreUnavailable]
    assert await store.get("/a") is None
    await store.apply(store.batch().create("/a", b""))
    assert await reopened_keys(store, tmp_path / "x.db") == ["/a"]


@pytest.mark.parametrize("took", [True, False])
async def test_a_commit_that_failed_is_fenced_before_anybody_is_told(
    store: SqliteStore, hooks: Hooks, took: bool
) -> None:
    """Frames of the lost commit may wait in the log for a recovery: only a later commit makes them impossible, and
    only a later commit that reached the disk says that those of one which took are there as well."""
    fail_once(hooks, "COMMIT", disk_error(), after=took)
    (answer,) = await asyncio.gather(store.apply(store.batch().put("/a", b"")), return_exceptions=True)
    assert isinstance(answer, Applied if took else StoreUnavailable)
    assert hooks.statements[-1] == "UPDATE meta SET number = ? WHERE name = 'last_group'"


@pytest.mark.parametrize("took", [True, False])
async def test_a_commit_that_cannot_be_looked_up_is_unknown(
    store: SqliteStore, hooks: Hooks, tmp_path: Path, took: bool
) -> None:
    async with store.watch("/", 1) as watch:
        assert isinstance(await anext(watch), Resync)

        def lose(seen: str) -> None:
            if seen == "COMMIT":
                fail_always(hooks, "ROLLBACK", "SELECT number FROM meta WHERE name = 'last_group'")
                hooks.after = lambda seen: None
                raise disk_error()

        setattr(hooks, "after" if took else "before", lose)
        batches = [store.batch().create("/a", b""), store.batch().create("/a", b"")]
        answers = await asyncio.gather(*(store.apply(batch) for batch in batches), return_exceptions=True)
        # Who only lost a check has written nothing in either case.
        assert [type(answer) for answer in answers] == [OutcomeUnknown, StoreUnavailable]
        hooks.before = lambda seen: None
        item = await anext(watch)
        assert isinstance(item, Resync), "the watch cannot know either"
        applied = await store.apply(store.batch().put("/b", b""))
        after = await anext(watch)
        if took:
            assert isinstance(after, Resync)
            after = await anext(watch)
        assert isinstance(after, Changes) and after.revision == applied.revision
    assert await reopened_keys(store, tmp_path / "x.db") == (["/a", "/b"] if took else ["/b"])


async def test_a_hanging_disk_ends_calls_by_their_deadline(
    tmp_path: Path, hooks: Hooks, release: threading.Event
) -> None:
    store = await SqliteStore.open(tmp_path / "x.db", deadline_ms=1_000, connect=hooks.connect)

    def hang(seen: str) -> None:
        if seen == "COMMIT":
            release.wait()

    start = await store.current_revision()
    async with store.watch("/", start + 1) as watch:
        hooks.before = hang
        under_way = asyncio.create_task(store.apply(store.batch().put("/a", b"")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = asyncio.create_task(store.apply(store.batch().put("/b", b"")))
        answers = await asyncio.gather(under_way, waiting, return_exceptions=True)
        assert [type(answer) for answer in answers] == [OutcomeUnknown, StoreUnavailable]
        with pytest.raises(StoreUnavailable, match="stays locked"):
            await store.close()
        release.set()
        await store.close()
        assert [item async for item in watch] == []
    with pytest.raises(StoreClosed):
        await store.get("/a")
    assert await reopened_keys(store, tmp_path / "x.db") == ["/a"]


async def test_close_finishes_what_was_submitted(store: SqliteStore, tmp_path: Path) -> None:
    applies = [asyncio.create_task(store.apply(store.batch().put(f"/{n}", b""))) for n in range(10)]
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert all(isinstance(answer, Applied) for answer in await asyncio.gather(*applies))
    assert len(await reopened_keys(store, tmp_path / "x.db")) == 10


async def test_a_broken_read_is_unavailable_and_the_next_one_works(store: SqliteStore, hooks: Hooks) -> None:
    fail_once(hooks, "SELECT key", disk_error(), after=False)
    with pytest.raises(StoreUnavailable):
        await store.get("/a")
    assert await store.get("/a") is None


async def test_an_impossible_key_disturbs_no_other_read(store: SqliteStore) -> None:
    await store.apply(store.batch().put("/a", b""))
    good, bad = await asyncio.gather(store.get("/a"), store.get("/\ud800"), return_exceptions=True)
    assert good is not None and not isinstance(good, BaseException)
    assert isinstance(bad, UnicodeEncodeError)
