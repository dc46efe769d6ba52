"""Rolling: a segment continues in a new ledger when its open one is full, so that old data can be deleted ledger by
ledger and a restart reads little.

    plan ─▶ create ─▶ one apply: it is in the list ─▶ appends change over ─▶ the full one is sealed ─▶ recorded

The full ledger accepts appends until they change over, so plain publishes continue while the store is unavailable; they
wait only until the earlier appends are durable. The dedup table is recorded with the final length of the full ledger,
so that a restart need not read that ledger again. Wherever this stops, the next opening seals what is not sealed, and
deletes what was planned and not used.
"""

from __future__ import annotations

from contextlib import suppress

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.txn import paths
from metastore.txn.laws.remedies import RECOVER
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metastore.types import AtVersion, Record, Version
from metatxn.wire import errors
from participants.ledger.offsets import OpenOffsets
from participants.ledger.storage import LedgerCorrupt, LedgerMissing, LedgerStorage, OpenLedger
from participants.segment.dedup_snapshot import chunks_of, delete_stale, write_snapshot
from participants.segment.segment import Segment
from participants.segment.trimming import delete_trimmed, stored_segment, without_trimmed
from participants.segment.upkeep import final_facts, until_done

DEFAULT_MAX_LEDGER_BYTES = 256 << 20


async def without_planned(segment: str, record: SegmentRecord, storage: LedgerStorage) -> SegmentRecord:
    """Delete the ledger that was planned and never used from the storage, and return the record without it."""
    if record.planned is not None:
        await _assert_unused(segment, record.planned, storage)
        await storage.delete(segment, record.planned)
    return record.model_copy(update={"planned": None})


async def _assert_unused(segment: str, ledger: int, storage: LedgerStorage) -> None:
    """Raises if a planned ledger has entries. Appends go to a ledger only once it is listed, so the store has then
    forgotten that it was listed."""
    try:
        found = await storage.seal(segment, ledger)
    except LedgerMissing:
        return
    if found.entries:
        raise LedgerCorrupt(
            f"ledger {ledger} of {segment} has {found.entries} entries, but in the store it was only planned: "
            f"was the store restored? {RECOVER}"
        )


async def plan_ledger(
    number: int,
    stored: Record,
    record: SegmentRecord,
    *,
    store: MetadataStore,
    check: AtVersion,
) -> Record:
    """Replace `stored` by `record`, with `number` planned. Raises `CheckFailed` and the store's errors."""
    assert record.planned is None, "its bytes would never be deleted"
    value = record.model_copy(update={"planned": number}).encode()
    applied = await store.apply(store.batch().check(check).replace(stored, value))
    return Record(stored.key, value, applied.revision, first=False)


async def roll(segment: Segment, store: MetadataStore, storage: LedgerStorage) -> None:
    """Returns when appends go to a new ledger and the full one is sealed, or when the segment admits no more
    appends."""
    with suppress(errors.MetatxnError):  # the segment was lost, and the next opening continues
        await _roll(segment, store, storage)


async def _roll(segment: Segment, store: MetadataStore, storage: LedgerStorage) -> None:
    created = await _created(segment, store, storage)
    if created is None:
        return
    try:
        async with segment.sealing:
            if not segment.admits:
                return
            listed = await _listed(segment, store, LedgerRecord(id=created.id, storage=storage.storage_id))
            if listed is not None:
                offsets = segment.open_offsets
                full = await segment.change_over(*listed, created)
                await _seal(segment, store, storage, full, offsets)
    finally:
        if segment.ledgers.open is not created:
            await created.close()


async def _created(segment: Segment, store: MetadataStore, storage: LedgerStorage) -> OpenLedger | None:
    """A new ledger, planned and created. Each attempt has its own number, because an earlier one may have created its
    ledger."""
    created: OpenLedger | None = None

    async def once() -> None:
        nonlocal created
        if not segment.admits:
            return
        stored = await _as_owner(segment, store)
        record = SegmentRecord.decode(stored.value)
        number = record.newest_ledger + 1
        record = await without_planned(segment.id, record, storage)
        await plan_ledger(number, stored, record, store=store, check=segment.ownership.check)
        created = await storage.create(segment.id, number)

    await until_done(segment, once, "roll again")
    return created


