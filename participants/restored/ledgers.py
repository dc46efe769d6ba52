"""The differences between the ledgers of a storage and the records of a restored store.

    in the store   in the storage
    no             yes              written after the backup: adopted, or set aside
    yes            no               trimmed or dropped after the backup, or lost
    yes            another form     rewritten after the backup: the last form counts
    unsealed       longer           the open ledger of the backup: sealed at its present length

The segment of a ledger may be unknown, too, if it was created by a split or a merge after the backup, or its topic was
created then. An adopted segment joins its topic as a sealed segment without parents. So its messages are read, and only
the order of a key between it and its former parent is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from metastore.api import MetadataStore
from metastore.check import dump
from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.forgetting import was_deleted
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metastore.txn.records.topics import TopicRecord
from metastore.types import Batch, Record
from metatxn.wire.names import SegmentParts, number_of_segment, topic_of_segment
from metatxn.wire.names import segment_id as new_segment_id
from metatxn.wire.position import Position
from participants.ledger.directories import segment_directory, segment_of
from participants.ledger.form import Form
from participants.ledger.offsets import end_offset
from participants.ledger.storage import LedgerMissing, LedgerStorage, SealedLedger

HASHES = (0, 0xFFFF)


@dataclass(slots=True)
class FoundSegment:
    """A segment with ledgers in one storage. `stored` is its record, or None if the store does not know it.

    `unknown` are ledgers that the record does not list, and `missing` those that it lists and the storage does not
    have. `rewritten` are those of which the storage has only another form, with that form.
    """

    id: str
    stored: Record | None
    unknown: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    rewritten: dict[int, Form] = field(default_factory=dict)

    @property
    def record(self) -> SegmentRecord | None:
        return SegmentRecord.decode(self.stored.value) if self.stored is not None else None

    @property
    def lost(self) -> bool:
        """Whether ledgers are missing of which readers could see something, and which were not trimmed: a trim takes
        the oldest ones, and never all."""
        listed = [ledger.id for ledger in self.record.ledgers] if self.record is not None else []
        told = [number for number in self.missing if number not in self.dropped]
        up_to_told = [number for number in listed if told and number <= told[-1]]
        trimmed = set(up_to_told) <= set(self.missing) and len(self.missing) < len(listed) + len(self.unknown)
        return bool(self.missing) and not trimmed

    @property
    def dropped(self) -> frozenset[int]:
        """Which of the missing ledgers had nothing that readers could see, so that their owner may have dropped
        them."""
        ledgers = self.record.ledgers if self.record is not None else ()
        return frozenset(each.id for each in ledgers if each.id in self.missing and _shows_nothing(each))


@dataclass(slots=True)
class LedgerSurvey:
    """The differences. `unnamed` are unknown directories that do not tell whose they are: the segment's name was too
    long, or what is there is no segment's name."""

    segments: list[FoundSegment] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)


async def survey(store: MetadataStore, storage: LedgerStorage) -> LedgerSurvey:
    """Compare the store with the storage. Changes nothing. Raises the errors of both."""
    directories = set(await storage.directories())
    found = LedgerSurvey()
    async for segment_id, stored in _segments(store):
        directories.discard(segment_directory(segment_id))
        record = SegmentRecord.decode(stored.value)
        if record.storage == storage.storage_id and record.state != "deleted":
            numbers = await storage.numbers(segment_directory(segment_id))
            listed = max((ledger.id for ledger in record.ledgers), default=0)
            unknown = [number for number in numbers if number > listed]
            absent = [ledger.id for ledger in record.ledgers if not await _is_there(segment_id, ledger, storage)]
            forms = {number: await storage.forms(segment_id, number) for number in absent}
            missing = [number for number in absent if not forms[number]]
            rewritten = {number: each[-1] for number, each in forms.items() if each}
            found.segments.append(FoundSegment(segment_id, stored, unknown, missing, rewritten))
    for directory in sorted(directories):
        numbers = await storage.numbers(directory)
        named = segment_of(directory)
        if not numbers or (named is not None and await was_deleted(store, named)):
            continue
        if named is None or number_of_segment(named) < 0:
            found.unnamed.append(directory)
        else:
            found.segments.append(FoundSegment(named, None, numbers))
    return found


async def _segments(store: MetadataStore) -> AsyncIterator[tuple[str, Record]]:
    async for record in dump(store, paths.SEGMENTS):
        yield unescape(record.key.removeprefix(paths.SEGMENTS)), record


async def _is_there(segment: str, ledger: LedgerRecord, storage: LedgerStorage) -> bool:
    if ledger.entries is None:
        return ledger.id in await storage.numbers(segment_directory(segment))
    try:
        await storage.open_sealed(segment, ledger.id, ledger.entries, Form(*ledger.form) if ledger.form else None)
    except LedgerMissing:
        return False
    return True


