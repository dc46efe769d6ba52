"""Goal: acknowledgements of single messages, plain and in transactions, count exactly when they should, over restarts.

Method: a broker in-process over a store with faults and a real directory, used over REST; it dies and another one opens
the same directory. Scenarios F, H, J: 47-57, 59, 67, 68, 80, 82-85, 107, 113; DESIGN §5.10.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.states import ExpiredBy
from metatxn.wire.names import MessageId
from participants.subscription import segment_subscription
from participants.subscription.segment_subscriptions import subscriptions_of
from tests.extent import usually
from tests.participants.broker.stories import HIGH, LOW
from tests.participants.devices import on_local_files
from tests.participants.reconciling import reconcile_subscribed
from tests.participants.segment.faulty_store import CLEANUP, INTENT, Fault, deletes, puts
from tests.participants.segment.world import World
from tests.participants.subscription.by_key import put
from tests.participants.subscription.consuming import Consuming

CURSOR = puts(paths.CURSORS)


ENTRY_MESSAGES = [("shared", 1), ("shared", 100), ("failover", 100), ("exclusive", 100)]
MANY = usually(200, 1_000)
"""Messages in small entries."""


@pytest.mark.parametrize(
    ("kind", "batch"), usually(ENTRY_MESSAGES, [*ENTRY_MESSAGES, ("failover", 1), ("exclusive", 1)])
)
async def test_47_49_pending_is_not_given_again_an_abort_returns_it_a_commit_does_not(
    consuming: Consuming, kind: str, batch: int
) -> None:
    await consuming.subscribe(kind=kind)
    messages = 1_000 if batch > 1 else MANY
    for start in range(0, messages, batch):
        await consuming.publish(*range(start, start + batch))
    given = await consuming.receive()
    assert [message["value"] for message in given] == list(range(messages))
    ids = [message["message_id"] for message in given]
    txn = await consuming.world.begin()
    for some in (ids[:40], ids[40:]):
        await consuming.acked(some, txn)
    assert await consuming.redeliver() == 0 and await consuming.receive() == []
    assert (await consuming.shown())["pending_acks"] == {str(txn): messages}
    await consuming.abort(txn)
    again = await consuming.receive()
    assert [message["value"] for message in again] == list(range(messages))
    assert {message["redelivery_count"] for message in again} == {1}
    assert (await consuming.shown())["pending_acks"] == {}
    txn = await consuming.world.begin()
    await consuming.acked(ids, txn)
    await consuming.commit(txn)
    assert await consuming.redeliver() == 0 and await consuming.receive() == []
    shown = await consuming.shown()
    assert (shown["backlog"], shown["unacked"], shown["pending_acks"]) == (0, 0, {})
    assert await consuming.world.operations(txn) == []
    assert await consuming.findings() == []


async def test_48_what_is_pending_stays_put_when_everything_else_is_given_again(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(10))
    await consuming.receive()
    txn = await consuming.world.begin()
    await consuming.acked(ids[:4], txn)
    assert (await consuming.shown())["pending_acks"] == {str(txn): 4}
    assert await consuming.redeliver(ids[:5]) == 1
    assert await consuming.asked("POST", "/subscriptions/s/redeliver") == {"redelivered": 5, "withdrawn": []}
    assert await consuming.values() == list(range(4, 10))


async def test_50_52_a_conflict_is_the_second_ones_and_another_subscription_is_not_concerned(
    consuming: Consuming,
) -> None:
    await consuming.subscribe("a")
    await consuming.subscribe("b")
    ids = await consuming.publish_each(*range(3))
    one, two = await consuming.world.begin(), await consuming.world.begin()
    await consuming.acked(ids[:1], one, name="a")
    await consuming.acked(ids[1:2], two, name="a")
    assert await consuming.conflicts(ids[:1], two, name="a")
    assert await consuming.conflicts([ids[2], ids[0]], two, name="a"), "all of a request, or nothing"
    assert (await consuming.shown("a"))["pending_acks"] == {str(one): 1, str(two): 1}
    await consuming.acked(ids, two, name="b")
    await consuming.commit(one)
    await consuming.commit(two)
    assert await consuming.values("a") == [2]
    assert await consuming.values("b") == []


async def test_messages_that_follow_each_other_in_an_entry_are_one_operation(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = [*await consuming.publish(*range(10)), *await consuming.publish(*range(10, 13))]
    await consuming.receive()
    some = [2, 3, 4, 6, 7, 9, 10, 11, 12]
    one, two = await consuming.world.begin(), await consuming.world.begin()
    await consuming.acked([ids[index] for index in reversed(some)], one)
    assert len(await consuming.world.operations(one)) == 4, "2 to 4, 6 and 7, 9, and the whole second entry"
    assert (await consuming.shown())["pending_acks"] == {str(one): len(some)}
    assert await consuming.findings() == []
    for index in some:
        assert await consuming.conflicts([ids[index]], two)
    await consuming.acked([ids[5]], two)
    await consuming.abort(two)
    await consuming.abort(one)
    assert sorted(await consuming.values()) == sorted([*some, 5])
    three = await consuming.world.begin()
    await consuming.acked([ids[index] for index in some], three)
    await consuming.commit(three)
    await consuming.crash()
    assert await consuming.values() == [0, 1, 5, 8]


async def test_a_run_of_messages_stays_reserved_over_a_restart_and_may_be_acknowledged_again_in_parts(
    consuming: Consuming,
) -> None:
    await consuming.subscribe()
    ids = await consuming.publish(*range(10))
    await consuming.receive()
    one, two = await consuming.world.begin(), await consuming.world.begin()
    await consuming.acked(ids[2:6], one, for_all=False)
    await consuming.crash()
    for index in range(2, 6):
        assert await consuming.conflicts([ids[index]], two)
        assert await consuming.conflicts([ids[index]])
    await consuming.acked(ids[3:5], one, for_all=False)
    assert await consuming.conflicts(ids[3:7], one, for_all=False), "the last one was not delivered since"
    assert await consuming.values() == [0, 1, 6, 7, 8, 9]
    await consuming.acked(ids[3:7], one, for_all=False)
    await consuming.commit(one)
    assert await consuming.world.operations(one) == []
    assert (await consuming.shown())["backlog"] == 5


async def test_of_a_run_outside_transactions_only_what_is_not_acknowledged_yet_can_conflict(
    consuming: Consuming,
) -> None:
    await consuming.subscribe(kind="exclusive")
    ids = await consuming.publish(*range(6))
    await consuming.receive()
    await consuming.acked([ids[2]])
    txn = await consuming.world.begin()
    await consuming.acked([ids[2]], txn, kind="cumulative")
    await consuming.acked(ids[2:5])
    assert await consuming.conflicts(ids[1:5])
    await consuming.abort(txn)
    await consuming.acked(ids[1:5])
    assert (await consuming.shown())["backlog"] == 2


async def test_51_what_a_committed_transaction_or_anybody_acknowledged_conflicts(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    one, two = await consuming.world.begin(), await consuming.world.begin()
    await consuming.acked(ids[:1], one)
    await consuming.commit(one)
    await consuming.acked(ids[1:])
    await consuming.acked(ids[1:])
    assert await consuming.conflicts(ids[:1], two) and await consuming.conflicts(ids[1:], two)


async def test_54_of_a_thousand_one_stays_after_a_mix_of_plain_and_transactional_acks(consuming: Consuming) -> None:
    await consuming.subscribe()
    for start in range(0, 1000, 10):
        await consuming.publish(*range(start, start + 10))
    ids = [message["message_id"] for message in await consuming.receive()]
    txn = await consuming.world.begin()
    await consuming.acked(ids[0:999:2], txn)
    await consuming.acked(ids[1:999:2])
    shown = await consuming.shown()
    assert (shown["backlog"], shown["unacked"], shown["pending_acks"]) == (501, 1, {str(txn): 500})
    await consuming.commit(txn)
    shown = await consuming.shown()
    assert (shown["backlog"], shown["unacked"], shown["pending_acks"]) == (1, 1, {})
    (subscription,) = subscriptions_of(await consuming.segment())
    assert len(subscription.pending) == 0


@pytest.mark.parametrize("acked", [(0, 1, 2, 3, 4, 5), (1, 4)], ids=["all of a batch", "parts of two batches"])
async def test_55_56_an_abort_restores_the_unacked_count(consuming: Consuming, acked: tuple[int, ...]) -> None:
    await consuming.subscribe()
    ids = [*await consuming.publish(*range(3)), *await consuming.publish(*range(3, 6))]
    await consuming.receive()
    assert (await consuming.shown())["unacked"] == 6
    txn = await consuming.world.begin()
    await consuming.acked([ids[number] for number in acked], txn)
    assert (await consuming.shown())["unacked"] == 6 - len(acked)
    await consuming.abort(txn)
    shown = await consuming.shown()
    assert (shown["unacked"], shown["backlog"], shown["pending_acks"]) == (6, 6, {})
    assert await consuming.values() == list(acked)
    assert (await consuming.shown())["unacked"] == 6


async def test_57_an_abort_while_nobody_consumes_succeeds(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    await consuming.receive(consumer="c")
    txn = await consuming.world.begin()
    await consuming.acked(ids, txn)
    await consuming.asked("DELETE", "/subscriptions/s/consumers/c")
    await consuming.abort(txn)
    assert await consuming.values(consumer="other") == [0, 1]


async def test_67_68_two_transactions_share_a_batch(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish("a", "b", "c")
    await consuming.receive()
    one, two, three = [await consuming.world.begin() for _ in range(3)]
    await consuming.acked(ids[:1], one)
    await consuming.acked(ids[1:2], two)
    await consuming.commit(one)
    await consuming.abort(two)
    assert await consuming.conflicts(ids[:1], three)
    await consuming.acked(ids[1:], three)
    await consuming.commit(three)
    await consuming.redeliver()
    assert await consuming.values() == []
    assert (await consuming.shown())["mark_delete"].endswith(":0")


async def test_the_writers_of_the_commit_decide_what_is_acknowledged(consuming: Consuming) -> None:
    """DESIGN §5.10, 5.12: acknowledged if any writer that counts did; the others' messages return."""
    await consuming.subscribe()
    ids = await consuming.publish_each("both", "void", "counts", "nobody's")
    await consuming.receive()
    txn = await consuming.world.begin()
    for writer, wanted in (("a", (0, 2)), ("b", (0, 1)), (None, (3,))):
        await consuming.acked([ids[number] for number in wanted], txn, writer=writer)
    await consuming.acked(ids[:1], txn, writer="b")  # again
    assert len(await consuming.world.operations(txn)) == 5
    await consuming.commit(txn, writers=["a"])
    assert await consuming.values() == ["void"]
    assert await consuming.world.operations(txn) == []


