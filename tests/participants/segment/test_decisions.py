"""Goal: every decision reaches every segment once, whatever the watch loses and however often its traces must be
written; and afterwards memory is back at its floor.

Method: as in `test_intents`; watch events are withheld, dropped or replaced by a gap. DESIGN §5.5-8, scenarios 23,
24, 31, 35, 38, 93, 94, 104, 109-111, 113, 115.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.operations import WriteOp
from metastore.txn.store import put_write_op
from metastore.types import Absent, Batch
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.segment.segment import Segment
from tests.extent import usually
from tests.participants.devices import on_local_files
from tests.participants.reconciling import reconcile
from tests.participants.segment.faulty_store import CLEANUP, INTENT, Fault, puts
from tests.participants.segment.world import (
    SEGMENT,
    World,
    assert_at_the_floor,
    committed,
    materialized,
    publish,
    released,
    sending,
    uncommitted,
)

OTHER = SEGMENT.replace("/t/", "/u/")
OUTCOME = puts("/segment-state/")


# -- across segments -------------------------------------------------------------------------------------------------


async def test_23_24_a_transaction_over_three_segments_is_seen_on_none_before_and_on_all_after(world: World) -> None:
    names = [SEGMENT, OTHER, SEGMENT.replace("/t/", "/v/")]
    node = await world.first_node(*names)
    segments = [await node.open(name) for name in names]
    txn = await world.begin()
    await asyncio.gather(*(publish(segments[number % 3], str(number), txn) for number in range(60)))
    assert [await committed(segment) for segment in segments] == [[], [], []]
    await world.commit(txn)
    for segment in segments:
        await released(segment, txn)
    seen = [payload for segment in segments for payload in await committed(segment)]
    assert sorted(map(int, seen)) == list(range(60))


async def test_31_transfers_between_two_topics_conserve_the_balance(world: World) -> None:
    node = await world.first_node(SEGMENT, OTHER)
    here, there = await node.open(), await node.open(OTHER)
    rng = random.Random(31)

    async def transfer(number: int) -> None:
        txn = await world.begin()
        amount = rng.randint(1, 100)
        await asyncio.gather(publish(here, str(-amount), txn), publish(there, str(amount), txn))
        await (world.commit(txn) if number % 3 else world.abort(txn))
        await released(here, txn)
        await released(there, txn)

    await asyncio.gather(*(transfer(number) for number in range(60)))
    debits, credits = await committed(here), await committed(there)
    assert len(debits) == len(credits) == 40
    assert sum(map(int, debits + credits)) == 0


async def test_12_a_transaction_without_operations_ends_and_touches_nothing(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    writes = len(world.store.applied)
    await world.commit(txn)
    assert len(world.store.applied) == writes + 1
    assert_at_the_floor(segment, node)


async def test_111_a_commit_is_one_write_however_many_operations_it_decides(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await asyncio.gather(*(publish(segment, str(number), txn, writer=f"w{number}") for number in range(300)))
    writes = len(world.store.applied)
    await world.commit(txn)
    assert len(world.store.applied) == writes + 1
    await materialized(segment, txn)
    assert len(world.store.applied) - writes < 15, "cleaned up in slices, not one by one"


# -- void writers (rule 12) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writers", "visible"),
    [
        (None, ["a", "b", "unnamed"]),
        (["a", "b"], ["a", "b", "unnamed"]),
        (["a", "elsewhere"], ["a", "unnamed"]),
        ([], ["unnamed"]),
    ],
    ids=["absent: all", "both", "one", "empty: unnamed only"],
)
async def test_void_writers_are_hidden_and_stay_hidden(
    world: World, writers: list[str] | None, visible: list[str]
) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "a", txn, writer="a")
    await publish(segment, "b", txn, writer="b")
    await publish(segment, "unnamed", txn)
    await world.commit(txn, writers=writers)
    await materialized(segment, txn)
    assert await committed(segment) == visible
    assert (await world.outcome(txn) is None) == (len(visible) == 3)
    await world.collect(txn)
    assert await committed(await world.reopened()) == visible


# -- the order in which it becomes durable (rules 5 and 6) -----------------------------------------------------------


async def test_the_outcome_is_never_written_after_the_first_deletion(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await asyncio.gather(*(publish(segment, str(number), txn, writer=f"w{number}") for number in range(90)))
    writes = len(world.store.applied)
    await world.abort(txn)
    await materialized(segment, txn)
    first, *later = [batch for batch in world.store.applied[writes:] if OUTCOME(batch) or CLEANUP(batch)]
    assert OUTCOME(first) and later and not any(map(OUTCOME, later))


async def test_93_operations_added_up_to_the_decision_are_found_by_a_read_after_it(world: World) -> None:
    """An operation that memory never heard of (its answer was lost, its publisher is gone) is deleted too."""
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "x", txn)
    batch = world.store.batch()
    put_write_op(batch, txn, segment.ownership.generation, 999, WriteOp(segment=segment.id, after="1:0", count=1))
    await world.store.apply(batch)
    await world.commit(txn)
    await materialized(segment, txn)
    assert await world.operations(txn) == []


async def test_93_an_intent_that_is_announced_again_beside_another_is_not_overlooked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DESIGN §5.5: b and c wait for the intent of a, which certainly fails. Each announces its own, and the answer to
    b's is late. What is committed stays visible after the outcome is gone and the segment was opened again."""
    monkeypatch.setattr("participants.segment.rewriting.HIDDEN_PARTS", 0)
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "good", txn, writer="good")
    first = world.store.fault(Fault(INTENT, before=StoreUnavailable("not sent"), hold_before=True))
    publishes = [sending(segment, "a", txn)]
    await first.reached.wait()
    late = world.store.fault(Fault(INTENT, hold_after=True))
    publishes += [sending(segment, name, txn) for name in "bc"]
    await asyncio.sleep(0)
    first.go.set()
    await late.reached.wait()
    while len(await world.operations(txn)) < 3:
        await asyncio.sleep(0)
    await publish(segment, "void", txn, writer="void")
    await world.commit(txn, ["good"])
    while segment.buffer.get(txn) is not None:
        await asyncio.sleep(0)
    left = await world.operations(txn)
    late.go.set()
    await asyncio.gather(*publishes, return_exceptions=True)
    for _ in range(2):
        await rested(segment)
        segment.roll()
        await rested(segment)
        segment.tend()
        await rested(segment)
        assert await committed(segment) == ["good"]
        segment = await world.reopened()
    assert left == []


