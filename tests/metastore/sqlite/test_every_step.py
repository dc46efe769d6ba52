"""Goal: whatever goes wrong at whatever step of a group, no caller is told something else than what the file holds.

Method: one statement after the other fails, before SQLite sees it or after it has done it, in every way in which a
statement can: a disk that fails, a disk that is full, memory that runs out (which is no `sqlite3.Error`), and a bug.
Some failures come alone, some take all statements behind them along. The store goes on, and the file is read in the
end by another one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metastore.backends.sqlite import SqliteStore
from metastore.backends.sqlite_statements import KEYS_PER_STATEMENT
from metastore.errors import CheckFailed, InvalidBatch, MetastoreError, OutcomeUnknown, StoreFull, StoreUnavailable
from metastore.types import Absent, Applied, Record, Resync
from tests.metastore.sqlite.hooks import Hooks, disk_error


def full_disk() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


class Bug(Exception):
    """Nothing that a statement should ever raise."""


FAILURES: dict[str, Callable[[], Exception]] = {
    "disk": disk_error,
    "full": full_disk,
    "memory": MemoryError,
    "bug": Bug,
}


class Interruption:
    """Fails the statement number `at` of those that come from now on, and `more` behind it."""

    def __init__(self, hooks: Hooks, failure: Callable[[], Exception], at: int, more: int, *, after: bool) -> None:
        self._failure = failure
        self._at, self._last = at, at + more
        self._seen = 0
        self.met: list[str] = []
        setattr(hooks, "after" if after else "before", self)

    def __call__(self, statement: str) -> None:
        number, self._seen = self._seen, self._seen + 1
        if self._at <= number <= self._last:
            self.met.append(statement)
            raise self._failure()


async def a_group(store: SqliteStore, place: str) -> dict[str, Any]:
    """Applies of every kind, which travel together, and what became of each; by the key that it writes."""
    poisoned = store.batch().put(f"{place}/poison", object())  # type: ignore[arg-type]
    calls = {
        "first": store.apply(store.batch().create(f"{place}/first", b"")),
        "loses": store.apply(store.batch().create(f"{place}/first", b"").put(f"{place}/loses", b"")),
        "poison": store.apply(poisoned),
        "behind": store.apply(store.batch().check(Absent(f"{place}/loses")).put(f"{place}/behind", b"")),
        "nothing": store.apply(store.batch().delete(f"{place}/nothing")),
        "sequence": store.put_sequential(f"{place}/sequence/", b""),
    }
    answers = await asyncio.gather(*calls.values(), return_exceptions=True)
    return dict(zip(calls, answers, strict=True))


def contradictions(answers: dict[str, Any], there: set[str], failure: str) -> list[str]:
    """Answers that the keys which are there show to be untrue, or that no caller could understand."""
    found = []
    for name, answer in answers.items():
        wrote = name in there or any(key.startswith(f"{name}/") for key in there)
        match answer:
            case Applied() | Record():
                true = wrote or name == "nothing"
            case CheckFailed():
                true = name == "loses" and not wrote and "first" in there
            case InvalidBatch():
                true = name == "poison" and not wrote
            case OutcomeUnknown():
                true = name not in ("loses", "poison", "nothing")
            case MetastoreError():
                true = not wrote and answer.definite
            case _:
                true = not wrote and failure == "bug" and isinstance(answer, Bug)
        if not true:
            found.append(f"{name}: {answer!r}, and there is {sorted(there)}")
    return found


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("failure", FAILURES)
async def test_every_answer_is_true_whichever_step_fails(
    failure: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = Hooks()
    store = await SqliteStore.open(tmp_path / "x.db", connect=hooks.connect)
    monkeypatch.setattr(store, "refuse_unfit", lambda batch: None)
    answers: dict[str, dict[str, Any]] = {}
    steps: dict[str, list[str]] = {}
    for more in (0, 1, 1_000):
        step = 0
        while True:
            place = f"/{more}-{step}"
            interruption = Interruption(hooks, FAILURES[failure], step, more, after=after)
            answers[place] = await a_group(store, place)
            hooks.before = hooks.after = lambda statement: None
            await store.apply(store.batch().put(f"{place}/goes-on", b""))
            if not interruption.met:
                break
            steps[place] = interruption.met
            step += 1
    await store.close()
    again = await SqliteStore.open(tmp_path / "x.db")
    for place, of_place in answers.items():
        there = {record.key.removeprefix(f"{place}/") for record in (await again.scan(f"{place}/")).records}
        assert not contradictions(of_place, there, failure), steps.get(place)
        assert "goes-on" in there
    await again.close()
    met = {first.split(" ")[0] for first, *_ in steps.values()}
    assert {"BEGIN", "SELECT", "INSERT", "SAVEPOINT", "UPDATE", "COMMIT"} <= met, "every step has failed once"


async def test_memory_that_runs_out_in_a_commit_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    hooks = Hooks()
    store = await SqliteStore.open(tmp_path / "x.db", connect=hooks.connect)

    def run_out(statement: str) -> None:
        if statement == "COMMIT":
            hooks.before = lambda statement: None
            raise MemoryError

    start = await store.current_revision()
    async with store.watch("/", start + 1) as watch:
        hooks.before = run_out
        with pytest.raises(StoreUnavailable, match="MemoryError") as failed:
            await store.apply(store.batch().create("/a", b""))
        assert failed.value.definite
        applied = await store.apply(store.batch().create("/a", b""))
        item = await anext(watch)
        assert not isinstance(item, Resync) and item.revision == applied.revision, "and nothing else was told"
    await store.close()


async def test_memory_that_runs_out_in_a_read_is_unavailable(tmp_path: Path) -> None:
    hooks = Hooks()
    store = await SqliteStore.open(tmp_path / "x.db", connect=hooks.connect)
    many = [str(number) for number in range(KEYS_PER_STATEMENT + 1)]
    for statement, keys in (("BEGIN", many), ("SELECT key", many), ("COMMIT", many), ("SELECT key", ["a"])):

        def run_out(seen: str, statement: str = statement) -> None:
            if seen.startswith(statement):
                hooks.before = lambda seen: None
                raise MemoryError

        hooks.before = run_out
        with pytest.raises(StoreUnavailable):
            await store.get_many(keys)
        assert not any((await store.get_many(keys)).records.values())
    await store.close()


async def test_a_disk_that_is_full_at_the_commit_needs_no_space_to_say_so(tmp_path: Path) -> None:
    """The commit frame was never written, so nothing need be written to make that true for good."""
    hooks = Hooks()
    store = await SqliteStore.open(tmp_path / "x.db", connect=hooks.connect)
    full = False

    def hook(statement: str) -> None:
        nonlocal full
        full = full or statement == "COMMIT"
        if full and not statement.startswith(("SELECT", "ROLLBACK")):
            raise full_disk()

    hooks.before = hook
    with pytest.raises(StoreFull):
        await store.apply(store.batch().put("/a", b""))
    hooks.before = lambda statement: None
    assert await store.get("/a") is None
    await store.close()


async def test_a_listener_that_fails_costs_nobody_an_answer(tmp_path: Path) -> None:
    """What is done behind a commit, before its callers wake, does not stop the lane."""
    store = await SqliteStore.open(tmp_path / "x.db")
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def fail(applies: int) -> None:
        store.group_listeners.clear()
        raise Bug

    store.group_listeners.append(fail)
    assert isinstance(await store.apply(store.batch().put("/a", b"")), Applied)
    assert isinstance(await store.apply(store.batch().put("/a", b"")), Applied)
    assert [type(context["exception"]) for context in told] == [Bug]
    await store.close()