async def test_an_expired_transaction_takes_no_acks_and_its_messages_return(consuming: Consuming) -> None:
    """Scenarios 33, 41, 42."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    await consuming.receive()
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn)
    await consuming.carried_out(await consuming.world.abort(txn, ExpiredBy.TIMEOUT))
    answer = await consuming.ack(ids[1:], txn)
    assert (answer.status_code, answer.json()["code"]) == (409, "EXPIRED_TRANSACTION")
    assert await consuming.values() == [0]
    done = await consuming.world.begin()
    await consuming.commit(done)
    assert await consuming.conflicts(ids, done)


async def test_a_decision_that_overtakes_the_operation_refuses_it_and_nothing_of_it_stays(consuming: Consuming) -> None:
    """Scenario 108 for acks: the store decides, whatever the mirror says."""
    await consuming.subscribe()
    ids = await consuming.publish_each(0)
    await consuming.receive()
    txn = await consuming.world.begin()
    held = consuming.world.store.fault(Fault(INTENT, hold_before=True))
    consuming.world.store.events_flow.clear()
    acking = asyncio.create_task(consuming.ack(ids, txn))
    await held.reached.wait()
    await consuming.world.commit(txn)
    held.go.set()
    assert (await acking).json()["code"] == "TXN_CONFLICT"
    consuming.world.store.events_flow.set()
    await consuming.idle()
    assert await consuming.world.operations(txn) == []
    shown = await consuming.shown()
    assert (shown["unacked"], shown["pending_acks"]) == (1, {}), "the one who had the message has it still"


@pytest.mark.parametrize("kind", ["individual", "cumulative"])
async def test_what_nobody_was_given_is_not_acknowledged_in_a_transaction(consuming: Consuming, kind: str) -> None:
    """PIP-31: only what is PENDING becomes PENDING_ACK. Who was given it by an earlier broker receives it again."""
    await consuming.subscribe(kind="failover")
    first, second = await consuming.publish("a", "b")
    txn = await consuming.world.begin()

    async def refused(message: str) -> bool:
        answer = await consuming.ack([message], txn, kind=kind, for_all=False)
        assert answer.status_code == 200 or (answer.status_code, answer.json()["never_given"]) == (409, True)
        return answer.status_code == 409

    assert await refused(first) and await refused(second)
    assert await consuming.values(limit=1) == ["a"]
    assert not await refused(first)
    assert await refused(second)
    assert await consuming.values() == ["b"]
    await consuming.crash()
    assert not await refused(first), "the same again, which is in the store"
    assert await refused(second)
    assert await consuming.values() == ["b"]
    assert not await refused(second)
    await consuming.commit(txn)
    assert (await consuming.shown())["backlog"] == 0
    third = await consuming.publish("c")
    await consuming.acked(third, kind=kind, for_all=False)  # for good: that loses nobody anything but what it names


@pytest.mark.parametrize("kind", ["individual", "cumulative"])
async def test_a_successor_is_not_refused_for_what_its_aborted_predecessors_held(
    consuming: Consuming, kind: str
) -> None:
    """The decisions are in the store and no watch has told of them yet: what an application has open is aborted when
    its next run connects, and that run acknowledges the same messages at once. One that is open or committed still
    stands in the way."""
    await consuming.subscribe(kind="failover")
    ids = await consuming.publish_each(*range(3))
    holders = [await consuming.world.begin() for _ in ids]
    for txn, each in zip(holders, ids, strict=True):
        await consuming.acked([each], txn)
    consuming.world.store.events_flow.clear()
    await consuming.world.abort(holders[0])
    await consuming.world.abort(holders[1])
    await consuming.world.commit(holders[2])
    successor, opened = await consuming.world.begin(), await consuming.world.begin()
    wanted = ids[:2] if kind == "individual" else ids[1:2]
    await consuming.acked(wanted, successor, kind=kind)
    assert await consuming.conflicts(wanted, opened, kind=kind), "the successor is open"
    assert await consuming.conflicts(ids[2:], successor), "the last one is committed"
    consuming.world.store.events_flow.set()
    await consuming.commit(successor)
    assert await consuming.values() == []
    assert await consuming.findings() == []


async def test_a_predecessor_that_held_messages_of_several_segments_is_gone_from_all_of_them(world: World) -> None:
    """One request acknowledges them, and each segment learns of the abort by itself."""
    consuming = await Consuming.start(world, segments=2)
    await consuming.subscribe(kind="failover")
    ids = await put(consuming, *((str(number), number) for number in range(20)))
    assert len({MessageId.parse(each).segment for each in ids}) == 2
    predecessor = await world.begin()
    await consuming.acked(ids, predecessor)
    world.store.events_flow.clear()
    await world.abort(predecessor)
    await consuming.acked(ids, await world.begin())
    world.store.events_flow.set()
    await consuming.process.stop()


async def test_a_prepared_transaction_takes_no_acks(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(0)
    txn = await consuming.world.begin()
    await consuming.world.prepare(txn)
    assert await consuming.conflicts(ids, txn)
    assert (await consuming.shown())["pending_acks"] == {}


# -- failures of the store -------------------------------------------------------------------------------------------


async def test_58_a_refused_operation_releases_the_message_and_an_unknown_one_keeps_it(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    one, two = await consuming.world.begin(), await consuming.world.begin()
    consuming.world.store.fault(Fault(INTENT, before=StoreUnavailable("gone")))
    assert (await consuming.ack(ids[:1], one)).json()["code"] == "STORE_UNAVAILABLE"
    await consuming.acked(ids[:1], two)
    consuming.world.store.fault(Fault(INTENT, after=OutcomeUnknown("no answer")))
    assert (await consuming.ack(ids[1:], one)).json()["code"] == "OUTCOME_UNKNOWN"
    assert await consuming.conflicts(ids[1:], two)
    await consuming.commit(one)  # the operation is there, so it counts
    await consuming.abort(two)
    assert await consuming.values() == [0]
    assert await consuming.world.operations(one) == []


@pytest.mark.parametrize("segments", [1, 2])
async def test_a_part_that_was_acknowledged_is_never_called_nothing(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, segments: int
) -> None:
    """In slices, and over segments of one broker. Anyone who believed that nothing happened could commit without
    them."""
    monkeypatch.setattr(segment_subscription, "RECORDS_PER_APPLY", 1)
    await consuming.subscribe()
    if segments == 2:
        await consuming.process.http.post(f"/v1/segments/{quote(consuming.segments[0], safe='')}/split", json={})
    ids: list[str] = []
    for key in (LOW, HIGH):
        body = {"messages": [{"key": key, "value": key}]}
        ids += (await consuming.asked("POST", "/messages", body))["message_ids"]
    txn = await consuming.world.begin()
    consuming.world.store.fault(Fault(INTENT, before=StoreUnavailable("gone")))
    refused = (await consuming.ack(ids, txn)).json()
    assert (refused["code"], refused["definite"]) == ("OUTCOME_UNKNOWN", False)
    assert len(await consuming.world.operations(txn)) == 1
    await consuming.acked(ids, txn)
    await consuming.commit(txn)
    assert await consuming.values() == []


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_plain_ack_is_answered_once_it_is_durable_and_not_before(consuming: Consuming, fault: str) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(3))
    await consuming.acked(ids[:1])
    consuming.world.store.fault(Fault(CURSOR, **{fault: OutcomeUnknown("no answer")}))  # type: ignore[arg-type]
    assert (await consuming.ack(ids[1:2])).json()["code"] == "OUTCOME_UNKNOWN"
    await consuming.acked(ids[1:2])
    await consuming.crash()
    assert await consuming.values() == [2]


async def test_a_record_of_the_cursor_that_was_deleted_without_an_answer_holds_up_no_later_write(
    consuming: Consuming,
) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(4))
    await consuming.acked(ids[2:3])
    assert len(await consuming.keys(paths.CURSORS)) == 2, "a range behind a gap, besides the place before it"
    consuming.world.store.fault(Fault(deletes(paths.CURSORS), after=OutcomeUnknown("no answer")))
    assert (await consuming.ack(ids[:2])).json()["code"] == "OUTCOME_UNKNOWN"
    await consuming.acked(ids[:2])
    segment = await consuming.segment()
    mark = paths.cursor_mark(segment.id, "s", 1)
    assert await consuming.keys(paths.CURSORS) == [mark]
    await consuming.crash()
    assert await consuming.values() == [3]


async def test_the_same_acknowledgement_sent_twice_at_once_is_one_operation(consuming: Consuming) -> None:
    """The second one waits for the first."""
    await consuming.subscribe()
    ids = await consuming.publish_each(0)
    txn = await consuming.world.begin()
    held = consuming.world.store.fault(Fault(INTENT, hold_before=True))
    acking = [asyncio.create_task(consuming.ack(ids, txn)) for _ in range(2)]
    await held.reached.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not any(each.done() for each in acking)
    held.go.set()
    assert [(await each).status_code for each in acking] == [200, 200]
    assert len(await consuming.world.operations(txn)) == 1


async def test_an_acknowledgement_on_its_way_when_the_segment_is_closed_may_be_stored(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    txn = await consuming.world.begin()
    held = consuming.world.store.fault(Fault(INTENT, hold_after=True))
    acking = asyncio.create_task(consuming.ack(ids[:1], txn))
    await held.reached.wait()
    (await consuming.segment()).lose("for the test")
    answer = (await acking).json()
    assert (answer["code"], answer["definite"]) == ("OUTCOME_UNKNOWN", False)
    assert "the segment was closed" in answer["detail"]
    while consuming.process.broker.not_ready:
        await consuming.process.broker._opened.wait()
    await consuming.acked(ids[:1], txn)
    assert len(await consuming.world.operations(txn)) == 1, "it was there, and was found"
    await consuming.commit(txn)
    assert await consuming.values() == [1]


async def test_the_cursor_is_durable_before_the_operations_are_deleted(consuming: Consuming) -> None:
    """DESIGN §5.10. Dies between the two: nothing is lost, and it is done again."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(3))
    txn = await consuming.world.begin()
    await consuming.acked(ids[:2], txn)
    consuming.world.store.fault(Fault(CLEANUP, before=StoreUnavailable("gone"), times=10**6))
    written = len(consuming.world.store.applied)
    await consuming.world.commit(txn)
    while not any(map(CURSOR, consuming.world.store.applied[written:])):
        await asyncio.sleep(0)
    assert len(await consuming.world.operations(txn)) == 2
    consuming.world.store._faults.clear()
    await consuming.crash()
    await consuming.idle()
    assert await consuming.world.operations(txn) == []
    assert await consuming.values() == [2]


