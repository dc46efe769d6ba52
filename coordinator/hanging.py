"""Transactions that have been open for too long, and every segment whose readers they may hold back.

For a page, only the headers and the first operation of each participant are read: a transaction with a hundred thousand
operations on one segment costs one small range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coordinator import paging
from coordinator.listings import Filter, Listings
from metastore.txn import listing, paths
from metastore.txn.records.transactions import RememberedWriters
from metastore.types import Snapshot
from metatxn.wire.coordinator import HangingPage, HangingTransaction, TouchedSegment, TransactionHeader
from metatxn.wire.ids import TxnId

MAX_AGE_MS = 60_000
MAX_EXAMINED = 500
"""No more transactions are examined for a page of those that hold something."""
MAX_TOUCHED = 1_000
"""The most segments and subscriptions that are shown for one transaction."""
MAX_TOUCHED_OF_ALL = 10_000
"""The most of these on a page, divided evenly among the transactions, except for the first ten of each."""


async def hanging_transactions(
    listings: Listings,
    max_age_ms: int = MAX_AGE_MS,
    limit: int = paging.DEFAULT_LIMIT,
    page_token: str | None = None,
    *,
    holding: bool = False,
) -> HangingPage:
    """Transactions that began at least `max_age_ms` ago and are still open, the oldest first: of the `ages.MAX_COUNTED`
    with the earliest deadlines. With `holding` those are left out that have written and acknowledged nothing: `limit`
    transactions are examined, and as many again until some are found, up to `MAX_EXAMINED`; so a page may have fewer,
    or none. Raises INVALID_ARGUMENT for a page token of another list.
    """
    wanted = Filter("OPEN", older_than_ms=max_age_ms, oldest=True)
    examined = 0
    while True:
        page = await listings.transactions(wanted, limit, page_token)
        examined, page_token = examined + len(page.items), page.next_page_token
        found = await _described(listings, page.items)
        items = [txn for txn in found if txn.touched or not holding]
        if items or not holding or page_token is None or examined >= MAX_EXAMINED:
            return HangingPage(items=items, next_page_token=page_token)


async def _described(listings: Listings, headers: Sequence[TransactionHeader]) -> list[HangingTransaction]:
    now_ms = listings.clock()
    ids = [TxnId.parse(str(header.txn_id)) for header in headers]
    writers = await listings.store.get_many([paths.remembered_writers(txn_id) for txn_id in ids])
    shown = min(MAX_TOUCHED, max(10, MAX_TOUCHED_OF_ALL // max(1, len(ids))))

    async def hanging(txn_id: TxnId, header: TransactionHeader) -> HangingTransaction:
        touched = await listing.participants(listings.store, txn_id, limit=shown + 1)
        assert header.created_ms is not None
        return HangingTransaction(
            **header.model_dump(exclude={"writers"}),
            writers=_remembered(txn_id, writers),
            age_ms=max(0, now_ms - header.created_ms),
            touched=[
                TouchedSegment(segment=at.segment, subscription=at.subscription, group=at.group, after=at.after)
                for at in touched[:shown]
            ],
            more_touched=True if len(touched) > shown else None,
        )

    return await asyncio.gather(*map(hanging, ids, headers))


def _remembered(txn_id: TxnId, writers: Snapshot) -> list[str] | None:
    record = writers.records[paths.remembered_writers(txn_id)]
    return list(RememberedWriters.decode(record.value).writers) if record else None
