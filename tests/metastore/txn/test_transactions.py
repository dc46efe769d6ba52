"""Goal: no interleaving of begin, keep-alive, prepare, add-writers, operations and the decision leaves a lie behind.

Method: each test reads the records, lets a rival apply in between, and applies what it had prepared. Whatever
happens, the deadline index must hold exactly the open transactions, at the deadline in force.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.errors import CheckFailed
from metastore.txn import paths
from metastore.txn.listing import open_by_deadline
from metastore.txn.records.operations import WriteOp
from metastore.txn.records.transactions import Header, Prepared
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, TransactionRecords, begin, finalize, gc_horizon, put_write_op, read_transaction
from metastore.types import Batch
from metatxn.wire.ids import TxnId

TXN = TxnId(1, 1)
OPEN = Header(state=TxnState.OPEN, timeout_ms=1_000, created_ms=1)
OP = WriteOp(segment="segment://t/n/x/0-1-0", after="1:0", count=1)

Step = Callable[[TransactionRecords, Batch], Batch]


def commit(records: TransactionRecords, batch: Batch) -> Batch:
    return finalize(batch, [records], final(TxnState.COMMITTED))


def abort(records: TransactionRecords, batch: Batch) -> Batch:
    return finalize(batch, [records], final(TxnState.ABORTED))


def keep_alive(records: TransactionRecords, batch: Batch) -> Batch:
    return records.keep_alive(batch, 2_000, 1_500)


def prepare(records: TransactionRecords, batch: Batch) -> Batch:
    return records.prepare(batch, Prepared(prepared_ms=2, deadline_ms=3_000))


def remember(records: TransactionRecords, batch: Batch) -> Batch:
    return records.remember_writers(batch, ("w",))


def write(records: TransactionRecords, batch: Batch) -> Batch:
    return put_write_op(batch, records.txn_id, 1, records.revision, OP)


def final(state: TxnState) -> Header:
    return OPEN.model_copy(update={"state": state, "finalized_ms": 5})


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    store = MemoryStore(INDEXES)
    await store.apply(begin(store.batch(), TXN, OPEN))
    yield store
    await store.close()


async def read(store: MetadataStore) -> TransactionRecords:
    records = await read_transaction(store, TXN)
    assert records is not None
    return records


async def do(store: MetadataStore, *steps: Step) -> None:
    for step in steps:
        await store.apply(step(await read(store), store.batch()))


async def assert_indexes_tell_the_truth(store: MetadataStore) -> None:
    records = await read(store)
    deadlines = [entry.key for entry in (await store.scan(paths.DEADLINE_INDEX)).records]
    finals = await store.query_index("txn-by-final-state")
    if records.header.state.final:
        assert deadlines == []
        assert finals == [f"{records.header.state}/{5:020d}/{TXN}"]
        assert (records.lease_record, records.prepared_record, records.writers_record) == (None, None, None)
    else:
        assert deadlines == [paths.deadline_entry(records.deadline_ms, TXN)]
        assert finals == []


async def due(store: MetadataStore, until_ms: int, limit: int = 10) -> list[TxnId]:
    return [row.txn_id for row in await open_by_deadline(store, until_ms=until_ms, limit=limit)]


async def test_begin_creates_an_open_header_that_is_due_at_its_deadline(store: MetadataStore) -> None:
    records = await read(store)
    assert records.header == OPEN and records.header_record.first
    assert await due(store, 999) == []
    assert await due(store, 1_000) == [TXN]
    with pytest.raises(CheckFailed):
        await store.apply(begin(store.batch(), TXN, OPEN))
    assert await read_transaction(store, TxnId(1, 2)) is None


async def test_due_gives_the_oldest_deadlines_first_and_no_more_than_asked(store: MetadataStore) -> None:
    """Scenario 103: one that is due later is not among them."""
    for number, deadline_ms in ((2, 900), (3, 1_100), (4, 10)):
        header = OPEN.model_copy(update={"timeout_ms": deadline_ms})
        await store.apply(begin(store.batch(), TxnId(1, number), header))
    assert await due(store, 1_000) == [TxnId(1, 4), TxnId(1, 2), TXN]
    assert await due(store, 1_000, 2) == [TxnId(1, 4), TxnId(1, 2)]


@pytest.mark.parametrize("decide", [commit, abort])
@pytest.mark.parametrize(
    "before", [(), (keep_alive,), (prepare,), (remember,), (keep_alive, remember, prepare), (write, write)]
)
async def test_a_decision_ends_everything_at_once(store: MetadataStore, decide: Step, before: tuple[Step, ...]) -> None:
    """Scenario 103: it leaves the index by deadline and is in the one by final state, at the time of the decision."""
    await do(store, *before)
    await assert_indexes_tell_the_truth(store)
    await do(store, decide)
    records = await read(store)
    assert records.header.state.final and not records.header_record.first
    await assert_indexes_tell_the_truth(store)


@pytest.mark.parametrize("decide", [commit, abort])
@pytest.mark.parametrize("slipped_in", [keep_alive, prepare, remember, commit, abort])
async def test_a_decision_loses_against_what_slipped_in(store: MetadataStore, decide: Step, slipped_in: Step) -> None:
    stale = await read(store)
    await do(store, slipped_in)
    before = (await store.scan("/")).records
    with pytest.raises(CheckFailed):
        await store.apply(decide(stale, store.batch()))
    assert (await store.scan("/")).records == before
    await assert_indexes_tell_the_truth(store)


@pytest.mark.parametrize("decide", [commit, abort])
@pytest.mark.parametrize("again", [keep_alive, remember])
async def test_a_decision_loses_against_a_second_change_of_a_side_record(
    store: MetadataStore, decide: Step, again: Step
) -> None:
    await do(store, again)
    stale = await read(store)
    await do(store, again)
    with pytest.raises(CheckFailed):
        await store.apply(decide(stale, store.batch()))
    await assert_indexes_tell_the_truth(store)


@pytest.mark.parametrize("decide", [commit, abort])
@pytest.mark.parametrize("late", [keep_alive, prepare, remember, write])
async def test_nothing_enters_after_the_decision(store: MetadataStore, decide: Step, late: Step) -> None:
    stale = await read(store)
    await do(store, decide)
    with pytest.raises(CheckFailed) as lost:
        await store.apply(late(stale, store.batch()))
    assert lost.value.current is not None and lost.value.current.key == paths.header(TXN)
    assert (await store.scan(paths.ops_of_transaction(TXN))).records == []
    await assert_indexes_tell_the_truth(store)


@pytest.mark.parametrize("late", [keep_alive, prepare, remember, write])
async def test_nothing_enters_after_prepare(store: MetadataStore, late: Step) -> None:
    stale = await read(store)
    await do(store, prepare)
    with pytest.raises(CheckFailed):
        await store.apply(late(stale, store.batch()))
    with pytest.raises(CheckFailed):
        await do(store, late)
    assert (await store.scan(paths.ops_of_transaction(TXN))).records == []
    await assert_indexes_tell_the_truth(store)


async def test_of_two_keep_alives_one_loses(store: MetadataStore) -> None:
    for _ in range(2):
        records = await read(store)
        await store.apply(records.keep_alive(store.batch(), records.deadline_ms + 1, 1_500))
        with pytest.raises(CheckFailed):
            await store.apply(records.keep_alive(store.batch(), records.deadline_ms + 7, 1_500))
        await assert_indexes_tell_the_truth(store)
    assert (await read(store)).deadline_ms == 1_002


async def test_a_keep_alive_can_bring_the_deadline_back(store: MetadataStore) -> None:
    for deadline_ms in (2_000, 1_000, 1_000, 500):
        await store.apply((await read(store)).keep_alive(store.batch(), deadline_ms, 1_500))
        assert (await read(store)).deadline_ms == deadline_ms
        await assert_indexes_tell_the_truth(store)


async def test_prepare_takes_the_place_of_the_lease_and_keeps_the_writers(store: MetadataStore) -> None:
    await do(store, keep_alive, remember, prepare)
    records = await read(store)
    assert records.lease_record is None
    assert records.deadline_ms == 3_000
    assert records.remembered_writers == ("w",)
    assert records.prepared == Prepared(prepared_ms=2, deadline_ms=3_000, renewed_ms=1_500, renewals=1)
    assert records.header_record.first, "prepared is a record beside the header"


async def test_prepare_loses_against_a_keep_alive_that_slipped_in(store: MetadataStore) -> None:
    stale = await read(store)
    await do(store, keep_alive)
    with pytest.raises(CheckFailed):
        await store.apply(prepare(stale, store.batch()))
    await assert_indexes_tell_the_truth(store)


async def test_a_final_transaction_cannot_be_decided_again(store: MetadataStore) -> None:
    await do(store, commit)
    with pytest.raises(AssertionError):
        await do(store, abort)


async def test_operations_do_not_disturb_the_decision_and_are_indexed(store: MetadataStore) -> None:
    stale = await read(store)
    await do(store, write)
    key = paths.write_op(TXN, OP.segment, 1, stale.revision)
    assert await store.query_index("writes-by-segment") == [
        paths.writes_by_segment(OP.segment) + "/".join(paths.op_key_parts(key))
    ]
    await store.apply(commit(stale, store.batch()))
    assert await store.get(key) is not None, "participants delete their own"


async def test_the_same_operation_cannot_be_put_twice(store: MetadataStore) -> None:
    records = await read(store)
    await store.apply(write(records, store.batch()))
    with pytest.raises(CheckFailed):
        await store.apply(write(records, store.batch()))


async def test_the_horizon_is_zero_until_it_is_advanced(store: MetadataStore) -> None:
    assert await gc_horizon(store) == 0
    await store.apply(store.batch().create(paths.GC_HORIZON, b'{"revision":7}'))
    assert await gc_horizon(store) == 7
