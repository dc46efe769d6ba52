"""What writers were told and what watches delivered, and the verdict on both.

lost        an answered write that was not delivered, and no `Resync` covers its revision; or an event that can
            only follow another one, which was not delivered: a deletion of what is not there, a first writing of
            what is
duplicate   an item at or before the revision of the one before it, or a key twice in one item
invented    a delivered value that nobody wrote, or whose writer was told that it certainly was not written
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metastore.api import MetadataStore
from metastore.errors import MetastoreError
from metastore.types import Batch, Changes, Record, Resync, Revision, Watch, WatchItem

PREFIX = "/w/"
KEYS = [f"{PREFIX}{number:03d}" for number in range(300)]


class Journal:
    """Every apply of every writer under a token of its own, which is the value of all records that it put."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._answered: dict[Revision, dict[str, bytes | None]] = {}
        self._refused: set[bytes] = set()
        self._issued: set[bytes] = set()
        self._news = asyncio.Event()
        self.answers = 0
        self.revision: Revision = 0
        self.unknown = 0

    def token(self) -> bytes:
        token = b"%d" % next(self._numbers)
        self._issued.add(token)
        return token

    def answered(self, revision: Revision, certain: dict[str, bytes | None]) -> None:
        """The apply succeeded at `revision`. `certain` is what must be seen of it: a value, or None for a deletion."""
        # Neighbours that travelled together share a revision, and never a key.
        self._answered.setdefault(revision, {}).update(certain)
        self.answers += 1
        self.revision = max(self.revision, revision)
        self._news.set()

    def failed(self, token: bytes, error: MetastoreError) -> None:
        if error.definite:
            self._refused.add(token)
        else:
            self.unknown += 1

    async def more(self, count: int) -> None:
        """Until this many more applies were answered."""
        goal = self.answers + count
        while self.answers < goal:
            self._news.clear()
            await self._news.wait()

    def invented(self, value: bytes) -> bool:
        return value not in self._issued or value in self._refused

    def missing(self, delivered: dict[tuple[Revision, str], bytes | None], after: Revision, gaps: Gaps) -> int:
        """Answered writes behind `after` that were neither delivered nor covered by a gap."""
        return sum(
            (revision, key) not in delivered or delivered[revision, key] != value
            for revision, certain in self._answered.items()
            if revision > after and not any(begin < revision <= end for begin, end in gaps)
            for key, value in certain.items()
        )


Gaps = Sequence[tuple[Revision, Revision]]


async def write(store: MetadataStore, journal: Journal, dice: random.Random) -> None:
    """One apply on a few random keys, with and without checks."""
    token = journal.token()
    keys = dice.sample(KEYS, dice.choice((1, 1, 1, 2, 8)))
    try:
        if dice.random() < 0.5:
            batch, certain = _bare(store.batch(), keys, token, dice)
        else:
            records = (await store.get_many(keys)).records
            batch, certain = _checked(store.batch(), records, token, dice)
        applied = await store.apply(batch)
    except MetastoreError as error:
        journal.failed(token, error)
    else:
        journal.answered(applied.revision, certain)


def _bare(
    batch: Batch, keys: Sequence[str], token: bytes, dice: random.Random
) -> tuple[Batch, dict[str, bytes | None]]:
    certain: dict[str, bytes | None] = {}
    for key in keys:
        if dice.random() < 0.2:
            batch.delete(key)  # whether anything is seen of it depends on what was there
        else:
            batch.put(key, token)
            certain[key] = token
    return batch, certain


def _checked(
    batch: Batch, records: Mapping[str, Record | None], token: bytes, dice: random.Random
) -> tuple[Batch, dict[str, bytes | None]]:
    certain: dict[str, bytes | None] = {}
    for key, record in records.items():
        certain[key] = token
        if record is None:
            batch.create(key, token)
        elif dice.random() < 0.3:
            batch.remove(record)
            certain[key] = None
        else:
            batch.replace(record, token)
    return batch, certain


@dataclass(slots=True)
class Verdict:
    """What was found in the items of one watch."""

    events: int = 0
    resyncs: int = 0
    duplicates: int = 0
    lost: int = 0
    invented: int = 0
    gaps: list[tuple[Revision, Revision]] = field(default_factory=list)


class Witness:
    """Keeps every item that one watch delivers. It does not read while `asleep`."""

    def __init__(self, start: Revision) -> None:
        self._start = start
        self._items: list[WatchItem] = []
        self._news = asyncio.Event()
        self._awake = asyncio.Event()
        self._awake.set()
        self.revision = start

    def sleep(self) -> None:
        self._awake.clear()

    def wake(self) -> None:
        self._awake.set()

    async def follow(self, watch: Watch) -> None:
        async for item in watch:
            self._items.append(item)
            self.revision = item.revision
            self._news.set()
            await self._awake.wait()

    async def reaches(self, revision: Revision) -> None:
        while self.revision < revision:
            self._news.clear()
            await self._news.wait()

    def verdict(self, journal: Journal) -> Verdict:
        verdict = Verdict()
        seen = self._start
        delivered: dict[tuple[Revision, str], bytes | None] = {}
        there = dict.fromkeys(KEYS, False)  # a witness begins before the first write
        for item in self._items:
            if isinstance(item, Resync):
                verdict.duplicates += item.revision < seen
                verdict.resyncs += 1
                verdict.gaps.append((seen, item.revision))
                there.clear()
            else:
                verdict.duplicates += item.revision <= seen
                self._examine(item, there, verdict, journal)
                for event in item.events:
                    verdict.duplicates += (item.revision, event.key) in delivered
                    delivered[item.revision, event.key] = event.record.value if event.record else None
            seen = max(seen, item.revision)
        verdict.lost += journal.missing(delivered, self._start, verdict.gaps)
        return verdict

    def _examine(self, item: Changes, there: dict[str, bool], verdict: Verdict, journal: Journal) -> None:
        """Judge the events of one item by those before it. What is not in `there` may or may not exist."""
        for event in item.events:
            verdict.events += 1
            record = event.record
            known = there.get(event.key)
            if record is None:
                verdict.lost += known is False
            else:
                verdict.lost += known is record.first
                verdict.duplicates += record.version != item.revision
                verdict.invented += journal.invented(record.value)
            there[event.key] = record is not None