async def test_59_60_a_recovery_that_fails_answers_and_succeeds_later(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn)
    held = consuming.world.store.hold_read(lambda keys: paths.header(txn) in keys)
    crashing = asyncio.create_task(consuming.crash())
    await held.reached.wait()
    held.go.set()
    await crashing
    consuming.world.store.away = StoreUnavailable("gone")
    segment = await consuming.segment()
    segment.lose("for the test")
    assert (await consuming.ack(ids[1:])).json()["code"] == "STORE_UNAVAILABLE"
    body = {"consumer": "c", "max": 1, "wait_ms": 0}
    assert (await consuming.ask("POST", "/subscriptions/s/receive", body)).status_code == 503
    consuming.world.store.away = None
    await consuming.process.broker._opened.wait()
    while consuming.process.broker.not_ready:
        await consuming.process.broker._opened.wait()
    await consuming.acked(ids[1:])
    assert await consuming.conflicts(ids[:1])


async def test_a_deposed_broker_can_acknowledge_nothing(consuming: Consuming) -> None:
    """DESIGN §5.2: another one has taken the segment, and this one does not know it yet."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    txn = await consuming.world.begin()
    store, segment = consuming.world.store, await consuming.segment()
    owner = await store.get(paths.segment_owner(segment.id))
    assert owner is not None
    await store.apply(store.batch().replace(owner, owner.value))
    assert (await consuming.ack(ids[:1], txn)).json()["code"] == "STORE_UNAVAILABLE"
    assert await consuming.world.operations(txn) == [] and segment.lost
    while consuming.process.broker.not_ready:
        await consuming.process.broker._opened.wait()
    again = await consuming.segment()
    owner = await store.get(paths.segment_owner(again.id))
    assert owner is not None
    await store.apply(store.batch().replace(owner, owner.value))
    assert (await consuming.ack(ids[1:])).json()["code"] == "OUTCOME_UNKNOWN"
    assert await consuming.keys(paths.CURSORS) == [] and again.lost


async def test_a_deposed_broker_leaves_the_operations_to_the_next_owner(consuming: Consuming) -> None:
    """It finds out when it deletes those of a transaction that it has carried out."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn)
    store, segment = consuming.world.store, await consuming.segment()
    held = store.fault(Fault(CLEANUP, hold_before=True))
    await consuming.world.commit(txn)
    await held.reached.wait()
    owner = await store.get(paths.segment_owner(segment.id))
    assert owner is not None
    await store.apply(store.batch().replace(owner, owner.value))
    held.go.set()
    while not segment.lost:
        await segment.changed.wait()
    while consuming.process.broker.not_ready:
        await consuming.process.broker._opened.wait()
    await consuming.idle()
    assert await consuming.world.operations(txn) == []
    assert await consuming.values() == [1]


