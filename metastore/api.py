"""The interface of the metadata store; its docstrings are the contract.

The methods are sorted by danger. *Writing*: `apply` is the only write; everything else that changes the store is built
on it. *Reading*: linearizable. *Hints*: `watch` and `ephemeral` are fast and helpful, but no safety may depend on them.

All methods are coroutines of one event loop. Every call ends within the deadline with which the store was opened, with
an answer or with one of `metastore.errors`. A read of thousands of records takes several requests to the server, and
may take that long for each. A cancelled `apply` may still take effect.

The abstract methods are what a backend must have. Every other ability is built on them, and a backend overrides it
where its server can do better. Both implementations give the same answers, and one contract suite tests both.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import islice

from metastore import keys
from metastore.errors import CheckFailed, InvalidBatch, MetastoreError, StoreUnavailable, StoreWentBack
from metastore.polling import PollingWatch
from metastore.types import (
    Absent,
    Applied,
    AtVersion,
    Batch,
    IndexDefinition,
    RangeResult,
    Record,
    Revision,
    Snapshot,
    Version,
    Watch,
)


class Ephemeral(ABC):
    """A record that disappears with the process that wrote it. For liveness only, never for safety."""

    @abstractmethod
    async def close(self) -> None:
        """Delete the record now, unless another process has written it since. Idempotent."""


MAX_BATCH_BYTES = 1 << 20
POLL_INTERVAL_MS = 1_000
_KEYS_PER_PART = 100
_MOST_ROUNDS = 1_000
"""The attempts of a call that others overtake each time: several times what 64 writers of one prefix need."""


def _overtaken(key: str) -> StoreUnavailable:
    return StoreUnavailable(f"other writers changed {key} first each time")


_TELLING: ContextVar[bool] = ContextVar("telling", default=False)


@contextmanager
def telling_others() -> Iterator[None]:
    """A context in which, with the tasks that are begun in it, a store that has lost writes is used nevertheless: to
    tell the other processes."""
    token = _TELLING.set(True)
    try:
        yield
    finally:
        _TELLING.reset(token)


def is_telling() -> bool:
    return _TELLING.get()


def behind(how: str) -> str:
    """Why a store that has lost writes is not used."""
    return f"the metadata store went back in time: {how}"


def sequence_counter(prefix: str) -> str:
    """The key of the counter behind `put_sequential(prefix, …)`. It is outside the prefix, so that no listing shows
    it."""
    return f"/seq/{keys.escape(prefix)}"


class MetadataStore(ABC):
    """A metadata store; see the module's docstring. `indexes` are declared once, when the store is opened."""

    kind: str = "memory"
    """The scheme of the store's URL."""

    max_batch_bytes: int = MAX_BATCH_BYTES
    poll_interval_ms: int = POLL_INTERVAL_MS
    """The interval at which an emulated watch looks."""

    def __init__(self, indexes: Iterable[IndexDefinition] = ()) -> None:
        self.indexes = tuple(indexes)
        self.group_listeners: list[Callable[[int], None]] = []
        """Listeners for metrics, each of which is called with the number of applies in a request to the backend."""
        self.refusal: str | None = None
        """Why this client refuses every call, or None while it does not. See `refuse`."""
        self._refusal_kind: type[MetastoreError] = StoreWentBack
        self.lost_writes: str | None = None
        """What shows that the store has lost writes that it had acknowledged, or None. A backend sets it, and then
        answers only the guard, which tells the others: see `IncarnationGuard`."""

    def command_for(self, key: str) -> str | None:
        """What an operator types to see this record with the store's own tool; None if there is no such tool."""
        return None

    # -- writing, linearizable ---------------------------------------------------------------------------------

    def batch(self) -> Batch:
        """An empty batch that knows this store's indexes."""
        return Batch(self.indexes, keep_entries=False)

    def group_sent(self, applies: int) -> None:
        """Count a request. Called by the backends, on the event loop."""
        for listener in self.group_listeners:
            listener(applies)

    def refuse_unfit(self, batch: Batch) -> None:
        """Raises `InvalidBatch` for a batch that no backend could store: an empty key, a key that cannot be encoded, or
        too many bytes.

        Backends call it before anything is queued, so that an invalid batch never affects other batches.
        """
        try:
            size = batch.size_bytes
        except UnicodeEncodeError as error:
            raise InvalidBatch(f"the key {error.object!r} is not valid UTF-8 text") from None
        if size > self.max_batch_bytes:
            raise InvalidBatch(f"the batch has {size} bytes, more than the {self.max_batch_bytes} that are allowed")
        if "" in batch.puts:
            raise InvalidBatch("a record needs a key that is not empty")

    @abstractmethod
    async def apply(self, batch: Batch) -> Applied:
        """Apply all of `batch` atomically if all of its checks hold, or nothing.

        Checks see the state before the batch. Two applies of one client that touch (one writes a key which the other
        checks, writes or deletes) take effect in the order in which they were called. Independent applies that wait at
        the same time are sent in one request and do not see each other.

        Raises `CheckFailed` (with the current record), `InvalidBatch`, `StoreUnavailable`, `StoreFull`, `StoreClosed`:
        the apply had no effect. Raises `OutcomeUnknown`: it may have taken effect, but never does so later than the end
        of the store's own deadline plus the time that a request may take on its way.
        """

    async def lease_ids(self, key: str, count: int, *, first: int = 1) -> range:
        """A block of `count` numbers that no other call, in any process, was or will ever be given.

        The record `key` contains the next free number; while it does not exist, blocks start at `first`. A block whose
        reply was lost is wasted, and is never given out twice.
        """
        assert count > 0
        counter = await self.get(key)
        start = first
        for _ in range(_MOST_ROUNDS):
            first, batch = self._advance(key, counter, count, start)
            try:
                await self.apply(batch)
            except CheckFailed as lost:
                counter = lost.current
                continue
            return range(first, first + count)
        raise _overtaken(key)

    async def put_sequential(self, prefix: str, value: bytes) -> Record:
        """Create the record `prefix` + a number of 20 digits, which the store chooses, and return it as it was written.

        Below one prefix a later record has a larger number, whichever process wrote it. No number is used twice, even
        after its record was deleted. Numbers are unique and increasing, but not dense. The counter is the record
        `/seq/<escaped prefix>`, which the same `apply` moves.

        Raises the errors of `apply`. After `OutcomeUnknown` there may be a record whose number no caller knows; the
        request is never sent again, because that could leave two records. `CheckFailed`: another writer put a record
        under the next number by other means.

        All writers of a prefix share its counter, so they take turns: with etcd, 64 of them wrote 195 records per
        second, and 5,800 with counters of their own (FACTS-metastore 4.3). So an operation record is named by the
        generation of its segment's owner and that owner's own counter.
        """
        self._refuse_unfit_sequence(prefix, value)
        counter = await self.get(sequence_counter(prefix))
        for _ in range(_MOST_ROUNDS):
            key, batch = self._next_in_sequence(prefix, value, counter)
            try:
                applied = await self.apply(batch)
            except CheckFailed as lost:
                if lost.check == Absent(key):
                    raise
                counter = lost.current
                continue
            return Record(key, value, applied.revision, first=True)
        raise _overtaken(prefix)

    def _refuse_unfit_sequence(self, prefix: str, value: bytes) -> None:
        self.refuse_unfit(self.batch().create(prefix + keys.number(0), value))

    def _next_in_sequence(self, prefix: str, value: bytes, counter: Record | None) -> tuple[str, Batch]:
        """The key of the next record while the counter reads `counter`, and the batch that creates it."""
        number, batch = self._advance(sequence_counter(prefix), counter, 1)
        key = prefix + keys.number(number)
        return key, batch.create(key, value)

    def _advance(self, key: str, counter: Record | None, count: int, start: int = 1) -> tuple[int, Batch]:
        """The next free number while the counter `key` reads `counter` (None: `start`), and a batch that advances it by
        `count`."""
        first = int(counter.value) if counter else start
        value = str(first + count).encode()
        batch = self.batch()
        return first, batch.replace(counter, value) if counter else batch.create(key, value)

    # -- reading, linearizable ---------------------------------------------------------------------------------

    async def get(self, key: str) -> Record | None:
        """The record as it is now, or None. Raises `StoreUnavailable`, `StoreClosed`."""
        return (await self.get_many([key])).records[key]

    @abstractmethod
    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        """Several records, all read at one revision. Without keys it returns only the current revision, which it always
        asks the store for; a store that nobody else writes may know the others, and then this does not wait. Raises
        `StoreUnavailable`, `StoreClosed`."""

    async def each(self, wanted: Iterable[str]) -> AsyncIterator[tuple[str, Record | None]]:
        """Records of any number of keys, one after another and in this order, each as it was at some moment after the
        caller asked for the first one. They are read in parts, and each part has the deadline of a call of its own.

        Between two parts the event loop does other work, whatever the store is. So records may change, and more of them
        appear and disappear, while the caller looks at others: what it learns of several keys need not have been true
        at one moment. A caller that ends early has read at most one part more than it has seen. Raises the errors of
        `get_many`, also after some records.
        """
        left = iter(wanted)
        while part := list(islice(left, _KEYS_PER_PART)):
            found = (await self.get_many(part)).records
            for key in part:
                yield key, found[key]
            await asyncio.sleep(0)  # a store in memory has not waited for anything

    async def get_each(self, wanted: Iterable[str]) -> dict[str, Record | None]:
        """The records of `each`, all at once. Raises its errors."""
        return {key: record async for key, record in self.each(wanted)}

    @abstractmethod
    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        """The records with keys in `[start, end)`, all read at one revision; `limit` 0 means all.

        With `keys_only` the values are empty. Raises `StoreUnavailable`, `StoreClosed`.
        """

    async def scan(self, prefix: str, *, limit: int = 0, keys_only: bool = False) -> RangeResult:
        """`range` over every key that starts with `prefix`."""
        return await self.range(prefix, keys.prefix_end(prefix), limit=limit, keys_only=keys_only)

    async def query_index(
        self, name: str, start: str = "", end: str | None = None, *, limit: int = 0, reverse: bool = False
    ) -> list[str]:
        """The entries of a declared index in `[start, end)` (`end` None: to its end), in order, as `entries` named
        them.

        Emulated: every record below the prefix of the index is read, at one revision. Raises the errors of `range`.
        """
        index = self._index(name)
        found = await self.scan(index.prefix)
        entries = {entry for record in found.records for entry in index.entries(record.key, record.value)}
        wanted = (entry for entry in entries if start <= entry and (end is None or entry < end))
        return sorted(wanted, reverse=reverse)[: limit or None]

    def _index(self, name: str) -> IndexDefinition:
        found = [index for index in self.indexes if index.name == name]
        assert found, f"index {name} is not declared"
        return found[0]

    async def current_revision(self) -> Revision:
        """A revision that is not older than any `apply` that was answered, to any client, before this call began."""
        return (await self.get_many(())).revision

    async def size_bytes(self) -> int | None:
        """About how many bytes the store takes where it keeps its data; None if it does not say. It is for people who
        look after the store. Raises the store's errors."""
        return None

    async def why_full(self) -> str | None:
        """Why the store refuses what would make it larger at present, as `StoreFull` does; None if it takes that, or
        does not tell without a write. It is for people who look after the store. Raises the store's errors."""
        return None

    # -- hints -------------------------------------------------------------------------------------------------

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        """The changes below `prefix` at `from_revision` and later, in order and without duplicates.

        After `listing = await store.scan(prefix)`, `store.watch(prefix, listing.revision + 1)` continues without gap or
        duplicate. If that is not possible (the revision is compacted away, the session expired, the consumer was too
        slow), a `Resync` says so, and the stream continues after it. A watch that loses its connection reconnects by
        itself and never ends with an error; it ends only by `close`.

        Emulated (see `PollingWatch`): it looks every `poll_interval_ms`. All changes between two looks become one event
        per key, and a watch begins with a `Resync` more often; the last state of a key always arrives.
        """
        self._assert_open()
        return PollingWatch(self, prefix, from_revision)

    @abstractmethod
    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        """Put a record that disappears some time after this process stops (at most about `ttl_ms` later)."""

    # -- life --------------------------------------------------------------------------------------------------

    @abstractmethod
    async def close(self) -> None:
        """Finish the requests in flight, end the watches, and release files and connections. Idempotent."""

    def refuse(self, why: str, kind: type[MetastoreError] = StoreWentBack) -> None:
        """Make every call except `close` raise an error of this kind from now on. This cannot be undone: restart the
        process."""
        if self.refusal is None:
            self.refusal, self._refusal_kind = why, kind

    def _assert_open(self) -> None:
        """Raises the error of `refuse`, and `StoreWentBack` for a store that has lost writes. A backend also raises
        `StoreClosed` once `close` has been called."""
        if self.refusal is not None:
            raise self._refusal_kind(self.refusal)
        if self.lost_writes is not None and not is_telling():
            raise StoreWentBack(behind(self.lost_writes))


class StoredIndexes(MetadataStore):
    """Native indexes: an entry is an empty record below `/idx/`, written in the same `apply` as the record that it
    points to."""

    def batch(self) -> Batch:
        return Batch(self.indexes)

    async def query_index(
        self, name: str, start: str = "", end: str | None = None, *, limit: int = 0, reverse: bool = False
    ) -> list[str]:
        root = self._index(name).root
        stop = keys.prefix_end(root) if end is None else root + end
        found = await self.range(root + start, stop, limit=limit, reverse=reverse, keys_only=True)
        return [record.key.removeprefix(root) for record in found.records]


class OwnRecord(Ephemeral):
    """A record of a store within one process. It ends by `close`, unless another caller has written it since."""

    def __init__(self, store: MetadataStore, key: str, version: Version) -> None:
        self._store = store
        self._key = key
        self._version = version

    async def close(self) -> None:
        batch = self._store.batch().check(AtVersion(self._key, self._version)).delete(self._key)
        with suppress(CheckFailed):
            await self._store.apply(batch)
