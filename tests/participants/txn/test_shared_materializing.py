"""Goal: what many segments have left to do after decisions takes few reads and applies, and each of them keeps its own
guards.

Method: the production object over a store with faults, and requests of several segments and transactions at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from metastore.errors import CheckFailed, StoreClosed, StoreUnavailable
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records.operations import Outcome, WriteOp
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import begin, put_write_op
from metastore.types import AtVersion
from metatxn.wire.ids import TxnId
from participants.txn import materializer, shared_materializing
from participants.txn.shared_materializing import IDS_APART, OPS_PER_SEGMENT, SharedMaterializing
from tests.participants.segment.faulty_store import CLEANUP, Fault, FaultyStore

SEGMENTS = [f"segment://public/default/t/{number:04x}-ffff-0" for number in range(6)]
FIRST, SECOND = TxnId(0, 1), TxnId(0, 2)
HIDDEN = Outcome(highest="1:9", aborted=True)


@pytest.fixture
async def store() -> AsyncIterator[FaultyStore]:
    store = FaultyStore()
    yield store
    await store.close()


@pytest.fixture
async def shared(store: FaultyStore) -> AsyncIterator[SharedMaterializing]:
    shared = SharedMaterializing(store, rest_s=0)
    yield shared
    await shared.close()


async def owned(store: FaultyStore, segment: str) -> AtVersion:
    key = paths.segment_owner(segment)
    return AtVersion(key, (await store.apply(store.batch().put(key, b"{}"))).revision)


async def wrote(store: FaultyStore, txn_id: TxnId, segment: str, number: int = 1) -> None:
    op = WriteOp(segment=segment, after="1:0", count=1)
    await store.apply(put_write_op(store.batch(), txn_id, 1, number, op))


async def operations(store: FaultyStore) -> list[str]:
    return [record.key for record in (await store.range(paths.OPS, prefix_end(paths.OPS))).records]


async def outcomes(store: FaultyStore, txn_id: TxnId) -> list[bool]:
    return [await store.get(paths.outcome(segment, txn_id)) is not None for segment in SEGMENTS]


async def all_written(store: FaultyStore, txn_ids: Sequence[TxnId] = (FIRST, SECOND)) -> dict[str, AtVersion]:
    for txn_id in txn_ids:
        await store.apply(begin(store.batch(), txn_id, Header(state=TxnState.OPEN, timeout_ms=1_000, created_ms=1)))
        for segment in SEGMENTS:
            await wrote(store, txn_id, segment)
    return {segment: await owned(store, segment) for segment in SEGMENTS}


async def test_requests_that_wait_together_share_a_read_and_an_apply(
    store: FaultyStore, shared: SharedMaterializing
) -> None:
    owners = await all_written(store)
    applied, ranged = len(store.applied), len(store.ranged)
    work = [shared.materialize(each, owners[each], FIRST, None) for each in SEGMENTS]
    work += [shared.materialize(each, owners[each], SECOND, HIDDEN) for each in SEGMENTS]
    await asyncio.gather(*work)
    assert await operations(store) == []
    assert await outcomes(store, FIRST) == [False] * 6
    assert await outcomes(store, SECOND) == [True] * 6
    assert len(store.applied) - applied == 1
    assert len(store.ranged) - ranged == 1 + 1, "and that of this test"


async def test_transactions_whose_ids_are_far_apart_are_read_one_by_one(
    store: FaultyStore, shared: SharedMaterializing
) -> None:
    """What lies between them may be the operations of very many others."""
    far = [TxnId(0, 1), TxnId(0, 1 + IDS_APART), TxnId(0, 2 + 2 * IDS_APART), TxnId(1, 1)]
    owners = await all_written(store, far)
    ranged = len(store.ranged)
    await asyncio.gather(*(shared.materialize(each, owners[each], txn, None) for txn in far for each in SEGMENTS))
    assert len(store.ranged) - ranged == 3
    assert await operations(store) == []


async def test_transactions_with_many_operations_between_them_are_read_one_by_one(
    store: FaultyStore, shared: SharedMaterializing
) -> None:
    last = TxnId(0, 3)
    owners = await all_written(store, [FIRST, last])
    await store.apply(begin(store.batch(), SECOND, Header(state=TxnState.OPEN, timeout_ms=1_000, created_ms=1)))
    for number in range(2 * 6 * OPS_PER_SEGMENT):
        await wrote(store, SECOND, SEGMENTS[0], 1 + number)
    ranged = len(store.ranged)
    await asyncio.gather(
        *(shared.materialize(each, owners[each], txn, None) for txn in (FIRST, last) for each in SEGMENTS)
    )
    assert len(store.ranged) - ranged == 1 + 2
    assert {key.split("/")[2] for key in await operations(store)} == {SECOND}


async def test_rounds_rest_unless_more_waits_than_one_takes(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what waits would grow without end."""
    monkeypatch.setattr(shared_materializing, "REQUESTS_PER_ROUND", 2)
    owners = await all_written(store, [FIRST])
    shared = SharedMaterializing(store, rest_s=3_600)
    work = [asyncio.create_task(shared.materialize(each, owners[each], FIRST, None)) for each in SEGMENTS[:5]]
    done, _ = await asyncio.wait(work[:4], timeout=10)
    assert len(done) == 4
    assert not work[4].done()
    assert len(await operations(store)) == 2, "its own, and that of the last segment"
    await shared.close()
    with pytest.raises(StoreClosed):
        await work[4]


