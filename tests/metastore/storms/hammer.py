"""A process that hammers indexed records until it is killed: `python -m tests.metastore.storms.hammer WORK URL SEED`.

It writes one line per answered apply. Whatever the store answers, it goes on. Killed in the middle of a batch, its
followers find what it left: items in any colour, and transactions in any state, which they time out and collect.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from metastore.api import MetadataStore
from metastore.errors import MetastoreError
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.listing import open_by_deadline
from metastore.txn.records.operations import WriteOp
from metastore.txn.records.transactions import GcHorizon, Header, Prepared
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, TransactionRecords, begin, finalize, put_write_op, read_transaction
from metastore.types import Applied, Batch, EmptyRange, IndexDefinition
from metastore.urls import open_store
from metatxn.wire.ids import TxnId
from tests.metastore import factories

WORKERS = 12
COLORS = ("red", "green", "blue", "grey", "teal")
SEGMENTS = [f"segment://public/default/orders/{half}" for half in ("0-7fff-0", "8000-ffff-1")]
GENERATION = 3

OnAnswer = Callable[[], None]


class Worker:
    """One of many that meet on the same records."""

    def __init__(self, store: MetadataStore, dice: random.Random, on_answer: OnAnswer) -> None:
        self._store = store
        self._dice = dice
        self._on_answer = on_answer

    async def _apply(self, batch: Batch) -> Applied:
        applied = await self._store.apply(batch)
        self._on_answer()
        return applied

    async def work_for_ever(self, turn: Callable[[Worker], Awaitable[None]]) -> None:
        while True:
            with suppress(MetastoreError):
                await turn(self)
            await asyncio.sleep(0)

    # -- items: up to three entries each, which move at every write ------------------------------------------------

    async def turn_items(self) -> None:
        keys = [f"{factories.ITEMS}{number:02d}" for number in self._dice.sample(range(60), self._dice.choice((1, 4)))]
        batch = self._store.batch()
        for key, record in (await self._store.get_many(keys)).records.items():
            value = ",".join(self._dice.sample(COLORS, self._dice.randrange(4))).encode()
            if record is None:
                batch.create(key, value)
            elif self._dice.random() < 0.3:
                batch.remove(record)
            else:
                batch.replace(record, value)
        await self._apply(batch)

    # -- transactions: the whole life, by anyone -------------------------------------------------------------------

    async def turn_transactions(self) -> None:
        await self._dice.choice((self._begin, self._change, self._change, self._sweep, self._collect))()

    async def _begin(self) -> None:
        (number,) = await self._store.lease_ids(paths.id_sequence(0), 1)
        header = Header(state=TxnState.OPEN, timeout_ms=self._dice.randrange(1_000), created_ms=1)
        await self._apply(begin(self._store.batch(), TxnId(0, number), header))
        await self._write(TxnId(0, number))

    async def _write(self, txn_id: TxnId) -> None:
        for _ in range(self._dice.randrange(4)):
            op = WriteOp(segment=self._dice.choice(SEGMENTS), after="1:-1", count=1)
            counter = self._dice.getrandbits(60)
            await self._apply(put_write_op(self._store.batch(), txn_id, GENERATION, counter, op))

    async def _change(self) -> None:
        records = await self._any_open()
        if records is None:
            return
        batch, deadline_ms = self._store.batch(), self._dice.randrange(2_000)
        match self._dice.randrange(5):
            case 0:
                records.keep_alive(batch, deadline_ms, 1_500)
            case 1:
                records.prepare(batch, Prepared(prepared_ms=1, deadline_ms=deadline_ms))
            case 2:
                records.remember_writers(batch, ("a", "b"))
            case 3:
                self._decide(records, batch, TxnState.COMMITTED)
            case _:
                await self._write(records.txn_id)
                return
        await self._apply(batch)

    async def _sweep(self) -> None:
        """Time out what is due, as several sweepers at once would."""
        for row in await open_by_deadline(self._store, until_ms=700, limit=4):
            records = await read_transaction(self._store, row.txn_id)
            if records and not records.header.state.final:
                await self._apply(self._decide(records, self._store.batch(), TxnState.ABORTED))

    async def _collect(self) -> None:
        """Clean up behind a decision, as brokers and the collector do, unless there is little to collect."""
        names = await self._store.query_index("txn-by-final-state", limit=20)
        if len(names) < 10:
            return
        txn_id = TxnId.parse(self._dice.choice(names).rpartition("/")[2])
        ops = paths.ops_of_transaction(txn_id)
        batch = self._store.batch()
        for op in (await self._store.scan(ops)).records:
            batch.remove(op)
        await self._apply(batch)
        header = await self._store.get(paths.header(txn_id))
        if header:
            await self._advance_horizon(header.version)
            await self._apply(self._store.batch().check(EmptyRange(ops, prefix_end(ops))).remove(header))

    async def _advance_horizon(self, revision: int) -> None:
        record = await self._store.get(paths.GC_HORIZON)
        value = GcHorizon(revision=revision).encode()
        if record is None:
            await self._apply(self._store.batch().create(paths.GC_HORIZON, value))
        elif GcHorizon.decode(record.value).revision < revision:
            await self._apply(self._store.batch().replace(record, value))

    async def _any_open(self) -> TransactionRecords | None:
        entries = (await self._store.scan(paths.DEADLINE_INDEX, limit=30, keys_only=True)).records
        if not entries:
            return None
        records = await read_transaction(self._store, TxnId.parse(self._dice.choice(entries).key.rpartition("/")[2]))
        return None if records is None or records.header.state.final else records

    def _decide(self, records: TransactionRecords, batch: Batch, state: TxnState) -> Batch:
        final = records.header.model_copy(update={"state": state, "finalized_ms": self._dice.randrange(5_000)})
        return finalize(batch, [records], final)


@dataclass(frozen=True, slots=True)
class Work:
    """What is done, and the indexes that must keep up with it."""

    turn: Callable[[Worker], Awaitable[None]]
    indexes: Iterable[IndexDefinition]


WORKS = {"items": Work(Worker.turn_items, factories.INDEXES), "transactions": Work(Worker.turn_transactions, INDEXES)}


async def hammer(store: MetadataStore, work: Work, seed: int, on_answer: OnAnswer) -> None:
    """Until it is cancelled, or the process is killed."""
    dice = random.Random(seed)
    async with asyncio.TaskGroup() as workers:
        for _ in range(WORKERS):
            worker = Worker(store, random.Random(dice.random()), on_answer)
            workers.create_task(worker.work_for_ever(work.turn))


async def main(name: str, url: str, seed: str) -> None:
    work = WORKS[name]
    store = await open_store(url, work.indexes)
    await hammer(store, work, int(seed), lambda: print(flush=True))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
