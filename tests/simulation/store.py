"""The edge to the metadata store: one truth, and for each process a client whose calls travel.

    call ──departs──▶ on its way ──arrives: takes effect──▶ on its way ──▶ answered

The truth is a `MemoryStore`. A call is lost before it arrives or after, or arrives when its caller has given up; the
caller hears of that as from a real backend (`StoreUnavailable`: certainly nothing happened; `OutcomeUnknown`). Applies
of one client that touch take effect in the order in which they were called, unless one was given up before: that is
what `MetadataStore.apply` promises, and no more.

Faults on: see `Rates`. Off: a stale read, a watch that loses an event without a `Resync`, two holders of one session.
The interface forbids them, and the backends' own suites hold the backends to it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from metastore.api import Ephemeral, StoredIndexes
from metastore.backends.memory import MemoryStore
from metastore.background import in_background
from metastore.errors import CheckFailed, MetastoreError, OutcomeUnknown, StoreClosed, StoreFull, StoreUnavailable
from metastore.txn.store import INDEXES
from metastore.types import (
    Absent,
    Applied,
    Batch,
    Changes,
    EmptyRange,
    RangeResult,
    Record,
    Resync,
    Revision,
    Snapshot,
    Watch,
    WatchItem,
)
from metastore.watches import ChangeLog, Written
from tests.simulation.efforts import EFFORT, Effort
from tests.simulation.processes import Process
from tests.simulation.world import World

T = TypeVar("T")
DEADLINE_S = 3.0
"""Of every call, as the stores are opened with."""
LATE_S = 2.0
"""How long a request may still be on its way when its caller has been told OUTCOME_UNKNOWN."""
_CONNECT_AGAIN_S = 0.25
_NEXT_INSTANT_S = 1e-6


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the memory store does not wait")


class _Told(ChangeLog):
    """A log that tells every change to `listeners`, at the moment it happens."""

    def __init__(self, revision: Revision) -> None:
        super().__init__(revision)
        self.listeners: list[Callable[[Changes], None]] = []

    def publish(self, changes: Changes | Written) -> None:
        assert isinstance(changes, Changes), "the memory store makes events"
        super().publish(changes)
        for listener in self.listeners:
            listener(changes)


class StoreServer:
    """The truth, and the leases. `down` while nobody reaches it; `full` while it takes nothing that needs space.
    `cut_off` are the processes that do not reach it though others do."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.truth = MemoryStore(INDEXES)
        self._log = _Told(self.truth._revision)
        self.truth._log = self._log
        self.down = False
        self.full = False
        self.cut_off: set[str] = set()
        self._silent_until: dict[str, float] = {}
        self._leases: dict[str, _Lease] = {}

    @property
    def listeners(self) -> list[Callable[[Changes], None]]:
        """Each hears of every change when it takes effect."""
        return self._log.listeners

    @property
    def revision(self) -> Revision:
        return self._log.revision

    def records(self, prefix: str = "/") -> list[Record]:
        return run_now(self.truth.scan(prefix)).records

    def compact(self) -> None:
        run_now(self.truth.compact())
        self.world.trace.note("store", f"compacted at {self.revision}")

    def outage(self, seconds: float) -> None:
        self.down = True
        self.world.trace.note("store", f"down for {seconds:.3f} s")

        def up() -> None:
            self.down = False
            self.world.trace.note("store", "up")

        self.world.later(seconds, up)

    def cut_off_for(self, owner: str, seconds: float) -> None:
        """One process, whose other connections hold: those who ask it get answers, and its leases end meanwhile."""
        if owner in self.cut_off:
            return
        self.cut_off.add(owner)
        self.world.trace.note("store", f"out of reach of {owner} for {seconds:.3f} s")

        def reached() -> None:
            self.cut_off.discard(owner)
            self.world.trace.note("store", f"reached by {owner}")

        self.world.later(seconds, reached)

    def silence_for(self, owner: str, seconds: float) -> None:
        """Hold back answers and events for one process, as a link does that loses packets in one direction."""
        self._silent_until[owner] = max(self.silent_s(owner), seconds) + self.world.loop.time()
        self.world.trace.note("store", f"{owner} hears nothing for {seconds:.3f} s")

    def silent_s(self, owner: str) -> float:
        """For how long the process will hear nothing."""
        return max(0.0, self._silent_until.get(owner, 0.0) - self.world.loop.time())

    def answers(self, owner: str) -> bool:
        return not self.down and owner not in self.cut_off

    def fill(self, seconds: float) -> None:
        self.full = True
        self.world.trace.note("store", f"full for {seconds:.3f} s")

        def freed() -> None:
            self.full = False
            self.world.trace.note("store", "has space")

        self.world.later(seconds, freed)

    # -- leases ------------------------------------------------------------------------------------------------

    def hold(self, key: str, value: bytes, ttl_s: float) -> _Lease:
        """Put a record that goes when nobody has refreshed it for `ttl_s`."""
        applied = run_now(self.truth.apply(self.truth.batch().put(key, value)))
        lease = self._leases[key] = _Lease(self, key, applied.revision, ttl_s)
        lease.refresh()
        return lease

    def lose_session(self, random_key: Callable[[Sequence[str]], str]) -> None:
        """End a lease early, as a server that forgot it would."""
        if self._leases:
            self._leases[random_key(sorted(self._leases))].end()

    def forget(self, lease: _Lease) -> None:
        if self._leases.get(lease.key) is lease:
            del self._leases[lease.key]


