"""Replacing a sealed ledger by a smaller one with the same positions (DESIGN §5.18).

    write another form, durably ─▶ one apply: the record names it ─▶ readers change over
                                                ─▶ the earlier form is deleted ─▶ the record forgets that it was there

A ledger of which at least half is hidden by its index is rewritten without what is hidden. The index stays: a page that
was read from the earlier form is judged by it. What was written and is not named says nothing, and goes with the next
form or with the ledger. So this may stop anywhere and be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metastore.types import Check
from participants.common.metrics import BrokerMetrics
from participants.ledger.form import Form
from participants.ledger.hidden_index import HiddenRanges
from participants.ledger.storage import LedgerError, LedgerStorage, SealedLedger
from participants.segment.segment import Segment
from participants.segment.trimming import stored_segment
from participants.segment.upkeep import until_done

log = structlog.get_logger()
HIDDEN_PARTS = 2
"""A ledger is rewritten once this fraction (1/n) of its bytes is hidden."""
COPIED_BYTES_PER_S = 32 << 20
"""The most bytes per second that a broker copies, so that its disk and its network are left to its clients."""


class RewritingLimit:
    """The work of all segments of a broker: one ledger at a time, and a limited number of bytes per second."""

    def __init__(self) -> None:
        self.at_once = asyncio.Semaphore(1)

    async def pace(self, copied_bytes: int) -> None:
        await asyncio.sleep(copied_bytes / COPIED_BYTES_PER_S)


@dataclass(frozen=True, slots=True)
class RewritingContext:
    store: MetadataStore
    storage: LedgerStorage
    limit: RewritingLimit
    metrics: BrokerMetrics


async def rewrite_hidden(segment: Segment, context: RewritingContext) -> None:
    """Rewrite what is mostly hidden, and delete what earlier rewritings have left. Returns when that is done, or has
    failed, or the segment is lost."""
    await delete_former(segment, context)
    for record in segment.record.ledgers:
        if segment.lost or not _is_mostly_hidden(record) or record.former or context.limit.at_once.locked():
            continue
        try:
            await _without_hidden(segment, context, record)
        except (LedgerError, CheckLost) as error:
            if isinstance(error, CheckLost) or sealed_ledger(segment, record.id) is None:
                log.info("a ledger was trimmed before it was rewritten", segment=segment.id, ledger=record.id)
            else:  # there is no space, or it cannot be read: this is asked for again
                log.warning("a ledger is not rewritten", segment=segment.id, ledger=record.id, error=str(error))
    await delete_former(segment, context)


def _is_mostly_hidden(ledger: LedgerRecord) -> bool:
    hidden, whole = ledger.hidden_bytes, ledger.bytes
    return bool(ledger.hidden) and hidden is not None and whole is not None and HIDDEN_PARTS * hidden >= whole > 0


async def _without_hidden(segment: Segment, context: RewritingContext, record: LedgerRecord) -> None:
    ledger = sealed_ledger(segment, record.id)
    if ledger is None:
        return
    async with context.limit.at_once:
        hidden = segment.hidden.within(record.id)
        if hidden is None:
            hidden = await segment.hidden.load(record.id)
        told = tells_first_offset(segment.record, ledger)
        await rewrite(segment, context, ledger, _kept(ledger, hidden, told))
        if segment.attached is not None:
            segment.attached.left_out(committed=False)


def sealed_ledger(segment: Segment, number: int) -> SealedLedger | None:
    found = [each for each in segment.ledgers.sealed if each.id == number]
    return found[0] if found and isinstance(found[0], SealedLedger) else None


def _kept(ledger: SealedLedger, hidden: HiddenRanges, told: int | None) -> list[int]:
    left = (entry for entry in range(ledger.entries) if ledger.bytes_of(entry, entry))
    return [entry for entry in left if entry not in hidden or entry == told]


@dataclass(frozen=True, slots=True)
class Naming:
    """What else the apply that names a form does: it changes the record, and checks something."""

    change: Callable[[SegmentRecord], SegmentRecord] = lambda record: record
    checks: Sequence[Check] = ()


class CheckLost(Exception):
    """One of the `checks` of a naming does not hold, or the form lacks what tells the first offset by now; and nothing
    was named."""


def tells_first_offset(record: SegmentRecord, ledger: SealedLedger) -> int | None:
    """The entry that tells the first offset of the segment, if it is in this ledger: the one up to which it is trimmed,
    or the next one, or else the last one before these. No form leaves it out, no matter who can see it: the first
    offset would move backwards (DESIGN §5.20)."""
    up_to = record.trimmed_up_to
    if record.next_offset is None or up_to is None or up_to.ledger != ledger.id:
        return None
    before, behind = ledger.kept_below(up_to.entry + 1), ledger.first_kept(up_to.entry + 1)
    if before < up_to.entry and behind == up_to.entry + 1 < ledger.entries:
        return behind
    return before if before >= 0 else None


async def rewrite(
    segment: Segment,
    context: RewritingContext,
    ledger: SealedLedger,
    kept: Sequence[int],
    naming: Naming = Naming(),
) -> None:
    """Replace the ledger by a form of it with the entries `kept`, of which one `tells_first_offset`. Raises
    `LedgerError` and `CheckLost`, before anything has changed."""
    form = segment.next_form()
    rewritten = await context.storage.write_form(segment.id, ledger, form, kept, context.limit.pace)
    once = lambda: _name(segment, context, ledger, rewritten, naming)  # noqa: E731
    await until_done(segment, once, "name the new form of a ledger again")
    if segment.lost or sealed_ledger(segment, ledger.id) is None:  # or it was trimmed meanwhile
        return
    context.metrics.rewritten_ledgers.inc()
    context.metrics.rewritten_bytes.inc(ledger.size_bytes - rewritten.size_bytes)
    log.info(
        "a ledger was rewritten",
        segment=segment.id,
        ledger=ledger.id,
        form=str(form),
        bytes=rewritten.size_bytes,
        bytes_before=ledger.size_bytes,
    )


async def _name(
    segment: Segment, context: RewritingContext, ledger: SealedLedger, rewritten: SealedLedger, naming: Naming
) -> None:
    """Make the record name the new form. From then on readers read it, and never again an earlier one."""
    assert rewritten.form is not None
    stored = await stored_segment(segment, context.store)
    record = SegmentRecord.decode(stored.value)
    found = [each for each in record.ledgers if each.id == rewritten.id]
    if not found:
        await context.storage.delete(segment.id, rewritten.id)  # it was trimmed meanwhile, and this came behind
        return
    version = stored.version
    if found[0].form != rewritten.form:  # otherwise an earlier attempt has landed
        told = tells_first_offset(record, ledger)
        if told is not None and not rewritten.bytes_of(told, told):
            raise CheckLost  # it was trimmed meanwhile
        facts = {"form": tuple(rewritten.form), "former": True, "bytes": rewritten.size_bytes, "hidden_bytes": None}
        record = naming.change(_with_facts(record, {rewritten.id}, facts))
        batch = context.store.batch().check(segment.ownership.check, *naming.checks)
        try:
            applied = await context.store.apply(batch.replace(stored, record.encode()))
            version = applied.revision
        except CheckFailed as lost:
            if lost.check not in naming.checks:
                raise
            # An earlier attempt may have landed after the read above; from now on it cannot.
            stored = await stored_segment(segment, context.store)
            record, version = SegmentRecord.decode(stored.value), stored.version
            if not _names(record, rewritten):
                raise CheckLost from lost
    segment.ledger_recorded(record, version, rewritten)


def _names(record: SegmentRecord, rewritten: SealedLedger) -> bool:
    return any(each.id == rewritten.id and each.form == rewritten.form for each in record.ledgers)


async def delete_former(segment: Segment, context: RewritingContext) -> None:
    """Delete the earlier forms of ledgers that have another one."""
    if any(each.former for each in segment.record.ledgers):
        await until_done(segment, lambda: _delete_former(segment, context), "delete earlier forms of ledgers again")


async def _delete_former(segment: Segment, context: RewritingContext) -> None:
    stored = await stored_segment(segment, context.store)
    record = SegmentRecord.decode(stored.value)
    former = {each.id: Form(*each.form) for each in record.ledgers if each.former and each.form is not None}
    for ledger, form in former.items():
        await context.storage.delete_forms_before(segment.id, ledger, form)
    record = _with_facts(record, former.keys(), {"former": None})
    batch = context.store.batch().check(segment.ownership.check).replace(stored, record.encode())
    segment.recorded(record, (await context.store.apply(batch)).revision)


def _with_facts(record: SegmentRecord, ledgers: Collection[int], facts: Mapping[str, Any]) -> SegmentRecord:
    changed = (each.model_copy(update=facts) if each.id in ledgers else each for each in record.ledgers)
    return record.model_copy(update={"ledgers": tuple(changed)})
