"""Goal: a deleted topic leaves tombstones and nothing else, no matter who dies or is away; transactions end all the
same.

Method: a broker in-process and a store that dies after every number of writes. Scenarios 38, 85, 96; DESIGN §5.7.
"""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from metastore.errors import OutcomeUnknown
from metastore.txn import paths
from metastore.txn.records.segments import OwnerRecord
from metastore.versions import FIRST, SPEAKS
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from participants.ledger.storage import StorageFailed
from participants.topic.forgetting import LOOK_EVERY_MS
from tests.participants.broker.process import BrokerProcess
from tests.participants.broker.stories import (
    HIGH,
    LOW,
    TOPIC,
    Death,
    assert_lawful,
    browse,
    either,
    keys_of,
    post,
    send,
)
from tests.participants.devices import on_both
from tests.participants.segment.faulty_store import INTENT, Fault, deletes, puts
from tests.participants.segment.world import World, materialized, publish, sending

TOMBSTONES = (paths.TOPICS, paths.SUBSCRIPTIONS)


async def full(process: BrokerProcess, world: World) -> TxnId:
    """A topic with everything that a topic can have in a store: layers of segments, outcomes, sequences, cursors,
    acknowledgements plain and pending, and an open transaction on all of it."""
    (parent,) = await process.create("t")
    txn, aborted = await world.begin(), await world.begin()
    message = await send(process, LOW, "x", sequence=1)
    await send(process, LOW, "never", aborted)
    await send(process, LOW, "open", txn)
    subscription = f"/v1/topics/{TOPIC.replace('/', '%2F')}/subscriptions/s"
    assert (await process.http.put(subscription, json={"initial": "earliest", "type": "shared"})).status_code < 300
    await process.http.post(f"{subscription}/receive", json={"consumer": "c", "max": 10})
    acks = {"kind": "individual", "message_ids": [message], "txn_id": str(txn)}
    answer = await process.http.post(f"{subscription}/acks", json=acks)
    assert answer.status_code < 300, answer.text
    await world.abort(aborted)
    await materialized(await process.broker.segment(parent), aborted)
    await post(process, parent, "split")
    await send(process, HIGH, "open too", txn)
    return txn


async def delete(process: BrokerProcess, topic: str = "t") -> int:
    return (await process.http.delete(f"/v1/topics/{topic}")).status_code


async def assert_gone(process: BrokerProcess, world: World, txn: TxnId) -> None:
    left = await keys_of(world, "default%2Ft")
    assert all(key.startswith(TOMBSTONES) for key in left), left
    assert await world.operations(txn) == []
    assert process.device.is_empty()
    assert not process.broker.served and process.broker.not_ready == {}
    assert (await process.http.get("/v1/topics/t")).status_code == 404
    assert (await process.http.get("/v1/topics")).json()["items"] == []
    await assert_lawful(world)


async def test_96_a_deleted_topic_leaves_nothing_but_tombstones(process: BrokerProcess, world: World) -> None:
    txn = await full(process, world)
    other = await process.create("t2")
    await send(process, LOW, "of another topic", txn, topic="t2")
    assert await delete(process) == 204
    assert await delete(process) == 204, "again"
    assert set(process.broker.served) == set(other)
    await world.commit(txn)
    await materialized(await process.broker.segment(other[0]), txn)
    assert await browse(process, "t2") == ["of another topic"]
    assert await delete(process, "t2") == 204
    await assert_gone(process, world, txn)


@pytest.mark.parametrize("commit", [True, False])
async def test_38_a_transaction_that_wrote_to_a_deleted_topic_ends_and_is_collected(
    process: BrokerProcess, world: World, commit: bool
) -> None:
    txn = await full(process, world)
    assert await delete(process) == 204
    await (world.commit(txn) if commit else world.abort(txn))
    await world.collect(txn)
    await assert_gone(process, world, txn)


async def test_a_write_on_its_way_into_a_deleted_topic_is_refused_by_the_store(
    process: BrokerProcess, world: World
) -> None:
    (name,) = await process.create("t")
    segment = await process.broker.segment(name)
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_before=True))
    late = sending(segment, "late", txn)
    await held.reached.wait()
    assert await delete(process) == 204
    held.go.set()
    with pytest.raises(errors.MetatxnError):
        await late
    await assert_gone(process, world, txn)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("listed", [False, True])