async def rested(segment: Segment) -> None:
    while segment._tasks:
        await asyncio.wait(segment._tasks)


async def test_operations_of_other_segments_are_left_to_their_owners(world: World) -> None:
    longer = SEGMENT + "0"  # the same key up to its end
    node = await world.first_node(SEGMENT, longer)
    here, there = await node.open(), await node.open(longer)
    txn = await world.begin()
    await publish(here, "x", txn)
    await publish(there, "y", txn)
    await there.close()
    await world.commit(txn)
    await materialized(here, txn)
    assert len(await world.operations(txn)) == 1
    there = await node.open(longer)
    await materialized(there, txn)
    assert await world.operations(txn) == []
    assert await committed(there) == ["y"]


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(CLEANUP, before=StoreUnavailable("gone")),
        Fault(CLEANUP, before=OutcomeUnknown("no answer")),
        Fault(CLEANUP, after=OutcomeUnknown("no answer")),
    ],
    ids=["refused", "lost on the way", "reply lost"],
)
async def test_115_a_cleanup_that_fails_is_done_again_without_a_restart(world: World, fault: Fault, times: int) -> None:
    node = await world.first_node()
    segment = await node.open()
    committing, aborting = await world.begin(), await world.begin()
    for txn in (committing, aborting):
        await asyncio.gather(*(publish(segment, f"{txn}", txn) for _ in range(45)))
    world.store.fault(replace(fault, times=times))
    await world.commit(committing)
    await world.abort(aborting)
    await released(segment, committing, aborting)
    assert len(await committed(segment)) == 45, "visible at once, whatever the store does"
    await materialized(segment, committing, aborting)
    assert await world.operations(committing) == await world.operations(aborting) == []
    assert await world.outcome(committing) is None and await world.outcome(aborting) is not None
    assert_at_the_floor(segment, node)
    await world.collect(committing)
    await world.collect(aborting)
    assert len(await committed(segment)) == 45


