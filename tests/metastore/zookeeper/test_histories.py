"""Goal: two clients of one ZooKeeper store do exactly what the reference model does.

Method: random batches over a few keys that nest, from two clients in turn, so that each plans on beliefs which the
other has made wrong; the same batches go to `memory`. Answers, records and a watch are compared step by step. Then
hundreds at once: those that succeeded are replayed in the order of their revisions, and each check must have held.
"""

from __future__ import annotations

import asyncio
import random
from itertools import groupby

import pytest

from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.errors import CheckFailed
from metastore.types import Absent, AtVersion, Batch, Changes, Check, EmptyRange, FirstVersion, Record
from tests.metastore.zookeeper.conftest import OpenStore
from tests.servers import ZooKeeperServer

KEYS = ["/a", "/a/b", "/a/b/c", "/a/b/d", "/a/e", "/f/g/h", "/f/g/i", "/f", "j"]
BOUNDS = ["", "/", "/a", "/a/", "/a/b", "/a/b/", "/a/b0", "/a0", "/f/", "/f0", "0", "k"]
STEPS = 120


def plain(record: Record | None) -> tuple[str, bytes, bool] | None:
    return (record.key, record.value, record.first) if record else None


class _Pair:
    """The same state twice. Versions differ, so each side is given its own."""

    def __init__(self, real: list[MetadataStore], model: MemoryStore, dice: random.Random) -> None:
        self._real = real
        self._model = model
        self._dice = dice
        self._versions: list[tuple[str, int, int]] = []

    async def step(self, number: int) -> None:
        dice, store = self._dice, self._dice.choice(self._real)
        one, two = store.batch(), self._model.batch()
        for _ in range(dice.randrange(3)):
            self._check(one, two)
        written: set[str] = set()
        for key in dice.sample(KEYS, dice.randrange(4)):
            written.add(key)
            value = f"{number}".encode()
            one.put(key, value)
            two.put(key, value)
        for key in dice.sample(KEYS, dice.randrange(3)):
            if key not in written:
                written.add(key)
                one.delete(key)
                two.delete(key)
        if dice.random() < 0.2:
            start, end = sorted(dice.sample(BOUNDS, 2))
            if not any(start <= key < end for key in one.puts):
                one.delete_range(start, end)
                two.delete_range(start, end)
        answers = [await self._answer(store, one), await self._answer(self._model, two)]
        assert answers[0] == answers[1], (number, two)
        await self._compare(dice.choice(self._real))

    def _check(self, one: Batch, two: Batch) -> None:
        dice = self._dice
        key = dice.choice(KEYS)
        kind = dice.randrange(4)
        if kind == 0:
            one.check(Absent(key))
            two.check(Absent(key))
        elif kind == 1:
            one.check(FirstVersion(key))
            two.check(FirstVersion(key))
        elif kind == 2:
            start, end = sorted(dice.sample(BOUNDS, 2))
            one.check(EmptyRange(start, end))
            two.check(EmptyRange(start, end))
        elif self._versions:
            known, real, model = dice.choice(self._versions[-12:])
            one.check(AtVersion(known, real))
            two.check(AtVersion(known, model))

    @staticmethod
    async def _answer(store: MetadataStore, batch: Batch) -> object:
        try:
            await store.apply(batch)
        except CheckFailed as failed:
            check = failed.check
            named = (AtVersion, check.key) if isinstance(check, AtVersion) else check
            return named, plain(failed.current)
        return "applied"

    async def _compare(self, store: MetadataStore) -> None:
        start, end = sorted(self._dice.sample(BOUNDS, 2))
        limit, reverse = self._dice.randrange(4), self._dice.random() < 0.5
        one = await store.range(start, end, limit=limit, reverse=reverse)
        two = await self._model.range(start, end, limit=limit, reverse=reverse)
        assert [plain(record) for record in one.records] == [plain(record) for record in two.records]
        assert one.more == two.more
        real, model = await store.get_many(KEYS), await self._model.get_many(KEYS)
        for key in KEYS:
            left, right = real.records[key], model.records[key]
            assert plain(left) == plain(right)
            if left and right:
                self._versions.append((key, left.version, right.version))


