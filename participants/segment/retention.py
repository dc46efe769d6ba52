"""Which ledgers a policy drops, and dropping them (DESIGN §6).

    policy, records of all segments ─▶ what may go by age or size ─▶ as far as nothing needs it ─▶ a checked trim

Whole ledgers go, from the oldest on. By age one may go once its latest message is older than `retention_ms`. By size
the ledgers of all segments are one row in the order of their latest messages: as many of the oldest may go as leave
`retention_bytes`. Every owner finds the same row in the store, so no owner needs another, and a topic keeps its latest
bytes however its keys are distributed. The last ledger of an active segment stays and, while it is open, does not
count. That of a sealed one is dropped like the others: its entries are trimmed, and its bytes go with the segment (see
`participants.topic.removal`).

The trim checks the records from which the policy was read. Creating or moving a subscription writes the topic's record,
too, so nothing is dropped that a policy or a subscription has begun to keep meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from metastore.api import MetadataStore
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metastore.types import Check
from metatxn.wire.policies import UNLIMITED, EffectivePolicy
from metatxn.wire.position import Position
from participants.ledger.chain import READ_BYTES
from participants.ledger.storage import LedgerStorage
from participants.segment.segment import Segment
from participants.segment.trimming import stored_segment, trim

log = structlog.get_logger()
SHARES_OF_OPEN_LEDGERS = 4
"""The open ledgers of a topic together have at most this fraction (1/n) of `retention_bytes` or `backlog_bytes`, as
far as they are closed for it: what they hold comes on top of what is kept."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ledger that may be dropped. `age_ms` is the latest publish time in it and in all before it."""

    age_ms: int
    segment: str
    ledger: LedgerRecord


def droppable(policy: EffectivePolicy, records: Mapping[str, SegmentRecord], now_ms: int) -> dict[str, LedgerRecord]:
    """The last ledger that the policy does not keep, by segment; segments that keep all of theirs are missing.
    `records` are all segments of the topic."""
    found: dict[str, LedgerRecord] = {}
    rows = {segment: list(_candidates(segment, record)) for segment, record in records.items()}
    kept_ms = policy.retention_ms.value
    for row in rows.values():
        for each in row:
            if kept_ms != UNLIMITED and each.age_ms + kept_ms < now_ms:
                found[each.segment] = each.ledger
    for each in _beyond(policy.retention_bytes.value, records, rows):
        if each.segment not in found or found[each.segment].id < each.ledger.id:
            found[each.segment] = each.ledger
    return found


def _candidates(segment: str, record: SegmentRecord) -> Iterator[Candidate]:
    """The ledgers that may be dropped, from the oldest on, up to one of which too little is known."""
    age_ms = 0
    for ledger in _readable_ledgers(record):
        if not ledger.entries or ledger.bytes is None or ledger.last_ms is None:
            return
        age_ms = max(age_ms, ledger.last_ms)
        yield Candidate(age_ms, segment, ledger)


def _readable_ledgers(record: SegmentRecord) -> Sequence[LedgerRecord]:
    """The ledgers that can be dropped once they are sealed. All of the last ledger may be trimmed already."""
    up_to = record.trimmed_up_to
    ledgers = record.ledgers if record.state == "sealed" else record.ledgers[:-1]
    return [each for each in ledgers if each.last is None or up_to is None or each.last > up_to]


def _beyond(
    kept_bytes: int, records: Mapping[str, SegmentRecord], rows: Mapping[str, Sequence[Candidate]]
) -> Iterator[Candidate]:
    """The oldest ledgers, as many as leave `kept_bytes`. Two owners that look at different times find the same ones:
    what was dropped meanwhile is the beginning of the row, and what was written is its end."""
    if kept_bytes == UNLIMITED:
        return
    left = sum(ledger.bytes or 0 for record in records.values() for ledger in record.ledgers if not record.is_bare)
    everything = (each for row in rows.values() for each in row)
    for each in sorted(everything, key=lambda each: (each.age_ms, each.segment, each.ledger.id)):
        left -= each.ledger.bytes or 0
        if left < kept_bytes:
            return
        yield each


