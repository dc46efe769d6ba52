"""Goal: an intent that is stored before the first entry of its writer arrives covers that entry as one that is stored
for it, and holds no reader back before that (DESIGN §5.1, "Announced ahead").

Method: as in `test_intents`: the store holds one chosen request, the test does what may happen meanwhile.
"""

from __future__ import annotations

import asyncio

import pytest

from metastore.errors import MetastoreError, OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.operations import WriteOp, decode_op
from metastore.txn.records.segments import OwnerRecord
from metastore.txn.states import TxnState
from metastore.txn.store import begin
from metastore.types import Batch
from metatxn.wire import errors
from metatxn.wire.ids import TxnId
from participants.api.routes import _detail
from participants.segment import intents as intents_module
from participants.segment.intents import BeginIntents
from participants.segment.reconciling import reconcile_segments
from participants.segment.rolling import roll
from participants.segment.segment import Segment
from participants.segment.trimming import trim
from tests.participants.segment.faulty_store import INTENT, Fault, puts
from tests.participants.segment.world import (
    SEGMENT,
    World,
    committed,
    materialized,
    publish,
    released,
    sending,
)


def intents_in(world: World) -> list[Batch]:
    return [batch for batch in world.store.applied if INTENT(batch)]


async def announced(segment: Segment, *txn_ids: TxnId) -> int:
    return await segment.publisher.intents.announce_ahead(txn_ids)


async def stored_op(world: World, txn: TxnId) -> WriteOp:
    (key,) = await world.operations(txn)
    record = await world.store.inner.get(key)
    assert record is not None
    op = decode_op(record.value)
    assert isinstance(op, WriteOp)
    return op


async def reconciled(world: World, segment: Segment) -> None:
    await reconcile_segments([segment], world.store, segment.mirror, segment.publisher._metrics)


async def test_the_intents_of_many_transactions_share_an_apply_and_their_first_entries_need_none(world: World) -> None:
    segment = await world.segment()
    last = await publish(segment, "before")
    txns = [await world.begin() for _ in range(5)]
    assert await announced(segment, *txns) == 5
    assert len(intents_in(world)) == 1
    for txn in txns:
        assert (await stored_op(world, txn)).after == str(last)
        await publish(segment, str(txn), txn)
        await publish(segment, f"{txn}, again", txn)
    assert len(intents_in(world)) == 1
    for txn in txns:
        await world.commit(txn)
    await materialized(segment, *txns)
    assert await committed(segment) == ["before", *(text for txn in txns for text in (str(txn), f"{txn}, again"))]
    assert not any([await world.operations(txn) for txn in txns])


async def test_more_than_fit_into_an_apply_take_several(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents_module, "INTENTS_PER_APPLY", 2)
    segment = await world.segment()
    txns = [await world.begin() for _ in range(5)]
    assert await announced(segment, *txns) == 5
    assert len(intents_in(world)) == 3


async def test_no_reader_waits_for_a_transaction_that_was_only_announced(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    assert await announced(segment, txn) == 1
    last = await publish(segment, "A")
    assert await committed(segment) == ["A"]
    assert segment.buffer.max_read_position == last and segment.buffer.pinned_by is None
    await publish(segment, "B", txn)
    await publish(segment, "C")
    assert await committed(segment) == ["A"], "now it has written"
    await world.abort(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["A", "C"]


async def test_no_reader_waits_while_it_is_being_announced(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_before=True))
    announcing = asyncio.create_task(announced(segment, txn))
    await held.reached.wait()
    await publish(segment, "A")
    assert await committed(segment) == ["A"]
    held.go.set()
    assert await announcing == 1


async def test_an_entry_waits_for_the_intent_that_is_under_way(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_before=True))
    announcing = asyncio.create_task(announced(segment, txn))
    await held.reached.wait()
    writing = sending(segment, "A", txn)
    read = world.store.hold_read(lambda keys: paths.header(txn) in keys)
    for _ in range(20):  # turns of the event loop, in which it would ask
        await asyncio.sleep(0)
    assert not read.reached.is_set()
    held.go.set()
    await read.reached.wait()
    assert await announcing == 1 and not writing.done(), "it is open in a read that began behind that"
    read.go.set()
    await writing
    assert len(intents_in(world)) == 1


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("lost", [OutcomeUnknown("lost"), StoreUnavailable("away")])
async def test_an_entry_whose_intent_has_failed_stores_its_own(
    world: World, lost: MetastoreError, landed: bool
) -> None:
    segment = await world.segment()
    txn = await world.begin()
    world.store.fault(Fault(INTENT, after=lost) if landed else Fault(INTENT, before=lost))
    assert await announced(segment, txn) == 0
    await publish(segment, "A", txn)
    assert len(await world.operations(txn)) == 1 + landed
    await world.abort(txn)
    await materialized(segment, txn)
    assert await committed(segment) == [] and await world.operations(txn) == []


