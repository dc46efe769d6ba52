"""Group commit: independent applies travel to ZooKeeper as one `multi`, and a lost reply is resolved, never guessed.

    set     <root>/log/<writer>            at data version n, the floor of its log
    set     <root>/tip                     its mzxid is the revision of all that follows
    checks, directories, writes            of the members (`zookeeper_plan` has the order, and why it proves them)
    create  <root>/log/<writer>/<n>        what was changed
    delete  <root>/log/<writer>/<k> …      entries that are too old

One request is on its way at a time; while it is, applies wait, and then leave together. A lone one leaves at once. What
waits is planned meanwhile, so that the server and this process work at the same time, and answers are given after the
next request has left. Only what touches nothing that is on its way is planned; what the one before made stale
nevertheless (it set a guard, or the tip) is planned again.

**A failure names its culprit.** A multi is all or nothing, so when one member's check does not hold, nothing happened.
The operation that failed belongs to a member, or to a belief that was wrong. That member is read completely before the
next try: it loses, or it is planned again on what was read. The others are sent again. If that fails too, all of them
are read. All this is definite: a multi that was answered with a failure never takes effect.

**A lost reply.** When the connection is lost, the request may have been applied, may be applied later, or never. Its
log entry tells, but only once nothing can change any more: the request may still sit in a server. ZooKeeper refuses
requests of a session that has moved to another server, yet between two connections to one server it promises little. So
the writer sends a *fence*: it sets its own log znode without a version, until one such set has been answered. Nothing
else writes that znode, and its data version only grows. The request demands version n; after the fence the version is
always above n, so from then on the request cannot be applied. Then

    the entry n exists      it was applied, whole; its czxid is the revision of all its members
    it does not             it never will be; its members go back to the head of the queue and are sent again
    the log is gone         the entry may have gone with it (see `zookeeper_history`): its members' outcome is unknown
    the version is lower    the ensemble has lost writes that it had acknowledged, so nothing above can be relied on:
                            the outcome is unknown, and the store goes back in time for all processes (`incarnation`)

A fence that is late itself only makes the version grow once more: the next request fails at its first operation, which
is definite, and is sent again with the right version. If the deadline of a member passes before all this is settled,
its outcome is unknown. The fencing continues, and applies behind it wait for it.

**Nothing is sent into the dark.** Without a connection applies wait; their deadline then ends in `StoreUnavailable`,
which is definite: they were never sent.

ZooKeeper drops a connection that sends more than 1 MB, which would look like a network that is down. So a request that
large is refused here, and groups stay below half of it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from metastore.backends.joining import Footprint, RequestLimits, take_group
from metastore.backends.pending import PendingApplies, PendingApply
from metastore.backends.zookeeper_connection import LostError, ZooKeeperConnection
from metastore.backends.zookeeper_log import Change, encode, entry_name
from metastore.backends.zookeeper_paths import Paths, parent
from metastore.backends.zookeeper_plan import Belief, Beliefs, Facts, Part, Planner, UnknownError, disjoint
from metastore.backends.zookeeper_reads import Snapshots, record_of
from metastore.backends.zookeeper_wire import (
    NO_AUTH,
    NODE_EXISTS,
    Culprit,
    Multi,
    Node,
    Stat,
    check_op,
    delete_op,
    set_data,
)
from metastore.background import Backoff
from metastore.errors import InvalidBatch, OutcomeUnknown, StoreUnavailable
from metastore.types import Applied, AtVersion, Batch, EmptyRange, Revision

MAX_REQUEST_BYTES = 1_000_000
# How much of its log a writer keeps, and how many old entries one request removes at most.
KEPT_ENTRIES = 2_000
KEPT_BYTES = 8 << 20
_TRIMMED_AT_ONCE = 16
# A data version is a signed 32-bit number. A log that comes near its end is followed by a new one.
_MAX_NUMBER = 1 << 30
_BYTES_PER_WRITE = 150


@dataclass(slots=True, eq=False, kw_only=True)
class ZooKeeperApply(PendingApply):
    """`extra` operations are done with it. `certain`: plan it on facts only, its beliefs have
    failed."""

    batch: Batch
    cost: int = 0
    extra: Sequence[bytes] = ()
    certain: bool = False
    failures: int = 0
    facts: Facts | None = None


@dataclass(slots=True)
class _Request:
    """A multi, with the member to which each operation belongs, and what to believe after it was applied."""

    operations: list[bytes]
    owners: list[ZooKeeperApply | None]
    stat_at: int
    members: list[ZooKeeperApply]
    parts: list[Part]
    directories: list[str]
    entry_bytes: int
    trimmed: int
    floor: Revision
    reply: asyncio.Future[list[Stat | Culprit | None]]
    revision: Revision = 0

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.operations))


@dataclass(slots=True)
class _Kept:
    number: int
    size_bytes: int
    revision: Revision


@dataclass(slots=True)
class _Log:
    """This writer's own log. `version` is the data version of its znode, as far as it is known."""

    writer: str
    version: int = 0
    floor: Revision = 0
    kept: deque[_Kept] = field(default_factory=deque)
    kept_bytes: int = 0

    def surplus(self) -> list[_Kept]:
        """The entries to remove with the next request, oldest first."""
        surplus: list[_Kept] = []
        count, size = len(self.kept), self.kept_bytes
        for entry in self.kept:
            if len(surplus) == _TRIMMED_AT_ONCE or (count < KEPT_ENTRIES and size < KEPT_BYTES):
                break
            surplus.append(entry)
            count, size = count - 1, size - entry.size_bytes
        return surplus


