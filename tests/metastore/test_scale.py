"""Goal: 10,000 transactions are open at once, and one has 100,000 operations, on every backend.

Method: what coordinators and brokers do, with their own functions: begin, write under group commit, list page by page,
decide, delete in slices, collect. Then nothing is left, and `metatxn store check` has nothing to say. `make test` has
all of the transactions on one backend, and a tenth or less of everything else; `make test-all` has all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from coordinator.gc_sweep import Collected, GcSweep
from coordinator.metrics import CoordinatorMetrics
from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.check import StoreCheck
from metastore.keys import prefix_end
from metastore.txn import listing, paths
from metastore.txn.listing import Row
from metastore.txn.records.operations import WriteOp
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import begin, finalize, put_write_op, read_transaction
from metastore.types import AtVersion, Batch
from metastore.urls import open_store
from metatxn.wire.ids import TxnId
from participants.txn.materializer import materialize
from tests.extent import usually
from tests.metastore.opening import fresh_url
from tests.metastore.test_check import SEGMENT, create_topic

PAGE = 500
CALLERS = 500
GENERATION = 3
DEADLINES_FROM_MS = 2_000_000
DECIDED_MS = 1_000_000


@pytest.fixture(params=["etcd", "memory", "sqlite", "zookeeper"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def transactions(kind: str) -> int:
    return 10_000 if kind == "memory" else usually(1_000, 10_000)


@pytest.fixture
def operations(kind: str) -> int:
    few = 10_000 if kind == "memory" else 3_000  # tests/metastore/zookeeper has many, too
    return usually(few, 100_000)


@pytest.fixture
async def store(request: pytest.FixtureRequest, kind: str, sizes: list[int]) -> AsyncIterator[MetadataStore]:
    """Empty, but for a topic and the ids that are leased."""
    if kind == "memory":
        store = await open_store("memory://")
    else:
        # Calls wait behind hundreds of others, on a machine that may be busy.
        store = await open_store(fresh_url(request, kind), deadline_ms=60_000)
    store.group_listeners.append(sizes.append)
    await create_topic(store)
    await store.lease_ids(paths.id_sequence(0), 20_000)
    yield store
    await store.close()


async def in_parallel(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    """`work` for each number below `count`, by many callers at once."""
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller())


async def all_rows(page: Callable[..., Awaitable[list[Row]]]) -> list[Row]:
    rows: list[Row] = []
    while True:
        found = await page(after=rows[-1].position if rows else "", limit=PAGE)
        rows += found
        if len(found) < PAGE:
            return rows


async def all_keys(store: MetadataStore, prefix: str) -> list[str]:
    """Page by page, as lists in the REST API are."""
    keys: list[str] = []
    while True:
        found = await store.range(f"{keys[-1]}\0" if keys else prefix, prefix_end(prefix), limit=PAGE, keys_only=True)
        keys += (record.key for record in found.records)
        if not found.more:
            return keys


async def begin_one(store: MetadataStore, number: int) -> TxnId:
    txn_id = TxnId(0, number + 1)
    header = Header(state=TxnState.OPEN, timeout_ms=DEADLINES_FROM_MS + number, created_ms=1)
    await store.apply(begin(store.batch(), txn_id, header))
    return txn_id


async def decision(store: MetadataStore, txn_id: TxnId, state: TxnState) -> Batch:
    records = await read_transaction(store, txn_id)
    assert records
    final = records.header.model_copy(update={"state": state, "finalized_ms": DECIDED_MS})
    return finalize(store.batch(), [records], final)


async def collect(store: MetadataStore) -> Collected:
    sweep = GcSweep(store, lambda: DECIDED_MS + 1, CoordinatorMetrics(), retention_ms=0)
    return await sweep.collect_once()


async def assert_clean(store: MetadataStore, records: int) -> None:
    check = StoreCheck(store)
    assert [finding async for finding in check.findings()] == []
    assert check.records == records


async def assert_nothing_left(store: MetadataStore) -> None:
    for prefix in ("/txn/", "/txn-", "/idx/"):
        left = await all_keys(store, prefix)
        assert left == ([paths.id_sequence(0)] if prefix == "/txn-" else [])
    # A topic, two segments with their owners, the ids and the horizon.
    await assert_clean(store, 7)


@pytest.mark.timeout(600)
async def test_ten_thousand_transactions_are_open_at_once(store: MetadataStore, transactions: int) -> None:
    """Scenario 120."""
    ids = [TxnId(0, number + 1) for number in range(transactions)]

    async def begin_next(number: int) -> None:
        await begin_one(store, number)

    await in_parallel(transactions, begin_next)
    assert [row.txn_id for row in await all_rows(partial(listing.open_by_deadline, store))] == ids
    assert [row.txn_id for row in await all_rows(partial(listing.by_id, store))] == ids
    due = await listing.open_by_deadline(store, until_ms=DEADLINES_FROM_MS + 99, limit=PAGE)
    assert [row.txn_id for row in due] == ids[:100]
    await assert_clean(store, 6 + 2 * transactions)

    async def end(number: int) -> None:
        state = TxnState.ABORTED if number % 2 else TxnState.COMMITTED
        await store.apply(await decision(store, ids[number], state))

    await in_parallel(transactions, end)
    assert await all_rows(partial(listing.open_by_deadline, store)) == []
    for state, expected in ((TxnState.COMMITTED, ids[::2]), (TxnState.ABORTED, ids[1::2])):
        rows = await all_rows(partial(listing.decided_by_time, store, state))
        assert [row.txn_id for row in rows] == expected
    assert await collect(store) == Collected(deleted=transactions, kept=0)
    await assert_nothing_left(store)


@pytest.mark.timeout(600)
async def test_one_transaction_has_a_hundred_thousand_operations(
    store: MetadataStore, sizes: list[int], operations: int
) -> None:
    """Scenario 120. Its commit is one apply, in one request, of the size that any commit has."""
    txn_id, small = await begin_one(store, 0), await begin_one(store, 1)
    owner = await store.get(paths.segment_owner(SEGMENT))
    assert owner
    ownership = AtVersion(owner.key, owner.version)

    async def write(number: int) -> None:
        op = WriteOp(segment=SEGMENT, after=f"1:{number - 1}", count=1, writer="w")
        await store.apply(put_write_op(store.batch().check(ownership), txn_id, GENERATION, number, op))

    sizes.clear()
    await in_parallel(operations, write)
    assert len(sizes) < operations / 10 or isinstance(store, MemoryStore)

    expected = [paths.write_op(txn_id, SEGMENT, GENERATION, number) for number in range(operations)]
    prefix = paths.ops_of_transaction(txn_id)
    assert await all_keys(store, prefix) == expected
    # A scan reads its pages at one revision.
    assert [record.key for record in (await store.scan(prefix, keys_only=True)).records] == expected
    rows = await all_rows(partial(listing.writing_to_segment, store, SEGMENT))
    assert [row.txn_id for row in rows] == [txn_id]

    large_commit, small_commit = [await decision(store, each, TxnState.COMMITTED) for each in (txn_id, small)]
    assert large_commit.size_bytes == small_commit.size_bytes
    sizes.clear()
    await store.apply(large_commit)
    assert sizes == [1]
    await store.apply(small_commit)
    assert await collect(store) == Collected(deleted=1, kept=1)

    await materialize(store, SEGMENT, ownership, txn_id, outcome=None)
    assert await all_keys(store, prefix) == []
    assert await collect(store) == Collected(deleted=1, kept=0)
    await assert_nothing_left(store)