async def test_a_topic_that_is_deleted_while_it_is_looked_at_is_not_found(
    process: BrokerProcess, world: World, listed: bool, finished: bool
) -> None:
    """Found by the simulation: it was shown without segments, and while these were marked as deleted it was a 500."""
    (name,) = await process.create("t")
    looked = world.store.hold_read(lambda keys: paths.segment(name) in keys, unread=True)
    looking = asyncio.create_task(process.http.get("/v1/topics" if listed else "/v1/topics/t"))
    await looked.reached.wait()
    last = world.store.fault(Fault(deletes(paths.segment(name)), hold_before=True))
    deleting = asyncio.create_task(delete(process))
    await last.reached.wait()
    if finished:
        last.go.set()
        await deleting
    looked.go.set()
    answer = await looking
    if listed:
        assert (answer.status_code, answer.json()["items"]) == (200, [])
    else:
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    last.go.set()
    assert await deleting == 204


async def test_a_storage_that_fails_is_told_and_the_bytes_go_when_it_is_asked_again(
    process: BrokerProcess, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation, as a 500."""
    txn = await full(process, world)
    drop, failures = process.storage.drop, [StorageFailed("the connection broke")]

    async def dropped(segment: str) -> None:
        if failures:
            raise failures.pop()
        await drop(segment)

    monkeypatch.setattr(process.storage, "drop", dropped)
    answer = await process.http.delete("/v1/topics/t")
    assert (answer.status_code, answer.json()["code"]) == (504, "OUTCOME_UNKNOWN"), "the topic is deleted"
    assert await delete(process) == 204
    await world.abort(txn)
    await world.collect(txn)
    await assert_gone(process, world, txn)


async def test_a_topic_of_that_name_begins_anew_with_other_segments(process: BrokerProcess, world: World) -> None:
    txn = await full(process, world)
    assert await delete(process) == 204
    assert await process.create("t", segments=2) == [
        "segment://public/default/t/0000-7fff-3",
        "segment://public/default/t/8000-ffff-4",
    ]
    assert await browse(process) == []
    await send(process, LOW, "new", txn)
    await world.commit(txn)
    for segment in process.broker.served.values():
        await materialized(segment, txn)
    assert await browse(process) == ["new"]
    await assert_lawful(world)


async def test_a_topic_that_never_was_is_not_found(process: BrokerProcess) -> None:
    assert await delete(process) == 404


async def test_nobody_waits_for_the_owner_of_what_was_deleted(
    process: BrokerProcess, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = await process.create("t", segments=2)
    assert await delete(process) == 204
    monkeypatch.setattr("participants.broker.broker.TAKEN_WITHIN_S", 1e9)
    await process.broker.until_opened(segments)


@pytest.mark.parametrize("survives", range(17))
@pytest.mark.parametrize("asked_again", [True, False])
async def test_a_deletion_that_dies_anywhere_is_finished(
    process: BrokerProcess, world: World, survives: int, asked_again: bool
) -> None:
    """By anyone who asks again; or by the next life of the broker, as soon as the topic is a tombstone."""
    txn = await full(process, world)
    death = Death(world, survives)
    deleting = asyncio.create_task(delete(process))
    await either(deleting, death)
    again = await death.next_life(process)
    await deleting
    if asked_again or survives == 0:
        assert await delete(again) == 204
    else:
        await finished(again, world)
    await assert_gone(again, world, txn)
    assert await delete(again) == 204
    await again.stop()


@on_both
@pytest.mark.parametrize("survives", range(17))
async def test_a_deletion_that_fails_is_finished_although_nobody_asks_again(
    process: BrokerProcess, world: World, survives: int
) -> None:
    """Nobody dies. Found by the simulation: what a segment without an owner had in the store stayed there."""
    txn = await full(process, world)
    writes = count()
    fault = world.store.fault(Fault(lambda _: next(writes) == survives, after=OutcomeUnknown("the reply was lost")))
    status = await delete(process)
    if fault in world.store._faults:
        world.store._faults.remove(fault)  # the deletion needs fewer writes
    else:
        assert status in (503, 504)
        await finished(process, world)
    await assert_gone(process, world, txn)


async def test_a_deletion_that_failed_here_and_was_repeated_elsewhere_deletes_the_bytes_here(
    process: BrokerProcess, world: World
) -> None:
    """Found by the simulation: the record stayed until a restart, because nobody who has the bytes knew of it. It does
    not wait for the broker's next look at what it never heard of."""
    txn = await full(process, world)
    world.store.fault(Fault(deletes(paths.SEGMENT_STATES), before=OutcomeUnknown("the request was lost")))
    assert await delete(process) in (503, 504)
    other = await BrokerProcess(world, world.new_device("other"), "http://other").start()
    assert await delete(other) == 204
    assert process.device.ledgers()
    await finished(process, world, rounds=100)
    await assert_gone(process, world, txn)
    await other.stop()


@on_both
async def test_a_segment_of_which_its_broker_never_heard_is_deleted_at_its_next_look(
    process: BrokerProcess, world: World
) -> None:
    """Found by the simulation: its topic was created here, the answer of the store was lost, and another broker deleted
    it before anybody had asked for it. The record stayed until a restart, and so did the topic's tombstone."""
    world.store.fault(Fault(puts(paths.TOPICS), after=OutcomeUnknown("the reply was lost")))
    assert (await process.http.post("/v1/topics", json={"name": "t"})).status_code == 504
    other = await BrokerProcess(world, world.new_device("other"), "http://other").start()
    assert await delete(other) == 204
    await process.broker.reconcile()
    if process.storage.exclusive:
        assert len(await keys_of(world, "/segment/segment%3A%2F%2Fpublic%2Fdefault%2Ft%2F")) == 1
    else:
        await finished(process, world)  # it follows the segments
    world._time_ms = count(world.now_ms() + LOOK_EVERY_MS)
    for _ in range(2):
        await process.broker.reconcile()
    assert all(key.startswith(TOMBSTONES) for key in await keys_of(world, "default%2Ft"))
    await other.stop()


async def finished(process: BrokerProcess, world: World, rounds: int | None = None) -> None:
    """Until the broker has finished what it found, by itself and at its reconciling, which takes at most `rounds`,
    if that is given."""
    left = count() if rounds is None else iter(range(rounds))
    while (
        process.broker._keepers
        or await keys_of(world, "/segment/segment%3A%2F%2Fpublic%2Fdefault%2Ft%2F")
        or (await process.broker.topics.get_or_tombstone(TOPIC)).topic.segments  # type: ignore[union-attr]
    ):
        assert next(left, None) is not None
        await process.broker.reconcile()
        await asyncio.sleep(0)


async def test_a_segment_whose_storage_is_away_is_gone_all_the_same_and_its_bytes_when_it_is_back(
    process: BrokerProcess, world: World, tmp_path: Path
) -> None:
    """The generation is bumped without the storage: its broker comes back and finds nothing that is its own."""
    txn = await full(process, world)
    await process.stop()
    other = await BrokerProcess(world, world.new_device("other"), "http://other").start()
    assert await delete(other) == 204
    assert await world.operations(txn) == []
    assert (await other.http.get("/v1/topics/t")).status_code == 404
    await assert_lawful(world)
    back = await process.again()
    await finished(back, world)
    await assert_gone(back, world, txn)
    await back.stop()
    await other.stop()


async def test_a_broker_that_serves_a_topic_deleted_elsewhere_lets_go_of_it(
    process: BrokerProcess, world: World, tmp_path: Path
) -> None:
    txn = await full(process, world)
    segments = list(process.broker.served.values())
    other = await BrokerProcess(world, world.new_device("other"), "http://other").start()
    assert await delete(other) == 204
    fresh = await world.begin()
    for segment in segments:
        if segment.record.state == "active":
            with pytest.raises(errors.MetatxnError) as error:
                await publish(segment, "x", fresh)
            assert error.value.code == ErrorCode.STORE_UNAVAILABLE
    await process.broker.reconcile()
    await finished(process, world)
    await assert_gone(process, world, txn)
    await other.stop()


@pytest.mark.parametrize("version", [FIRST, SPEAKS])
async def test_an_owner_ends_with_its_segment_and_as_a_tombstone_while_there_are_earlier_releases(
    process: BrokerProcess, world: World, version: int
) -> None:
    """Those do not look at `/gc/first-number` when they create a topic."""
    process.broker.version.current = version
    (name,) = await process.create("t")
    before = (await process.broker.segment(name)).ownership.generation
    held = world.store.fault(Fault(deletes(paths.segment(name)), hold_before=True))
    deleting = asyncio.create_task(delete(process))
    await held.reached.wait()
    stored: Any = await world.store.get(paths.segment_owner(name))
    owner = OwnerRecord.decode(stored.value)
    assert owner.deleted and owner.generation == before + 1
    held.go.set()
    assert await deleting == 204
    assert await world.store.get(paths.segment_owner(name)) == (stored if version == FIRST else None)
