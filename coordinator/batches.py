"""Many begins, commits and aborts in one call, each of them as it would be by itself.

Items that touch the same transaction, or the same transaction key, form a *lane* and are done one after another, in the
order of the list. The lanes run side by side, so that their applies meet in the store's group commit, and what the ends
need to read is read for all of them before. On etcd a hundred items cost about one request to write, and a hundred ends
one more to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence

from coordinator.answers import invalid
from coordinator.api.models import BatchItem, BeginItem, CommitItem, TransactionHeader
from coordinator.transaction_keys import Begun
from coordinator.transactions import Transactions, refuse_numbers_without_key, writer_set
from metastore.errors import MetastoreError
from metastore.txn.ids import TxnId
from metastore.txn.store import TransactionRecords, TxnStore
from service.problems import ServiceError

ItemAnswer = Begun | TransactionHeader | ServiceError | MetastoreError
Known = dict[TxnId, TransactionRecords]
AT_ONCE = 256
"""Lanes of a batch under way: two full requests of etcd's. All of them at once would only take memory."""


async def run_batch(transactions: Transactions, items: Sequence[BatchItem]) -> list[ItemAnswer]:
    """One answer for each item, in the order of the items.

    Raises INVALID_ARGUMENT naming the field of a bad item, and the store's errors when it cannot be read: then nothing
    was done.
    """
    for number, item in enumerate(items):
        _refuse_bad(number, item)
    known = await TxnStore(transactions.store).read_plain(list(dict.fromkeys(_ended(items))))
    lanes: dict[Hashable, list[int]] = {}
    for number, item in enumerate(items):
        lanes.setdefault(_lane(number, item, known, transactions.caller.name), []).append(number)
    # Under a key it matters whether a transaction is prepared, so it is read in full.
    plain = {txn_id: records for txn_id, records in known.items() if records.header.key is None}
    answers: dict[int, ItemAnswer] = {}

    waiting = iter(lanes.values())

    async def run_lanes() -> None:
        for first, *others in waiting:
            answers[first] = await _answer(transactions, items[first], plain)
            for number in others:  # What was read before is out of date.
                answers[number] = await _answer(transactions, items[number], {})

    await asyncio.gather(*(run_lanes() for _ in range(min(len(lanes), AT_ONCE))))
    return [answers[number] for number in range(len(items))]


def _refuse_bad(number: int, item: BatchItem) -> None:
    try:
        if isinstance(item, BeginItem):
            refuse_numbers_without_key(item)
        elif isinstance(item, CommitItem) and item.writers is not None:
            writer_set(item.writers, "writers")
    except ServiceError as error:
        field, _, detail = error.detail.partition(": ")
        raise invalid(f"items.{number}.{field}", detail) from error


def _ended(items: Sequence[BatchItem]) -> list[TxnId]:
    return [TxnId.parse(item.txn_id) for item in items if not isinstance(item, BeginItem)]


def _lane(number: int, item: BatchItem, known: Known, caller: str | None) -> Hashable:
    """Items with equal lanes touch each other."""
    if isinstance(item, BeginItem):
        return number if item.transaction_key is None else (item.owner or caller, item.transaction_key)
    txn_id = TxnId.parse(item.txn_id)
    header = known[txn_id].header if txn_id in known else None
    return txn_id if header is None or header.key is None else (header.owner, header.key)


async def _answer(transactions: Transactions, item: BatchItem, known: Known) -> ItemAnswer:
    try:
        if isinstance(item, BeginItem):
            return await transactions.begin(item)
        txn_id = TxnId.parse(item.txn_id)
        if isinstance(item, CommitItem):
            return await transactions.commit(txn_id, item.writers, known=known.get(txn_id))
        return await transactions.abort(txn_id, item.reason, force=item.force, known=known.get(txn_id))
    except (ServiceError, MetastoreError) as error:
        return error
