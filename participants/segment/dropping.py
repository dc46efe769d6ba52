"""Dropping sealed ledgers of which nothing is left (DESIGN §5.18).

    one apply: the record lists them as `trimmed` ─▶ readers pass over them ─▶ bytes are deleted
                                                                    ─▶ the record forgets them

Rewriting leaves empty ledgers between others, where no trim comes. The first ledger stays, because it says where the
segment begins; so does the one with the last entry that readers are told of, and all after it.
"""

from __future__ import annotations

import structlog

from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from participants.ledger.form import Form
from participants.segment.rewriting import RewritingContext, sealed_ledger
from participants.segment.segment import Segment
from participants.segment.trimming import delete_trimmed, stored_segment
from participants.segment.upkeep import until_done

log = structlog.get_logger()


async def drop_empty(segment: Segment, context: RewritingContext) -> None:
    """Drop the ledgers of which nothing is left. Returns when that is done, or the segment is lost."""
    if segment.lost or not _empty(segment, segment.record):
        return
    await until_done(segment, lambda: _leave(segment, context), "drop empty ledgers again")
    bytes_gone = lambda: delete_trimmed(segment, context.store, context.storage)  # noqa: E731
    await until_done(segment, bytes_gone, "delete empty ledgers again")


def _empty(segment: Segment, record: SegmentRecord) -> list[LedgerRecord]:
    """The ledgers that may go: sealed at a recorded length, so that the table of sequences covers them without being
    read; empty in the form that counts; and between others that stay."""
    horizon = segment.ledgers.shown(segment.buffer.max_read_position)
    return [each for each in record.ledgers[1:] if each.id < horizon.ledger and _is_empty(segment, each)]


def _is_empty(segment: Segment, ledger: LedgerRecord) -> bool:
    sealed = sealed_ledger(segment, ledger.id)
    if ledger.entries is None or sealed is None:
        return False
    named = Form(*ledger.form) if ledger.form is not None else None
    return sealed.form == named and sealed.last_kept < 0


async def _leave(segment: Segment, context: RewritingContext) -> None:
    """Make the record list them as `trimmed`, unless an earlier attempt has landed."""
    stored = await stored_segment(segment, context.store)
    record, version = SegmentRecord.decode(stored.value), stored.version
    gone = _empty(segment, record)
    if gone:
        kept = tuple(each for each in record.ledgers if each not in gone)
        record = record.model_copy(update={"ledgers": kept, "trimmed": (*record.trimmed, *gone)})
        batch = context.store.batch().check(segment.ownership.check).replace(stored, record.encode())
        version = (await context.store.apply(batch)).revision
        log.info("empty ledgers dropped", segment=segment.id, ledgers=[each.id for each in gone])
    segment.recorded(record, version)