async def test_an_apply_holds_no_more_operations_than_one_of_a_single_segment(
    store: FaultyStore, shared: SharedMaterializing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materializer, "OPS_PER_APPLY", 2)
    owners = await all_written(store)
    applied = len(store.applied)
    await asyncio.gather(*(shared.materialize(each, owners[each], FIRST, HIDDEN) for each in SEGMENTS))
    batches = store.applied[applied:]
    assert len(batches) == 6
    for batch in batches:  # an outcome is never behind its deletions
        (outcome,) = batch.puts
        assert CLEANUP(batch) and outcome.startswith(paths.SEGMENT_STATES)


async def test_an_apply_stays_within_half_of_the_bytes_that_the_store_takes(
    store: FaultyStore, shared: SharedMaterializing
) -> None:
    """An outcome that is larger than that is written by `materialize`, in an apply of its own if need be."""
    owners = await all_written(store, [FIRST])
    store.max_batch_bytes = store.inner.max_batch_bytes = 4_000
    applied = len(store.applied)
    large = Outcome(highest="1:9", counted_writers=("w" * 2_500,))
    work = [shared.materialize(each, owners[each], FIRST, HIDDEN) for each in SEGMENTS[1:]]
    await asyncio.gather(shared.materialize(SEGMENTS[0], owners[SEGMENTS[0]], FIRST, large), *work)
    sizes = [
        batch.size_bytes for batch in store.applied[applied:] if paths.outcome(SEGMENTS[0], FIRST) not in batch.puts
    ]
    assert len(sizes) > 1 and max(sizes) <= 2_000
    assert await operations(store) == []
    assert await outcomes(store, FIRST) == [True] * 6


async def test_5_2_a_deposed_segment_keeps_the_others_from_nothing(
    store: FaultyStore, shared: SharedMaterializing
) -> None:
    """It hears that it was deposed, and what it had written stays for the next owner."""
    owners = await all_written(store, [FIRST])
    deposed = SEGMENTS[2]
    await owned(store, deposed)
    work = [shared.materialize(each, owners[each], FIRST, HIDDEN) for each in SEGMENTS]
    results = await asyncio.gather(*work, return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [CheckFailed]
    assert isinstance(results[2], CheckFailed) and results[2].check == owners[deposed]
    (left,) = await operations(store)
    assert left.startswith(paths.write_ops_of_segment(FIRST, deposed))
    assert await outcomes(store, FIRST) == [True, True, False, True, True, True]


async def test_5_6_an_outcome_that_is_there_already_stays_as_it_is(
    store: FaultyStore, shared: SharedMaterializing
) -> None:
    owners = await all_written(store, [FIRST])
    key = paths.outcome(SEGMENTS[0], FIRST)
    await store.apply(store.batch().put(key, Outcome(highest="2:0", aborted=True).encode()))
    await asyncio.gather(*(shared.materialize(each, owners[each], FIRST, HIDDEN) for each in SEGMENTS))
    assert await operations(store) == []
    assert await outcomes(store, FIRST) == [True] * 6
    record = await store.get(key)
    assert record is not None and Outcome.decode(record.value).highest == "2:0"


async def test_5_6_an_outcome_without_operations_is_not_stored_again(
    store: FaultyStore, shared: SharedMaterializing
) -> None:
    """An earlier attempt, whose answer was lost, has done everything, and an index says by now what is hidden."""
    owners = await all_written(store, [FIRST])
    await asyncio.gather(*(shared.materialize(each, owners[each], FIRST, HIDDEN) for each in SEGMENTS))
    for segment in SEGMENTS:
        await store.apply(store.batch().delete(paths.outcome(segment, FIRST)))
    await asyncio.gather(*(shared.materialize(each, owners[each], FIRST, HIDDEN) for each in SEGMENTS))
    assert await outcomes(store, FIRST) == [False] * 6


async def test_operations_that_do_not_fit_into_a_shared_read_are_found_alone(
    store: FaultyStore, shared: SharedMaterializing
) -> None:
    owners = await all_written(store, [FIRST])
    for number in range(6 * OPS_PER_SEGMENT):
        await wrote(store, FIRST, SEGMENTS[5], 2 + number)
    await asyncio.gather(*(shared.materialize(each, owners[each], FIRST, HIDDEN) for each in SEGMENTS))
    assert await operations(store) == []
    assert await outcomes(store, FIRST) == [True] * 6


async def test_a_failure_of_the_store_is_told_to_each_and_the_next_attempt_succeeds(
    store: FaultyStore, shared: SharedMaterializing
) -> None:
    owners = await all_written(store, [FIRST])
    store.fault(Fault(CLEANUP, before=StoreUnavailable("gone")))
    results = await asyncio.gather(
        *(shared.materialize(each, owners[each], FIRST, None) for each in SEGMENTS), return_exceptions=True
    )
    assert [type(result) for result in results] == [StoreUnavailable] * 6
    await asyncio.gather(*(shared.materialize(each, owners[each], FIRST, None) for each in SEGMENTS))
    assert await operations(store) == []


async def test_closing_tells_those_who_wait(store: FaultyStore, shared: SharedMaterializing) -> None:
    owners = await all_written(store, [FIRST])
    held = store.fault(Fault(CLEANUP, hold_before=True))
    work = [asyncio.create_task(shared.materialize(each, owners[each], FIRST, None)) for each in SEGMENTS]
    await held.reached.wait()
    await shared.close()
    results = await asyncio.gather(*work, return_exceptions=True)
    assert [type(result) for result in results] == [StoreClosed] * 6