@pytest.mark.parametrize("seed", range(8))
async def test_a_history(zookeeper_server: ZooKeeperServer, open_store: OpenStore, seed: int) -> None:
    one = await open_store(zookeeper_server)
    two = await open_store(zookeeper_server, one._paths.root)
    model = MemoryStore()
    pair = _Pair([one, two], model, random.Random(seed))
    state: dict[str, Record] = {}
    start = await one.current_revision()
    async with two.watch("/", start + 1) as watch:
        for number in range(STEPS):
            await pair.step(number)
        end = await one.apply(one.batch().put("/end", b""))
        revision = start
        while revision < end.revision:
            item = await anext(watch)
            assert isinstance(item, Changes) and item.revision > revision
            revision = item.revision
            for event in item.events:
                if event.record is None:
                    del state[event.key]
                else:
                    assert event.record.first == (event.key not in state)
                    state[event.key] = event.record
    assert sorted(state.values(), key=lambda record: record.key) == (await one.scan("/")).records
    model_records = (await model.scan("/")).records
    assert [plain(state[record.key]) for record in model_records] == [plain(record) for record in model_records]


def holds(check: Check, state: dict[str, Record]) -> bool:
    match check:
        case Absent(key):
            return key not in state
        case AtVersion(key, version):
            return key in state and state[key].version == version
        case FirstVersion(key):
            return key in state and state[key].first
        case EmptyRange(start, end):
            return not any(start <= key < end for key in state)


def random_batch(store: MetadataStore, dice: random.Random, seen: dict[str, Record], name: str) -> Batch:
    batch = store.batch()
    for _ in range(dice.randrange(3)):
        key = dice.choice(KEYS)
        start, end = sorted(dice.sample(BOUNDS, 2))
        options: list[Check] = [Absent(key), FirstVersion(key), EmptyRange(start, end), EmptyRange("/a/", "/a0")]
        options += [AtVersion(record.key, record.version) for record in seen.values()]
        batch.check(dice.choice(options))
    written = dice.sample(KEYS, dice.randrange(1, 4))
    for key in written[:2]:
        batch.put(key, name.encode())
    for key in written[2:]:
        batch.delete(key)
    if dice.random() < 0.1 and not any(key.startswith("/f/") for key in batch.puts):
        batch.delete_range("/f/", "/f0")
    return batch


@pytest.mark.parametrize("seed", range(6))
async def test_every_check_of_a_successful_apply_held(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, seed: int
) -> None:
    first = await open_store(zookeeper_server)
    clients = [first, await open_store(zookeeper_server, first._paths.root)]
    dice = random.Random(seed)
    applied: list[tuple[int, Batch]] = []
    lost: list[tuple[CheckFailed, Batch]] = []

    async def caller(number: int) -> None:
        store = clients[number % 2]
        for step in range(12):
            snapshot = await store.get_many(dice.sample(KEYS, 3))
            seen = {key: record for key, record in snapshot.records.items() if record}
            batch = random_batch(store, dice, seen, f"{number}:{step}")
            try:
                applied.append(((await store.apply(batch)).revision, batch))
            except CheckFailed as failed:
                lost.append((failed, batch))

    await asyncio.gather(*(caller(number) for number in range(30)))
    for failed, batch in lost:
        met = {failed.current.key: failed.current} if failed.current else {}
        assert failed.check in batch.checks and not holds(failed.check, met)
    state: dict[str, Record] = {}
    for revision, group in groupby(sorted(applied, key=lambda one: one[0]), key=lambda one: one[0]):
        # Those that travelled together do not touch: each saw the state before all of them.
        before = dict(state)
        for _, batch in group:
            assert all(holds(check, before) for check in batch.checks), (revision, batch)
            for key in [*batch.deletes, *(k for k in before for a, b in batch.range_deletes if a <= k < b)]:
                state.pop(key, None)
            for key, value in batch.puts.items():
                state[key] = Record(key, value, revision, key not in before)
    assert [state[key] for key in sorted(state)] == (await first.range("", "\U0010ffff")).records
    assert len(applied) > 60
