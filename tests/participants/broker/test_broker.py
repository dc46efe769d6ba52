"""Goal: a broker serves exactly the segments of its storage, keeps them open whatever happens, and says why not.

Method: a broker in-process over a store with faults and a real directory. DESIGN §5.2, 5.9; scenarios 61, 77, 98, 118.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import Entry, PayloadKind
from participants.broker.broker import NOT_IN_STORE, Broker
from participants.ledger.directories import segment_directory
from participants.segment.recovery import open_segment
from participants.segment.segment import Segment
from tests.participants.broker.process import URL, BrokerProcess
from tests.participants.devices import LocalDevice, on_local_files
from tests.participants.segment.faulty_store import CLEANUP, INTENT, Fault, puts
from tests.participants.segment.world import World, committed, materialized, publish, released, sending

UNKNOWN = "segment://public/default/t/0000-ffff-0"


def code(error: pytest.ExceptionInfo[errors.MetatxnError]) -> ErrorCode | None:
    return error.value.code


async def served(broker: Broker, segment_id: str, after: Segment | None = None) -> Segment:
    """The segment, once another object than `after` serves it."""
    while True:
        found = broker._segments.get(segment_id)
        if found is not None and found is not after and not found.lost:
            return found
        await broker._opened.wait()


async def test_118_restarts_lose_nothing_repeat_nothing_and_show_nothing_aborted(world: World, tmp_path: Path) -> None:
    process = await BrokerProcess(world, world.new_device("data")).start()
    await process.create("t", segments=2)
    names = ["segment://public/default/t/0000-7fff-0", "segment://public/default/t/8000-ffff-1"]
    expected: dict[str, set[str]] = {name: set() for name in names}
    for life in range(4):
        txns = [await world.begin() for _ in range(4)]
        for index, txn in enumerate(txns):
            for name in names:
                payload = f"{life}/{index}"
                await publish(await process.broker.segment(name), payload, txn, writer="w", sequence=index)
                if index % 2:
                    expected[name].add(payload)
        for index, txn in enumerate(txns):
            await (world.commit(txn) if index % 2 else world.abort(txn))
        process = await process.crash()
    for name in names:
        segment = await process.broker.segment(name)
        seen = await committed(segment)
        assert len(seen) == len(set(seen)) and set(seen) == expected[name]
    await process.stop()


async def test_a_segment_whose_opening_fails_at_the_end_is_closed(process: BrokerProcess, world: World) -> None:
    """Anyone who opens it again makes another object of it; the first one must neither keep the ledger open nor act."""
    (name,) = await process.create("t")
    txn = await world.begin()
    await publish(await process.broker.segment(name), "A", txn)
    failing = world.store.hold_read(lambda keys: paths.topic("public/default/t") in keys)
    failing.error = StoreUnavailable("nobody listens")
    failing.go.set()
    after = await process.crash()
    segment = await served(after.broker, name)
    assert failing.reached.is_set()
    assert list(after.broker._mirror._listeners[paths.header(txn)]) == [segment._on_final]
    await after.stop()


async def test_29_a_segment_whose_ledger_failed_is_opened_again_by_itself(process: BrokerProcess, world: World) -> None:
    (name,) = await process.create("t")
    segment = await process.broker.segment(name)
    txn = await world.begin()
    await publish(segment, "A")
    process.device.fail()
    with pytest.raises(errors.MetatxnError) as error:
        await publish(segment, "B", txn, writer="w", sequence=1)
    assert code(error) == ErrorCode.OUTCOME_UNKNOWN
    assert process.broker.not_ready == {name: "it is being opened"}
    with pytest.raises(errors.MetatxnError) as error:
        await process.broker.segment(name)
    assert code(error) == ErrorCode.STORE_UNAVAILABLE
    process.device.heal()
    again = await served(process.broker, name, after=segment)
    assert process.broker.not_ready == {}
    assert again.ownership.generation > segment.ownership.generation
    _, duplicate = await again.publish(Entry(b"B", PayloadKind.BYTES, 1, txn, "w", None, 1))
    assert duplicate
    await world.commit(txn)
    await released(again, txn)
    assert await committed(again) == ["A", "B"]


async def test_a_publish_that_waits_while_its_segment_is_lost_gets_an_answer(
    process: BrokerProcess, world: World
) -> None:
    (name,) = await process.create("t")
    segment = await process.broker.segment(name)
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_after=True))
    waiting = sending(segment, "x", txn)
    await held.reached.wait()
    segment.lose("for the test")
    with pytest.raises(errors.MetatxnError) as error:
        await waiting
    assert code(error) == ErrorCode.OUTCOME_UNKNOWN
    again = await served(process.broker, name, after=segment)
    await publish(again, "plain")
    assert await committed(again) == ["plain"]
    await world.abort(txn)
    await materialized(again, txn)
    assert await world.operations(txn) == []


async def test_a_broker_starts_without_the_store_answering_for_a_while(
    process: BrokerProcess, world: World, tmp_path: Path
) -> None:
    (name,) = await process.create("t")
    await publish(await process.broker.segment(name), "x")
    await process.stop()
    world.store.fault(Fault(puts("/segment-owner/"), before=StoreUnavailable("gone"), times=5))
    again = await process.again()
    segment = await served(again.broker, name)
    assert await committed(segment) == ["x"]
    await again.stop()


async def test_98_who_asks_for_the_last_message_while_it_is_recovered_is_told_so_and_why_it_fails(
    process: BrokerProcess, world: World
) -> None:
    """Never an answer from half of what is there: it is refused, to be asked again, until all is known."""
    (name,) = await process.create("t")
    txn = await world.begin()
    segment = await process.broker.segment(name)
    position = await publish(segment, "A")
    await publish(segment, "held back", txn)
    path = f"/v1/segments/{quote(name, safe='')}"
    failing = world.store.hold_read(lambda keys: paths.header(txn) in keys)
    failing.error = StoreUnavailable("nobody listens")
    segment.lose("for the test")
    await failing.reached.wait()
    refused = await process.http.get(path)
    assert (refused.status_code, refused.json()["code"]) == (503, "STORE_UNAVAILABLE")
    assert refused.json()["retriable"] and "it is being opened" in refused.json()["detail"]
    failing.go.set()
    while name not in process.broker._why_not:
        await process.broker._opened.wait()
    assert "nobody listens" in process.broker.not_ready[name]
    await served(process.broker, name, after=segment)
    assert (await process.http.get(path)).json()["last_visible_position"] == str(position)


@on_local_files
async def test_77_a_missing_ledger_is_told_and_healed_when_it_is_back(process: BrokerProcess, tmp_path: Path) -> None:
    (name,) = await process.create("t")
    await publish(await process.broker.segment(name), "x")
    await process.stop()
    ledgers, aside = process.directory / "ledgers", tmp_path / "aside"
    shutil.copytree(ledgers, aside)
    shutil.rmtree(next(ledgers.iterdir()))
    again = await process.again()
    await again.serving()
    assert list(again.broker.not_ready) == [name] and "does not exist in this storage" in again.broker.not_ready[name]
    with pytest.raises(errors.MetatxnError) as error:
        await again.broker.segment(name)
    assert code(error) == ErrorCode.STORE_UNAVAILABLE and "does not exist in this storage" in error.value.detail
    shutil.copytree(aside, ledgers, dirs_exist_ok=True)
    assert await committed(await served(again.broker, name)) == ["x"]
    await again.stop()


async def test_ledgers_of_a_segment_that_the_store_does_not_know_are_told(process: BrokerProcess, world: World) -> None:
    """The store may have been restored. So they stay, and `store recover` can set them aside."""
    (unknown,) = await process.create("t")
    await process.create("deleted")
    await publish(await process.broker.segment(unknown), "x")
    assert (await process.http.delete("/v1/topics/deleted")).status_code == 204
    await process.stop()
    await world.forget(unknown)
    again = await process.again()
    assert again.broker.not_ready == {unknown: NOT_IN_STORE} and not again.broker.served
    await again.broker.reconcile()
    assert len(again.device.ledgers()) == 1
    with pytest.raises(errors.MetatxnError) as error:
        await again.broker.segment(unknown)
    assert code(error) == ErrorCode.NOT_FOUND
    await again.stop()


async def test_what_holds_no_ledger_is_no_segment_that_the_store_does_not_know(process: BrokerProcess) -> None:
    """A directory that a crash has left empty, or the fences of ledgers that were deleted."""
    await process.storage.create(UNKNOWN, 1)
    await process.storage.delete(UNKNOWN, 1)
    if isinstance(process.device, LocalDevice):
        (process.directory / "ledgers" / segment_directory(UNKNOWN)).mkdir()
    await process.stop()
    again = await process.again()
    assert await again.storage.directories() == [segment_directory(UNKNOWN)]
    assert again.broker.not_ready == {}
    await again.stop()


async def test_ledgers_of_an_unknown_segment_whose_name_was_cut_are_told_by_their_directory(
    process: BrokerProcess,
) -> None:
    name = UNKNOWN.replace("/t/", f"/{'t' * 300}/")
    await process.storage.create(name, 1)
    await process.stop()
    again = await process.again()
    assert again.broker.not_ready == {segment_directory(name): NOT_IN_STORE}
    await again.stop()


async def test_a_segment_of_another_broker_is_redirected_to_it(process: BrokerProcess, tmp_path: Path) -> None:
    (name,) = await process.create("t")
    other = await BrokerProcess(process.world, process.world.new_device("other"), "http://other").start()
    with pytest.raises(errors.MetatxnError) as error:
        await other.broker.segment(name)
    assert code(error) == ErrorCode.NOT_OWNER
    assert error.value.members["owner_url"] == URL
    await other.stop()


@on_local_files
async def test_a_segment_that_is_deleted_while_its_owner_is_asked_for_does_not_exist(
    process: BrokerProcess, world: World
) -> None:
    (name,) = await process.create("t")
    other = await BrokerProcess(world, world.new_device("other"), "http://other").start()
    held = world.store.hold_read(lambda keys: list(keys) == [paths.segment(name)], unread=True)
    looking = asyncio.create_task(other.broker.anywhere(name))
    await held.reached.wait()
    assert (await process.http.delete("/v1/topics/t")).status_code == 204
    assert await world.store.get(paths.segment(name)) is None
    held.go.set()
    with pytest.raises(errors.NotFound):
        await looking
    await other.stop()


async def test_a_new_data_directory_at_the_old_url_is_no_redirect_to_itself(
    process: BrokerProcess, tmp_path: Path
) -> None:
    """The operator lost the directory and kept the port. The data is elsewhere; nothing recovers as empty."""
    (name,) = await process.create("t")
    await publish(await process.broker.segment(name), "x")
    await process.stop()
    again = await BrokerProcess(process.world, process.world.new_device("new")).start()
    with pytest.raises(errors.MetatxnError) as error:
        await again.broker.segment(name)
    assert code(error) == ErrorCode.STORE_UNAVAILABLE
    assert process.storage.storage_id in error.value.detail
    await again.stop()


async def test_a_segment_nobody_created_does_not_exist(process: BrokerProcess) -> None:
    with pytest.raises(errors.MetatxnError) as error:
        await process.broker.segment("segment://public/default/none/0000-ffff-0")
    assert code(error) == ErrorCode.NOT_FOUND


@on_local_files
async def test_a_topic_whose_creation_was_answered_by_nobody_is_served_all_the_same(
    process: BrokerProcess, world: World
) -> None:
    world.store.fault(Fault(puts(paths.TOPICS), after=OutcomeUnknown("no answer")))
    with pytest.raises(OutcomeUnknown):
        await process.broker.topics.create("public/default/t", 1, None, process.broker.id, 0)
    name = "segment://public/default/t/0000-ffff-0"
    with pytest.raises(errors.MetatxnError) as error:
        await process.broker.segment(name)
    assert code(error) == ErrorCode.STORE_UNAVAILABLE
    assert await publish(await served(process.broker, name), "x")


async def test_an_opening_that_ends_in_a_bug_is_told_and_tried_again(
    process: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, real = 3, open_segment

    async def failing(*args: object) -> Segment:
        nonlocal failures
        if failures:
            failures -= 1
            raise AssertionError("a bug")
        return await real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("participants.broker.broker.open_segment", failing)
    (name,) = await process.create("t")
    assert await publish(await served(process.broker, name), "x")


async def test_resyncs_and_repairs_are_counted(process: BrokerProcess, world: World) -> None:
    (name,) = await process.create("t")
    segment = await process.broker.segment(name)
    good, bad = await world.begin(), await world.begin()
    await publish(segment, "good", good)
    await publish(segment, "bad", bad)
    world.store.dropping = True
    await world.commit(good)
    await process.broker.reconcile()
    await world.abort(bad)
    await materialized(segment, good)
    await process.broker.reconcile()
    await materialized(segment, good, bad)
    assert await committed(segment) == ["good"]
    assert process.metrics.reconcile_repairs._value.get() == 2
    world.store.dropping = False
    world.store.cut_watches()
    while not process.broker.mirror_resyncs:
        await asyncio.sleep(0)
    await process.broker.reconcile()
    assert process.metrics.watch_resyncs._value.get() == 1


async def test_reconcile_survives_a_store_that_is_away(process: BrokerProcess, world: World) -> None:
    (name,) = await process.create("t")
    world.store.away = StoreUnavailable("gone")
    await process.broker.reconcile()
    world.store.away = None
    await process.broker.reconcile()
    assert await process.broker.segment(name)


async def test_a_stopped_broker_leaves_no_task_behind(world: World, tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    process = await BrokerProcess(world, world.new_device("data")).start()
    (name,) = await process.create("t")
    segment = await process.broker.segment(name)
    txn = await world.begin()
    await publish(segment, "x", txn)
    world.store.fault(Fault(CLEANUP, before=StoreUnavailable("gone"), times=10**6))
    await world.commit(txn)
    await released(segment, txn)
    await process.stop()
    assert asyncio.all_tasks() == before
