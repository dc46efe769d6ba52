"""Goal: the applies of a group do what they do one after the other, though most of them are evaluated in memory and
written together, and a group costs few statements.

Method: groups of random batches over a few keys, of every kind that makes others wait for what is written, beside the
store in memory, which is the reference. Some batches are refused by the database itself.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.backends.sqlite import SqliteStore
from metastore.errors import CheckFailed, InvalidBatch
from metastore.types import Absent, AtVersion, Batch, Changes, Check, EmptyRange, FirstVersion, Record
from tests.metastore.sqlite.hooks import Hooks

KEYS = [f"/k/{number}" for number in range(8)]
GROUPS = 60


def fill(batch: Batch, seed: int, versions: dict[str, int]) -> Batch:
    """A random batch, which is the same for every store in which keys are at these versions."""
    rng = random.Random(seed)
    for key in rng.sample(KEYS, rng.randrange(3)):
        checks: list[Check] = [Absent(key), FirstVersion(key), AtVersion(key, versions.get(key, 0) + rng.randrange(2))]
        batch.check(rng.choice(checks) if rng.random() < 0.8 else EmptyRange(key, key + "0"))
    keys = rng.sample(KEYS, rng.randrange(4))
    for key in keys:
        batch.put(key, b"%d" % seed) if rng.random() < 0.6 else batch.delete(key)
    first = rng.choice(KEYS)
    if rng.random() < 0.2 and not any(first <= key < first + "~" for key in keys):
        batch.delete_range(first, first + "~")
    return batch


async def outcomes(store: MetadataStore, seeds: list[int], versions: dict[str, int]) -> list[Any]:
    """What becomes of applies that travel together."""

    async def one(seed: int) -> Any:
        rng = random.Random(-seed)
        try:
            if rng.random() < 0.15:
                return await store.put_sequential("/k/seq/", b"%d" % seed)
            return (await store.apply(fill(store.batch(), seed, versions))).revision
        except CheckFailed as failed:
            return failed.check, failed.current

    return await asyncio.gather(*map(one, seeds))


async def records(store: MetadataStore) -> list[Record]:
    return list((await store.scan("/k/")).records)


@pytest.mark.parametrize("seed", range(8))
async def test_a_group_does_what_its_applies_do_one_after_the_other(tmp_path: Path, seed: int) -> None:
    hooks, rng = Hooks(), random.Random(seed)
    ours, reference = await SqliteStore.open(tmp_path / "x.db", connect=hooks.connect), MemoryStore()
    assert await ours.current_revision() == await reference.current_revision()
    watches = [store.watch("/k/", 1) for store in (ours, reference)]
    changes = 0
    for _ in range(GROUPS):
        seeds = [rng.randrange(1 << 30) for _ in range(rng.randrange(1, 12))]
        versions = {record.key: record.version for record in await records(ours)}
        hooks.statements.clear()
        found = await outcomes(ours, seeds, versions)
        assert hooks.statements.count("BEGIN IMMEDIATE") == 1
        assert found == await outcomes(reference, seeds, versions)
        assert await records(ours) == await records(reference)
        changes += sum(isinstance(each, int | Record) for each in found)
    last = await reference.current_revision()
    assert await ours.current_revision() == last and changes > GROUPS
    told: list[list[Any]] = [[], []]
    for each, watch in zip(told, watches, strict=True):
        async for item in watch:
            each.append(item)
            if isinstance(item, Changes) and item.revision >= last:
                break
    assert told[0] == told[1]
    await ours.close()
    again = await SqliteStore.open(tmp_path / "x.db")
    assert await records(again) == await records(reference)
    await again.close()


async def test_what_the_database_refuses_takes_nothing_along(tmp_path: Path) -> None:
    """Wherever it is in the group, and though others have to be written again for it."""
    ours, reference = await SqliteStore.open(tmp_path / "x.db"), MemoryStore()
    ours.refuse_unfit = lambda batch: None  # type: ignore[method-assign]
    rng = random.Random(1)
    for number in range(20):
        seeds = [rng.randrange(1 << 30) for _ in range(6)]
        versions = {record.key: record.version for record in await records(ours)}
        bad = ours.batch().delete(KEYS[0]).put("/k/bad", object())  # type: ignore[arg-type]
        match number % 4:
            case 1:
                bad = ours.batch().put("/k/\ud800", b"")
            case 2:
                bad = ours.batch().delete_range("/k/\ud800", "/l")
            case 3:
                bad = ours.batch().check(EmptyRange("/k/\ud800", "/l")).put("/k/7", b"")
        at = rng.randrange(7)
        calls = [outcomes(ours, [seed], versions) for seed in seeds]
        calls.insert(at, ours.apply(bad))  # type: ignore[arg-type]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(found.pop(at), InvalidBatch)
        assert [outcome for (outcome,) in found] == await outcomes(reference, seeds, versions)  # type: ignore[misc]
        assert await records(ours) == await records(reference)
    await ours.close()


async def test_a_group_takes_few_statements(tmp_path: Path) -> None:
    """Each of them waits for the event loop's thread."""
    hooks = Hooks()
    store = await SqliteStore.open(tmp_path / "x.db", connect=hooks.connect)
    await asyncio.gather(*(store.apply(store.batch().put(key, b"")) for key in KEYS))
    hooks.statements.clear()
    replaced = [store.batch().put(key, b"1").check(FirstVersion(key)).delete(f"{key}/none") for key in KEYS]
    await asyncio.gather(*map(store.apply, replaced))
    assert [each.split(" ")[0] for each in hooks.statements] == ["BEGIN", "SELECT", "INSERT", "UPDATE", "COMMIT"]
    hooks.statements.clear()
    await asyncio.gather(*(store.get_many([key, "/none"]) for key in KEYS))
    assert [each.split(" ")[0] for each in hooks.statements] == ["SELECT"]
    await store.close()


async def test_a_key_that_cannot_be_expressed_fails_its_own_read(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "x.db")
    await store.apply(store.batch().put("/a", b"1"))
    wrong, right = await asyncio.gather(store.get("/\ud800"), store.get("/a"), return_exceptions=True)
    assert isinstance(wrong, ValueError) and isinstance(right, Record) and right.value == b"1"
    assert await store.get("") is None
    await store.close()
