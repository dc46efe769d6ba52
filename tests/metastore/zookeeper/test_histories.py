"""Goal: whatever hundreds of applies do at once on one ZooKeeper store, each that succeeded was right to.

Method: random batches over a few keys that nest, from many callers of two clients, so that each plans on beliefs which
others have made wrong. Those that succeeded are replayed in the order of their revisions, and each check must have
held. Single histories are compared with a model in the contract suite.
"""

from __future__ import annotations

import asyncio
import random
from itertools import groupby

import pytest

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.types import Absent, AtVersion, Batch, Check, EmptyRange, FirstVersion, Record
from tests.extent import usually
from tests.metastore.zookeeper.conftest import OpenStore
from tests.servers import ZooKeeperServer

KEYS = ["/a", "/a/b", "/a/b/c", "/a/b/d", "/a/e", "/f/g/h", "/f/g/i", "/f", "j"]
BOUNDS = ["", "/", "/a", "/a/", "/a/b", "/a/b/", "/a/b0", "/a0", "/f/", "/f0", "0", "k"]


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


@pytest.mark.parametrize("seed", usually(range(3), range(6)))
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