@on_local_files
async def test_30_a_decision_needs_no_write_to_the_data_and_no_space(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    await publish(segment, "x", txn)
    node.disk.capacity = 0
    with pytest.raises(errors.MetatxnError) as error:
        await publish(segment, "y")
    assert error.value.code == ErrorCode.STORAGE_FULL
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["x"]
    node.disk.capacity = None
    await publish(segment, "z")
    assert await committed(segment) == ["x", "z"], "it goes on by itself once there is space"


@on_local_files
async def test_a_full_disk_rolls_back_and_no_frame_of_an_open_transaction_leaks(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    one, two = await world.begin(), await world.begin()
    node.disk.capacity = 0
    results = await asyncio.gather(
        *(publish(segment, f"full {txn}", txn) for txn in (one, two)), return_exceptions=True
    )
    assert {error.code for error in results if isinstance(error, errors.MetatxnError)} == {ErrorCode.STORAGE_FULL}
    node.disk.capacity = None
    await publish(segment, "two", two)
    await publish(segment, "plain")
    await world.commit(one)
    await materialized(segment, one)
    assert await committed(segment) == [], "the position that one held is two's now"
    await world.abort(two)
    await materialized(segment, two)
    assert await committed(segment) == ["plain"]
    assert_at_the_floor(segment, node)


# -- the watch (rule 8) ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["compacted", "lost"])
async def test_109_110_no_decision_is_lost_when_the_watch_is(world: World, cut: str) -> None:
    node = await world.first_node()
    segment = await node.open()
    good, bad, still = [await world.begin() for _ in range(3)]
    for name, txn in (("good", good), ("bad", bad), ("still", still)):
        await publish(segment, name, txn)
    world.store.dropping = True
    await world.commit(good)
    await world.abort(bad)
    if cut == "compacted":
        world.store.cut_watches()
    else:
        await reconcile(segment)
        assert node.metrics.reconcile_repairs._value.get() == 2
    await materialized(segment, good, bad)
    assert await committed(segment) == ["good"]
    assert segment.buffer.get(still) is not None, "an old OPEN decides nothing"
    world.store.dropping = False
    await world.commit(still)
    if cut == "lost":
        world.store.cut_watches()
    await materialized(segment, still)
    assert await committed(segment) == ["good", "still"]
    assert_at_the_floor(segment, node)


async def test_a_decision_delivered_twice_is_applied_once(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    await publish(segment, "x", txn)
    world.store.events_flow.clear()
    await world.abort(txn)
    await reconcile(segment)
    await released(segment, txn)
    writes = len(world.store.applied)
    await materialized(segment, txn)
    world.store.events_flow.set()
    world.store.cut_watches()
    await reconcile(segment)
    while not node.mirror.final(txn):
        await asyncio.sleep(0)
    assert len([batch for batch in world.store.applied[writes:] if OUTCOME(batch) or CLEANUP(batch)]) <= 1
    assert_at_the_floor(segment, node)


async def test_reconcile_never_acts_on_an_open_header(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "x", txn)
    for _ in range(3):
        await reconcile(segment)
    assert await committed(segment) == []
    assert await world.operations(txn)


async def test_reconcile_races_an_intent_that_is_in_flight(world: World) -> None:
    """The header was read as absent before it was created; what was written since must not be let go by that."""
    segment = await world.segment()
    txn = TxnId(1, 1)
    world.store.fault(Fault(INTENT, before=OutcomeUnknown("no answer")))
    with pytest.raises(OutcomeUnknown):
        await publish(segment, "too early", txn)
    held = world.store.hold_read(lambda keys: paths.header(txn) in keys)
    reconciling = asyncio.create_task(reconcile(segment))
    await held.reached.wait()
    assert await world.begin() == txn
    await publish(segment, "x", txn)
    held.go.set()
    await reconciling
    assert await committed(segment) == []
    await world.abort(txn)
    await materialized(segment, txn)
    assert await committed(segment) == []
    assert await uncommitted(segment) == ["x"]


async def test_reconcile_forgets_what_never_was_a_transaction(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    world.store.fault(Fault(INTENT, before=OutcomeUnknown("no answer")))
    with pytest.raises(OutcomeUnknown):
        await publish(segment, "x", TxnId(9, 9))
    await reconcile(segment)
    await materialized(segment, TxnId(9, 9))
    assert_at_the_floor(segment, node)


async def test_reconcile_adopts_operations_that_memory_lacks(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    open_txn, ended = await world.begin(), await world.begin()
    for txn in (open_txn, ended):
        batch = world.store.batch()
        put_write_op(batch, txn, segment.ownership.generation, 999, WriteOp(segment=segment.id, after="1:-1", count=1))
        await world.store.apply(batch)
    await world.commit(ended)
    await reconcile(segment)
    await materialized(segment, ended)
    assert await world.operations(ended) == []
    await publish(segment, "plain")
    assert await committed(segment) == ["plain"], "an operation without a frame pins nothing"
    await world.abort(open_txn)
    await materialized(segment, open_txn)
    assert await world.operations(open_txn) == []
    assert_at_the_floor(segment, node)


async def test_junk_among_the_headers_does_not_stop_the_decisions(world: World) -> None:
    """An operator's slip of the hand below /txn/."""
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "x", txn)
    for _ in range(2):
        await world.store.inner.apply(Batch().put("/txn/junk", b"?"))
    await world.commit(txn)
    await released(segment, txn)
    assert await committed(segment) == ["x"]


# -- failed ledgers (rule 5) -----------------------------------------------------------------------------------------


async def test_29_an_append_with_an_unknown_outcome_stops_the_segment_and_is_judged_by_the_sealed_ledger(
    world: World,
) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    await publish(segment, "A")
    node.device.fail()
    with pytest.raises(errors.MetatxnError) as error:
        await publish(segment, "B", txn, writer="w", sequence=1)
    assert error.value.code == ErrorCode.OUTCOME_UNKNOWN
    assert segment.lost
    node.device.heal()
    with pytest.raises(errors.MetatxnError):
        await publish(segment, "C")
    await segment.close()
    segment = await node.open()
    assert await uncommitted(segment) == ["A", "B"], "the bytes were there: now they are durable"
    assert await committed(segment) == ["A"]
    again = await publish(segment, "B", txn, writer="w", sequence=1)
    assert again == Position(1, 1), "dedup was rebuilt from the sealed ledger"
    await world.abort(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["A"]


async def test_a_decision_during_a_failed_append_is_not_released_by_the_lost_segment(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    node.device.hold()
    sent = sending(segment, "x", txn)
    await node.device.held()
    node.device.fail()
    await world.abort(txn)
    node.device.go()
    with pytest.raises(errors.MetatxnError):
        await sent
    assert await world.operations(txn) and await world.outcome(txn) is None
    await segment.close()
    node.device.heal()
    segment = await node.open()
    assert await committed(segment) == []
    await materialized(segment, txn)
    outcome = await world.outcome(txn)
    assert outcome is not None and outcome.aborted


async def test_a_lost_segment_makes_nothing_durable_any_more(world: World) -> None:
    """It may not know every frame, so what it would write about a transaction could be wrong."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    await publish(segment, "x", txn, writer="w")
    segment.lose("for the test")
    seen = asyncio.Event()
    node.mirror.follow(txn, lambda *_: seen.set())
    await world.abort(txn)
    await seen.wait()
    assert not segment._tasks
    await segment.close()
    segment = await node.open()
    assert await committed(segment) == []
    await materialized(segment, txn)
    assert await world.operations(txn) == []


@on_local_files
async def test_a_failed_group_with_a_hole_in_it_does_not_make_the_segment_unavailable(world: World) -> None:
    """Of a group that failed, the first frame is torn and the second whole. To a stranger that is damage; the ledger
    itself knows that neither was acknowledged, so it must be the one that seals."""
    node = await world.first_node()
    segment = await node.open()
    await publish(segment, "A")
    (path,) = node.directory.glob("ledgers/*/*.ledger")
    durable = path.stat().st_size
    node.device.fail()
    results = await asyncio.gather(publish(segment, "B"), publish(segment, "C"), return_exceptions=True)
    assert all(isinstance(result, errors.MetatxnError) for result in results)
    node.device.heal()
    content = bytearray(path.read_bytes())
    content[durable + 20] ^= 0xFF
    path.write_bytes(content)
    await segment.close()
    segment = await node.open()
    assert await committed(segment) == ["A"]
    await publish(segment, "D")
    assert await committed(segment) == ["A", "D"]


# -- 10^4 races ------------------------------------------------------------------------------------------------------


async def test_108_of_ten_thousand_racing_writes_none_is_late(world: World) -> None:
    """Method: every header change and every operation is a write of one store, so its log tells the truth: no
    operation behind the final header. And what was acknowledged is exactly what a committed transaction shows."""
    node = await world.first_node()
    segment = await node.open()
    rng = random.Random(108)
    acknowledged: dict[TxnId, set[str]] = {}
    ending: dict[TxnId, bool] = {}
    refusals: set[ErrorCode | None] = set()

    async def turns() -> None:
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)

    async def write(txn: TxnId, number: int) -> None:
        await turns()
        try:
            await publish(segment, f"{txn}/{number}", txn)
        except errors.MetatxnError as error:
            refusals.add(error.code)
        else:
            acknowledged[txn].add(f"{txn}/{number}")

    async def race() -> None:
        txn = await world.begin()
        acknowledged[txn] = set()
        writes = [asyncio.create_task(write(txn, number)) for number in range(20)]
        await turns()
        ending[txn] = rng.random() < 0.5
        await (world.commit(txn) if ending[txn] else world.abort(txn))
        await asyncio.gather(*writes)

    rounds = usually(2, 10) if world.device == "objects" else 10
    for _ in range(rounds):
        await asyncio.gather(*(race() for _ in range(50)))
    await materialized(segment, *acknowledged)
    final: set[str] = set()
    late = 0
    for batch in world.store.applied:
        late += sum(key.split("/")[2] in final for key in batch.puts if key.startswith(paths.OPS))
        for key in batch.puts:
            if key.startswith(paths.HEADERS) and Absent(key) not in batch.checks:
                final.add(key.removeprefix(paths.HEADERS))
    assert len(final) == 50 * rounds and late == 0
    assert refusals == {ErrorCode.TXN_CONFLICT}
    assert all([not await world.operations(txn) for txn in acknowledged])
    shown = set(await committed(segment))
    committed_writes = set().union(*(acknowledged[txn] for txn in acknowledged if ending[txn]))
    assert shown == committed_writes
    assert 0 < len(shown) < 1_000 * rounds, "the race was one"
    assert_at_the_floor(segment, node)


async def test_94_twenty_ended_transactions_leave_nothing_in_memory(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txns = [await world.begin() for _ in range(20)]
    await asyncio.gather(*(publish(segment, str(n), txn, writer="w", sequence=n) for n, txn in enumerate(txns)))
    await asyncio.gather(*(world.commit(txn) for txn in txns))
    await materialized(segment, *txns)
    assert_at_the_floor(segment, node)
    assert len(await committed(segment)) == 20
    for txn in txns:
        await world.collect(txn)
    assert len(await committed(segment)) == 20
