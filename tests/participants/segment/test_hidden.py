"""Goal: what is hidden in a sealed ledger moves from the store into the index beside it, and stays hidden at every
moment, no matter who reads it and how, and no matter who dies.

Method: a segment over a store with faults and a device with real ledgers; as in `test_trimming`. DESIGN §5.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import structlog
import structlog.testing

from metastore.errors import OutcomeUnknown
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.types import Batch
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import RawFrame
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.ledger.chain import LedgerChain
from participants.ledger.directories import segment_directory
from participants.ledger.hidden_index import HiddenIndex, HiddenReason, HiddenTransaction
from participants.ledger.storage import LedgerCorrupt, LedgerMissing, LedgerStorage, LedgerTooNew, StorageFull
from participants.segment.damage import LONGEST_PAUSE_S, DamagedLedgers
from participants.segment.hidden import HiddenCache
from participants.segment.sealing import seal
from participants.segment.segment import Segment
from participants.segment.trimming import trim
from participants.txn.buffer import TransactionBuffer
from tests.participants.devices import on_local_files
from tests.participants.plain_providers import PlainBuffer
from tests.participants.segment.faulty_store import CLEANUP, Fault, deletes, puts
from tests.participants.segment.world import (
    ALL_BYTES,
    SEGMENT,
    Node,
    World,
    committed,
    materialized,
    payload_of,
    publish,
    released,
    snapshot,
    uncommitted,
)


@pytest.fixture(autouse=True)
def _nothing_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is hidden stays where it is, so that the indexes are needed."""
    monkeypatch.setattr("participants.segment.rewriting.HIDDEN_PARTS", 0)


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


# -- outcomes leave the store ------------------------------------------------------------------------------------


async def rolled(segment: Segment) -> None:
    assert segment.on_full is not None
    await segment.on_full()


async def tended(segment: Segment) -> None:
    """Let the upkeep do what there is to do."""
    segment.tend()
    while segment._tasks:
        await asyncio.wait(segment._tasks)


async def outcomes(world: World) -> set[TxnId]:
    found = await world.store.inner.scan(paths.outcomes(SEGMENT))
    return {TxnId.parse(record.key.rpartition("/")[2]) for record in found.records}


async def indexes(world: World) -> list[int | None]:
    return [ledger.hidden for ledger in (await record_of(world)).ledgers]


async def aborted(world: World, segment: Segment, *payloads: str) -> TxnId:
    txn_id = await world.begin()
    for payload in payloads:
        await publish(segment, payload, txn_id)
    await world.abort(txn_id)
    await materialized(segment, txn_id)
    return txn_id


async def one_to_index(world: World) -> tuple[Node, Segment, TxnId]:
    """Ledger 1 is full, with an aborted entry between two others; ledger 2 is open."""
    node = await world.first_node()
    segment = await node.open()
    await publish(segment, "a")
    txn_id = await aborted(world, segment, "never")
    await publish(segment, "b")
    await rolled(segment)
    return node, segment, txn_id


async def test_outcomes_of_sealed_ledgers_leave_the_store_and_hide_on(world: World) -> None:
    """Of an aborted transaction, and of a writer that does not count; ledgers with nothing to hide need no index."""
    segment = await world.segment()
    await publish(segment, "a")
    await rolled(segment)
    txn_ids = [await aborted(world, segment, "never", "never again"), await world.begin()]
    await publish(segment, "b", txn_ids[1], writer="good")
    await publish(segment, "void", txn_ids[1], writer="bad")
    await publish(segment, "c", txn_ids[1])
    await world.commit(txn_ids[1], ["good"])
    await materialized(segment, txn_ids[1])
    await tended(segment)
    assert await outcomes(world) == {*txn_ids}, "their ledger is open"
    await rolled(segment)
    await publish(segment, "d")
    await tended(segment)
    assert await outcomes(world) == set()
    assert segment.buffer.outcomes() == {}
    assert await indexes(world) == [0, 1, None]
    assert await committed(segment) == ["a", "b", "c", "d"] == await snapshot(segment)
    for txn_id in txn_ids:
        await world.collect(txn_id)
    world.store.ranged.clear()
    again = await world.reopened()
    assert again.buffer.outcomes() == {}
    assert await committed(again) == ["a", "b", "c", "d"] == await snapshot(again)
    assert await uncommitted(again) == ["a", "never", "never again", "b", "void", "c", "d"]
    await tended(again)
    assert await indexes(world) == [0, 1, None, None], "nothing is indexed unless an outcome goes for it"


