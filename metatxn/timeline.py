"""The story of one transaction, as its records and the brokers tell it: what has happened, where, and what is left to
do. For the command line and the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metatxn.wire.broker import WorkOnSegment
from metatxn.wire.coordinator import Operation, StoredRecord, TransactionHeader
from metatxn.words import size_text

MOST_OPERATIONS = 1_000
"""The most operation records that are looked at: one with many acknowledgements may have a hundred thousand."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something that has happened, or will at a time `at_ms` to come. The records do not say when an operation was
    done; a broker that still remembers it does."""

    event: str
    at_ms: int | None = None
    segment: str | None = None
    what: str | None = None

    def as_object(self) -> dict[str, Any]:
        fields = {"event": self.event, "at_ms": self.at_ms, "segment": self.segment, "what": self.what}
        return {name: value for name, value in fields.items() if value is not None}


def timeline(
    header: TransactionHeader,
    operations: Sequence[Operation],
    *,
    more: bool = False,
    work: Sequence[WorkOnSegment] = (),
    records: Sequence[StoredRecord] = (),
) -> list[TimelineEvent]:
    """`operations` are the records that no broker has cleaned up yet; there are others if `more`. Those of a decided
    transaction are on segments that have not materialized the decision yet, or not cleaned up after it. `work` is what
    the brokers remember, and `records` are those besides the header."""
    return list(_events(header, operations, more, {each.segment: each for each in work}, records))


def _events(
    header: TransactionHeader,
    operations: Sequence[Operation],
    more: bool,
    work: Mapping[str, WorkOnSegment],
    records: Sequence[StoredRecord],
) -> Iterator[TimelineEvent]:
    yield TimelineEvent("begun", header.created_ms, what=_named(owner=header.owner, key=header.transaction_key))
    if header.state == "OPEN":
        yield from _operations(operations, more, work)
        yield from _side_records(header, records)
        yield TimelineEvent(
            "expires", header.deadline_ms, what="it is aborted then, unless it ends earlier or is kept alive"
        )
        return
    yield from _remembered(work)
    yield from _kept_alive({"renewals": header.renewals, "renewed_ms": header.renewed_ms})
    yield TimelineEvent(header.state.lower(), header.finalized_ms, what=_why(header))
    yield from _effects(header, work)
    left = sorted({op.segment for op in operations})
    for segment in left:
        yield TimelineEvent(
            "not cleaned up", segment=segment, what="its owner has not materialized this yet, or is still cleaning up"
        )
    if more:
        yield TimelineEvent("not cleaned up", what="and perhaps on other segments")
    if not left:
        yield TimelineEvent("materialized", what="on all segments; the header is deleted after its retention time")


def _why(header: TransactionHeader) -> str | None:
    """Who decided it, and the reason."""
    who = header.expired_by or header.ended_by
    by = f"by {who}" if who else None
    return ": ".join(part for part in (by, header.reason) if part) or None


def _operations(
    operations: Sequence[Operation], more: bool, work: Mapping[str, WorkOnSegment]
) -> Iterator[TimelineEvent]:
    told: set[str] = set()
    for op in operations:
        if op.kind == "write":
            done = work.get(op.segment) if op.segment not in told else None
            told.add(op.segment)
            what = _sentence(_named(after=op.after, writer=op.writer), written(done))
            yield TimelineEvent("writes", done.first_ms if done else None, op.segment, what)
    acks = Counter((op.segment, op.subscription) for op in operations if op.kind == "ack")
    for (segment, subscription), number in sorted(acks.items(), key=str):
        yield TimelineEvent("acknowledges", segment=segment, what=f"{number} on subscription {subscription}")
    if more:
        yield TimelineEvent("more", what=f"only {MOST_OPERATIONS:,} operations are shown here; see --operations")


def _side_records(header: TransactionHeader, records: Sequence[StoredRecord]) -> Iterator[TimelineEvent]:
    """The last keep-alive, and a prepare, whose record replaces that of the keep-alives and takes them over."""
    beside = {record.key.split("/")[1]: record.value for record in records}
    if "txn-lease" in beside:
        yield from _kept_alive({"renewals": 1, **_members(beside["txn-lease"])})
    if header.prepared:
        prepared = _members(beside.get("txn-prepared"))
        yield from _kept_alive(prepared)
        yield TimelineEvent("prepared", prepared.get("prepared_ms"), what="only a commit or an abort is accepted")


def _kept_alive(told: Mapping[str, Any]) -> Iterator[TimelineEvent]:
    number = told.get("renewals")
    if isinstance(number, int) and number > 0:
        what = f"{number:,} times; this was the last" if number > 1 else None
        yield TimelineEvent("kept alive", told.get("renewed_ms"), what=what)


def _members(value: Any) -> dict[str, Any]:
    """The members of a record, whatever may have been written in its place."""
    return value if isinstance(value, dict) else {}


def _remembered(work: Mapping[str, WorkOnSegment]) -> Iterator[TimelineEvent]:
    for done in sorted(work.values(), key=lambda each: each.first_ms or 0):
        if done.entries:
            yield TimelineEvent("wrote", done.first_ms, done.segment, written(done))
        for subscription, number in sorted(done.acks.items()):
            what = f"{number} on subscription {subscription}"
            yield TimelineEvent("acknowledged", done.first_ms, done.segment, what)


def _effects(header: TransactionHeader, work: Mapping[str, WorkOnSegment]) -> Iterator[TimelineEvent]:
    """Where and when the decision took effect for readers and subscriptions."""
    committed = header.state == "COMMITTED"
    found: list[tuple[int, str, str, str]] = []
    for done in work.values():
        if done.effective_ms is not None and done.entries:
            found.append((done.effective_ms, done.segment, "visible" if committed else "skipped", ""))
        for subscription, at_ms in done.acks_effective_ms.items():
            event = "consumed" if committed else "redelivered"
            found.append((at_ms, done.segment, event, f" on subscription {subscription}"))
    for at_ms, segment, event, where in sorted(found):
        lag_ms = max(0, at_ms - (header.finalized_ms or at_ms))
        yield TimelineEvent(event, at_ms, segment, f"{lag_ms} ms after the decision{where}")


def written(done: WorkOnSegment | None) -> str | None:
    """How much the transaction has written."""
    if done is None or not done.entries:
        return None
    entries = "1 entry" if done.entries == 1 else f"{done.entries:,} entries"
    messages = "1 message" if done.messages == 1 else f"{done.messages:,} messages"
    return f"{messages} in {entries}, {size_text(done.size_bytes)}"


def _sentence(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None


def _named(**values: str | None) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value) or None