def must_roll(segment: Segment, policy: EffectivePolicy, active: int, now_ms: int) -> bool:
    """Whether the open ledger must be closed, so that it can be dropped later. With many ledgers each becomes older and
    larger, as in `Segment`, because their list is one record."""
    ledger = segment.ledgers.open
    if ledger is None or not ledger.entries or ledger.first_ms is None:
        return False
    after_ms, bounded = policy.roll_after_ms, policy.bounded_bytes
    old = after_ms is not None and ledger.first_ms + segment.ledger_scale * after_ms <= now_ms
    share = segment.ledger_scale * (bounded or 0) / (SHARES_OF_OPEN_LEDGERS * max(active, 1))
    return old or (bounded is not None and ledger.size_bytes >= share)


async def learn_facts(segment: Segment, store: MetadataStore) -> None:
    """Record size and age of the oldest sealed ledger of which they are not known: an older version sealed it, or a
    restored store has forgotten them. Raises `LedgerError`, `CheckFailed`, and the store's errors."""
    unknown = [each for each in segment.record.ledgers if each.entries and (each.bytes is None or each.last_ms is None)]
    opened = {ledger.id: ledger for ledger in segment.ledgers.sealed}
    if not unknown or unknown[0].id not in opened or unknown[0].last is None:
        return
    ledger, latest_ms = unknown[0], 0
    at, end = max(Position(ledger.id, -1), segment.ledgers.start), unknown[0].last
    while frames := await segment.ledgers.read(at, end, READ_BYTES):
        latest_ms = max(latest_ms, *(frame.publish_ms for frame in frames))
        at = frames[-1].position
    stored = await stored_segment(segment, store)
    record = SegmentRecord.decode(stored.value)
    facts = {"bytes": opened[ledger.id].size_bytes, "last_ms": latest_ms}
    ledgers = tuple(each.model_copy(update=facts) if each.id == ledger.id else each for each in record.ledgers)
    record = record.model_copy(update={"ledgers": ledgers})
    applied = await store.apply(store.batch().check(segment.ownership.check).replace(stored, record.encode()))
    segment.recorded(record, applied.revision)


@dataclass(frozen=True, slots=True)
class Due:
    """What a pass has found about a segment: its record, and the last ledger that the policy does not keep."""

    record: SegmentRecord
    last: LedgerRecord | None


async def drop(
    segment: Segment,
    store: MetadataStore,
    storage: LedgerStorage,
    due: Due,
    *,
    hard: bool,
    checks: Sequence[Check],
) -> list[LedgerRecord]:
    """Drop what is due, as far as readers could see it and, unless `hard`, every subscription has acknowledged it.
    Returns the dropped ledgers.

    Raises the store's errors, and `CheckFailed` if one of `checks` does not hold.
    """
    if due.last is not None and due.record.state == "sealed" and segment.attached is not None:
        await segment.attached.settle()
    gone = await _losable(segment, due, hard)
    up_to = gone[-1].last if gone else None
    if up_to is None:
        return []
    await trim(segment, store, storage, up_to.next, checks)
    log.info(
        "ledgers dropped by the policy",
        segment=segment.id,
        ledgers=[ledger.id for ledger in gone],
        first_position=str(up_to.next),
    )
    return gone


async def _losable(segment: Segment, due: Due, hard: bool) -> list[LedgerRecord]:
    gone: list[LedgerRecord] = []
    if due.last is None:
        return gone
    acknowledged = None if hard or segment.attached is None else await segment.attached.acknowledged()
    horizon = segment.buffer.max_read_position
    for ledger in _readable_ledgers(due.record):
        end = ledger.last
        if ledger.id > due.last.id or end is None or end > horizon:
            break
        if acknowledged is not None and end.next > acknowledged:
            break
        gone.append(ledger)
    return gone