async def test_one_that_is_decided_leaves_the_others_to_their_entries(world: World) -> None:
    """Its decision falls between the look and the apply, which is one for all of them."""
    segment = await world.segment()
    one, other = await world.begin(), await world.begin()
    held = world.store.fault(Fault(INTENT, hold_before=True))
    announcing = asyncio.create_task(announced(segment, one, other))
    await held.reached.wait()
    await world.abort(one)
    held.go.set()
    assert await announcing == 0
    with pytest.raises(errors.TransactionConflict):
        await publish(segment, "never", one)
    await publish(segment, "A", other)
    await world.commit(other)
    await materialized(segment, one, other)
    assert await committed(segment) == ["A"] and segment.buffer.get(one) is None


async def test_a_decision_behind_the_announcement_refuses_the_first_entry(world: World) -> None:
    """Also if the mirror does not know it yet."""
    segment = await world.segment()
    txn = await world.begin()
    await announced(segment, txn)
    world.store.events_flow.clear()
    await world.abort(txn)
    with pytest.raises(errors.TransactionConflict):
        await publish(segment, "never", txn)
    await materialized(segment, txn)
    world.store.events_flow.set()
    assert await committed(segment) == [] and await world.operations(txn) == []


async def test_a_prepared_transaction_takes_no_first_entry(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await announced(segment, txn)
    await world.prepare(txn)
    with pytest.raises(errors.TransactionConflict, match="prepared"):
        await publish(segment, "never", txn)


async def test_what_was_announced_and_never_written_is_cleaned_up(world: World) -> None:
    segment = await world.segment()
    txns = [await world.begin() for _ in range(2)]
    await announced(segment, *txns)
    await world.abort(txns[0])
    await world.commit(txns[1])
    await materialized(segment, *txns)
    assert not any([await world.operations(txn) for txn in txns])
    assert not any(map(segment.buffer.get, txns))


async def test_a_refused_entry_does_not_take_the_announcement_along(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await announced(segment, txn)
    await refused_while_the_store_is_away(world, segment, txn)
    await world.commit(txn)
    await materialized(segment, txn)
    assert await world.operations(txn) == []


async def refused_while_the_store_is_away(world: World, segment: Segment, txn: TxnId) -> None:
    world.store.away = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        await publish(segment, "never", txn)
    world.store.away = None
    assert segment.buffer.get(txn) is not None


async def test_an_announcement_that_lands_late_is_cleaned_up(world: World) -> None:
    """Its answer was lost; it lands when the transaction is still open, and is decided then."""
    segment = await world.segment()
    txn = await world.begin()
    world.store.fault(Fault(INTENT, after=OutcomeUnknown("lost")))
    assert await announced(segment, txn) == 0
    assert await world.operations(txn)
    await world.abort(txn)
    await materialized(segment, txn)
    assert await world.operations(txn) == []


async def test_a_writer_of_the_transaction_has_its_own_intent(world: World) -> None:
    """After a crash its entries are found from its own `after`."""
    segment = await world.segment()
    txn = await world.begin()
    assert await announced(segment, txn) == 1
    await publish(segment, "A", txn, writer="a", sequence=0)
    assert len(intents_in(world)) == 2
    await publish(segment, "B", txn, writer="b", sequence=0)
    await publish(segment, "C", txn)
    assert len(intents_in(world)) == 3
    await world.commit(txn, ["a"])
    await materialized(segment, txn)
    assert await committed(segment) == ["A", "C"]


async def test_what_has_an_intent_is_not_announced_again(world: World) -> None:
    segment = await world.segment()
    written, decided = await world.begin(), await world.begin()
    await publish(segment, "A", written)
    await world.abort(decided)
    await segment.mirror.read([decided])
    while segment.mirror.final(decided) is None:
        await asyncio.sleep(0)
    assert await announced(segment, written, decided) == 0
    assert len(intents_in(world)) == 1 and segment.buffer.get(decided) is None


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ABORTED])
@pytest.mark.parametrize("decided_first", [False, True])
async def test_the_next_owner_finds_the_entries_behind_an_announcement(
    world: World, state: TxnState, decided_first: bool
) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await announced(segment, txn)
    for number in range(3):
        await publish(segment, f"plain {number}")
    await publish(segment, "A", txn)
    await publish(segment, "behind")
    if decided_first:
        world.store.events_flow.clear()
        await world.decide(txn, state)
    segment = await world.reopened()
    plain = [f"plain {number}" for number in range(3)]
    if not decided_first:
        assert await committed(segment) == plain
        await world.decide(txn, state)
    world.store.events_flow.set()
    await materialized(segment, txn)
    assert await committed(segment) == [*plain, *(["A"] if state is TxnState.COMMITTED else []), "behind"]
    assert await world.operations(txn) == []


