"""The end of a segment's appends: stop admission, drain, seal the ledger, then one apply that says so (DESIGN §5.14).

    drain ─▶ ledger sealed ─▶ dedup chunks in the store ─▶ one apply: sealed, final length, children, topic ─▶ told

Nothing is admitted from the first step on. Until the apply is answered it is unknown whether the segment is sealed, so
it is repeated until that is known. Each attempt checks the records at the versions that it has just read, so only one
can take effect. If the seal becomes impossible, the segment object is lost, and the next opening continues with a new
ledger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, MetastoreError
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.types import Batch, Version
from metatxn.service.lifecycle import Lifecycle, tell
from metatxn.service.retry import until_it_succeeds
from metatxn.wire import errors
from participants.ledger.storage import LedgerError, SealedLedger
from participants.segment.dedup_snapshot import chunks_of, delete_stale, write_snapshot
from participants.segment.segment import Segment
from participants.segment.upkeep import final_facts, until_done

log = structlog.get_logger()

Succession = Callable[[Batch, SegmentRecord], Awaitable[SegmentRecord]]
"""Add the other changes of the seal to its apply, and return the sealed record with its children. It is called again
for each attempt. Raises `errors.MetatxnError` if the segment must no longer be sealed."""


Installation = Callable[[SegmentRecord], Awaitable[None]]
"""Awaited once the segment is sealed and before anyone is told. It prepares the children, as far as possible, and
raises nothing."""


async def seal(
    segment: Segment, store: MetadataStore, succession: Succession, installation: Installation
) -> SegmentRecord:
    """Seal the segment and return its record, which this call or an earlier one has sealed. Once begun it ends, even if
    the caller is cancelled.

    Raises the `errors.MetatxnError` of `succession`, or STORE_UNAVAILABLE if the segment was lost meanwhile.
    """

    async def once() -> SegmentRecord:
        async with segment.sealing:
            if segment.record.state == "active":
                sealed, version, last = await _seal(segment, store, succession)
                try:
                    await installation(sealed)
                finally:  # otherwise the segment would be sealed again, which the store would always refuse
                    segment.sealed(sealed, version, last)
                event = Lifecycle.SEGMENT_SPLIT if sealed.children else Lifecycle.SEGMENT_SEALED
                tell(event, segment=segment.id, last_position=str(last.last), children=list(sealed.children))
                check = segment.ownership.check
                stale_gone = until_done(
                    segment,
                    lambda: delete_stale(store, segment.id, check, sealed.dedup),
                    "delete the sequences of before again",
                )
                segment.spawn(stale_gone)
            return segment.record

    return await segment.finish(once())


async def _seal(
    segment: Segment, store: MetadataStore, succession: Succession
) -> tuple[SegmentRecord, Version, SealedLedger]:
    try:
        await segment.publisher.drain()
        segment.assert_serving()
        assert segment.ledgers.open is not None
        open_ledger = segment.ledgers.open
        last = await open_ledger.seal()
        chunks = chunks_of(segment.dedup)
        check = segment.ownership.check

        async def attempt() -> tuple[SegmentRecord, Version]:
            segment.assert_serving()
            name = f"{segment.ownership.generation}-sealed"
            snapshot = await write_snapshot(store, segment.id, check, name, chunks, last.id)
            stored = await store.get(paths.segment(segment.id))
            if stored is None:
                raise segment.not_serving()
            record, version = SegmentRecord.decode(stored.value), stored.version
            if not record.ledgers or record.ledgers[-1].id != last.id:  # a new owner lists none before it lists its own
                segment.lose("another generation has taken it")
                raise segment.not_serving()
            final = record.ledgers[-1].model_copy(update=final_facts(last, open_ledger))
            if record.state == "active":
                batch = store.batch().check(check)
                ledgers = (*record.ledgers[:-1], final)
                sealed = {"state": "sealed", "ledgers": ledgers, "dedup": snapshot, "sealed_ms": segment.clock()}
                record = await succession(batch, record.model_copy(update=sealed))
                version = (await store.apply(batch.replace(stored, record.encode()))).revision
            elif record.state == "deleted" or record.ledgers[-1] != final:
                segment.lose("another generation has ended it")  # and it was not an earlier attempt of this one
                raise segment.not_serving()
            return record, version

        async def unless_deposed() -> tuple[SegmentRecord, Version]:
            try:
                return await attempt()
            except CheckFailed as lost:
                if lost.check != check:
                    raise  # the records have changed and are read again
                segment.deposed_by(lost)
                raise segment.not_serving() from None

        def report(error: Exception) -> None:
            log.warning("seal again", segment=segment.id, error=str(error))
            if not isinstance(error, CheckFailed):
                segment.publisher.seal_delayed(str(error))

        return *await until_it_succeeds(unless_deposed, MetastoreError, report), last
    except LedgerError as error:
        segment.lose(f"its ledger cannot be sealed: {error}")
        raise segment.not_serving() from error
    except errors.MetatxnError as error:
        segment.lose(f"it cannot be sealed: {error}")
        raise