async def test_what_another_generation_sealed_is_indexed_by_the_next(world: World) -> None:
    segment = await world.segment()
    txn_id = await aborted(world, segment, "never")
    await publish(segment, "a")
    again = await world.reopened()
    assert await outcomes(world) == {txn_id}
    await tended(again)
    assert await outcomes(world) == set()
    assert await indexes(world) == [2, None]
    assert await committed(again) == ["a"] == await committed(await world.reopened())


async def test_the_outcome_of_a_transaction_that_goes_on_in_an_open_ledger_stays(world: World) -> None:
    segment = await world.segment()
    over = await world.begin()
    await publish(segment, "over 1", over)
    within = await aborted(world, segment, "never")
    await rolled(segment)
    await publish(segment, "over 2", over)
    await tended(segment)
    assert await outcomes(world) == {within}, "a transaction in the ledger is undecided"
    await world.abort(over)
    await materialized(segment, over)
    await tended(segment)
    assert await outcomes(world) == {over}
    assert await committed(segment) == []
    segment = await world.reopened()
    assert set(segment.buffer.outcomes()) == {over}
    assert await committed(segment) == []
    await tended(segment)
    assert await outcomes(world) == set()
    assert await committed(await world.reopened()) == []


async def test_an_outcome_ends_with_the_last_entry_of_the_run(world: World) -> None:
    """`highest` may be the very end of the indexed ledgers."""
    segment = await world.segment()
    await aborted(world, segment, "never")
    await rolled(segment)
    await tended(segment)
    assert await outcomes(world) == set()
    assert await committed(await world.reopened()) == []


async def undone(world: World, node: Node, segment: Segment) -> TxnId:
    """An aborted transaction whose only append found no space."""
    txn_id = await world.begin()
    node.disk.capacity = 0
    with pytest.raises(errors.StorageFull):
        await publish(segment, "no space", txn_id)
    node.disk.capacity = None
    await world.abort(txn_id)
    await materialized(segment, txn_id)
    return txn_id


@on_local_files
@pytest.mark.parametrize("dies", [False, True])
async def test_the_outcome_of_an_append_that_was_undone_goes_with_those_before_it(world: World, dies: bool) -> None:
    """It names a place after the last entry of its ledger, which may not be there any more after a crash."""
    node, segment, first = await one_to_index(world)
    last = await undone(world, node, segment)
    assert await outcomes(world) == {first, last}
    if dies:
        segment = await world.reopened()
    else:
        await rolled(segment)
    await tended(segment)
    assert await outcomes(world) == set()
    assert await committed(segment) == ["a", "b"]


@on_local_files
async def test_a_ledger_is_rolled_for_outcomes_of_one_that_is_not_there_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("participants.segment.indexing.MANY_OUTCOMES", 1)
    node = await world.first_node()
    await undone(world, node, await node.open())
    segment = await world.reopened()
    await tended(segment)
    await tended(segment)
    assert await outcomes(world) == set()


async def test_the_outcome_of_a_transaction_with_operations_left_stays(world: World) -> None:
    segment = await world.segment()
    cleanup = world.store.fault(Fault(CLEANUP, hold_before=True))
    txn_id = await world.begin()
    await publish(segment, "never", txn_id)
    await world.abort(txn_id)
    await cleanup.reached.wait()
    other = await world.begin()
    await publish(segment, "nor this", other)
    await world.abort(other)
    await released(segment, txn_id, other)
    while segment.buffer.get(other) is not None:
        await asyncio.sleep(0)
    await rolled(segment)
    segment.tend()
    assert segment._tending is not None
    await segment._tending
    assert await indexes(world) == [1, None]
    assert await outcomes(world) == set(), "of the one it is not written yet"
    assert set(segment.buffer.outcomes()) == {txn_id}
    assert await committed(segment) == []
    cleanup.go.set()
    await materialized(segment, txn_id)
    assert await outcomes(world) == {txn_id}
    await tended(segment)
    assert await outcomes(world) == set()
    assert await committed(await world.reopened()) == []


