"""Goal: what is hidden in a sealed ledger is known from the index beside it, whoever reads it and how.

Method: a segment over a store with faults and a device with real ledgers; as in `test_trimming`. DESIGN §5.6.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.ledger.hidden_index import HiddenIndex, HiddenReason, HiddenTransaction
from participants.ledger.storage import LedgerStorage
from participants.segment.hidden import HiddenCache
from participants.segment.segment import Segment
from tests.participants.segment.world import (
    ALL_BYTES,
    SEGMENT,
    Node,
    World,
    committed,
    materialized,
    publish,
    snapshot,
    uncommitted,
)


async def record_of(world: World) -> SegmentRecord:
    stored = await world.store.inner.get(paths.segment(SEGMENT))
    assert stored is not None
    return SegmentRecord.decode(stored.value)


async def code_of_read(segment: Segment, after: Position) -> ErrorCode | None:
    try:
        await segment.reader.read_committed(after, ALL_BYTES)
    except errors.MetatxnError as error:
        return error.code
    return None


async def two_transactions(world: World) -> tuple[Node, list[TxnId]]:
    """A node whose device has a sealed ledger 1: `a` and `d` are visible, `b` is aborted, `c` of a void writer."""
    node = await world.first_node()
    segment = await node.open()
    aborted, committed_txn = await world.begin(), await world.begin()
    await publish(segment, "a", committed_txn, writer="good")
    await publish(segment, "b", aborted)
    await publish(segment, "c", committed_txn, writer="void")
    await publish(segment, "d")
    await world.abort(aborted)
    await world.commit(committed_txn, ["good"])
    await materialized(segment, aborted, committed_txn)
    return await world.crash(), [aborted, committed_txn]


async def indexed(world: World, storage: LedgerStorage, txn_ids: Sequence[TxnId]) -> None:
    """As an owner of generation 1 would have left it: ledger 1 is indexed, and no outcome is left."""
    found = ((txn_ids[0], HiddenReason.ABORTED, 1), (txn_ids[1], HiddenReason.VOID_WRITERS, 2))
    hidden = tuple(HiddenTransaction(txn_id, reason, ((entry, entry),)) for txn_id, reason, entry in found)
    await storage.write_hidden(SEGMENT, 1, HiddenIndex(1, 4, hidden))
    stored = await world.store.inner.get(paths.segment(SEGMENT))
    assert stored is not None
    record = SegmentRecord.decode(stored.value)
    first = record.ledgers[0].model_copy(update={"entries": 4, "hidden": 1})
    record = record.model_copy(update={"ledgers": (first, *record.ledgers[1:])})
    batch = world.store.batch().replace(stored, record.encode())
    for txn_id in txn_ids:
        outcome = await world.store.inner.get(paths.outcome(SEGMENT, txn_id))
        assert outcome is not None
        batch.remove(outcome)
    await world.store.apply(batch)


@pytest.mark.parametrize("kept_bytes", [None, 0])
async def test_an_index_hides_what_it_says_from_every_read(
    world: World, kept_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that does not fit into memory. What is read uncommitted is not judged."""
    if kept_bytes is not None:
        monkeypatch.setattr("participants.segment.hidden.KEPT_INDEX_BYTES", kept_bytes)
    node, txn_ids = await two_transactions(world)
    await indexed(world, node.storage, txn_ids)
    for txn_id in txn_ids:
        await world.collect(txn_id)
    segment = await node.open()
    assert segment.buffer.aborted_count == 0
    assert await committed(segment) == ["a", "d"] == await snapshot(segment)
    assert await uncommitted(segment) == ["a", "b", "c", "d"]
    assert await segment.reader.last_visible() == Position(1, 3)
    assert (await record_of(world)).ledgers[0].hidden == 1, "another opening leaves it as it is"
    assert await committed(await world.reopened()) == ["a", "d"]


async def test_an_index_that_is_missing_is_not_one_that_hides_nothing(world: World) -> None:
    node, txn_ids = await two_transactions(world)
    await indexed(world, node.storage, txn_ids)
    stored = await world.store.inner.get(paths.segment(SEGMENT))
    assert stored is not None
    record = SegmentRecord.decode(stored.value)
    named = record.ledgers[0].model_copy(update={"hidden": 2})
    record = record.model_copy(update={"ledgers": (named, *record.ledgers[1:])})
    await world.store.apply(world.store.batch().replace(stored, record.encode()))
    segment = await node.open()
    after = await publish(segment, "e")
    assert await code_of_read(segment, Position(1, -1)) is ErrorCode.STORE_UNAVAILABLE
    assert await code_of_read(segment, after.before) is None
    assert await uncommitted(segment) == ["a", "b", "c", "d", "e"]
    with pytest.raises(errors.StoreUnavailable):
        await snapshot(segment)


async def test_an_index_that_no_record_names_says_nothing(world: World) -> None:
    """As after the store was restored: what was aborted after the backup may be decided otherwise."""
    node, _ = await two_transactions(world)
    everything = HiddenTransaction(TxnId(9, 9), HiddenReason.ABORTED, ((0, 3),))
    await node.storage.write_hidden(SEGMENT, 1, HiddenIndex(1, 4, (everything,)))
    assert await committed(await node.open()) == ["a", "d"]


def test_the_cache_keeps_the_indexes_that_were_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    index = HiddenIndex(1, 4, ()).ranges
    monkeypatch.setattr("participants.segment.hidden.KEPT_INDEX_BYTES", 2 * index.size_bytes)
    cache = HiddenCache()
    for ledger in (1, 2):
        cache.put(("s", ledger, 1), index)
    assert cache.get(("s", 1, 1)) is index
    cache.put(("s", 3, 1), index)
    cache.put(("s", 3, 1), index)
    assert [ledger for ledger in (1, 2, 3) if cache.get(("s", ledger, 1)) is not None] == [1, 3]
    cache.forget(("s", 1, 1))
    cache.put(("s", 4, 1), index)
    assert [ledger for ledger in (1, 2, 3, 4) if cache.get(("s", ledger, 1)) is not None] == [3, 4]
