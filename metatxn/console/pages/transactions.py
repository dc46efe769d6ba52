"""The list of transactions, and one of them as a timeline."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.live import is_live
from metatxn.console.pages.ending import may_end, needs_force
from metatxn.console.visit import Values, Visit
from metatxn.timeline import TimelineEvent, timeline
from metatxn.wire.broker import WorkOnSegment
from metatxn.wire.coordinator import StoredRecord, TransactionHeader

PER_PAGE = 50
MOST_EVENTS = 200
MOST_SEGMENTS = 100
MOST_RECORDS = 50
AGES = {"1m": 60_000, "10m": 600_000, "1h": 3_600_000, "1d": 86_400_000}
AGE_WORDS = (
    ("", "at any time"),
    ("1m", "more than a minute ago"),
    ("10m", "more than 10 minutes ago"),
    ("1h", "more than an hour ago"),
    ("1d", "more than a day ago"),
)
FILTERS = ("state", "older", "key", "owner", "segment", "text")
KINDS = {
    "begun": "info",
    "committed": "ok",
    "visible": "ok",
    "consumed": "ok",
    "aborted": "bad",
    "skipped": "bad",
    "redelivered": "bad",
    "prepared": "warn",
    "not cleaned up": "warn",
}
"""The colours of events."""


async def transactions(visit: Visit) -> Response:
    token = visit.query("page") or None
    filters = {name: visit.query(name) for name in FILTERS}

    async def load() -> Values:
        items, next_token = await _listing(visit, filters).page_at(token)
        return {
            "items": items,
            "filters": filters,
            "filtered": any(filters.values()),
            "ages": AGE_WORDS,
            "turned": token is not None,
            "first": _url(filters, None) if token else None,
            "next": _url(filters, next_token) if next_token else None,
            "now_ms": visit.site.now_ms(),
        }

    return await visit.live_page("transactions.html", load)


def _listing(visit: Visit, filters: Mapping[str, str]) -> Any:
    """The transactions, latest first; those of a segment come by their ids."""
    state = filters["state"].upper() or None
    if state not in (None, "OPEN", "COMMITTED", "ABORTED"):
        raise metatxn.InvalidArgument(f"state: {state!r} is not open, committed or aborted", field="state")
    if filters["older"] and filters["older"] not in AGES:
        raise metatxn.InvalidArgument(f"older: {filters['older']!r} is not one of {', '.join(AGES)}", field="older")
    return visit.client.transactions(
        cast(Literal["OPEN", "COMMITTED", "ABORTED"] | None, state),
        key=filters["key"] or None,
        owner=filters["owner"] or None,
        segment=filters["segment"] or None,
        older_than_ms=AGES.get(filters["older"]),
        text=filters["text"] or None,
        newest_first=not filters["segment"],
        limit=PER_PAGE,
    )


def _url(filters: Mapping[str, str], token: str | None) -> str:
    query = {name: value for name, value in (*filters.items(), ("page", token)) if value}
    return f"/console/transactions?{urlencode(query)}" if query else "/console/transactions"


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """An event on the page. `after_ms` is the time since the begin. No record says when a transaction wrote, and
    brokers forget it."""

    event: str
    kind: str
    at_ms: int | None
    after_ms: int | None
    segment: str | None
    what: str | None


async def transaction(visit: Visit) -> Response:
    """The page of a transaction. Once its records are removed, an open page shows when that was, below what happened
    before."""
    txn_id = visit.part("txn_id").rjust(32, "0")
    last: dict[str, Any] = {}

    async def load() -> Values:
        try:
            header, records, work = await asyncio.gather(
                visit.client.attach(txn_id).refresh(),
                visit.client.transaction_records(txn_id).page_at(None),
                visit.client.transaction_work(txn_id),
            )
        except metatxn.TransactionNotFound:
            if not last:
                return {"txn": None, "txn_id": txn_id}
            if not last["collected"]:
                last.update(_collected(last["txn"], last["events"], visit.site.now_ms()))
        else:
            last.update(_shown(visit, header, *records, work))
        return last

    if is_live(visit.request):
        return await visit.live_page("transaction.html", load)
    try:
        found = await load()
    except metatxn.NotAllowed:
        return visit.page("others_transaction.html", 403, txn_id=txn_id)
    known = found["txn"] is not None
    return visit.page("transaction.html", **found) if known else visit.page("unknown_transaction.html", 404, **found)


def _collected(header: TransactionHeader, events: list[ShownEvent], now_ms: int) -> Values:
    """What changes on the page of a transaction whose records were removed since the last look."""
    what = "its records were removed from the metadata store: they had been kept long enough after its end"
    after_ms = now_ms - (header.created_ms or 0)
    gone = ShownEvent("collected", "info", now_ms, after_ms, None, what)
    return {"collected": True, "events": [*events, gone], "records": [], "more_records": False}


def _shown(
    visit: Visit,
    header: TransactionHeader,
    records: list[StoredRecord],
    more_records: str | None,
    work: list[WorkOnSegment],
) -> Values:
    operations = [metatxn.Operation.model_validate({**r.value, "key": r.key}) for r in records if _is_operation(r)]
    events = timeline(header, operations, more=more_records is not None, work=work, records=records)
    return {
        "txn": header,
        "collected": False,
        "events": list(itertools.islice(_events(header, events), MOST_EVENTS)),
        "more_events": len(events) > MOST_EVENTS,
        "work": sorted(work, key=lambda each: each.segment)[:MOST_SEGMENTS],
        "more_work": len(work) > MOST_SEGMENTS,
        "records": records[:MOST_RECORDS],
        "more_records": more_records is not None or len(records) > MOST_RECORDS,
        "may_end": may_end(visit, header),
        "needs_force": needs_force(visit, header),
        "now_ms": visit.site.now_ms(),
    }


def _is_operation(record: StoredRecord) -> bool:
    return record.key.startswith("/txn-op/") and isinstance(record.value, dict)


def _events(header: TransactionHeader, events: Iterable[TimelineEvent]) -> Iterator[ShownEvent]:
    begun_ms = header.created_ms or 0
    for each in events:
        after_ms = each.at_ms - begun_ms if each.at_ms is not None and each.at_ms > begun_ms else None
        kind = KINDS.get(each.event, "")
        yield ShownEvent(each.event, kind, each.at_ms, after_ms, each.segment, each.what)
