"""Goal: cumulative acknowledgements, in transactions and outside, over restarts, and mixed with single ones.

Method: as in `test_individual_acks`. Scenarios G and J: 62-66, 81; DESIGN §5.10.
"""

from __future__ import annotations

import pytest

from tests.participants.subscription.consuming import Consuming


@pytest.mark.parametrize("inside", [False, True], ids=["for good", "in a transaction"])
async def test_a_shared_subscription_refuses_one_that_covers_what_another_consumer_has(
    consuming: Consuming, inside: bool
) -> None:
    await consuming.subscribe(kind="shared")
    ids = await consuming.publish_each(*range(6))
    assert await consuming.values(consumer="one", limit=3) == [0, 1, 2]
    assert await consuming.values(consumer="two") == [3, 4, 5]
    txn = await consuming.world.begin() if inside else None
    refused = await consuming.ack(ids[5:], txn, kind="cumulative", for_all=False)
    problem = refused.json()
    assert (refused.status_code, problem["field"], problem["definite"]) == (422, "kind", True)
    assert "individual" in problem["action"]
    await consuming.asked("DELETE", "/subscriptions/s/consumers/one")
    assert await consuming.values(consumer="two") == [0, 1, 2], "nobody has acknowledged them"
    assert (await consuming.shown())["pending_acks"] == {}


@pytest.mark.parametrize("batch", [1, 10], ids=["batch off", "batch on"])
async def test_62_steps_then_abort_return_everything_and_then_commit_nothing(consuming: Consuming, batch: int) -> None:
    await consuming.subscribe(kind="failover")
    for start in range(0, 100, batch):
        await consuming.publish(*range(start, start + batch))
    ids = [message["message_id"] for message in await consuming.receive()]
    for commits in (False, True):
        txn = await consuming.world.begin()
        for step in (4, 37, 99):
            await consuming.acked(ids[step : step + 1], txn, kind="cumulative")
            assert (await consuming.shown())["pending_acks"] == {str(txn): step + 1}
        assert await consuming.redeliver() == 0
        await (consuming.commit(txn) if commits else consuming.abort(txn))
        assert await consuming.values() == ([] if commits else list(range(100)))
        assert await consuming.world.operations(txn) == []
    assert (await consuming.shown())["backlog"] == 0


async def test_63_65_a_second_transaction_waits_until_the_first_ends(consuming: Consuming) -> None:
    await consuming.subscribe(kind="exclusive")
    ids = await consuming.publish_each(*range(5))
    await consuming.receive()
    one, two = await consuming.world.begin(), await consuming.world.begin()
    await consuming.acked(ids[2:3], one, kind="cumulative")
    for number in range(5):
        assert await consuming.conflicts(ids[number : number + 1], two, kind="cumulative")
    await consuming.abort(one)
    assert await consuming.values() == [0, 1, 2]
    await consuming.acked(ids[4:], two, kind="cumulative")
    await consuming.commit(two)
    await consuming.redeliver()
    assert await consuming.values() == []


async def test_up_to_a_place_of_a_segment(consuming: Consuming) -> None:
    """As one who reads without consuming acknowledges: it knows places, and no messages."""
    await consuming.subscribe(kind="shared")
    await consuming.publish("a", "b")
    await consuming.publish("c")
    segment = await consuming.process.broker.segment(consuming.segments[0])
    place, txn = str(segment.buffer.max_read_position), await consuming.world.begin()
    await consuming.publish("d")

    async def acknowledge(positions: dict[str, str], for_all: bool = True) -> int:
        body = {"kind": "cumulative", "txn_id": str(txn), "positions": positions, "for_all": for_all}
        return (await consuming.ask("POST", "/subscriptions/s/acks", body)).status_code

    assert await acknowledge({segment.id: place}, for_all=False) == 422, "a consumer cannot speak for the others"
    assert await acknowledge({segment.id: "99:0"}) == 422, "nobody was shown that"
    assert await acknowledge({"segment://public/default/other/0000-ffff-0": place}) == 422
    assert await acknowledge({segment.id: "1:-1"}) == 200, "nothing is before it"
    assert (await consuming.shown())["pending_acks"] == {}
    assert await acknowledge({segment.id: place}) == 200
    assert await acknowledge({segment.id: place}) == 200, "again"
    assert (await consuming.shown())["pending_acks"] == {str(txn): 3}
    await consuming.commit(txn)
    assert await consuming.values() == ["d"]