async def _as_owner(segment: Segment, store: MetadataStore) -> Record:
    """The segment's record as it was while this owner had the segment. What is planned in it was planned by this owner
    or an earlier one, so no one else will list it, and it may be deleted. Raises `CheckFailed` if there is another
    owner: what is planned may be the ledger that this one is about to list."""
    check, key = segment.ownership.check, paths.segment(segment.id)
    snapshot = await store.get_many([key, check.key])
    stored, owner = snapshot.records[key], snapshot.records[check.key]
    if owner is None or owner.version != check.version:
        raise CheckFailed(check, owner, snapshot.revision)
    assert stored is not None, "a segment is given up before it is deleted"
    return stored


async def _listed(segment: Segment, store: MetadataStore, ledger: LedgerRecord) -> tuple[SegmentRecord, Version] | None:
    """The segment's record with the new ledger as its last one, or None if the segment was lost."""
    listed: tuple[SegmentRecord, Version] | None = None

    async def once() -> None:
        nonlocal listed
        stored = await stored_segment(segment, store)
        record, version = SegmentRecord.decode(stored.value), stored.version
        if all(each.id != ledger.id for each in record.ledgers):  # otherwise an earlier attempt has landed
            record = record.model_copy(update={"ledgers": (*record.ledgers, ledger), "planned": None})
            batch = store.batch().check(segment.ownership.check).replace(stored, record.encode())
            version = (await store.apply(batch)).revision
        listed = record, version

    await until_done(segment, once, "list the new ledger again")
    return listed


def _offsets(ledger: LedgerRecord, record: SegmentRecord, offsets: OpenOffsets | None) -> dict[str, int | None]:
    """What is recorded of the offsets and timestamps of the ledger that is sealed. An earlier attempt may have landed,
    and `record` has its first offset then."""
    first = record.next_offset if ledger.first_offset is None else ledger.first_offset
    return {"first_offset": first, "latest_record_ms": max(offsets.times, default=None) if offsets else None}


async def _seal(
    segment: Segment, store: MetadataStore, storage: LedgerStorage, full: OpenLedger, offsets: OpenOffsets | None
) -> None:
    """Record the final length, and what its frames say about sequences, in one apply. It also removes what was trimmed
    meanwhile."""
    chunks = chunks_of(segment.dedup)
    check = segment.ownership.check

    async def once() -> None:
        stored = await stored_segment(segment, store)
        record = SegmentRecord.decode(stored.value)
        if all(ledger.id != full.id for ledger in record.ledgers):
            # An earlier attempt has landed, and the ledger is completely trimmed by now.
            segment.recorded(record, stored.version)
            return
        sealed = await full.seal()
        name = f"{segment.ownership.generation}-rolled-{full.id}"
        snapshot = await write_snapshot(store, segment.id, check, name, chunks, full.id)
        ledgers = tuple(
            ledger.model_copy(update=final_facts(sealed, full) | _offsets(ledger, record, offsets))
            if ledger.id == full.id
            else ledger
            for ledger in record.ledgers
        )
        behind = segment.open_offsets.first if segment.open_offsets is not None else None
        update = {"ledgers": ledgers, "dedup": snapshot, "next_offset": behind}
        record = without_trimmed(record.model_copy(update=update))
        applied = await store.apply(store.batch().check(check).replace(stored, record.encode()))
        segment.ledger_recorded(record, applied.revision, sealed)

    await until_done(segment, once, "seal the full ledger again")
    if segment.record.trimmed:
        bytes_gone = lambda: delete_trimmed(segment, store, storage)  # noqa: E731
        await until_done(segment, bytes_gone, "delete trimmed ledgers again")
    if not segment.lost:
        await until_done(
            segment,
            lambda: delete_stale(store, segment.id, check, segment.record.dedup),
            "delete old sequences again",
        )
