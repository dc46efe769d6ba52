"""The offsets that consumer groups commit, inside and outside transactions (DESIGN §5.21).

TxnOffsetCommit ─▶ an operation record of the transaction ─┐ settled once the transaction is decided
OffsetCommit    ──────────────────────────────────────────▶ /group-offset/<group>/<segment>
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed, MetastoreError, StoreUnavailable
from metastore.keys import prefix_end, unescape
from metastore.txn import paths
from metastore.txn.records.groups import CommittedOffset, GroupRecord
from metastore.txn.records.operations import OffsetOp, decode_op
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import put_offset_op
from metastore.types import Absent, AtVersion, Batch, Record
from metatxn.wire.ids import TxnId
from metatxn_gateways.kafka.codes import KafkaCode, KafkaError
from participants.txn.refusals import refusal

MAX_METADATA_BYTES = 4_096
_PER_APPLY = 100
_PER_READ = 1_000
_MOST_RIVALS = 100
_INDEX = "offsets-by-group"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GivenOffset:
    """What a client commits for one partition."""

    offset: int
    leader_epoch: int | None
    metadata: str | None


class GroupMoved(KafkaError):
    """The group has a generation other than this process knows, or another coordinator."""

    def __init__(self) -> None:
        super().__init__(KafkaCode.NOT_COORDINATOR)


@dataclass(frozen=True, slots=True)
class _Decided:
    """A decided transaction. `order` sorts transactions as they were decided."""

    order: tuple[int, int, str]
    committed: bool
    operations: Sequence[Record]


class CommittedOffsets:
    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def group(self, name: str) -> Record:
        """The record of a group, which is created if there is none. Raises the store's errors."""
        for _ in range(_MOST_RIVALS):
            if (found := await self._store.get(paths.group(name))) is not None:
                return found
            record = GroupRecord(generation=0, updated_ms=self._clock())
            with suppress(CheckFailed):
                await self._store.apply(self._store.batch().create(paths.group(name), record.encode()))
        raise _overtaken()

    async def names(self) -> list[str]:
        """The names of all groups that ever had a record. Raises the store's errors."""
        found = await self._store.scan(paths.GROUPS)
        return [unescape(each.key.removeprefix(paths.GROUPS)) for each in found.records]

    async def segments_of(self, name: str) -> list[str]:
        """The segments on which the group has committed an offset, or has one in a transaction. Raises the store's
        errors."""
        stored = (await self._store.scan(paths.group_offsets(name))).records
        found = {paths.segment_of_group_offset(each.key): None for each in stored}
        for entry in await self._entries(name):
            found[paths.participant_of_op(paths.op_of_offset_entry(entry))[0]] = None
        return list(found)

    async def forget(self, group: Record, name: str, segments: Sequence[str]) -> None:
        """Delete the offsets of these segments. Raises `GroupMoved` and the store's errors."""
        for part in _parts(segments):
            for _ in range(_MOST_RIVALS):
                stored = await self._store.get_many([paths.group_offset(name, segment) for segment in part])
                batch = self._store.batch().check(AtVersion(group.key, group.version))
                for record in stored.records.values():
                    if record is not None:
                        batch.remove(record)
                if await self._applied(batch, group):
                    break
            else:
                raise _overtaken()

    async def begin_generation(self, group: Record) -> Record:
        """Begin a generation. Raises `GroupMoved` if the record is not the current one, and the store's errors."""
        number = GroupRecord.decode(group.value).generation + 1
        value = GroupRecord(generation=number, updated_ms=self._clock()).encode()
        try:
            applied = await self._store.apply(self._store.batch().replace(group, value))
        except CheckFailed:
            raise GroupMoved from None
        return Record(group.key, value, applied.revision, first=False)

    async def commit(self, group: Record, name: str, offsets: Mapping[str, GivenOffset]) -> None:
        """Commit offsets outside transactions, by segment. `group` is the group's record at the generation of the
        member.

        Raises `GroupMoved` and the store's errors.
        """
        for part in _parts(offsets.items()):
            for _ in range(_MOST_RIVALS):
                await self.settle(name)
                batch = self._store.batch().check(AtVersion(group.key, group.version))
                stored = await self._store.get_many([paths.group_offset(name, segment) for segment, _ in part])
                for segment, given in part:
                    self._put(batch, name, segment, given, stored.records[paths.group_offset(name, segment)])
                if await self._applied(batch, group):
                    break
            else:
                raise _overtaken()

    async def commit_in(self, txn_id: TxnId, group: Record, name: str, offsets: Mapping[str, GivenOffset]) -> None:
        """Commit offsets inside a transaction. Raises `GroupMoved`, the error for a transaction that takes no more
        operations, and the store's errors."""
        for part in _parts(offsets.items()):
            for _ in range(_MOST_RIVALS):
                batch = self._store.batch().check(AtVersion(group.key, group.version))
                keys = [paths.offset_op(txn_id, segment, name) for segment, _ in part]
                stored = (await self._store.get_many(keys)).records
                for key, (segment, given) in zip(keys, part, strict=True):
                    op = OffsetOp(
                        segment=segment,
                        group=name,
                        offset=given.offset,
                        leader_epoch=given.leader_epoch,
                        metadata=given.metadata,
                    )
                    put_offset_op(batch, txn_id, op, stored[key])
                if await self._applied(batch, group, txn_id):
                    break
            else:
                raise _overtaken()

    async def fetch(
        self, name: str, segments: Sequence[str] | None
    ) -> tuple[dict[str, CommittedOffset], frozenset[str]]:
        """The committed offsets of these segments, or of all, and the segments that an open transaction may change.
        Raises the store's errors."""
        unstable = await self.settle(name)
        if segments is None:
            prefix = paths.group_offsets(name)
            records = (await self._store.scan(prefix)).records
            return {paths.segment_of_group_offset(each.key): _decoded(each) for each in records}, unstable
        keys = {paths.group_offset(name, segment): segment for segment in segments}
        found = await self._store.get_each(keys)
        return {keys[key]: _decoded(record) for key, record in found.items() if record is not None}, unstable

    async def settle(self, name: str) -> frozenset[str]:
        """Put the offsets of decided transactions where they belong. Returns the segments with operations of open ones.
        Raises the store's errors."""
        for _ in range(_MOST_RIVALS):
            entries = await self._entries(name)
            if not entries:
                return frozenset()
            decided, unstable = await self._judged(entries)
            if not decided:
                return unstable
            if entries == await self._entries(name) and await self._settled(name, decided):
                return unstable
        raise _overtaken()

    async def sweep(self) -> None:
        """Settle every group with operations. Raises the store's errors."""
        after = ""
        while entries := await self._store.query_index(_INDEX, after, limit=1):
            name = paths.group_of_offset_entry(entries[0])
            await self.settle(name)
            after = prefix_end(paths.offsets_by_group(name))

    async def clean_up(self) -> None:
        """Delete the offsets of segments that were deleted with their topics. Ids of segments are never reused, so
        nobody asks for them any more. Raises the store's errors."""
        start, more = paths.GROUP_OFFSETS, True
        while more:
            found = await self._store.range(start, prefix_end(paths.GROUP_OFFSETS), limit=_PER_READ)
            keys = [paths.segment(paths.segment_of_group_offset(each.key)) for each in found.records]
            there = await self._store.get_each(dict.fromkeys(keys))  # after the offsets, committed on what was there
            gone = [each for key, each in zip(keys, found.records, strict=True) if there[key] is None]
            for part in _parts(gone):
                batch = self._store.batch()
                for record in part:
                    batch.remove(record)
                with suppress(CheckFailed):  # another process has deleted some; the rest goes the next time
                    await self._store.apply(batch)
            more = found.more
            start = found.records[-1].key + "\0" if found.records else start

    async def _entries(self, name: str) -> list[str]:
        prefix = paths.offsets_by_group(name)
        return await self._store.query_index(_INDEX, prefix, prefix_end(prefix))

    async def _judged(self, entries: Sequence[str]) -> tuple[list[_Decided], frozenset[str]]:
        """The transactions that are decided, in the order of their decisions, and the segments of the others."""
        keys: dict[TxnId, list[str]] = {}
        for key in map(paths.op_of_offset_entry, entries):
            keys.setdefault(TxnId.parse(paths.op_key_parts(key)[0]), []).append(key)
        wanted = [key for operations in keys.values() for key in operations]
        read = (await self._store.get_many([*wanted, *map(paths.header, keys)])).records
        decided: list[_Decided] = []
        unstable: set[str] = set()
        for txn_id, of_it in keys.items():
            operations = [record for key in of_it if (record := read[key]) is not None]
            record = read[paths.header(txn_id)]
            header = Header.decode(record.value) if record is not None else None
            if record is not None and header is not None and not header.state.final:
                unstable.update(_op(each).segment for each in operations)
                continue
            order = (
                (record.version, header.finalized_ms or 0, str(txn_id)) if record and header else (0, 0, str(txn_id))
            )
            decided.append(_Decided(order, header is None or header.state is TxnState.COMMITTED, operations))
        return sorted(decided, key=lambda each: each.order), frozenset(unstable)

    async def _settled(self, name: str, decided: Iterable[_Decided]) -> bool:
        """Settle the offsets of transactions. False if another request was faster."""
        for transaction in decided:
            for part in _parts(transaction.operations):
                batch = self._store.batch()
                keys = [paths.group_offset(name, _op(record).segment) for record in part]
                stored = (await self._store.get_many(keys)).records if transaction.committed else {}
                for key, record in zip(keys, part, strict=True):
                    batch.remove(record)
                    if transaction.committed:
                        op = _op(record)
                        given = GivenOffset(op.offset, op.leader_epoch, op.metadata)
                        self._put(batch, name, op.segment, given, stored[key])
                try:
                    await self._store.apply(batch)
                except CheckFailed:
                    return False
        return True

    def _put(self, batch: Batch, name: str, segment: str, given: GivenOffset, before: Record | None) -> None:
        value = CommittedOffset(
            offset=given.offset,
            committed_ms=self._clock(),
            leader_epoch=given.leader_epoch,
            metadata=given.metadata,
        ).encode()
        if before is not None:
            batch.replace(before, value)
        else:
            batch.create(paths.group_offset(name, segment), value)

    async def _applied(self, batch: Batch, group: Record, txn_id: TxnId | None = None) -> bool:
        """Apply a batch. False if an offset was written since it was read."""
        try:
            await self._store.apply(batch)
        except CheckFailed as lost:
            if lost.check == AtVersion(group.key, group.version):
                raise GroupMoved from None
            if txn_id is not None and lost.check.key == paths.header(txn_id):  # type: ignore[union-attr]
                raise refusal(txn_id, Header.decode(lost.current.value) if lost.current else None) from None
            if txn_id is not None and lost.check == Absent(paths.prepared(txn_id)):
                raise KafkaError(KafkaCode.INVALID_TXN_STATE) from None
            return False
        return True


def checked_offset(offset: int, leader_epoch: int | None, metadata: str | None) -> GivenOffset:
    """An offset to commit. Raises OFFSET_METADATA_TOO_LARGE and INVALID_REQUEST."""
    if metadata is not None and len(metadata.encode()) > MAX_METADATA_BYTES:
        raise KafkaError(KafkaCode.OFFSET_METADATA_TOO_LARGE)
    if offset < 0:
        raise KafkaError(KafkaCode.INVALID_REQUEST)
    known = leader_epoch if leader_epoch is not None and leader_epoch >= 0 else None
    return GivenOffset(offset, known, metadata or None)


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, _PER_APPLY)):
        yield part


def _op(record: Record) -> OffsetOp:
    op = decode_op(record.value)
    assert isinstance(op, OffsetOp)
    return op


def _decoded(record: Record) -> CommittedOffset:
    return CommittedOffset.decode(record.value)


def _overtaken() -> MetastoreError:
    return StoreUnavailable("other requests changed the group each time that it was written; nothing happened")
