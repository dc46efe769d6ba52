"""Transactions in the order in which they began, the latest first, without an index of it.

Under each coordinator id the ids are given out in ascending order (`IdBlocks`). So its transactions are read backwards,
by their ids, and of several coordinator ids the one with the latest begin is next. Where several processes issue ids
under one coordinator id at the same time, transactions may be out of order by the time for which a block is used.

A position is, for each coordinator id, the last id that was passed, so any coordinator can go on there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from metastore.api import MetadataStore
from metastore.txn import listing
from metastore.txn.store import TransactionRecords
from metatxn.wire.ids import TxnId

MERGED = 64
"""The number of coordinator ids whose transactions are in one order. Those of further ones, which only a cluster has
that chooses its coordinator ids, come after them."""
_IDS_AT_ONCE = 100
PORTIONS = (4, 8, 16)
"""The number of transactions that are read at once the first, the second and every later time. A portion is always read
completely."""
SEARCHED_PORTIONS = (4, 16, 64)
"""The same, where of most of them only the headers are read."""
ReadTransactions = Callable[[Sequence[TxnId]], Awaitable[list[TransactionRecords | None]]]


@dataclass(frozen=True, slots=True)
class TransactionReading:
    """How the transactions of a list are read, and how many at once."""

    read: ReadTransactions
    portions: Sequence[int]

    def sizes(self) -> Iterator[int]:
        return chain(self.portions, repeat(self.portions[-1]))


class NewestFirst:
    """The transactions, latest begun first. Raises the store's errors wherever it reads. `position` is "" for the first
    page."""

    def __init__(self, store: MetadataStore, position: str, reading: TransactionReading) -> None:
        self._store = store
        self._reading = reading
        self._begun = bool(position)
        self._streams = self._behind(map(TxnId.parse, position.split(","))) if position else []

    @property
    def position(self) -> str:
        """The position after the last one that `take` has returned. The highest coordinator id stays in it, because
        further ones follow there."""
        last = len(self._streams) - 1
        going_on = (stream for number, stream in enumerate(self._streams) if number == last or not stream.ended)
        return ",".join(stream.passed for stream in going_on)

    async def take(self) -> TransactionRecords | None:
        """The next transaction that is there; None after the last."""
        while True:
            await asyncio.gather(*(stream.fill() for stream in self._streams))
            reading = [stream for stream in self._streams if stream.heads]
            if reading:
                return max(reading, key=lambda stream: stream.latest).take()
            if self._begun and not self._streams:
                return None
            above = self._streams[-1].passed.coordinator if self._streams else -1
            self._begun = True
            self._streams = self._behind(await listing.next_ids(self._store, above=above, limit=MERGED))

    def _behind(self, passed: Iterable[TxnId]) -> list[_Backwards]:
        return [_Backwards(self._store, txn_id, self._reading) for txn_id in passed]


class _Backwards:
    """The transactions of one coordinator id. `passed` is the last that was taken, and `heads` are those that follow it
    and are read."""

    def __init__(self, store: MetadataStore, passed: TxnId, reading: TransactionReading) -> None:
        self._store = store
        self._read = reading.read
        self.passed = passed
        self.heads: deque[TransactionRecords] = deque()
        self._ids: list[TxnId] = []
        self._read_to = passed
        self._no_more_ids = False
        self._portions = reading.sizes()

    @property
    def ended(self) -> bool:
        return self._no_more_ids and not self._ids and not self.heads

    @property
    def latest(self) -> tuple[int, TxnId]:
        """When the first of the heads began, and its id."""
        return self.heads[0].header.created_ms, self.heads[0].txn_id

    async def fill(self) -> None:
        """Read more if needed. Afterwards there are heads, unless it has ended."""
        while not self.heads and not self.ended:
            if not self._ids:
                self._ids = await listing.before_id(self._store, self._read_to, limit=_IDS_AT_ONCE)
                self._no_more_ids = len(self._ids) < _IDS_AT_ONCE
                self._read_to = self._ids[-1] if self._ids else self._read_to
            size = next(self._portions)
            portion, self._ids = self._ids[:size], self._ids[size:]
            self.heads += filter(None, await self._read(portion))

    def take(self) -> TransactionRecords:
        taken = self.heads.popleft()
        self.passed = taken.txn_id
        return taken
