"""Writing while the server dies again and again, and watches are cut off, overtaken by compaction, or slow.

    writers ─────────────────────────────▶ server    killed with -9, history compacted
    beacon  ─────────────────────────────▶   │
    watchers: mirror, witness, sleeper ──relay       cut until the session of the watchers is over

The witness keeps every item of its watch, the mirror is the production class, the sleeper stops reading now and then
while its queue is small. All three share one store, so one server watch. The beacon is a store that sees, by an
ephemeral record of the watchers, whether their session lives.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from metastore.api import MetadataStore
from metastore.errors import MetastoreError
from metastore.types import Applied, Event, Record, Version
from metastore.watches import EVENT_BYTES, Mirror
from tests.extent import usually
from tests.metastore.storms.evidence import PREFIX, Journal, Witness, write
from tests.metastore.storms.places import Kind, ServedPlace, served
from tests.metastore.storms.relay import Relay

SECONDS = usually(1.5, 60.0)
KILLS = usually(1, 10)
TIMES_HELD_BACK = usually(1, 3)
STORES = 2
WRITERS_PER_STORE = usually(1, 3)
QUEUED_EVENTS = 2_000
"""A queue this short is overrun by a consumer that sleeps, and by no other unless it was away for long."""

LIVE = "/live/watchers"


class Cache:
    """What the consumer of a mirror knows, and whether it was ever told something older than that."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.events = 0
        self.backward = 0
        self._newest: dict[str, Version] = {}
        self._news = asyncio.Event()

    def take(self, event: Event) -> None:
        self.events += 1
        if event.record is None:
            del self.records[event.key]
        else:
            self.backward += event.record.version <= self._newest.get(event.key, 0)
            self._newest[event.key] = event.record.version
            self.records[event.key] = event.record
        self._news.set()

    async def changes(self) -> None:
        self._news.clear()
        await self._news.wait()


class Storm:
    """See the module docstring."""

    def __init__(
        self,
        place: ServedPlace,
        relay: Relay,
        writers: Sequence[MetadataStore],
        watchers: MetadataStore,
        beacon: MetadataStore,
        dice: random.Random,
    ) -> None:
        self.place = place
        self.relay = relay
        self._writers = writers
        self._watchers = watchers
        self._beacon = beacon
        self._dice = dice
        self._stormy = True
        self.journal = Journal()
        self.cache = Cache()
        self.mirror = Mirror(watchers, PREFIX, self.cache.take)
        self._alive = Cache()
        self.held_back = 0

    async def rage(self) -> None:
        """Strike until the time is over, and everything has happened often enough."""
        loop = asyncio.get_running_loop()
        over = loop.time() + SECONDS
        start = await self._watchers.current_revision()
        self.witness, self.sleeper = Witness(start), Witness(start)
        async with (
            Mirror(self._beacon, LIVE, self._alive.take).running(),
            self.mirror.running(),
            self._watchers.watch(PREFIX, start + 1) as witnessed,
            self._watchers.watch(PREFIX, start + 1) as slept_over,
            asyncio.TaskGroup() as following,
        ):
            following.create_task(self.witness.follow(witnessed))
            following.create_task(self.sleeper.follow(slept_over))
            writing = [
                asyncio.create_task(self._write(store, random.Random(self._dice.random())))
                for store in self._writers
                for _ in range(WRITERS_PER_STORE)
            ]
            while loop.time() < over or self.place.kills < KILLS or self.held_back < TIMES_HELD_BACK:
                await self.journal.more(self._dice.randrange(20, 1_000))
                if self.place.kills > 4 * self.held_back:
                    await self._overrun()
                    await self._hold_back()
                else:
                    await self.place.restart()
            self._stormy = False
            await asyncio.gather(*writing)
            await self._calm()
            self.expected = {record.key: record for record in (await self._beacon.scan(PREFIX)).records}
            await witnessed.close()
            await slept_over.close()

    async def _write(self, store: MetadataStore, dice: random.Random) -> None:
        while self._stormy:
            await write(store, self.journal, dice)

    async def _overrun(self) -> None:
        """Let the sleeper sleep until its queue has been too short."""
        self.sleeper.sleep()
        await self.journal.more(QUEUED_EVENTS)
        await self.witness.reaches(self.journal.revision)  # so has the sleeper's queue
        self.sleeper.wake()
        await self.sleeper.reaches(self.journal.revision)

    async def _hold_back(self) -> None:
        """Keep the watchers away until their session is over and what they miss is compacted."""
        while LIVE not in self._alive.records:
            await self._alive.changes()
        self.relay.cut()
        while LIVE in self._alive.records:
            await self._alive.changes()
        await self.journal.more(200)
        await self.place.compact(self._beacon)
        self.relay.mend()
        await self.witness.reaches(self.journal.revision)
        self.held_back += 1

    async def _calm(self) -> None:
        """The last write; then everybody is up to it."""
        last = await insist(self._beacon, f"{PREFIX}end", self.journal.token())
        for witness in (self.witness, self.sleeper):
            await witness.reaches(last.revision)
        while self.mirror.revision < last.revision:
            await self.cache.changes()


async def insist(store: MetadataStore, key: str, value: bytes) -> Applied:
    while True:
        try:
            return await store.apply(store.batch().put(key, value))
        except MetastoreError:
            continue


@asynccontextmanager
async def gathering(kind: Kind, directory: Path, seed: int) -> AsyncIterator[Storm]:
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(served(kind, directory))
        relay = await stack.enter_async_context(Relay(place.server.port))

        async def opened(port: int | None = None) -> MetadataStore:
            store = await place.open(port=port)
            stack.push_async_callback(store.close)
            return store

        writers = [await opened() for _ in range(STORES)]
        beacon = await opened()
        watchers = await opened(relay.port)
        await watchers.ephemeral(LIVE, b"", 1_000)
        yield Storm(place, relay, writers, watchers, beacon, random.Random(seed))


async def survive(kind: Kind, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole story, and what must be true behind it."""
    monkeypatch.setattr("metastore.watches.MAX_QUEUED_BYTES", QUEUED_EVENTS * EVENT_BYTES)
    async with gathering(kind, directory, seed=1) as storm:
        await storm.rage()
        witnessed, slept = storm.witness.verdict(storm.journal), storm.sleeper.verdict(storm.journal)
        print(  # noqa: T201
            f"{storm.journal.answers} answered, {storm.journal.unknown} unknown, {storm.place.kills} kills, "
            f"{storm.held_back} times held back, {storm.relay.connections} connections of the watchers, "
            f"{storm.cache.events} events in the mirror, {storm.mirror.resyncs} resyncs of it; "
            f"witness: {witnessed}; sleeper: {slept}"
        )
    assert storm.mirror.records == storm.cache.records == storm.expected
    assert storm.cache.backward == 0
    assert storm.mirror.resyncs >= TIMES_HELD_BACK
    for verdict in (witnessed, slept):
        assert (verdict.duplicates, verdict.lost, verdict.invented) == (0, 0, 0)
        assert verdict.resyncs >= TIMES_HELD_BACK and verdict.events > 1_000
    assert slept.resyncs >= 2 * TIMES_HELD_BACK
    assert storm.relay.connections > storm.place.kills >= KILLS
