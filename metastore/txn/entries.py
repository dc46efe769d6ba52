"""The open transactions of many segments, or of many subscriptions on them, by an index of the operation records.

Below the prefix of each there is an entry `<txnId>/<seq>` for every operation. A read begins at the first prefix that
is not complete yet and ends with its limit or with the last prefix, so it shows the operations of many. What it shows
of others in between is passed over, and the next read begins behind that.

    prefixes   a     b     c           f
    index      a a   b         d d d d f f
    reads      └──────────────┘        └──┘
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from metastore.api import MetadataStore
from metastore.keys import prefix_end
from metatxn.wire.ids import TxnId

T = TypeVar("T")
ENTRIES_PER_READ = 1_000
PREFIXES_PER_TURN = 100
"""After this many the event loop does other work, even if nothing was read for them."""


async def with_operations(
    store: MetadataStore, index: str, of: Mapping[str, T], timed: Callable[[], AbstractContextManager[object]]
) -> AsyncIterator[tuple[T, list[TxnId]]]:
    """For each of these prefixes, in their order, what it stands for, and the transactions that have operations below
    it, in the order of the index. `timed` is entered for each read.

    What is told of a prefix was read after the iteration began, and in parts if it is much, so an operation may have
    come or gone meanwhile. One that was there all the time is told. Raises the store's errors.
    """
    prefixes = sorted(of)
    page: list[str] = []
    more = True
    for number, prefix in enumerate(prefixes, 1):
        end, found = prefix_end(prefix), dict[TxnId, None]()
        while True:
            first, last = bisect_left(page, prefix), bisect_left(page, end)
            found |= dict.fromkeys(_transactions(page[first:last], prefix))
            if last < len(page) or not more:
                break
            start = max(prefix, page[-1] + "\0") if page else prefix
            with timed():
                page = await store.query_index(index, start, prefix_end(prefixes[-1]), limit=ENTRIES_PER_READ)
            more = len(page) == ENTRIES_PER_READ
            await asyncio.sleep(0)
        yield of[prefix], list(found)
        if number % PREFIXES_PER_TURN == 0:
            await asyncio.sleep(0)


def _transactions(entries: Iterable[str], prefix: str) -> Iterable[TxnId]:
    return (TxnId.parse(entry.removeprefix(prefix).partition("/")[0]) for entry in entries)
