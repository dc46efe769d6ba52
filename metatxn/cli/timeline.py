"""The story of one transaction, as its records tell it: what has happened, where, and what is left to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from metatxn.cli.output import when
from metatxn.wire.coordinator import Operation, TransactionHeader

TIMELINE_COLUMNS = ("AT", "EVENT", "SEGMENT", "WHAT")
MOST_OPERATIONS = 1_000
"""The most operation records that are looked at: one with many acknowledgements may have a hundred thousand."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something that has happened, or will at a time `at_ms` to come. The records do not tell when an operation was
    done."""

    event: str
    at_ms: int | None = None
    segment: str | None = None
    what: str | None = None

    @property
    def row(self) -> Sequence[Any]:
        return when(self.at_ms), self.event, self.segment, self.what

    def as_object(self) -> dict[str, Any]:
        fields = {"event": self.event, "at_ms": self.at_ms, "segment": self.segment, "what": self.what}
        return {name: value for name, value in fields.items() if value is not None}


def timeline(header: TransactionHeader, operations: Sequence[Operation], *, more: bool = False) -> list[TimelineEvent]:
    """`operations` are the records that no broker has cleaned up yet; there are others if `more`. Those of a decided
    transaction are on segments that have not materialized the decision yet, or not cleaned up behind it."""
    return list(_events(header, operations, more))


def _events(header: TransactionHeader, operations: Sequence[Operation], more: bool) -> Iterator[TimelineEvent]:
    yield TimelineEvent("begun", header.created_ms, what=_named(owner=header.owner, key=header.transaction_key))
    if header.state == "OPEN":
        yield from _operations(operations, more)
        if header.prepared:
            yield TimelineEvent("prepared", what="only a commit or an abort is accepted")
        yield TimelineEvent(
            "expires", header.deadline_ms, what="it is aborted then, unless it ends before or is kept alive"
        )
        return
    why = header.expired_by or header.reason
    yield TimelineEvent(header.state.lower(), header.finalized_ms, what=why)
    left = sorted({op.segment for op in operations})
    for segment in left:
        yield TimelineEvent(
            "not cleaned up", segment=segment, what="its owner has not materialized this yet, or still cleans up"
        )
    if more:
        yield TimelineEvent("not cleaned up", what="and perhaps on further segments")
    if not left:
        yield TimelineEvent("materialized", what="on all segments; the header is deleted after its retention time")


def _operations(operations: Sequence[Operation], more: bool) -> Iterator[TimelineEvent]:
    writes = [op for op in operations if op.kind == "write"]
    for op in writes:
        yield TimelineEvent("writes", segment=op.segment, what=_named(after=op.after, writer=op.writer))
    acks = Counter((op.segment, op.subscription) for op in operations if op.kind == "ack")
    for (segment, subscription), number in sorted(acks.items(), key=str):
        yield TimelineEvent("acknowledges", segment=segment, what=f"{number} on subscription {subscription}")
    if more:
        yield TimelineEvent("more", what=f"only {MOST_OPERATIONS:,} operations are shown here; see --operations")


def _named(**values: str | None) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value) or None