@pytest.mark.parametrize("in_effect", [False, True], ids=["lost request", "lost reply"])
async def test_memory_forgets_nothing_while_the_answer_is_unknown(world: World, in_effect: bool) -> None:
    _node, segment, txn_id = await one_to_index(world)
    lost = OutcomeUnknown("the connection was lost")
    fault = Fault(puts("/segment/"), hold_before=True)
    fault.before, fault.after = (None, lost) if in_effect else (lost, None)
    world.store.fault(fault)
    segment.tend()
    await fault.reached.wait()
    assert set(segment.buffer.outcomes()) == {txn_id}
    assert await committed(segment) == ["a", "b"]
    fault.go.set()
    while segment._tasks:
        await asyncio.wait(segment._tasks)
    assert await outcomes(world) == set()
    assert segment.buffer.outcomes() == {}
    assert await committed(segment) == ["a", "b"] == await committed(await world.reopened())


async def test_more_outcomes_than_one_apply_holds_go_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("participants.segment.indexing.OUTCOMES_PER_APPLY", 2)
    monkeypatch.setattr("participants.segment.indexing.READ_BYTES", 1)
    segment = await world.segment()
    for _ in range(5):
        await aborted(world, segment, "never")
    await rolled(segment)
    second = world.store.fault(Fault(deletes(paths.outcomes(SEGMENT)), times=1))
    second.matches = lambda batch: not batch.puts and deletes(paths.outcomes(SEGMENT))(batch)
    second.after = OutcomeUnknown("the connection was lost")
    await tended(segment)
    slices = [len(batch.deletes) for batch in world.store.applied if deletes(paths.outcomes(SEGMENT))(batch)]
    assert slices == [2, 2, 1]
    assert await outcomes(world) == set()
    assert segment.buffer.outcomes() == {}
    assert await committed(segment) == []


async def test_an_owner_that_was_deposed_deletes_nothing(world: World) -> None:
    """Its index says nothing, and the next owner writes its own."""
    _node, segment, txn_id = await one_to_index(world)
    stored = await world.store.inner.get(paths.segment_owner(SEGMENT))
    assert stored is not None
    await world.store.inner.apply(world.store.batch().replace(stored, stored.value))
    await tended(segment)
    assert segment.lost
    assert await outcomes(world) == {txn_id}
    assert await indexes(world) == [None, None]
    again = await world.reopened()
    assert await committed(again) == ["a", "b"]
    await tended(again)
    assert await outcomes(world) == set()
    assert (await indexes(world))[0] == again.ownership.generation
    assert await committed(again) == ["a", "b"]


