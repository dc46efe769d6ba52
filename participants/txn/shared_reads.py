"""Linearizable reads of transactions that many publishes share (DESIGN §5.1).

A publish needs to know that its transaction took operations at some moment after the publish arrived. One read of the
store tells that to every publish that was waiting when the read began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from metastore.api import MetadataStore
from metastore.errors import MetastoreError, StoreClosed
from metastore.txn import paths
from metastore.types import Record
from metatxn.wire.ids import TxnId

TRANSACTIONS_PER_READ = 50
"""The transactions of one read: two records of each, as many as a store reads in one request."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The header of a transaction, None when there is none, and whether the transaction is prepared; both at one
    revision of the store."""

    header: Record | None
    prepared: bool


_Waiting = dict[TxnId, list[asyncio.Future[Standing]]]
"""The callers that ask, by transaction."""


class SharedReads:
    """Shared reads. One is under way at a time. Callers that ask meanwhile share the next one, because a read that
    began before they asked proves nothing to them."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._waiting: _Waiting = {}
        self._reading: asyncio.Task[None] | None = None

    async def ask(self, txn_id: TxnId) -> Standing:
        """How the transaction stands in a read that begins after this call. Raises `StoreUnavailable`, `StoreClosed`,
        `StoreWentBack`."""
        answer: asyncio.Future[Standing] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(txn_id, []).append(answer)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        return await answer

    async def close(self) -> None:
        """Close. Callers that still wait are told that the store is closed."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        asked: _Waiting = {}
        try:
            while self._waiting:
                asked = {txn_id: self._waiting.pop(txn_id) for txn_id in list(self._waiting)[:TRANSACTIONS_PER_READ]}
                try:
                    standings = await self._standings(asked)
                except MetastoreError as error:
                    _fail(asked, error)
                else:
                    for txn_id, answers in asked.items():
                        for answer in answers:
                            if not answer.done():  # its publish may have been given up
                                answer.set_result(standings[txn_id])
        finally:
            self._reading = None
            for waiting in (asked, self._waiting):
                _fail(waiting, StoreClosed("closed before the transaction was read"))
            self._waiting.clear()

    async def _standings(self, txn_ids: Iterable[TxnId]) -> dict[TxnId, Standing]:
        keys = {txn_id: (paths.header(txn_id), paths.prepared(txn_id)) for txn_id in txn_ids}
        found = (await self._store.get_many([key for pair in keys.values() for key in pair])).records
        return {txn_id: Standing(found[header], found[mark] is not None) for txn_id, (header, mark) in keys.items()}


def _fail(waiting: _Waiting, error: MetastoreError) -> None:
    for answer in chain.from_iterable(waiting.values()):
        if not answer.done():
            answer.set_exception(error)
