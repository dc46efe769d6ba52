"""One consumer group of Kafka's clients, by the classic protocol: its members, and how their generations follow.

    EMPTY ──join──▶ PREPARING ──all have joined, or the time is over; the generation is stored──▶ COMPLETING
                     ▲      ▲                                                                        │
                     │      └──────────── a member comes, changes or goes ──────────────────┐   the leader's
                     └── a member comes, changes or goes ── STABLE ◀── assignment ──────────┴────────┘

In memory and without any I/O: the clock is handed in, and `coordination` stores the generations.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from metastore.txn.records.groups import GroupRecord
from metastore.types import Record
from metatxn.service.security.principal import ANYONE, Principal
from metatxn_gateways.kafka.codes import KafkaCode, KafkaError

MAX_MEMBERS = 1_000


class GroupState(Enum):
    EMPTY = auto()
    PREPARING = auto()
    COMPLETING = auto()
    STABLE = auto()


@dataclass(frozen=True, slots=True)
class Joining:
    """What a member joins with. `protocols` are in the order of its preference. `caller` is the member's principal.
    `client_id` and `client_host` are for people."""

    member_id: str
    instance: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Mapping[str, bytes]
    caller: Principal = ANYONE
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a member. Only the leader hears of the `members`: their instances, and what they joined with."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: Mapping[str, tuple[str | None, bytes]]
    skip_assignment: bool = False


@dataclass(slots=True)
class Member:
    """A member. `deadline_ms` is when its session ends, unless it waits for an answer."""

    id: str
    wanted: Joining
    deadline_ms: int
    assignment: bytes = b""
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[bytes] | None = None

    @property
    def has_joined(self) -> bool:
        return self.joining is not None and not self.joining.done()

    @property
    def waits(self) -> bool:
        return self.has_joined or (self.syncing is not None and not self.syncing.done())


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group. `record` is that in the store, whose version every committed offset checks."""

    name: str
    record: Record
    state: GroupState = GroupState.EMPTY
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    """The members that were told their id and have not joined with it, and until when they may."""
    rebalance_until_ms: int = 0
    storing: asyncio.Task[None] | None = None

    @property
    def generation(self) -> int:
        return GroupRecord.decode(self.record.value).generation

    # -- who is a member ---------------------------------------------------------------------------------------

    def member(self, member_id: str, instance: str | None) -> Member:
        """A member. Raises UNKNOWN_MEMBER_ID, and FENCED_INSTANCE_ID for one whose instance has come again."""
        if instance is not None:
            holder = self.instances.get(instance)
            if holder is not None and holder != member_id:
                raise KafkaError(KafkaCode.FENCED_INSTANCE_ID)
            if holder is None:
                raise KafkaError(KafkaCode.UNKNOWN_MEMBER_ID)
        if (found := self.members.get(member_id)) is None:
            raise KafkaError(KafkaCode.UNKNOWN_MEMBER_ID)
        return found

    def heard_of(self, member: Member, now_ms: int) -> None:
        member.deadline_ms = now_ms + member.wanted.session_timeout_ms

    def assert_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise KafkaError(KafkaCode.ILLEGAL_GENERATION)

    def assert_may_commit(self, generation: int, member_id: str, instance: str | None, now_ms: int) -> None:
        """Check a commit outside transactions. A client that is not a member may commit while there are no members."""
        if generation < 0 and not member_id:
            if self.members:
                raise KafkaError(KafkaCode.UNKNOWN_MEMBER_ID)
            return
        member = self.member(member_id, instance)
        self.assert_generation(generation)
        if self.state is GroupState.COMPLETING:
            raise KafkaError(KafkaCode.REBALANCE_IN_PROGRESS)
        self.heard_of(member, now_ms)

    def assert_may_commit_in_transaction(self, generation: int, member_id: str, instance: str | None) -> None:
        """Check a commit. A producer that does not say for which member it commits is trusted, as with Kafka."""
        if member_id or instance is not None:
            self.member(member_id, instance)
        if generation >= 0:
            self.assert_generation(generation)

    # -- coming ------------------------------------------------------------------------------------------------

    def join(self, wanted: Joining, new_id: str, now_ms: int, *, needs_id: bool) -> Joined | asyncio.Future[Joined]:
        """The answer, or the future of it. `new_id` is that of a member that is not known yet. With `needs_id` one that
        has no instance must come again with its id: raises `MemberIdRequired`."""
        self._assert_fits(wanted)
        if not wanted.member_id:
            if wanted.instance is not None and wanted.instance in self.instances:
                return self._replaced(wanted, new_id, now_ms)
            if len(self.members) + len(self.pending) >= MAX_MEMBERS:
                raise KafkaError(KafkaCode.GROUP_MAX_SIZE_REACHED)
            if wanted.instance is None and needs_id:
                self.pending[new_id] = now_ms + wanted.session_timeout_ms
                raise MemberIdRequired(new_id)
            return self._added(wanted, new_id, now_ms)
        if self.pending.pop(wanted.member_id, None) is not None:
            return self._added(wanted, wanted.member_id, now_ms)
        member = self.member(wanted.member_id, wanted.instance)
        changed = dict(member.wanted.protocols) != dict(wanted.protocols)
        member.wanted = wanted
        self.heard_of(member, now_ms)
        if self.state is GroupState.COMPLETING and not changed:
            return self._joined(member)
        if self.state is GroupState.STABLE and not changed and member.id != self.leader:
            return self._joined(member)
        return self._rejoining(member, now_ms)

    def _assert_fits(self, wanted: Joining) -> None:
        """Check that a group keeps one type of protocol, and has one that all of its members know."""
        others = [each for each in self.members.values() if each.id != wanted.member_id]
        fits = bool(wanted.protocols and wanted.protocol_type)
        if others:
            common = set.intersection(*(set(each.wanted.protocols) for each in others))
            fits = fits and wanted.protocol_type == self.protocol_type and bool(common & set(wanted.protocols))
        if not fits:
            raise KafkaError(KafkaCode.INCONSISTENT_GROUP_PROTOCOL)

    def _added(self, wanted: Joining, member_id: str, now_ms: int) -> asyncio.Future[Joined]:
        member = self.members[member_id] = Member(member_id, wanted, now_ms + wanted.session_timeout_ms)
        if wanted.instance is not None:
            self.instances[wanted.instance] = member_id
        self.protocol_type = wanted.protocol_type
        return self._rejoining(member, now_ms)

    def _replaced(self, wanted: Joining, new_id: str, now_ms: int) -> Joined | asyncio.Future[Joined]:
        """An instance has come again: its earlier life is fenced. If nothing has changed, it goes on with its
        assignment."""
        assert wanted.instance is not None
        leader, before = self.leader, self.members.pop(self.instances[wanted.instance])
        _refuse(before, KafkaCode.FENCED_INSTANCE_ID)
        member = Member(new_id, wanted, now_ms + wanted.session_timeout_ms, before.assignment)
        self.members[new_id], self.instances[wanted.instance] = member, new_id
        if before.id == leader:
            self.leader = new_id
        if self.state is GroupState.STABLE and dict(before.wanted.protocols) == dict(wanted.protocols):
            return self._joined(member, skip_assignment=True)
        return self._rejoining(member, now_ms)

    def _rejoining(self, member: Member, now_ms: int) -> asyncio.Future[Joined]:
        if member.has_joined:
            _refuse(member, KafkaCode.REBALANCE_IN_PROGRESS)  # an earlier request of it
        member.joining = asyncio.get_running_loop().create_future()
        self._prepare(now_ms)
        return member.joining

    def _joined(self, member: Member, *, skip_assignment: bool = False) -> Joined:
        leads = member.id == self.leader
        members = {
            each.id: (each.wanted.instance, each.wanted.protocols.get(self.protocol, b""))
            for each in (self.members.values() if leads else ())
        }
        return Joined(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            member.id,
            members,
            skip_assignment and leads,
        )

    # -- the next generation -----------------------------------------------------------------------------------

    def _prepare(self, now_ms: int) -> None:
        """Make the members join again, at once those that wait for an assignment."""
        if self.state is GroupState.PREPARING:
            return
        self.state = GroupState.PREPARING
        self.rebalance_until_ms = now_ms + max(
            (each.wanted.rebalance_timeout_ms for each in self.members.values()), default=0
        )
        for member in self.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_exception(KafkaError(KafkaCode.REBALANCE_IN_PROGRESS))

    def is_ready(self, now_ms: int) -> bool:
        """Whether the next generation may begin."""
        if self.state is not GroupState.PREPARING or self.storing is not None:
            return False
        all_joined = not self.pending and all(each.has_joined for each in self.members.values())
        return all_joined or now_ms >= self.rebalance_until_ms

    def complete(self, record: Record, now_ms: int) -> None:
        """The next generation is stored: it has the members that have joined."""
        self.record = record
        for member in [each for each in self.members.values() if not each.has_joined]:
            self._drop(member)
        if not self.members:
            self.state, self.leader, self.protocol = GroupState.EMPTY, "", ""
            return
        self.state = GroupState.COMPLETING
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self.protocol = self._elected()
        for member in self.members.values():
            member.assignment = b""
            self.heard_of(member, now_ms)
            assert member.joining is not None
            member.joining.set_result(self._joined(member))

    def _elected(self) -> str:
        """The protocol that most members prefer, of those that all know."""
        first, *others = [each.wanted.protocols for each in self.members.values()]
        common = [name for name in first if all(name in each for each in others)]
        votes = Counter(next(name for name in each if name in common) for each in (first, *others))
        return max(common, key=lambda name: votes[name])

    # -- its assignment ----------------------------------------------------------------------------------------

    def sync(
        self, member: Member, generation: int, assignments: Mapping[str, bytes], now_ms: int
    ) -> bytes | asyncio.Future[bytes]:
        self.heard_of(member, now_ms)
        if self.state is GroupState.PREPARING:
            raise KafkaError(KafkaCode.REBALANCE_IN_PROGRESS)
        self.assert_generation(generation)
        if self.state is GroupState.STABLE:
            return member.assignment
        if member.id != self.leader:
            member.syncing = asyncio.get_running_loop().create_future()
            return member.syncing
        self.state = GroupState.STABLE
        for each in self.members.values():
            each.assignment = assignments.get(each.id, b"")
            if each.syncing is not None and not each.syncing.done():
                self.heard_of(each, now_ms)
                each.syncing.set_result(each.assignment)
        return member.assignment

    # -- going -------------------------------------------------------------------------------------------------

    def leave(self, member: Member, now_ms: int) -> None:
        self._drop(member)
        self._prepare(now_ms)

    def expire(self, now_ms: int) -> None:
        """Drop members whose session is over. One that waits for an answer is present."""
        self.pending = {each: until for each, until in self.pending.items() if until > now_ms}
        for member in [each for each in self.members.values() if not each.waits and each.deadline_ms <= now_ms]:
            self.leave(member, now_ms)

    def lose(self, code: KafkaCode) -> None:
        """Another broker coordinates the group from now on, or none does."""
        for member in self.members.values():
            _refuse(member, code)

    def _drop(self, member: Member) -> None:
        _refuse(member, KafkaCode.UNKNOWN_MEMBER_ID)
        del self.members[member.id]
        if member.wanted.instance is not None:
            self.instances.pop(member.wanted.instance, None)


class MemberIdRequired(KafkaError):
    """A member is told its id, and joins with it."""

    def __init__(self, member_id: str) -> None:
        super().__init__(KafkaCode.MEMBER_ID_REQUIRED)
        self.member_id = member_id


def _refuse(member: Member, code: KafkaCode) -> None:
    for waiting in (member.joining, member.syncing):
        if waiting is not None and not waiting.done():
            waiting.set_exception(KafkaError(code))