async def test_nothing_is_acknowledged_that_readers_were_not_shown(consuming: Consuming) -> None:
    """It is durable, and an open transaction holds readers back before it."""
    await consuming.subscribe(kind="shared")
    segment, txn = await consuming.segment(), await consuming.world.begin()
    await consuming.publish("held back", txn_id=txn)
    await consuming.publish("behind it")
    body = {"kind": "cumulative", "positions": {segment.id: str(segment.buffer.last_durable)}, "for_all": True}
    assert (await consuming.ask("POST", "/subscriptions/s/acks", body)).status_code == 422
    await consuming.commit(txn)
    assert await consuming.values() == ["held back", "behind it"]
    assert (await consuming.ask("POST", "/subscriptions/s/acks", body)).status_code == 200


async def test_64_below_the_mark_delete_is_a_conflict(consuming: Consuming) -> None:
    await consuming.subscribe(kind="exclusive")
    ids = await consuming.publish("a", "b", "c", "d")
    await consuming.acked(ids[1:2], kind="cumulative")
    await consuming.acked(ids[:1], kind="cumulative")  # outside of transactions it is just no news
    txn = await consuming.world.begin()
    assert await consuming.conflicts(ids[:1], txn, kind="cumulative")
    assert await consuming.conflicts(ids[1:2], txn, kind="cumulative")
    await consuming.acked(ids[2:3], txn, kind="cumulative")
    await consuming.commit(txn)
    assert await consuming.values() == ["d"]


async def test_below_its_own_pending_one_is_a_conflict_and_the_same_again_is_not(consuming: Consuming) -> None:
    await consuming.subscribe(kind="exclusive")
    ids = await consuming.publish_each(*range(4))
    txn = await consuming.world.begin()
    await consuming.acked(ids[2:3], txn, kind="cumulative")
    assert await consuming.conflicts(ids[1:2], txn, kind="cumulative")
    await consuming.acked(ids[2:3], txn, kind="cumulative")
    await consuming.acked(ids[2:3], txn, kind="cumulative", writer="w")
    assert len(await consuming.world.operations(txn)) == 2


async def test_66_null_ids_and_several_cumulative_ones_are_refused(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    good: dict[str, object] = {"kind": "individual", "message_ids": ids}
    wrong: list[tuple[str, dict[str, object]]] = [
        ("txn_id", good | {"txn_id": None}),
        ("txn_id", good | {"txn_id": "zz"}),
        ("message_ids", good | {"message_ids": None}),
        ("message_ids", good | {"message_ids": []}),
        ("message_ids", good | {"kind": "cumulative"}),
        ("message_ids", good | {"message_ids": ["AAAA"]}),
        ("writer", good | {"writer": "w"}),
    ]
    for field, body in wrong:
        answer = await consuming.ask("POST", "/subscriptions/s/acks", body)
        assert answer.status_code == 422 and field in answer.json()["detail"], (body, answer.text)
    assert await consuming.values() == [0, 1]


async def test_81_a_pending_cumulative_ack_survives_a_restart(consuming: Consuming) -> None:
    await consuming.subscribe(kind="failover")
    ids = await consuming.publish_each(*range(10))
    await consuming.receive()
    one, two = await consuming.world.begin(), await consuming.world.begin()
    await consuming.acked(ids[4:5], one, kind="cumulative")
    await consuming.crash()
    assert await consuming.conflicts(ids[7:8], two, kind="cumulative")
    assert await consuming.conflicts(ids[2:3], two)
    assert await consuming.values() == list(range(5, 10))
    await consuming.acked(ids[8:9], two)
    await consuming.crash()
    await consuming.abort(one)
    await consuming.commit(two)
    assert await consuming.values() == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert await consuming.findings() == []


async def test_cumulative_and_single_acks_of_two_transactions_end_independently(consuming: Consuming) -> None:
    await consuming.subscribe(kind="failover")
    ids = await consuming.publish_each(*range(6))
    await consuming.receive()
    one, two = await consuming.world.begin(), await consuming.world.begin()
    await consuming.acked(ids[1:2], one, kind="cumulative")
    await consuming.acked(ids[3:4], two)
    assert await consuming.conflicts(ids[4:5], one, kind="cumulative"), "it would cover what the other one holds"
    await consuming.commit(two)
    assert (await consuming.shown())["pending_acks"] == {str(one): 2}
    await consuming.acked(ids[4:5], one, kind="cumulative")
    await consuming.abort(one)
    assert await consuming.values() == [0, 1, 2, 4]


async def test_one_transaction_does_both_and_ends_both(consuming: Consuming) -> None:
    await consuming.subscribe(kind="failover")
    ids = await consuming.publish_each(*range(6))
    await consuming.receive()
    txn = await consuming.world.begin()
    await consuming.acked(ids[1:2], txn)
    await consuming.acked(ids[2:3], txn, kind="cumulative", writer="void")
    await consuming.acked(ids[4:5], txn)
    await consuming.commit(txn, writers=[])
    assert await consuming.values() == [0, 2]
    assert (await consuming.shown())["backlog"] == 4
