"""Goal: watches of embedded stores lose, repeat and invent nothing either, over compaction and opening again.

Method: rounds of concurrent writers below a mirror, a witness and one that sleeps until its queue is too short. Between
two rounds something is written that nobody watches, history is compacted in every second one, and a file is opened
again; the witness then goes on where it was.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from metastore.api import MetadataStore
from metastore.watches import EVENT_BYTES, Mirror
from tests.metastore.storms.evidence import PREFIX, Journal, Witness, write
from tests.metastore.storms.places import EMBEDDED
from tests.metastore.storms.watch_storm import Cache, insist

ROUNDS = 6
WRITERS = 8
WRITES_PER_ROUND = 150
QUEUED_EVENTS = 200


@pytest.mark.parametrize("kind", sorted(EMBEDDED))
async def test_a_watch_in_a_storm(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastore.watches.MAX_QUEUED_BYTES", QUEUED_EVENTS * EVENT_BYTES)
    place = EMBEDDED[kind](tmp_path)
    store = await place.reopen()
    journal, dice = Journal(), random.Random(1)
    start = await store.current_revision()
    witness, sleeper = Witness(start), Witness(start)
    await rage(store, journal, dice, witness, sleeper)
    for number in range(1, ROUNDS):
        await asyncio.gather(*(write(store, journal, dice) for _ in range(WRITERS)))
        if number % 2:
            await store.compact()
        store = await place.reopen()
        await rage(store, journal, dice, witness, sleeper)
    await place.close()
    seen, slept = witness.verdict(journal), sleeper.verdict(journal)
    for verdict in (seen, slept):
        assert (verdict.duplicates, verdict.lost, verdict.invented) == (0, 0, 0)
    assert seen.events > ROUNDS * WRITES_PER_ROUND and seen.resyncs >= ROUNDS // 2
    assert slept.resyncs >= ROUNDS


async def rage(store: MetadataStore, journal: Journal, dice: random.Random, witness: Witness, sleeper: Witness) -> None:
    """One round. The watches go on behind what they have seen."""
    cache = Cache()
    mirror = Mirror(store, PREFIX, cache.take)
    async with (
        mirror.running(),
        store.watch(PREFIX, witness.revision + 1) as witnessed,
        store.watch(PREFIX, sleeper.revision + 1) as slept_over,
        asyncio.TaskGroup() as following,
    ):
        following.create_task(witness.follow(witnessed))
        following.create_task(sleeper.follow(slept_over))
        sleeper.sleep()
        await asyncio.gather(*(_write(store, journal, random.Random(dice.random())) for _ in range(WRITERS)))
        sleeper.wake()
        last = await insist(store, f"{PREFIX}end", journal.token())
        for watched in (witness, sleeper):
            await watched.reaches(last.revision)
        while mirror.revision < last.revision:
            await cache.changes()
        expected = {record.key: record for record in (await store.scan(PREFIX)).records}
        assert mirror.records == cache.records == expected
        assert cache.backward == 0
        await witnessed.close()
        await slept_over.close()


async def _write(store: MetadataStore, journal: Journal, dice: random.Random) -> None:
    for _ in range(WRITES_PER_ROUND):
        await write(store, journal, dice)
        await asyncio.sleep(0)