async def test_a_read_that_the_index_has_overtaken_hides_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has fetched an aborted entry; memory forgets that it was aborted."""
    _node, segment, _ = await one_to_index(world)
    fetched, go = asyncio.Event(), asyncio.Event()
    real = LedgerChain.read

    async def slow(chain: LedgerChain, *args: object) -> list[RawFrame]:
        found = await real(chain, *args)  # type: ignore[arg-type]
        fetched.set()
        await go.wait()
        return found

    monkeypatch.setattr(LedgerChain, "read", slow)
    reading = asyncio.create_task(segment.reader.read_committed(segment.ledgers.start, ALL_BYTES))
    await fetched.wait()
    monkeypatch.setattr(LedgerChain, "read", real)
    await tended(segment)
    assert segment.buffer.outcomes() == {}
    go.set()
    assert [payload_of(frame) for frame in (await reading).frames] == ["a", "b"]


async def test_an_older_copy_of_the_record_does_not_bring_back_what_was_hidden(world: World) -> None:
    """A roll takes over the record that it has stored, some steps later; meanwhile another one was stored."""
    _, segment, _ = await one_to_index(world)
    older = segment.record
    await tended(segment)
    segment.record = older
    assert await committed(segment) == ["a", "b"]


async def test_a_trim_takes_the_index_with_the_ledger(world: World) -> None:
    node, segment, _ = await one_to_index(world)
    kept = await publish(segment, "kept")
    await tended(segment)
    assert 1 in await node.storage.numbers(segment_directory(SEGMENT))
    await node.storage.read_hidden(SEGMENT, 1, 1, 3)
    await committed(segment)
    await trim(segment, world.store, node.storage, kept)
    await tended(segment)
    with pytest.raises(LedgerMissing):
        await node.storage.read_hidden(SEGMENT, 1, 1, 3)
    assert not segment.hidden.is_indexed(1)
    assert await committed(segment) == ["kept"]


async def test_what_is_trimmed_in_part_is_indexed_from_there_on(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    await aborted(world, segment, "gone")
    kept = await publish(segment, "kept")
    txn_id = await aborted(world, segment, "never")
    await rolled(segment)
    await trim(segment, world.store, node.storage, kept)
    assert await outcomes(world) == {txn_id}
    await tended(segment)
    assert await outcomes(world) == set()
    found = await node.storage.read_hidden(SEGMENT, 1, 1, 3)
    assert [entry for entry in range(3) if entry in found] == [2]
    assert await committed(segment) == ["kept"]


async def test_no_record_names_an_index_before_it_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a death between the two leaves a record that names an index which is not there."""
    node, segment, _ = await one_to_index(world)
    named, real = [], type(node.storage).write_hidden

    async def slow(*args: Any) -> None:
        for _ in range(200):
            await asyncio.sleep(0)
        named.append(await indexes(world))
        await real(*args)

    monkeypatch.setattr(type(node.storage), "write_hidden", slow)
    await tended(segment)
    assert named == [[None, None]]
    assert await indexes(world) == [1, None]