# -- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
async def test_80_107_pending_acks_survive_a_restart_and_end_after_it(consuming: Consuming, commits: bool) -> None:
    await consuming.subscribe()
    for start in range(0, MANY, 4):
        await consuming.publish(*range(start, start + 4))
    ids = [message["message_id"] for message in await consuming.receive()]
    one, two = await consuming.world.begin(), await consuming.world.begin()
    await consuming.acked(ids[::2], one)
    await consuming.crash()
    assert (await consuming.shown())["pending_acks"] == {str(one): MANY // 2}
    assert await consuming.conflicts(ids[:1], two)
    await consuming.acked(ids[1::2], two)
    assert await consuming.values() == []
    await (consuming.commit(one) if commits else consuming.abort(one))
    await consuming.commit(two)
    assert await consuming.values() == ([] if commits else list(range(0, MANY, 2)))
    three = await consuming.world.begin()
    assert await consuming.conflicts(ids[:1], three) is commits
    assert await consuming.conflicts(ids[1:2], three)
    await consuming.crash()
    assert await consuming.values() == ([] if commits else list(range(2, MANY, 2))), "0 is pending in the third"


async def test_a_decision_that_comes_while_the_header_is_read_is_carried_out(consuming: Consuming) -> None:
    """When the segment is opened again: the answer says that the transaction is open, and its event has come before."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn)
    held = consuming.world.store.hold_read(lambda keys: paths.header(txn) in keys)
    (await consuming.segment()).lose("for the test")
    await held.reached.wait()
    mirror, revision = consuming.process.broker._mirror, await consuming.world.commit(txn)
    while mirror.revision < revision:
        await asyncio.sleep(0)
    await mirror.told()
    held.go.set()
    while consuming.process.broker.not_ready:
        await consuming.process.broker._opened.wait()
    await consuming.idle()
    assert await consuming.world.operations(txn) == []
    assert await consuming.values() == [1]


@on_local_files  # with objects it is the events that make a broker take a segment
async def test_82_83_84_recovery_applies_what_was_committed_and_keeps_what_is_open(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(4))
    opened, committed, aborted, later = [await consuming.world.begin() for _ in range(4)]
    for number, txn in enumerate((opened, committed, aborted, later)):
        await consuming.acked(ids[number : number + 1], txn)
    consuming.world.store.events_flow.clear()
    await consuming.world.commit(committed)
    await consuming.world.abort(aborted)
    crashing = asyncio.create_task(consuming.crash())
    await asyncio.wait([crashing])
    consuming.world.store.events_flow.set()
    await consuming.idle()
    assert (await consuming.shown())["pending_acks"] == {str(opened): 1, str(later): 1}
    assert [await consuming.world.operations(txn) for txn in (committed, aborted)] == [[], []]
    assert await consuming.values() == [2]
    await consuming.commit(later)
    await consuming.crash()
    assert await consuming.values() == [2]
    await consuming.abort(opened)
    assert await consuming.values() == [0]
    assert await consuming.findings() == []


async def test_113_the_loser_of_a_conflict_is_not_resurrected_by_a_restart(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    winner, loser = await consuming.world.begin(), await consuming.world.begin()
    await consuming.acked(ids[:1], winner)
    assert await consuming.conflicts(ids, loser)
    assert await consuming.world.operations(loser) == []
    await consuming.commit(loser)
    await consuming.crash()
    await consuming.abort(winner)
    assert await consuming.values() == [0, 1]


async def test_85_dropping_a_subscription_leaves_nothing_and_its_next_life_starts_anew(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(3))
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn)
    await consuming.acked(ids[1:2])
    await consuming.asked("DELETE", "/subscriptions/s")
    assert (await consuming.ack(ids[2:])).status_code == 404
    assert await consuming.world.operations(txn) == []
    assert await consuming.keys(paths.CURSORS) == [] and await consuming.keys(paths.ACKS_INDEX) == []
    await consuming.asked("DELETE", "/subscriptions/s")
    await consuming.subscribe()
    assert await consuming.values() == [0, 1, 2]
    await consuming.acked(ids[2:], txn)
    await consuming.commit(txn)
    await consuming.crash()
    assert await consuming.values() == [0, 1]
    assert await consuming.findings() == []


async def test_an_ack_on_its_way_when_the_subscription_is_dropped_never_lands(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(0)
    txn = await consuming.world.begin()
    held = consuming.world.store.fault(Fault(INTENT, hold_before=True))
    acking = asyncio.create_task(consuming.ack(ids, txn))
    await held.reached.wait()
    await consuming.asked("DELETE", "/subscriptions/s")
    await consuming.subscribe()
    held.go.set()
    refused = await acking
    assert refused.status_code == 503 and refused.json()["definite"], "it may be sent to the next incarnation"
    assert await consuming.world.operations(txn) == []


async def test_an_ack_of_an_earlier_life_does_not_count_in_the_next_one(consuming: Consuming) -> None:
    """The subscription is created again before its operations are deleted, and the transaction goes on."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn)
    held = consuming.world.store.fault(Fault(CLEANUP, hold_before=True))
    dropping = asyncio.create_task(consuming.ask("DELETE", "/subscriptions/s"))
    await held.reached.wait()
    await consuming.subscribe()
    assert await consuming.values() == [0, 1]
    await consuming.acked(ids[1:], txn)
    assert len(await consuming.world.operations(txn)) == 2
    await consuming.commit(txn)
    held.go.set()
    assert (await dropping).status_code == 204
    assert await consuming.redeliver() == 1 and await consuming.values() == [0]
    assert await consuming.world.operations(txn) == []


async def test_what_a_crash_left_of_a_dropped_subscription_goes_with_the_next_start(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn)
    await consuming.acked(ids[1:])
    consuming.world.store.fault(Fault(CLEANUP, hold_before=True, before=StoreUnavailable("dead")))
    dropping = asyncio.create_task(consuming.ask("DELETE", "/subscriptions/s"))
    while (await consuming.ask("GET", "/subscriptions/s")).status_code != 404:
        await asyncio.sleep(0)
    dropping.cancel()
    await asyncio.gather(dropping, return_exceptions=True)
    assert await consuming.world.operations(txn) != []
    await consuming.crash()
    await consuming.idle()
    assert await consuming.world.operations(txn) == []
    assert await consuming.keys(paths.CURSORS) == []


async def test_a_decision_that_no_watch_tells_is_found(consuming: Consuming) -> None:
    """DESIGN §5.8: reconcile, for commit and abort."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    await consuming.receive()
    good, bad = await consuming.world.begin(), await consuming.world.begin()
    await consuming.acked(ids[:1], good)
    await consuming.acked(ids[1:], bad)
    consuming.world.store.dropping = True
    await consuming.world.commit(good)
    await consuming.world.abort(bad)
    await consuming.process.broker.reconcile()
    await consuming.idle()
    assert await consuming.values() == [1]
    assert (await consuming.shown())["pending_acks"] == {}
    assert await consuming.keys(paths.ACKS_INDEX) == []


async def test_a_reconcile_that_fails_follows_nothing(consuming: Consuming) -> None:
    """It has listed the operations of a transaction that ends before it looks further, and then the store goes away.

    Found by the simulation: the mirror held the subscription for good.
    """
    await consuming.subscribe()
    ids = await consuming.publish_each(0)
    txn = await consuming.world.begin()
    await consuming.acked(ids, txn)
    listed = consuming.world.store.hold_range(paths.ACKS_INDEX)
    reconciling = asyncio.create_task(reconcile_subscribed(await consuming.segment()))
    await listed.reached.wait()
    await consuming.commit(txn)
    consuming.world.store.away = StoreUnavailable("away")
    listed.go.set()
    with pytest.raises(StoreUnavailable):
        await reconciling
    consuming.world.store.away = None
    assert not consuming.process.broker._mirror._listeners


async def test_a_transaction_that_acknowledges_more_while_a_reconcile_looks_for_it_is_not_taken_for_ended(
    consuming: Consuming,
) -> None:
    """Its header is not there: it was collected without its end being told. What is on its way may still be stored, as
    far as this read can tell; the next reconcile ends it."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    await consuming.receive()
    world, store, txn = consuming.world, consuming.world.store, await consuming.world.begin()
    store.fault(Fault(INTENT, before=OutcomeUnknown("no answer")))
    assert (await consuming.ack(ids[:1], txn)).json()["code"] == "OUTCOME_UNKNOWN"
    store.dropping = True
    await world.abort(txn)
    await world.collect(txn)
    read = store.hold_read(lambda keys: paths.header(txn) in keys)
    segment = await consuming.segment()
    reconciling = asyncio.create_task(reconcile_subscribed(segment))
    await read.reached.wait()
    sent = store.fault(Fault(INTENT, hold_before=True))
    acking = asyncio.create_task(consuming.ack(ids[1:], txn))
    await sent.reached.wait()
    read.go.set()
    await reconciling
    assert (await consuming.shown())["pending_acks"] == {str(txn): 2}
    sent.go.set()
    assert (await acking).json()["code"] == "TXN_NOT_FOUND"
    await reconcile_subscribed(segment)
    await consuming.idle()
    assert (await consuming.shown())["pending_acks"] == {}
    assert await consuming.redeliver() == 1 and await consuming.values() == [0, 1]


async def test_operations_of_an_earlier_life_are_not_followed(consuming: Consuming) -> None:
    """A reconcile of the next life sees them, and they go with the earlier one while their transaction is open.

    Found by the simulation, as the one before.
    """
    await consuming.subscribe()
    ids = await consuming.publish_each(0)
    txn = await consuming.world.begin()
    await consuming.acked(ids, txn)
    held = consuming.world.store.fault(Fault(CLEANUP, hold_before=True))
    dropping = asyncio.create_task(consuming.ask("DELETE", "/subscriptions/s"))
    await held.reached.wait()
    await consuming.subscribe()
    await reconcile_subscribed(await consuming.segment())
    held.go.set()
    assert (await dropping).status_code == 204
    assert await consuming.world.operations(txn) == []
    assert not consuming.process.broker._mirror._listeners


async def test_who_gives_up_waiting_leaves_the_others_their_answers(world: World) -> None:
    consuming = await Consuming.start(world)
    await consuming.subscribe()
    ids = await consuming.publish_each("a", "b")
    await consuming.receive()
    held = world.store.fault(Fault(CURSOR, hold_before=True))
    acks = [asyncio.create_task(consuming.ack([each])) for each in ids]
    await held.reached.wait()
    (part,) = subscriptions_of(await consuming.segment())
    cursor_store = part._cursor_store
    waiting = asyncio.create_task(cursor_store.persist())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    held.go.set()
    assert [(await each).status_code for each in acks] == [200, 200]
    assert await consuming.values() == []