class Ledgers:
    """Brings the records of segments and topics in line with one storage, one segment at a time."""

    def __init__(self, store: MetadataStore, storage: LedgerStorage, aside: str, now_ms: int) -> None:
        """`aside` names the place for ledgers that are set aside."""
        self._store = store
        self._storage = storage
        self._aside = aside
        self._now_ms = now_ms

    async def sealed(self, segment: FoundSegment) -> list[SealedLedger]:
        """The ledgers that may contain what was written after the backup: unknown ones, and those that were open.
        Raises the errors of the storage."""
        record = segment.record
        listed = record.ledgers if record is not None else ()
        unsealed = [ledger.id for ledger in listed if ledger.entries is None and ledger.id not in segment.missing]
        return await self._sealed(segment.id, [*unsealed, *segment.unknown])

    async def adopt(self, segment: FoundSegment, sealed: Sequence[SealedLedger]) -> None:
        """Update the store to the segment as it is in the storage. Raises `CheckFailed` if another process writes
        meanwhile, and the store's errors."""
        if segment.record is not None:
            await self._list_ledgers(segment, segment.record, sealed)
        elif sealed:
            await self._make_segment(segment, sealed)

    async def set_aside(self, directory: str, numbers: Sequence[int]) -> None:
        """Set these ledgers aside. Raises the errors of the storage."""
        for number in numbers:
            await self._storage.set_aside(directory, number, self._aside)

    async def _list_ledgers(self, segment: FoundSegment, record: SegmentRecord, sealed: Sequence[SealedLedger]) -> None:
        """What is recorded of a ledger that was sealed before the backup stays, the index of what is hidden in it too:
        every transaction in it was decided before the backup."""
        listed = {ledger.id: ledger for ledger in record.ledgers if ledger.id not in segment.missing}
        for number, form in segment.rewritten.items():
            facts = {"form": tuple(form), "former": True, "bytes": None, "hidden_bytes": None}
            listed[number] = listed[number].model_copy(update=facts)
        next_offset = record.next_offset
        for ledger in sorted(sealed, key=lambda each: each.id):
            listed[ledger.id] = self._listed(ledger).model_copy(update={"first_offset": next_offset})
            if next_offset is not None:
                next_offset = await end_offset(ledger, next_offset)
        ledgers = tuple(ledger for _, ledger in sorted(listed.items()))
        trimmed = [number for number in segment.missing if number not in segment.dropped]
        first = _first_position(record, ledgers, trimmed)
        recovered = record.model_copy(
            update={"ledgers": ledgers, "planned": None, "first_position": first, "next_offset": next_offset}
        )
        if recovered != record:
            assert segment.stored is not None
            await self._store.apply(self._store.batch().replace(segment.stored, recovered.encode()))

    async def _make_segment(self, segment: FoundSegment, sealed: Sequence[SealedLedger]) -> None:
        low, high = SegmentParts.parse(segment.id).range
        record = SegmentRecord(
            topic=topic_of_segment(segment.id),
            range=(low, high),
            storage=self._storage.storage_id,
            state="sealed",
            ledgers=tuple(map(self._listed, sealed)),
        )
        batch = self._store.batch().create(paths.segment(segment.id), record.encode())
        stored = await self._store.get(paths.topic(record.topic))
        if stored is not None:
            topic = TopicRecord.decode(stored.value)
            grown = topic.model_copy(update={"segments": (*topic.segments, segment.id), "deleted": None})
            batch.replace(stored, grown.encode())
        else:
            self._make_topic(batch, segment.id, record.topic)
        await self._store.apply(batch)

    def _make_topic(self, batch: Batch, segment: str, name: str) -> None:
        """Create the topic with `segment`, and with another segment for new messages."""
        fresh = new_segment_id(name, *HASHES, self._now_ms)
        active = SegmentRecord(topic=name, range=HASHES, storage=self._storage.storage_id)
        batch.create(paths.segment(fresh), active.encode())
        segments, next_segment = (segment, fresh), self._now_ms + 1
        topic = TopicRecord(name=name, segments=segments, next_segment=next_segment, created_ms=self._now_ms)
        batch.create(paths.topic(name), topic.encode())

    async def _sealed(self, segment: str, numbers: Iterable[int]) -> list[SealedLedger]:
        """The ledgers that exist: of a deleted one, a fence may be left."""
        found = []
        for number in numbers:
            try:
                found.append(await self._storage.seal(segment, number))
            except LedgerMissing:
                continue
        return found

    def _listed(self, ledger: SealedLedger) -> LedgerRecord:
        form = tuple(ledger.form) if ledger.form is not None else None
        return LedgerRecord(id=ledger.id, storage=self._storage.storage_id, entries=ledger.entries, form=form)


def _shows_nothing(ledger: LedgerRecord) -> bool:
    """Whether nothing is left of the ledger, or everything in it is hidden by its index."""
    return ledger.entries == 0 or (ledger.bytes is not None and ledger.bytes == (ledger.hidden_bytes or 0))


def _first_position(record: SegmentRecord, ledgers: tuple[LedgerRecord, ...], missing: list[int]) -> str:
    """The first readable position. What was trimmed is no longer read; a ledger that is lost from the middle is only
    left out."""
    if not missing or (ledgers and ledgers[0].id < min(missing)):
        return record.first_position
    first = Position(ledgers[0].id if ledgers else max(missing) + 1, 0)
    return str(max(first, Position.parse(record.first_position)))
