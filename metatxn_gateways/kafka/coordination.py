"""The consumer groups that this process coordinates: their members in memory, their generations in the store.

Clients are sent to the broker that `is_ours` names; the process that last wrote a group's record coordinates it,
whatever that says (DESIGN §5.21). What was committed is in `offsets`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import structlog

from metastore.background import in_background
from metastore.clock import Clock
from metastore.types import Record
from metatxn.service.security.principal import ANYONE, Principal
from metatxn.wire.ids import TxnId
from metatxn_gateways.kafka.codes import REFUSALS, KafkaCode, KafkaError
from metatxn_gateways.kafka.group_rights import assert_may_change, assert_may_join
from metatxn_gateways.kafka.groups import ConsumerGroup, GroupState, Joined, Joining
from metatxn_gateways.kafka.offsets import CommittedOffsets, GivenOffset, GroupMoved

log = structlog.get_logger()
MAX_NAME_LENGTH = 200
MIN_SESSION_TIMEOUT_MS = 6_000
MAX_SESSION_TIMEOUT_MS = 1_800_000
LOOK_INTERVAL_S = 0.1
SWEEP_INTERVAL_S = 10.0
SWEEPS_PER_CLEANING = 360
"""About once in an hour the offsets of deleted topics are deleted."""


class Coordination:
    """The groups of this process. Used only from its event loop."""

    def __init__(
        self, offsets: CommittedOffsets, clock: Clock, is_ours: Callable[[str], bool] = lambda name: True
    ) -> None:
        self.offsets = offsets
        self._clock = clock
        self._is_ours = is_ours
        self._groups: dict[str, ConsumerGroup] = {}
        self._loading = asyncio.Lock()
        self._ended: set[str] = set()
        self._has_ended = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._background = [
            in_background(self._look_forever(), "sessions of consumer groups"),
            in_background(self._settle_forever(), "offsets of ended transactions"),
            in_background(self._sweep_forever(), "sweep of offsets"),
        ]

    async def stop(self) -> None:
        storing = [group.storing for group in self._groups.values() if group.storing is not None]
        for task in (*self._background, *storing):
            task.cancel()
        await asyncio.gather(*self._background, *storing, return_exceptions=True)
        for group in list(self._groups.values()):
            self._lose(group, KafkaCode.NOT_COORDINATOR)

    # -- members -----------------------------------------------------------------------------------------------

    async def join(self, name: str, wanted: Joining, client: str, *, needs_id: bool) -> Joined:
        """Join a group. Raises `MemberIdRequired`, the other refusals of `ConsumerGroup.join`, INVALID_GROUP_ID,
        INVALID_SESSION_TIMEOUT and the store's errors."""
        if not MIN_SESSION_TIMEOUT_MS <= wanted.session_timeout_ms <= MAX_SESSION_TIMEOUT_MS:
            raise KafkaError(KafkaCode.INVALID_SESSION_TIMEOUT)
        group = await self._loaded(name)
        assert_may_join(group, wanted)
        new_id = f"{wanted.instance or client}-{uuid.uuid4()}"
        answer = group.join(wanted, new_id, self._clock(), needs_id=needs_id)
        if isinstance(answer, Joined):
            return answer
        self._advance(group)
        return await answer

    async def sync(
        self, name: str, generation: int, member_id: str, instance: str | None, assignments: Mapping[str, bytes]
    ) -> tuple[ConsumerGroup, bytes]:
        group = self._known(name)
        answer = group.sync(group.member(member_id, instance), generation, assignments, self._clock())
        return group, answer if isinstance(answer, bytes) else await answer

    def heartbeat(self, name: str, generation: int, member_id: str, instance: str | None) -> None:
        group = self._known(name)
        member = group.member(member_id, instance)
        group.assert_generation(generation)
        group.heard_of(member, self._clock())
        if group.state is GroupState.PREPARING:
            raise KafkaError(KafkaCode.REBALANCE_IN_PROGRESS)

    def leave(self, name: str, member_id: str, instance: str | None, caller: Principal = ANYONE) -> None:
        """Let a member leave. A client that knows its id speaks for it; by its instance an administrator removes it."""
        group = self._known(name)
        if instance is not None and not member_id:
            assert_may_change(group, caller)
            member_id = group.instances.get(instance, "")
        if group.pending.pop(member_id, None) is None:
            group.leave(group.member(member_id, instance), self._clock())
        self._advance(group)

    def look(self) -> None:
        """Act on the passing of time: sessions end, and generations begin without those that did not join."""
        now_ms = self._clock()
        for group in list(self._groups.values()):
            if not self._is_ours(group.name):
                log.info("consumer group moves to another broker", group=group.name)
                self._lose(group, KafkaCode.NOT_COORDINATOR)
                continue
            group.expire(now_ms)
            self._advance(group)
            if group.state is GroupState.EMPTY and not group.pending:
                del self._groups[group.name]  # the store knows its generation

    # -- administration ----------------------------------------------------------------------------------------

    @property
    def in_use(self) -> int:
        """The groups with members."""
        return sum(bool(group.members) for group in self._groups.values())

    async def names(self) -> set[str]:
        """The groups that this broker coordinates, including those that are gone. Raises the store's errors."""
        stored = await self.offsets.names()
        return {name for name in (*stored, *self._groups) if self._is_ours(name)}

    def with_members(self, name: str) -> ConsumerGroup | None:
        """The group, if it has any member. Raises NOT_COORDINATOR."""
        self._assert_ours(name)
        group = self._groups.get(name)
        return group if group is not None and (group.members or group.pending) else None

    async def delete(self, name: str) -> None:
        """Delete what a group without members has committed. Its next generation begins first, so nothing that was sent
        before is committed later. If this fails in the middle, the rest is deleted when it is repeated.

        Raises NON_EMPTY_GROUP, also while a transaction with offsets of it is open, GROUP_ID_NOT_FOUND, NOT_COORDINATOR
        and the store's errors.
        """
        if self.with_members(name) is not None:
            raise KafkaError(KafkaCode.NON_EMPTY_GROUP)
        if not await self.offsets.segments_of(name):
            raise KafkaError(KafkaCode.GROUP_ID_NOT_FOUND)
        group = await self._loaded(name)
        group.record = record = await self.offsets.begin_generation(group.record)
        if await self.offsets.settle(name):
            raise KafkaError(KafkaCode.NON_EMPTY_GROUP)
        await self.offsets.forget(record, name, await self.offsets.segments_of(name))

    async def delete_offsets(self, name: str, segments: Sequence[str]) -> None:
        """Delete offsets. Raises GROUP_ID_NOT_FOUND, NOT_COORDINATOR and the store's errors."""
        if self.with_members(name) is None and not await self.offsets.segments_of(name):
            raise KafkaError(KafkaCode.GROUP_ID_NOT_FOUND)
        group = await self._loaded(name)
        record = group.record
        try:
            await self.offsets.settle(name)
            await self.offsets.forget(record, name, segments)
        except GroupMoved:
            self._moved(group, record)
            raise

    # -- offsets -----------------------------------------------------------------------------------------------

    async def commit(
        self, name: str, generation: int, member_id: str, instance: str | None, offsets: Mapping[str, GivenOffset]
    ) -> None:
        group = await self._loaded(name)
        group.assert_may_commit(generation, member_id, instance, self._clock())
        record = group.record
        try:
            await self.offsets.commit(record, name, offsets)
        except GroupMoved:
            self._moved(group, record)
            raise

    async def commit_in(
        self,
        txn_id: TxnId,
        name: str,
        generation: int,
        member_id: str,
        instance: str | None,
        offsets: Mapping[str, GivenOffset],
    ) -> None:
        group = await self._loaded(name)
        group.assert_may_commit_in_transaction(generation, member_id, instance)
        record = group.record
        try:
            await self.offsets.commit_in(txn_id, record, name, offsets)
        except GroupMoved:
            self._moved(group, record)
            raise

    def ended(self, names: set[str]) -> None:
        """A transaction with offsets of these groups was decided here."""
        self._ended |= names
        self._has_ended.set()

    # -- generations -------------------------------------------------------------------------------------------

    async def _loaded(self, name: str) -> ConsumerGroup:
        if not 0 < len(name) <= MAX_NAME_LENGTH:
            raise KafkaError(KafkaCode.INVALID_GROUP_ID)
        self._assert_ours(name)
        async with self._loading:
            if (known := self._groups.get(name)) is None:
                known = self._groups[name] = ConsumerGroup(name, await self.offsets.group(name))
        return known

    def _known(self, name: str) -> ConsumerGroup:
        """The group in memory. One without members is not known."""
        self._assert_ours(name)
        if (known := self._groups.get(name)) is None:
            raise KafkaError(KafkaCode.UNKNOWN_MEMBER_ID)
        return known

    def _assert_ours(self, name: str) -> None:
        """Refuse another broker's group: clients then ask again who coordinates it."""
        if not self._is_ours(name):
            raise KafkaError(KafkaCode.NOT_COORDINATOR)

    def _advance(self, group: ConsumerGroup) -> None:
        if group.is_ready(self._clock()):
            group.storing = in_background(self._begin_generation(group), f"generation of {group.name}")

    async def _begin_generation(self, group: ConsumerGroup) -> None:
        try:
            record = await self.offsets.begin_generation(group.record)
        except REFUSALS as error:
            log.info("consumer group is given up", group=group.name, why=str(error))
            moved = isinstance(error, GroupMoved)
            self._lose(group, KafkaCode.NOT_COORDINATOR if moved else KafkaCode.COORDINATOR_NOT_AVAILABLE)
            return
        group.storing = None
        group.complete(record, self._clock())
        log.info("consumer group has a generation", group=group.name, generation=group.generation)

    def _moved(self, group: ConsumerGroup, record: Record) -> None:
        """The record has changed: the group has moved, unless this process has begun the next generation meanwhile."""
        if group.storing is None and group.record is record and self._groups.get(group.name) is group:
            self._lose(group, KafkaCode.NOT_COORDINATOR)

    def _lose(self, group: ConsumerGroup, code: KafkaCode) -> None:
        """Forget the group, unless it was forgotten meanwhile."""
        if self._groups.get(group.name) is group:
            del self._groups[group.name]
            group.lose(code)

    # -- in the background -------------------------------------------------------------------------------------

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.look()

    async def _settle_forever(self) -> None:
        while True:
            await self._has_ended.wait()
            self._has_ended.clear()
            names, self._ended = sorted(self._ended), set()
            for name in names:
                try:
                    await self.offsets.settle(name)
                except REFUSALS as error:
                    log.info("offsets are settled later", group=name, why=str(error))

    async def _sweep_forever(self) -> None:
        for sweep in count(1):
            try:
                await self.offsets.sweep()
                if sweep % SWEEPS_PER_CLEANING == 0:
                    await self.offsets.clean_up()
            except REFUSALS as error:
                log.info("offsets are swept later", why=str(error))
            await asyncio.sleep(SWEEP_INTERVAL_S)
