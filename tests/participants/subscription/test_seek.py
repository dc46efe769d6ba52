"""Goal: a subscription moves on all segments at once; what was acknowledged before is forgotten as a whole, what is
acknowledged afterwards is not, and nobody's open transaction loses an acknowledgement without being told.

Method: one broker, over REST, and crashes of it. Several brokers: `test_spread`. DESIGN §5.10.
"""

from __future__ import annotations

from typing import Any

import pytest

from metastore.txn import paths
from metatxn.wire.names import MessageId
from tests.participants.subscription.consuming import Consuming


async def seek(consuming: Consuming, status: int = 200, **body: Any) -> Any:
    answer = await consuming.ask("POST", "/subscriptions/s/seek", body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_everything_before_the_place_is_acknowledged_and_nothing_after(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(5))
    assert await consuming.values(limit=4) == [0, 1, 2, 3]
    await consuming.acked([ids[0], ids[3]])
    moved = await seek(consuming, to="earliest")
    assert (moved["segments"][0]["backlog"], moved["aborted"]) == (5, [])
    assert await consuming.values() == [0, 1, 2, 3, 4]
    await consuming.acked(ids[1:3])
    position = str(MessageId.parse(ids[2]).position)
    await seek(consuming, positions={consuming.segments[0]: position})
    assert await consuming.values() == [2, 3, 4]
    await seek(consuming, to="latest")
    await consuming.publish(5)
    assert await consuming.values() == [5]
    assert await consuming.findings() == []


async def test_a_preview_tells_what_would_be_delivered_again_and_what_never(consuming: Consuming) -> None:
    """And for which transactions a seek would be refused. It changes nothing."""
    await consuming.subscribe()
    ids = [*(await consuming.publish(0, 1)), *await consuming.publish_each(2, 3, 4)]
    await consuming.receive(limit=4)
    await consuming.acked([ids[0], ids[3]])
    txn_id = await consuming.world.begin()
    await consuming.acked([ids[2]], txn_id)
    before = await consuming.shown()
    position = str(MessageId.parse(ids[2]).position)
    places: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
        "earliest": ({"to": "earliest"}, (5, 2, 0)),
        "in between": ({"positions": {consuming.segments[0]: position}}, (3, 1, 1)),
        "latest": ({"to": "latest"}, (0, 0, 3)),
    }
    for name, (place, expected) in places.items():
        told = await consuming.asked("POST", "/subscriptions/s/seek/preview", place)
        (found,) = told["segments"]
        assert (found["messages"], found["again"], found["skipped"]) == expected, name
        assert told["holders"] == [str(txn_id)]
    assert await consuming.shown() == before
    await consuming.abort(txn_id)
    moved = await seek(consuming, positions={consuming.segments[0]: position})
    assert moved["segments"][0]["backlog"] == 3
    for wrong in (
        {},
        {"to": "earliest", "at_ms": 1},
        {"positions": {"segment://x": "1:0"}},
        {"to": "latest", "force": 1},
    ):
        assert (await consuming.ask("POST", "/subscriptions/s/seek/preview", wrong)).status_code == 422
    assert (await consuming.ask("POST", "/subscriptions/t/seek/preview", {"to": "latest"})).status_code == 404


async def test_a_time_begins_with_the_first_entry_that_was_published_then_or_later(consuming: Consuming) -> None:
    await consuming.subscribe()
    times = []
    for value in range(9):
        times.append(consuming.world.now_ms())
        await consuming.publish(value)
        if value == 4:
            await consuming.crash()  # so that there are two ledgers
    for value in (0, 4, 5, 8):
        await seek(consuming, at_ms=times[value])
        assert await consuming.values() == list(range(value, 9))
    await seek(consuming, at_ms=consuming.world.now_ms())
    assert await consuming.values() == []


async def test_the_place_of_a_seek_survives_a_crash_and_what_came_before_leaves_no_record(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(6))
    await consuming.values()
    await consuming.acked([ids[1], ids[3]])
    await seek(consuming, positions={consuming.segments[0]: str(MessageId.parse(ids[2]).position)})
    await consuming.crash()
    assert await consuming.values() == [2, 3, 4, 5]
    await consuming.acked(ids[2:])
    await consuming.idle()
    assert await consuming.values() == []
    (cursor,) = await consuming.keys(paths.cursors(consuming.segments[0], "s"))
    assert "/2/" in cursor.removeprefix(paths.cursors(consuming.segments[0], "s")) or cursor.endswith("2/mark-delete")


async def test_open_transactions_that_have_acknowledged_are_named_or_aborted(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(3))
    await consuming.values()
    txn_id = await consuming.world.begin()
    await consuming.acked(ids[:1], txn_id)
    refused = await seek(consuming, 409, to="earliest")
    assert (refused["code"], refused["holders"]) == ("TXN_CONFLICT", [str(txn_id)])
    assert (await consuming.shown())["pending_acks"] == {str(txn_id): 1}, "nothing has changed"
    moved = await seek(consuming, to="earliest", force=True)
    assert moved["aborted"] == [str(txn_id)]
    assert await consuming.values() == [0, 1, 2]
    assert await consuming.conflicts(ids[:1], txn_id) or (await consuming.ack(ids[:1], txn_id)).status_code == 409
    await consuming.idle()
    assert await consuming.keys(paths.ops_of_transaction(txn_id)) == []


async def test_a_decided_transaction_holds_nothing(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    await consuming.values()
    txn_id = await consuming.world.begin()
    await consuming.acked(ids[:1], txn_id)
    await consuming.commit(txn_id)
    await seek(consuming, to="earliest")
    assert await consuming.values() == [0, 1]


async def test_an_acknowledgement_in_a_transaction_needs_a_delivery_after_the_seek(consuming: Consuming) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    await consuming.values()
    await seek(consuming, to="earliest")
    txn_id = await consuming.world.begin()
    assert await consuming.conflicts(ids[:1], txn_id, for_all=False)
    await consuming.values()
    await consuming.acked(ids[:1], txn_id, for_all=False)
    await consuming.commit(txn_id)
    await consuming.redeliver()
    assert await consuming.values() == [1]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "to"),
        ({"to": "earliest", "at_ms": 1}, "to"),
        ({"to": "middle"}, "to"),
        ({"at_ms": -1}, "at_ms"),
        ({"at_ms": "1"}, "at_ms"),
        ({"positions": {}}, "positions"),
        ({"positions": {"segment://public/default/other/0000-ffff-0": "1:0"}}, "positions"),
        ({"positions": {"SEGMENT": "x"}}, "positions"),
        ({"positions": {"SEGMENT": "1:99"}}, "positions"),
        ({"to": "earliest", "forced": True}, "forced"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(
    consuming: Consuming, body: dict[str, Any], field: str
) -> None:
    await consuming.subscribe()
    (message_id,) = await consuming.publish("a")
    await consuming.values()
    await consuming.acked([message_id])
    if "positions" in body:
        body = {"positions": {k.replace("SEGMENT", consuming.segments[0]): v for k, v in body["positions"].items()}}
    refused = await seek(consuming, 422, **body)
    assert refused["code"] == "INVALID_ARGUMENT" and field in refused["detail"]
    assert (await consuming.shown())["backlog"] == 0


async def test_a_subscription_that_is_not_there_is_not_found(consuming: Consuming) -> None:
    assert (await seek(consuming, 404, to="earliest"))["code"] == "NOT_FOUND"
