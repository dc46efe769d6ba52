"""Dropping the oldest entries of a segment, and the state that only they need (DESIGN §5.6).

    one apply: the first readable position moves, outcomes below it go ─▶ bytes are deleted ─▶ the record forgets them

Ledgers with nothing readable move to `trimmed` in that apply and stay there until their bytes are deleted, so that a
crash in between leaves nothing behind. The last ledger always stays, because it has the segment's end. So does a ledger
whose final length is not recorded: its dedup snapshot is recorded with the length, and until then only its frames say
which sequences it contains. The apply that records both moves it to `trimmed` (see `rolling`).

If the answer to that apply is lost, nothing that it may have trimmed is read until a later version of the record shows
whether it took effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, OutcomeUnknown, StoreUnavailable
from metastore.slices import slices
from metastore.txn import paths
from metastore.txn.records.operations import Outcome
from metastore.txn.records.segments import SegmentRecord
from metastore.types import Applied, Batch, Check, Record
from metatxn.service.patience import Patience
from metatxn.wire import errors
from metatxn.wire.position import Position
from participants.ledger.storage import LedgerStorage
from participants.segment.owned import UnknownTrim
from participants.segment.segment import Segment
from participants.segment.upkeep import until_done

OUTCOMES_PER_APPLY = 40
"""The outcomes that are deleted at once: each is a check and a deletion, so this stays below etcd's limit of 128
operations per transaction."""


async def trim(
    segment: Segment, store: MetadataStore, storage: LedgerStorage, before: Position, checks: Sequence[Check] = ()
) -> None:
    """Drop every entry below `before`, unless that is already done.

    Raises `CheckFailed` if one of `checks` does not hold, and INVALID_ARGUMENT if an entry below `before` is not
    readable yet, or does not exist yet. After an error of the store the call can be repeated.
    """
    segment.assert_serving()
    horizon = segment.buffer.max_read_position
    up_to = segment.ledgers.last_before(before)
    if (up_to is not None and up_to > horizon) or before > segment.buffer.last_durable.next:
        await segment.reader.assert_owned()
        raise errors.InvalidArgument(
            f"before: {before} is above the last position that readers could see, {horizon}",
            action="Trim up to that position, and the rest once the transactions that hold readers back are decided.",
            field="before",
            max_read_position=str(horizon),
        )
    if up_to is not None:
        try:
            await _move(segment, store, up_to, checks)
        except OutcomeUnknown:
            learnt = lambda: _learn_outcome(segment, store, storage, up_to)  # noqa: E731
            segment.spawn(until_done(segment, learnt, "ask again whether a trim took effect"))
            raise
    bytes_gone = until_done(segment, lambda: delete_trimmed(segment, store, storage), "delete trimmed ledgers again")
    segment.spawn(bytes_gone)


def without_trimmed(record: SegmentRecord) -> SegmentRecord:
    """The record with all ledgers that have nothing readable in `trimmed`, as far as they may be there."""
    up_to = record.trimmed_up_to
    gone = [each for each in record.ledgers[:-1] if each.last is not None and up_to is not None and each.last <= up_to]
    kept = [ledger for ledger in record.ledgers if ledger not in gone]
    return record.model_copy(update={"ledgers": tuple(kept), "trimmed": (*record.trimmed, *gone)})


async def _move(segment: Segment, store: MetadataStore, up_to: Position, checks: Sequence[Check]) -> None:
    """Move the first readable position after `up_to`, unless it is already there. No outcome is left below it."""
    patience = Patience()
    while await patience.lasts():
        try:
            await _move_once(segment, store, up_to, checks)
            return
        except CheckFailed as lost:
            if lost.check == segment.ownership.check:
                segment.deposed_by(lost)
                raise segment.not_serving() from None
            if lost.check in checks:
                raise
    raise StoreUnavailable(f"segment {segment.id} was changed by other requests each time")


async def _move_once(segment: Segment, store: MetadataStore, up_to: Position, checks: Sequence[Check]) -> None:
    """One attempt of `_move`. Raises `CheckFailed` if the records have changed since they were read."""
    stored = await stored_segment(segment, store)
    record = SegmentRecord.decode(stored.value)
    segment.recorded(record, stored.version)
    up_to = max(up_to, record.trimmed_up_to or up_to)
    outcomes = list(slices(store, await _outcomes(segment, store, up_to), OUTCOMES_PER_APPLY, Batch.remove)) or [[]]
    moved = without_trimmed(record.model_copy(update={"first_position": str(up_to.next)}))
    batch = store.batch().check(segment.ownership.check, *checks)
    if moved != record:
        batch.replace(stored, moved.encode())
    segment.trims_in_flight.append(up_to)
    try:
        applied = await delete_outcomes(batch, outcomes[0], store)
    except OutcomeUnknown:
        if moved != record and segment.recorded_at == stored.version:
            earlier = segment.unknown_trim
            segment.unknown_trim = UnknownTrim(max(up_to, earlier.up_to if earlier else up_to), stored.version)
        raise
    finally:
        segment.trims_in_flight.remove(up_to)
    segment.trimmed(moved, stored.version if moved == record or applied is None else applied.revision)
    for some in outcomes[1:]:
        await delete_outcomes(store.batch().check(segment.ownership.check), some, store)


async def _learn_outcome(segment: Segment, store: MetadataStore, storage: LedgerStorage, up_to: Position) -> None:
    """Find out whether a trim up to `up_to` took effect whose answer was lost, and in that case do what follows it.

    A record that it has not replaced is written again as it is. Its version changes, so a request that is still on its
    way fails its check, and what was readable stays so: a policy may keep it by now. Raises as `trim` does.
    """
    stored = await stored_segment(segment, store)
    record = SegmentRecord.decode(stored.value)
    segment.recorded(record, stored.version)
    if segment.unknown_trim is not None:
        applied = await store.apply(store.batch().check(segment.ownership.check).replace(stored, stored.value))
        segment.recorded(record, applied.revision)
    elif record.trimmed_up_to is not None and record.trimmed_up_to >= up_to:
        await _move(segment, store, up_to, ())
        await delete_trimmed(segment, store, storage)


async def delete_outcomes(batch: Batch, outcomes: Sequence[Record], store: MetadataStore) -> Applied | None:
    """Delete the outcomes, together with what is already in the batch. None if there is nothing to do."""
    for outcome in outcomes:
        batch.remove(outcome)
    return await store.apply(batch) if batch.written() else None


async def _outcomes(segment: Segment, store: MetadataStore, up_to: Position) -> list[Record]:
    """The outcomes of transactions whose last frame is at or below `up_to`."""
    found = await store.scan(paths.outcomes(segment.id))
    return [record for record in found.records if Position.parse(Outcome.decode(record.value).highest) <= up_to]


async def delete_trimmed(segment: Segment, store: MetadataStore, storage: LedgerStorage) -> None:
    """Delete the ledgers in `trimmed`, and then remove them from the record.

    After `LedgerError`, `CheckFailed` or an error of the store the call can be repeated.
    """
    stored = await stored_segment(segment, store)
    record = SegmentRecord.decode(stored.value)
    segment.recorded(record, stored.version)  # the answer to what put them there may be on its way: readers come first
    if not record.trimmed:
        return
    for ledger in record.trimmed:
        await storage.delete(segment.id, ledger.id)
    record = record.model_copy(update={"trimmed": ()})
    batch = store.batch().check(segment.ownership.check).replace(stored, record.encode())
    segment.recorded(record, (await store.apply(batch)).revision)


async def stored_segment(segment: Segment, store: MetadataStore, *, even_removed: bool = False) -> Record:
    """The record of a segment that is served here. Raises STORE_UNAVAILABLE if it is gone."""
    stored = await store.get(paths.segment(segment.id))
    if stored is None or (not even_removed and SegmentRecord.decode(stored.value).state == "deleted"):
        segment.leave("it was deleted")
        raise segment.not_serving()
    return stored