class _Lease:
    def __init__(self, server: StoreServer, key: str, version: int, ttl_s: float) -> None:
        self.key = key
        self.alive = True
        self._server = server
        self._version = version
        self._ttl_s = ttl_s
        self._until = 0.0

    def refresh(self) -> None:
        world = self._server.world
        self._until = world.loop.time() + self._ttl_s
        world.later(self._ttl_s, self._look)

    def _look(self) -> None:
        if self.alive and self._server.world.loop.time() >= self._until:
            self.end()

    def end(self) -> None:
        """Delete the record, unless somebody else has written it since."""
        self.alive = False
        self._server.forget(self)
        truth = self._server.truth
        record = truth._get(self.key)
        if record is not None and record.version == self._version:
            run_now(truth.apply(truth.batch().remove(record)))
            self._server.world.trace.note("store", f"lease of {self.key} ended")


@dataclass(slots=True)
class _Call(Generic[T]):
    """One call on its way. `write` is the batch of an apply; `likelier`: see `Faults.aimed`."""

    store: SimulatedStore
    effect: Callable[[], T]
    what: str
    write: Batch | None
    likelier: float
    deadline: float
    reply: asyncio.Future[T]

    def depart(self) -> None:
        world, server = self.store.world, self.store.server
        now = world.loop.time()
        if not server.answers(self.store.owner):
            if now >= self.deadline:
                self._fail(StoreUnavailable("nobody has answered the connection"))
            else:
                world.loop.call_later(_CONNECT_AGAIN_S, self.depart)
            return
        faults = world.faults
        delay = faults.delay_s("store_slow", likelier=self.likelier)
        if faults.happens("store_refused"):
            world.trace.note("store", f"refused: {self.what}")
            world.later(delay, self._fail, StoreUnavailable("the connection was refused"))
        elif self.write is None:
            world.later(delay, self._arrive)
        elif faults.happens("store_lost_request"):
            world.trace.note("store", f"lost request: {self.what}")
            world.later(self._patience(), self._fail, OutcomeUnknown("the connection broke"))
        elif faults.happens("store_late", self.likelier):
            world.trace.note("store", f"late request: {self.what}")
            given_up = self._patience()
            world.later(given_up, self._fail, OutcomeUnknown("the connection broke"))
            world.later(given_up + faults.random.uniform(0, LATE_S), self._arrive)
        else:
            world.later(self.store.in_order(self.write, delay), self._arrive)

    def _patience(self) -> float:
        """Until the caller has given up: at once when the connection breaks, else at its deadline."""
        world = self.store.world
        left = max(0.0, self.deadline - world.loop.time())
        return left if world.faults.random.random() < 0.3 else world.faults.random.uniform(0, min(left, 0.2))

    def _arrive(self) -> None:
        world = self.store.world
        if not self.store.server.answers(self.store.owner):
            self._lose()
            return
        error: MetastoreError | None = None
        try:
            if self.write is not None and self.write.puts and self.store.server.full:
                raise StoreFull("no space is left")
            result = self.effect()
        except MetastoreError as refused:
            error = refused
        if self.write is not None:
            said = f"{type(error).__name__} {error.check}" if isinstance(error, CheckFailed) else error or "applied"
            world.trace.note("store", f"{said} at {self.store.server.revision} for {self.store.owner}: {self.what}")
            if world.faults.happens("store_lost_reply", self.likelier):
                world.trace.note("store", f"lost reply: {self.what}")
                self._lose()
                return
        delay = world.faults.delay_s("store_slow", likelier=self.likelier)
        delay += self.store.server.silent_s(self.store.owner)
        if error is not None:
            world.later(delay, self._fail, error)
        else:
            world.later(delay, self._answer, result)

    def _lose(self) -> None:
        if self.write is None:
            error: MetastoreError = StoreUnavailable("the connection broke")
        else:
            error = OutcomeUnknown("the connection broke")
        self.store.world.later(self._patience(), self._fail, error)

    def _answer(self, result: T) -> None:
        if not self.reply.done():
            self.reply.set_result(result)

    def _fail(self, error: MetastoreError) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)
            self.reply.exception()  # seen: the one who asked may be dead