@pytest.mark.parametrize("damaged", ["ledger", "storage"])
async def test_a_ledger_that_cannot_be_indexed_keeps_its_outcomes(
    world: World, damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those behind it; what is before it goes. It is asked again: a device may return wrong bytes once. A damaged
    one is asked again later only."""
    node, segment, _first = await one_to_index(world)
    second = await aborted(world, segment, "nor this")
    await rolled(segment)
    error = LedgerCorrupt("damaged") if damaged == "ledger" else StorageFull("full")
    place, name = (LedgerChain, "read") if damaged == "ledger" else (type(node.storage), "write_hidden")
    real, tried = getattr(place, name), []

    async def failing(self: object, *args: Any) -> Any:
        ledger = max(args[0], self.start).ledger if isinstance(self, LedgerChain) else args[2].ledger
        if ledger == 2:
            tried.append(ledger)
            raise error
        return await real(self, *args)

    monkeypatch.setattr(place, name, failing)
    await tended(segment)
    assert await outcomes(world) == {second}
    assert await indexes(world) == [1, None, None]
    await tended(segment)
    gauge = segment._metrics.damaged_ledgers
    assert (len(tried), gauge._value.get()) == ((1, 1) if damaged == "ledger" else (2, 0))
    monkeypatch.setattr(place, name, real)
    monkeypatch.setattr(segment.damaged, "may_read", lambda *_: True)  # the pause is over
    await tended(segment)
    assert gauge._value.get() == 0
    assert await outcomes(world) == set()
    assert await committed(segment) == ["a", "b"]


async def test_a_ledger_that_is_trimmed_while_it_is_indexed_is_not_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, segment, _ = await one_to_index(world)
    kept = await publish(segment, "kept")
    real = LedgerChain.read

    async def trimmed_meanwhile(self: LedgerChain, *args: Any) -> Any:
        monkeypatch.setattr(LedgerChain, "read", real)
        await trim(segment, world.store, node.storage, kept)
        raise LedgerMissing("its file is deleted")

    monkeypatch.setattr(LedgerChain, "read", trimmed_meanwhile)
    with structlog.testing.capture_logs() as said:
        await tended(segment)
    assert LedgerChain.read is real, "it was read"
    assert not [each for each in said if each["log_level"] == "error"]
    assert segment._metrics.damaged_ledgers._value.get() == 0
    assert await committed(segment) == ["kept"]


def test_a_damaged_ledger_is_said_once_and_tried_ever_more_rarely() -> None:
    metrics = BrokerMetrics()
    damaged = DamagedLedgers(SEGMENT, metrics)
    with structlog.testing.capture_logs() as said:
        now_s, tries = 0.0, []
        while now_s < 3_000:
            if damaged.may_read(7, now_s):
                tries.append(now_s)
                damaged.failed(7, LedgerMissing("gone"), now_s)
            now_s += 1
        assert damaged.may_read(8, now_s)
        damaged.failed(8, StorageFull("full"), now_s)
        assert damaged.may_read(8, now_s), "that is no damage"
    assert [each["log_level"] for each in said] == ["error", "warning"]
    assert tries[:4] == [0, 2, 6, 14] and tries[-1] - tries[-2] == LONGEST_PAUSE_S
    assert metrics.damaged_ledgers._value.get() == 1
    damaged.failed(9, LedgerCorrupt("damaged"), now_s)
    damaged.keep_only({7, 8})
    assert metrics.damaged_ledgers._value.get() == 1
    with structlog.testing.capture_logs() as said:
        damaged.failed(10, LedgerTooNew("its version is 2"), now_s)
    assert said[0]["event"].startswith("a ledger is of a later release: ")
    damaged.close()
    assert metrics.damaged_ledgers._value.get() == 0


async def test_a_sealed_segment_is_indexed_to_its_end(world: World) -> None:
    async def succession(_: Batch, record: SegmentRecord) -> SegmentRecord:
        return record

    async def installation(_: SegmentRecord) -> None:
        return None

    segment = await world.segment()
    await publish(segment, "a")
    await aborted(world, segment, "never")
    await seal(segment, world.store, succession, installation)
    await tended(segment)
    assert await outcomes(world) == set()
    assert await indexes(world) == [1]
    assert await committed(segment) == ["a"] == await committed(await world.reopened())


async def test_the_outcomes_of_a_buffer_that_does_not_tell_them_stay_until_their_entries_are_trimmed(
    world: World,
) -> None:
    class Silent(PlainBuffer):
        outcomes = TransactionBuffer.outcomes
        drop = TransactionBuffer.drop

    node = await world.first_node()
    node.context = replace(node.context, open_buffer=lambda _, empty_at: Silent(empty_at))
    segment = await node.open()
    await publish(segment, "a")
    txn_id = await aborted(world, segment, "never")
    await rolled(segment)
    assert segment.on_tend is not None
    await segment.on_tend()
    assert await outcomes(world) == {txn_id}
    assert await indexes(world) == [None, None]
    assert await committed(segment) == ["a"]
    await trim(segment, world.store, node.storage, await publish(segment, "b"))
    await tended(segment)
    assert await outcomes(world) == set()
    assert await committed(segment) == ["b"]


async def test_an_idle_segment_with_some_outcomes_is_rolled_for_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while it is written to, nor for fewer, and not once more when they are gone."""
    monkeypatch.setattr("participants.segment.indexing.FEW_OUTCOMES", 3)
    segment = await world.segment()
    for _ in range(3):
        await tended(segment)
        await aborted(world, segment, "never")
    await tended(segment)
    assert await indexes(world) == [None], "it was written to a moment ago"
    monkeypatch.setattr("participants.segment.indexing.IDLE_MS", 0)
    for _ in range(3):
        await tended(segment)
    assert await outcomes(world) == set()
    assert await indexes(world) == [1, None]
    await aborted(world, segment, "never")
    await tended(segment)
    assert await indexes(world) == [1, None], "one is few"


async def test_a_segment_in_use_is_rolled_for_many_outcomes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("participants.segment.indexing.MANY_OUTCOMES", 3)
    segment = await world.segment()
    for _ in range(3):
        await tended(segment)
        await aborted(world, segment, "never")
    for _ in range(2):
        await tended(segment)
    assert await outcomes(world) == set()
    assert await indexes(world) == [1, None]