async def test_the_next_owner_announces_for_itself(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await announced(segment, txn)
    segment = await world.reopened()
    await publish(segment, "A", txn)
    assert len(await world.operations(txn)) == 2
    segment = await world.reopened()
    assert await committed(segment) == []
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["A"]


@pytest.mark.parametrize("rolled", [False, True])
async def test_an_announcement_keeps_nothing_from_being_trimmed(world: World, rolled: bool) -> None:
    """Also the ledger in which its `after` is; recovery then reads from the first entry that is left."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    await announced(segment, txn)
    last = await publish(segment, "trimmed")
    if rolled:
        await roll(segment, world.store, node.storage)
    kept = await publish(segment, "kept")
    await trim(segment, world.store, node.storage, last.next if not rolled else kept)
    await publish(segment, "A", txn)
    await materialized(segment)  # what was trimmed is deleted
    segment = await world.reopened()
    assert await committed(segment) == ["kept"]
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["kept", "A"]


async def test_a_deposed_owner_announces_nothing_and_steps_down(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await depose(world)
    with pytest.raises(errors.StoreUnavailable):
        await announced(segment, txn)
    assert segment.lost and await world.operations(txn) == []


async def depose(world: World) -> None:
    record = await world.store.inner.get(paths.segment_owner(SEGMENT))
    assert record is not None
    owner = OwnerRecord.decode(record.value)
    value = owner.model_copy(update={"generation": owner.generation + 1}).encode()
    await world.store.inner.apply(world.store.inner.batch().replace(record, value))


async def test_a_segment_that_closes_leaves_no_entry_waiting(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_before=True))
    announcing = asyncio.create_task(announced(segment, txn))
    await held.reached.wait()
    writing = sending(segment, "A", txn)
    await asyncio.sleep(0)
    await segment.close()
    for each in (announcing, writing):
        with pytest.raises(errors.OutcomeUnknown):
            await each
    held.go.set()


# -- with the begin --------------------------------------------------------------------------------------------------


async def begun_with(world: World, segment: Segment) -> TxnId:
    """A transaction that began in one apply with its intent, whose answer has come."""
    txn, with_begin = await begin_with(world, segment)
    with_begin.stored(txn)
    with_begin.settle()
    return txn


async def begin_with(world: World, segment: Segment) -> tuple[TxnId, BeginIntents]:
    txn = TxnId(7, next(world._numbers))
    return txn, await begin_under(world, segment, txn)


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ABORTED])
@pytest.mark.parametrize("reopened", [False, True])
async def test_an_intent_that_is_stored_by_the_begin_covers_the_first_entry(
    world: World, state: TxnState, reopened: bool
) -> None:
    segment = await world.segment()
    await publish(segment, "before")
    txn = await begun_with(world, segment)
    await publish(segment, "A", txn)
    assert len(intents_in(world)) == 1
    if reopened:
        segment = await world.reopened()
    assert await committed(segment) == ["before"]
    await world.decide(txn, state)
    await materialized(segment, txn)
    assert await committed(segment) == ["before", *(["A"] if state is TxnState.COMMITTED else [])]
    assert await world.operations(txn) == []


async def test_a_refused_entry_does_not_take_the_intent_of_the_begin_along(world: World) -> None:
    segment = await world.segment()
    txn = await begun_with(world, segment)
    await refused_while_the_store_is_away(world, segment, txn)
    await world.commit(txn)
    await materialized(segment, txn)
    assert await world.operations(txn) == []


async def test_a_deposed_owner_begins_nothing(world: World) -> None:
    segment = await world.segment()
    await depose(world)
    with pytest.raises(MetastoreError):
        await begin_with(world, segment)
    assert not intents_in(world)


async def test_a_begin_that_is_under_way_is_not_taken_for_one_that_was_collected(world: World) -> None:
    """A reconcile that reads the header before it is there finds none."""
    segment = await world.segment()
    held = world.store.fault(Fault(INTENT, hold_before=True))
    beginning = asyncio.create_task(begin_with(world, segment))
    await held.reached.wait()
    await reconciled(world, segment)
    held.go.set()
    txn, with_begin = await beginning
    with_begin.stored(txn)
    await reconciled(world, segment)
    await publish(segment, "A", txn)
    assert len(intents_in(world)) == 1
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["A"]


async def begin_under(world: World, segment: Segment, txn: TxnId) -> BeginIntents:
    header = (await world._records(await world.begin())).header
    batch, with_begin = begin(world.store.batch(), txn, header), BeginIntents([segment.publisher.intents])
    with_begin.add_to(batch, txn)
    await world.store.apply(batch)
    return with_begin


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ABORTED])
async def test_a_read_from_before_the_begin_refuses_nothing_that_was_announced_before(
    world: World, state: TxnState
) -> None:
    """Somebody has guessed the id, so the segment knows it. The begin stores no intent then."""
    segment = await world.segment()
    txn = TxnId(7, 1)
    assert await announced(segment, txn) == 0
    read = world.store.hold_read(lambda keys: paths.header(txn) in keys)
    reconciling = asyncio.create_task(reconciled(world, segment))
    await read.reached.wait()
    with_begin = await begin_under(world, segment, txn)
    with_begin.stored(txn)
    with_begin.settle()
    assert await world.operations(txn) == []
    read.go.set()
    await reconciling
    await publish(segment, "A", txn)
    segment = await world.reopened()
    assert await committed(segment) == []
    await world.decide(txn, state)
    await materialized(segment, txn)
    assert await committed(segment) == (["A"] if state is TxnState.COMMITTED else [])


async def test_what_is_announced_while_it_begins_relies_on_no_intent_of_the_begin(world: World) -> None:
    """The announcement is still under way when the begin is answered, and an entry waits for it."""
    segment = await world.segment()
    txn = TxnId(7, 1)
    header = (await world._records(await world.begin())).header
    batch, with_begin = begin(world.store.batch(), txn, header), BeginIntents([segment.publisher.intents])
    with_begin.add_to(batch, txn)
    held = world.store.fault(Fault(INTENT, hold_before=True))
    announcing = asyncio.create_task(announced(segment, txn))
    await held.reached.wait()
    await world.store.apply(batch)
    writing = sending(segment, "A", txn)
    await asyncio.sleep(0)
    with_begin.stored(txn)
    with_begin.settle()
    held.go.set()
    await announcing
    await writing
    await world.abort(txn)
    await materialized(segment, txn)
    assert await world.operations(txn) == [] == await committed(segment)


async def test_what_is_announced_while_it_begins_is_not_decided(world: World) -> None:
    """A reconcile finds no header. What it would delete as a collected one's is late, and must not be what an entry
    needs."""
    segment = await world.segment()
    txn = TxnId(7, 1)
    header = (await world._records(await world.begin())).header
    held = world.store.fault(Fault(puts(paths.HEADERS), hold_before=True))
    deletion = world.store.hold_range(paths.write_ops_of_segment(txn, SEGMENT), unread=True)
    batch, with_begin = begin(world.store.batch(), txn, header), BeginIntents([segment.publisher.intents])
    with_begin.add_to(batch, txn)
    beginning = asyncio.create_task(world.store.apply(batch))
    await held.reached.wait()
    assert await announced(segment, txn) == 0
    await reconciled(world, segment)
    held.go.set()
    await beginning
    with_begin.stored(txn)
    with_begin.settle()
    await publish(segment, "never", txn)
    deletion.go.set()
    await world.abort(txn)
    segment = await world.reopened()
    assert await committed(segment) == [] and not segment.beginning


async def test_a_begin_that_has_no_answer_is_not_remembered(world: World) -> None:
    segment = await world.segment()
    with_begin = await begin_under(world, segment, TxnId(7, 1))
    assert segment.beginning
    with_begin.settle()
    assert not segment.beginning


async def test_a_reconcile_waits_for_an_announcement_that_is_under_way(world: World) -> None:
    """The header that it found missing may be there before the announcement is."""
    segment = await world.segment()
    txn = TxnId(7, 1)
    held = world.store.fault(Fault(INTENT, hold_before=True))
    deletion = world.store.hold_range(paths.write_ops_of_segment(txn, SEGMENT))
    announcing = asyncio.create_task(announced(segment, txn))
    await held.reached.wait()
    await reconciled(world, segment)
    (await begin_under(world, segment, txn)).settle()
    held.go.set()
    await announcing
    await publish(segment, "A", txn)
    deletion.go.set()
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["A"]


@pytest.mark.parametrize("way", ["announced", "begun"])
async def test_what_an_append_under_way_has_assigned_is_no_lower_bound(world: World, way: str) -> None:
    """If it fails for lack of space, its position is given out again."""
    node = await world.first_node()
    segment = await node.open()
    last = await publish(segment, "A")
    node.device.hold()
    writing = sending(segment, "B")
    while segment.ledgers.open is not None and segment.ledgers.open.last_assigned == last:
        await asyncio.sleep(0)
    txn = TxnId(7, 1) if way == "begun" else await world.begin()
    if way == "begun":
        (await begin_under(world, segment, txn)).settle()
    else:
        await announced(segment, txn)
    assert (await stored_op(world, txn)).after == str(last)
    node.device.go()
    await writing


async def test_a_transaction_that_is_named_twice_is_announced_once(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    assert await announced(segment, txn, txn) == 1


async def test_as_many_intents_as_fit_share_an_apply(world: World) -> None:
    """With the longest names fewer than etcd's limit of 128 checks allows."""
    assert 3 * intents_module.INTENTS_PER_APPLY + 1 <= 128
    name = "segment://t/n/" + "😀" * 508 + "/0000-ffff-0"
    segment = await (await world.first_node(name)).open(name)
    txns = [await world.begin() for _ in range(intents_module.INTENTS_PER_APPLY)]
    assert await announced(segment, *txns) == len(txns)
    assert len(intents_in(world)) == 3


async def test_people_are_not_told_that_it_holds_back_readers(world: World) -> None:
    segment = await world.segment()
    only_announced, writing = await world.begin(), await world.begin()
    await announced(segment, only_announced, writing)
    await publish(segment, "A", writing)
    detail = _detail(segment, None, "owner")
    assert [each.txn_id for each in detail.open_transactions] == [str(writing)] and detail.open_count == 1


async def test_a_begin_whose_answer_was_lost_leaves_nothing(world: World) -> None:
    """The intent is found by a reconcile, whether the transaction is open then or not."""
    segment = await world.segment()
    open_one, begin_of_open = await begin_with(world, segment)
    ended, begin_of_ended = await begin_with(world, segment)
    begin_of_open.settle()
    begin_of_ended.settle()
    await world.abort(ended)
    await reconciled(world, segment)
    await materialized(segment, ended)
    assert await world.operations(ended) == [] and await world.operations(open_one)
    await publish(segment, "A", open_one)
    await world.commit(open_one)
    await released(segment, open_one)
    assert await committed(segment) == ["A"]


async def test_a_transaction_that_was_decided_before_its_begin_was_answered(world: World) -> None:
    segment = await world.segment()
    txn, with_begin = await begin_with(world, segment)
    await world.abort(txn)
    while segment.mirror.final(txn) is None:
        await asyncio.sleep(0)
    with_begin.stored(txn)
    assert segment.buffer.get(txn) is None
    await reconciled(world, segment)
    await materialized(segment, txn)
    assert await world.operations(txn) == []