class SimulatedStore(StoredIndexes):
    """The client of one process."""

    def __init__(self, server: StoreServer, process: Process) -> None:
        super().__init__(server.truth.indexes)
        self.server = server
        self.world = server.world
        self.owner = process.name
        process.on_death.append(self._hang_up)
        self._closed = False
        self._arriving: deque[tuple[float, Batch]] = deque()
        self._watches: list[SimulatedWatch] = []

    async def apply(self, batch: Batch) -> Applied:
        self._assert_open()
        self.refuse_unfit(batch)
        self.group_sent(1)
        effort = EFFORT.get()
        if effort is None or effort.answered:
            effort = Effort("in the background")
        effort.writes += 1
        try:
            return await self._call(
                lambda: run_now(self.server.truth.apply(batch)), _describe(batch), batch.puts, batch
            )
        except CheckFailed as lost:
            found = lost.current
            effort.overtaken += found is None or batch.puts.get(found.key) != found.value
            raise

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        keys = list(wanted)
        return await self._call(lambda: run_now(self.server.truth.get_many(keys)), "get", keys)

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        truth = self.server.truth
        return await self._call(
            lambda: run_now(truth.range(start, end, limit=limit, reverse=reverse, keys_only=keys_only)),
            "range",
            [start],
        )

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        self._assert_open()
        watch = SimulatedWatch(self.server, self.owner, prefix, from_revision)
        self._watches.append(watch)
        return watch

    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        self._assert_open()
        record = LeasedRecord(self, key, value, ttl_ms / 1000)
        await record.open()
        return record

    async def close(self) -> None:
        self._closed = True
        for watch in self._watches:
            await watch.close()

    def _hang_up(self) -> None:
        """The server notices that the client is gone; its leases run out by themselves."""
        for watch in self._watches:
            run_now(watch.close())

    async def _call(
        self, effect: Callable[[], T], what: str, keys: Iterable[str] = (), write: Batch | None = None
    ) -> T:
        """`keys` that it reads or puts."""
        self._assert_open()
        loop = self.world.loop
        reply: asyncio.Future[T] = loop.create_future()
        call = _Call(self, effect, what, write, self.world.faults.aimed(keys), loop.time() + DEADLINE_S, reply)
        call.depart()
        return await reply

    def in_order(self, batch: Batch, delay: float) -> float:
        """The delay after which `batch` may take effect: behind those of this client that it touches."""
        now = self.world.loop.time()
        while self._arriving and self._arriving[0][0] < now:
            self._arriving.popleft()
        arrival = now + delay
        for other_arrival, other in self._arriving:
            if other_arrival >= arrival and _touch(other, batch):
                arrival = other_arrival + _NEXT_INSTANT_S
        self._arriving.append((arrival, batch))
        return arrival - now

    def _assert_open(self) -> None:
        super()._assert_open()
        if self._closed:
            raise StoreClosed("this store is closed")