class ZooKeeperGroupCommit(PendingApplies[ZooKeeperApply]):
    """The only way in which applies of a store reach ZooKeeper.

    `on_group` is called with the size of every group sent, `on_lost` when the reply to one was lost, `on_emptied` with
    the directories that may hold nothing any more, `on_went_back` with what shows that the ensemble has lost writes
    which it had acknowledged.
    """

    def __init__(
        self,
        connection: ZooKeeperConnection,
        paths: Paths,
        snapshots: Snapshots,
        beliefs: Beliefs,
        planner: Planner,
        *,
        limits: RequestLimits,
        deadline_s: float,
        on_emptied: Callable[[str], None],
        on_went_back: Callable[[str], None],
        on_group: Callable[[int], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(f"ZooKeeper at {connection.hosts}", deadline_s)
        self._connection = connection
        self._paths = paths
        self._snapshots = snapshots
        self._beliefs = beliefs
        self._planner = planner
        self._limits = limits
        self._on_emptied = on_emptied
        self._on_went_back = on_went_back
        self._on_group = on_group
        self._on_lost = on_lost
        self._planned: list[ZooKeeperApply] = []
        self._prepared: list[tuple[ZooKeeperApply, Part]] = []
        self._flight: _Request | None = None
        self._wake = asyncio.Event()
        self._backoff = Backoff(first_s=0.002, longest_s=0.1)
        self._carrier: asyncio.Task[None] | None = None
        self._log: _Log | None = None

    async def apply(self, batch: Batch, extra: Sequence[bytes] = ()) -> Applied:
        """See `MetadataStore.apply`. If an `extra` operation fails, the apply has no effect: `StoreUnavailable`."""
        count = len(batch.puts) + len(batch.deletes) + len(batch.checks) + len(batch.range_deletes)
        content = sum(map(len, batch.puts)) + sum(map(len, batch.puts.values())) + sum(map(len, batch.deletes))
        member = ZooKeeperApply(
            batch=batch,
            footprint=Footprint.of(batch),
            size_bytes=2 * content + _BYTES_PER_WRITE * count,
            deadline=self._deadline(),
            answer=self._loop.create_future(),
            extra=extra,
        )
        if member.size_bytes > 2 * MAX_REQUEST_BYTES:
            raise InvalidBatch(f"the batch needs a request larger than the {MAX_REQUEST_BYTES} bytes that are allowed")
        self._enqueue(member)
        self._wake.set()
        if self._carrier is None:
            self._carrier = self._loop.create_task(self._carry(), name="zookeeper group commit")
        return await member.answer

    async def close(self) -> None:
        """Wait until every apply has its answer (each has a deadline), then stop."""
        await self._all_answered()
        if self._carrier:
            self._carrier.cancel()
            await asyncio.gather(self._carrier, return_exceptions=True)

    def _sent(self) -> Sequence[ZooKeeperApply]:
        return self._flight.members if self._flight else ()

    def _unsent(self) -> Iterator[ZooKeeperApply]:
        return chain((member for member, _ in self._prepared), self._planned, self._queue)

    def _unavailable(self, what: str) -> StoreUnavailable:
        return self._connection.unavailable(what)

    # -- one group after the other ------------------------------------------------------------------------------

    async def _carry(self) -> None:
        """Carry all waiting applies to their answers: prepare the next group while one is in flight."""
        try:
            while self._queue or self._prepared or self._flight:
                if self._flight is None:
                    await self._connection.wait_connected()
                await self._prepare()
                landed = self._flight
                if landed is not None and not landed.reply.done():
                    await self._wake.wait()
                    self._wake.clear()
                    continue
                if landed is None:
                    await self._refresh(())
                    self._launch()
                    continue
                applied = await self._land(landed)
                self._flight = None
                stale = self._stale(landed)
                if applied and (stale or self._log is None):
                    self._answer(landed)
                    applied = False
                await self._refresh(stale)
                self._launch()
                if applied:
                    # Only now, while the next one is in flight, because this takes as long as sending it.
                    self._answer(landed)
                self._beliefs.bound()
        except StoreUnavailable as went_back:
            for member in self._unsent():
                member.fail(went_back)
        finally:
            self._carrier = None
            for member in self._sent():
                member.fail(OutcomeUnknown("the store was closed before the answer came"))
            for member in self._unsent():
                member.fail(self._connection.unavailable("the store was closed before the write was sent"))

    async def _prepare(self) -> None:
        """Plan what may be sent with the next request: applies that touch nothing that is in flight or prepared."""
        if not self._queue:
            return
        barriers = [member.footprint for member, _ in self._prepared]
        room = self._limits.max_bytes - sum(member.size_bytes for member, _ in self._prepared)
        if self._prepared and room < self._queue[0].size_bytes:
            return
        if self._flight:
            barriers += (member.footprint for member in self._flight.members)
        together = Footprint()
        for barrier in barriers:
            together.add(barrier)
        self._planned, _ = take_group(self._queue, [together], RequestLimits(self._limits.max_txn_ops, room))
        try:
            planned, later = await self._plan([member for member in self._planned if not member.answer.done()])
        finally:
            self._planned = []
        self._prepared += planned
        self._queue.extendleft(reversed(later))

    def _stale(self, landed: _Request) -> list[ZooKeeperApply]:
        """The members whose proofs `landed` has made stale: they check a guard that it set, or the tip."""
        moved: set[int] = set().union(*(part.guards for part in landed.parts))
        return [
            member
            for member, part in self._prepared
            if part.tip_version is not None or not moved.isdisjoint(part.guards_checked)
        ]

    async def _refresh(self, stale: Sequence[ZooKeeperApply]) -> None:
        """Nothing is in flight. Plan stale members again, and make sure that there is a log."""
        if stale:
            fresh = [(member, part) for member, part in self._prepared if member not in stale]
            self._prepared, self._planned = fresh, list(stale)
            try:
                planned, later = await self._plan(stale)
            finally:
                self._planned = []
            self._prepared += planned
            self._queue.extendleft(reversed(later))
        if self._log is None and self._prepared:
            try:
                self._log = await self._begin_log(max(member.deadline for member, _ in self._prepared))
            except StoreUnavailable as unavailable:
                for member, _ in self._prepared:
                    member.fail(unavailable)

    def _launch(self) -> None:
        """Send what is prepared."""
        prepared = [(member, part) for member, part in self._prepared if not member.answer.done()]
        self._prepared = []
        if not prepared:
            return
        request = self._assemble(prepared)
        while request.size_bytes > MAX_REQUEST_BYTES and len(prepared) > 1:
            middle = len(prepared) // 2
            self._queue.extendleft(member for member, _ in reversed(prepared[middle:]))
            prepared = prepared[:middle]
            request = self._assemble(prepared)
        if request.size_bytes > MAX_REQUEST_BYTES:
            size = f"{request.size_bytes} bytes, more than the {MAX_REQUEST_BYTES} that are allowed"
            prepared[0][0].fail(InvalidBatch(f"the batch needs a request of {size}"))
            return
        if self._on_group:
            self._on_group(len(request.members))
        # What is prepared from here on depends on them.
        self._beliefs.directories.update(request.directories)
        request.reply = self._connection.send(Multi(request.operations, request.stat_at))
        request.reply.add_done_callback(lambda _: self._wake.set())
        self._flight = request

    async def _begin_log(self, deadline: float) -> _Log:
        """A log under a name that no other client, and no earlier life of this one, ever had."""
        log = _Log(secrets.token_hex(6))
        made = await self._connection.ask(
            Multi([self._paths.create(f"{self._paths.log}/{log.writer}", b"0")]), deadline
        )
        if isinstance(made[0], Culprit) and made[0].code == NO_AUTH:
            raise self._connection.denied()
        if isinstance(made[0], Culprit) and made[0].code != NODE_EXISTS:  # it exists: our own repeated request
            raise StoreUnavailable(
                f"ZooKeeper at {self._connection.hosts} could not create a log: error {made[0].code}"
            )
        return log

    # -- planning -----------------------------------------------------------------------------------------------

    async def _plan(
        self, members: Sequence[ZooKeeperApply]
    ) -> tuple[list[tuple[ZooKeeperApply, Part]], list[ZooKeeperApply]]:
        """The members with their parts, and those that must be planned later, with what touches them.

        Members that lose are answered here, and so are those that write nothing.
        """
        parts: dict[int, Part] = {}
        unsure: list[ZooKeeperApply] = []
        for member in members:
            member.facts = None
            part = None if member.certain else self._try_part(member, set())
            if part is None or not _writes(member.batch):
                unsure.append(member)
            else:
                parts[id(member)] = part
        if unsure:
            missing: set[str] = set()
            await asyncio.gather(*(self._read(member, missing) for member in unsure))
            for member in unsure:
                if member.facts is None:
                    continue
                failure = member.facts.evaluate(member.batch.checks)
                if failure is not None:
                    member.fail(failure)
                elif not _writes(member.batch):
                    member.succeed(Applied(member.facts.revision))
                elif part := self._try_part(member, missing):
                    parts[id(member)] = part
        planned: list[tuple[ZooKeeperApply, Part]] = []
        later: list[ZooKeeperApply] = []
        for member in members:
            if member.answer.done():
                continue
            part = parts.get(id(member))
            if part is None:
                member.certain = True
            if part is None or any(member.footprint.touches(other.footprint) for other in later):
                later.append(member)
            else:
                planned.append((member, part))
        return planned, later

    def _try_part(self, member: ZooKeeperApply, missing: set[str]) -> Part | None:
        try:
            return self._planner.part(member.batch, member.facts, missing)
        except UnknownError:
            return None

    async def _read(self, member: ZooKeeperApply, missing: set[str]) -> None:
        """Learn everything that the plan of `member` needs, or fail it."""
        try:
            member.facts = await self._facts(member, missing)
        except StoreUnavailable as unavailable:
            member.fail(unavailable)

    async def _facts(self, member: ZooKeeperApply, missing: set[str]) -> Facts:
        batch = member.batch
        keys, directories = self._planner.keys_to_read(batch, everything=member.certain)
        guarded = list({one.key: None for one in batch.checks if isinstance(one, AtVersion)})
        guards = [self._beliefs.guard_path(self._beliefs.guard_of(key)) for key in guarded]
        paths = [*map(self._paths.record, keys), *guards, *directories]
        nodes, tip = await self._snapshots.nodes(paths, member.deadline)
        guard_of = dict(zip(guarded, nodes[len(keys) : len(keys) + len(guards)], strict=True))
        facts = Facts(tip.stat.mzxid)
        for key, node in zip(keys, nodes, strict=False):
            self._beliefs.learn(key, node, guard_of.get(key))
            facts.records[key] = record_of(key, node) if node else None
        for directory, node in zip(directories, nodes[len(keys) + len(guards) :], strict=True):
            if node is None:
                self._beliefs.directories.discard(directory)
                missing.add(directory)
            else:
                self._beliefs.directories.add(directory)
        for one in batch.checks:
            if isinstance(one, EmptyRange):
                listing = await self._snapshots.range(one.start, one.end, member.deadline, limit=1)
                facts.ranges[one.start, one.end] = listing
                facts.revision = max(facts.revision, listing.result.revision)
        for start, end in disjoint(batch.range_deletes):
            listing = await self._snapshots.range(start, end, member.deadline, keys_only=True)
            facts.deletions[start, end] = listing
            facts.revision = max(facts.revision, listing.result.revision)
        return facts

    def _assemble(self, planned: Sequence[tuple[ZooKeeperApply, Part]]) -> _Request:
        assert self._log is not None
        surplus = self._log.surplus()
        floor = surplus[-1].revision if surplus else self._log.floor
        home = f"{self._paths.log}/{self._log.writer}"
        operations: list[bytes] = [set_data(home, b"%d" % floor, self._log.version)]
        owners: list[ZooKeeperApply | None] = [None]
        for member, part in planned:
            if part.tip_version is not None:
                operations.append(check_op(self._paths.tip, part.tip_version))
                owners.append(member)
        stat_at = len(operations)
        operations.append(set_data(self._paths.tip, b""))
        owners.append(None)
        directories: dict[str, ZooKeeperApply] = {}
        for member, part in planned:
            operations += part.directory_checks
            owners += [member] * len(part.directory_checks)
            for directory in part.needed:
                directories.setdefault(directory, member)
        for directory, member in directories.items():
            operations.append(self._paths.create(directory))
            owners.append(member)
        for member, part in planned:
            operations += part.checks
            owners += [member] * len(part.checks)
        changes: list[Change] = []
        guards: set[int] = set()
        for member, part in planned:
            operations += part.writes
            operations += member.extra
            owners += [member] * (len(part.writes) + len(member.extra))
            changes += part.changes
            guards |= part.guards
        operations += (set_data(self._beliefs.guard_path(guard), b"") for guard in guards)
        entry = encode(changes)
        operations.append(self._paths.create(f"{home}/{entry_name(self._log.version)}", entry))
        operations += (delete_op(f"{home}/{entry_name(kept.number)}") for kept in surplus)
        owners += [None] * (len(operations) - len(owners))
        members, parts = [member for member, _ in planned], [part for _, part in planned]
        reply: asyncio.Future[list[Stat | Culprit | None]] = self._loop.create_future()
        return _Request(
            operations, owners, stat_at, members, parts, list(directories), len(entry), len(surplus), floor, reply
        )

    # -- answers ------------------------------------------------------------------------------------------------

    async def _land(self, request: _Request) -> bool:
        """Learn whether the request was applied. If not, its members go back to the head of the queue."""
        try:
            (outcome,) = request.reply.result()
        except LostError:
            return await self._fence(request)
        if isinstance(outcome, Culprit):
            await self._failed(request, outcome)
            return False
        assert isinstance(outcome, Stat)
        self._connection.learn(outcome)
        self._note_applied(request, outcome.mzxid)
        return True

    def _note_applied(self, request: _Request, revision: Revision) -> None:
        log = self._log
        assert log is not None
        request.revision = revision
        for _ in range(request.trimmed):
            removed = log.kept.popleft()
            log.kept_bytes -= removed.size_bytes
            log.floor = removed.revision
        log.kept.append(_Kept(log.version, request.entry_bytes, revision))
        log.kept_bytes += request.entry_bytes
        log.version += 1
        if log.version > _MAX_NUMBER:
            self._log = None
        for part in request.parts:
            self._beliefs.directories.difference_update(part.removed)
            for guard in part.guards:
                self._beliefs.guards.pop(guard, None)

    def _answer(self, request: _Request) -> None:
        """Answer the members, and believe what they wrote."""
        beliefs, revision = self._beliefs, request.revision
        applied = Applied(revision)
        for member, part in zip(request.members, request.parts, strict=True):
            for (key, data_version, known), change in zip(part.outcomes, part.changes, strict=True):
                if change.value is None:
                    beliefs.records[key] = None
                elif data_version is None:
                    beliefs.records.pop(key, None)
                else:
                    beliefs.records[key] = Belief(revision, data_version, known)
            for directory in part.probed:
                self._on_emptied(directory)
            for directory in part.removed:
                self._on_emptied(parent(directory))
            member.succeed(applied)
        self._backoff.reset()

    def _put_back(self, request: _Request) -> None:
        self._beliefs.directories.difference_update(request.directories)
        self._queue.extendleft(member for member in reversed(request.members) if not member.answer.done())

    async def _failed(self, request: _Request, culprit: Culprit) -> None:
        """The request had no effect. Doubt what the culprit depends on, or everything if it is not the first
        failure."""
        assert self._log is not None
        owner = request.owners[culprit.index]
        if culprit.code == NO_AUTH:
            for member in [owner] if owner else request.members:
                member.fail(self._connection.denied())
        elif owner is None:
            await self._find_log()
        elif request.operations[culprit.index] in owner.extra:
            owner.fail(StoreUnavailable(f"an operation that belongs to the write was refused: error {culprit.code}"))
        for member in request.members:
            member.failures += 1
            if member is owner or member.failures > 1:
                member.certain = True
                self._beliefs.forget(member.batch)
        if any(member.failures > 2 for member in request.members):
            await self._backoff.pause()
        self._put_back(request)

    async def _find_log(self) -> None:
        """Our log is not in the expected state: a late fence moved it, or it was trimmed or removed as history."""
        assert self._log is not None
        self._log.kept.clear()
        self._log.kept_bytes = 0
        (home,) = await self._until_read(f"{self._paths.log}/{self._log.writer}")
        if home is None or self._lost(self._log, home.stat.version):
            self._log = None
        else:
            self._log.version = home.stat.version

    def _lost(self, log: _Log, version: int) -> bool:
        """Whether the ensemble has lost a write of this log that it had acknowledged: the version would be higher."""
        if version >= log.version:
            return False
        home = f"{self._paths.log}/{log.writer}"
        self._on_went_back(f"the znode {home} was at version {log.version}, and now it is at version {version}")
        return True

    # -- lost replies -------------------------------------------------------------------------------------------

    async def _fence(self, request: _Request) -> bool:
        """Make sure that the request can no longer change its outcome, and learn it. See the module docstring."""
        if self._on_lost:
            self._on_lost()
        log = self._log
        assert log is not None
        number = log.version
        home = f"{self._paths.log}/{log.writer}"
        backoff = Backoff()
        while True:
            await self._connection.wait_connected()
            try:
                # The floor of the request: if it was applied, the entries below are gone.
                (fenced,) = await self._connection.send(Multi([set_data(home, b"%d" % request.floor)]))
                break
            except LostError:
                await backoff.pause()
        entry, log_now = await self._until_read(f"{home}/{entry_name(number)}", home)
        if isinstance(fenced, Culprit) or log_now is None:
            # Another client removed the log, with its entry if there was one. It will not come back under this name.
            self._log = None
            for member in request.members:
                member.fail(OutcomeUnknown("the log was removed before the lost request was settled"))
            return False
        assert isinstance(fenced, Stat)
        if self._lost(log, fenced.version - 1):
            # The version that the request demands may be reached again.
            self._log = None
            for member in request.members:
                member.fail(OutcomeUnknown("the store went back in time before the lost request was settled"))
            return False
        if entry is not None:
            self._note_applied(request, entry.stat.czxid)
        else:
            self._put_back(request)
        log.version = fenced.version
        return entry is not None

    async def _until_read(self, *paths: str) -> list[Node | None]:
        """Znodes as they are now, at one revision. Waits for the server as long as necessary."""
        while True:
            try:
                nodes, _ = await self._snapshots.nodes(paths, self._loop.time() + self._deadline_s)
            except StoreUnavailable:
                await self._backoff.pause()  # it may be refused at once
                continue
            return nodes


def _writes(batch: Batch) -> bool:
    return bool(batch.puts or batch.deletes or batch.range_deletes)