class SimulatedWatch(Watch):
    """The truth's own watch, at the end of a line that is slow, breaks, and says things twice."""

    def __init__(self, server: StoreServer, owner: str, prefix: str, from_revision: Revision) -> None:
        self._server = server
        self._owner = owner
        self._faults = server.world.faults
        self._prefix = prefix
        self._next = from_revision
        self._feed = server.truth.watch(prefix, from_revision)
        self._arriving: WatchItem | None = None
        self._repeat: WatchItem | None = None

    async def __anext__(self) -> WatchItem:
        if self._repeat is not None:
            again, self._repeat = self._repeat, None
            return again
        while True:
            if self._arriving is None:  # else the one who waited for it was cancelled
                self._arriving = await anext(self._feed)
            await asyncio.sleep(self._faults.delay_s("watch_slow", 0.001, 8.0))
            while silent_s := self._server.silent_s(self._owner):
                await asyncio.sleep(silent_s + self._faults.delay_s("watch_slow", 0.001, 8.0))
            item, self._arriving = self._arriving, None
            if not self._server.answers(self._owner) or self._faults.happens("watch_broken"):
                await self._connect_again()
                continue
            if self._faults.happens("watch_reset"):
                await self._connect_again()
                revision = max(self._server.revision, item.revision)
                item = Resync(revision, "the session expired")
                await self._follow_from(revision + 1)
            self._next = item.revision + 1
            self._note(item)
            if self._faults.happens("watch_duplicated"):
                self._repeat = item
            return item

    async def _connect_again(self) -> None:
        """What was on its way is lost with the connection, and asked for again."""
        await self._feed.close()
        await asyncio.sleep(self._faults.delay_s("watch_slow", 0.05, 8.0))
        while not self._server.answers(self._owner):
            await asyncio.sleep(_CONNECT_AGAIN_S)
        await self._follow_from(self._next)

    async def _follow_from(self, revision: Revision) -> None:
        await self._feed.close()
        self._feed = self._server.truth.watch(self._prefix, revision)

    def _note(self, item: WatchItem) -> None:
        what = f"resync ({item.reason})" if isinstance(item, Resync) else f"{len(item.events)} events"
        self._server.world.trace.note("watch", f"{self._prefix} at {item.revision}: {what}")

    async def close(self) -> None:
        await self._feed.close()


class LeasedRecord(Ephemeral):
    """Refreshed every third of its life; put again when it was lost, unless somebody else has put one."""

    def __init__(self, store: SimulatedStore, key: str, value: bytes, ttl_s: float) -> None:
        self._store = store
        self._key = key
        self._value = value
        self._ttl_s = ttl_s
        self._lease: _Lease | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._lease = await self._store._call(self._hold, f"ephemeral {self._key}")
        self._keeper = in_background(self._keep(), f"lease of {self._key}")

    async def close(self) -> None:
        if self._keeper is None:
            return
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        self._keeper = None
        assert self._lease is not None
        await self._store._call(self._lease.end, f"end of ephemeral {self._key}")

    def _hold(self) -> _Lease:
        return self._store.server.hold(self._key, self._value, self._ttl_s)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            with suppress(MetastoreError):
                await self._store._call(self._refresh, f"refresh {self._key}")

    def _refresh(self) -> None:
        assert self._lease is not None
        if self._lease.alive:
            self._lease.refresh()
        elif self._store.server.truth._get(self._key) is None:
            self._lease = self._hold()


def _describe(batch: Batch) -> str:
    puts = [("+" if Absent(key) in batch.checks else "=") + key for key in batch.puts if not key.startswith("/idx/")]
    deletes = [f"-{key}" for key in sorted(batch.deletes) if not key.startswith("/idx/")]
    ranges = [f"-[{start}, {end})" for start, end in batch.range_deletes]
    return " ".join([*puts, *deletes, *ranges])


def _touch(one: Batch, other: Batch) -> bool:
    """One writes what the other checks, writes or deletes."""
    return _writes_into(one, other) or _writes_into(other, one)


def _writes_into(writer: Batch, other: Batch) -> bool:
    written = writer.written()
    keys = other.written() | {check.key for check in other.checks if not isinstance(check, EmptyRange)}
    ranges = [(check.start, check.end) for check in other.checks if isinstance(check, EmptyRange)]
    ranges += other.range_deletes
    if not written.isdisjoint(keys) or any(start <= key < end for start, end in ranges for key in written):
        return True
    if any(start <= key < end for start, end in writer.range_deletes for key in keys):
        return True
    return any(a < d and c < b for a, b in writer.range_deletes for c, d in ranges)
