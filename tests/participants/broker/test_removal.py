"""Goal: a sealed segment of which nothing is left goes with every trace, at the right moment; readers, writers and
consumers with places in it go on in its children, unless they have missed something.

Method: a broker in-process, its HTTP paths, both storages; passes are `reconcile`. DESIGN §5.14.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.txn.records.topics import TopicRecord
from metatxn.wire.broker import REVISION_HEADER
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.position import Position
from participants.segment.dedup import AppendedBefore
from participants.topic.removal import Removal
from tests.participants.broker.stories import (
    HIGH,
    LOW,
    Death,
    assert_lawful,
    browse,
    keys_of,
    post,
    quoted,
    record_of,
    send,
)
from tests.participants.devices import on_both
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.world import World
from tests.participants.subscription.consuming import TOPIC, Consuming

PARENT = f"segment://{TOPIC}/0000-ffff-0"
CHILDREN = [f"segment://{TOPIC}/0000-7fff-1", f"segment://{TOPIC}/8000-ffff-2"]
MERGED = f"segment://{TOPIC}/0000-ffff-3"
REMOVES = puts(paths.segment_owner(PARENT))


class Removing(Consuming):
    """A topic whose one segment was split. `ids` are those of the messages a, b and c in the parent."""

    ids: list[str]

    @classmethod
    async def split(cls, world: World) -> Removing:
        found = await cls.start(world)
        assert isinstance(found, cls)
        await found.subscribe("s", "failover")
        found.ids = [await send(found.process, LOW, value) for value in "abc"]
        found.segments += await post(found.process, PARENT, "split")
        return found

    async def drain(self) -> None:
        await self.receive()
        await self.acked(self.ids)

    async def trim(self, segment: str, up_to: int | None = None) -> None:
        """The first `up_to` entries, or all."""
        served = await self.process.broker.segment(segment)
        end = served.ledgers.last_durable.next
        before = end if up_to is None else Position(end.ledger, up_to)
        answer = await self.process.http.post(f"/v1/segments/{quoted(segment)}/trim", json={"before": str(before)})
        assert answer.status_code == 200, answer.text

    async def delete(self, segment: str) -> httpx.Response:
        return await self.process.http.delete(f"/v1/segments/{quoted(segment)}")

    async def deleted(self, segment: str) -> None:
        answer = await self.delete(segment)
        assert answer.status_code == 204, answer.text

    async def refused(self, segment: str = PARENT) -> dict[str, Any]:
        answer = await self.delete(segment)
        assert (answer.status_code, answer.json()["code"]) == (409, "SEGMENT_IN_USE"), answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def passes(self, times: int = 1) -> None:
        for _ in range(times):
            await self.process.broker.reconcile()

    async def layout(self) -> list[str]:
        return [each["segment"] for each in (await self.asked("GET", ""))["segments"]]

    async def read(self, segment: str, after: object = None) -> httpx.Response:
        query = {} if after is None else {"after": str(after)}
        return await self.process.http.get(f"/v1/segments/{quoted(segment)}/entries", params=query)

    async def page(self, after: str | None = None, limit: int = 100) -> tuple[list[Any], str]:
        query: dict[str, Any] = {"max": limit} | ({} if after is None else {"after": after})
        answer = await self.process.http.get("/v1/topics/t/messages", params=query)
        assert answer.status_code == 200, answer.text
        return [each["value"] for each in answer.json()["messages"]], answer.json()["next"]

    async def assert_gone(self, segment: str = PARENT) -> None:
        """Nothing of it is left, except in the records of its children and of the topic."""
        assert segment not in await self.layout() and segment not in self.process.broker.served
        name = segment.rpartition("/")[2]
        assert await keys_of(self.world, name) == []
        records = {each.key: each.value for each in (await self.world.store.inner.scan("/")).records}
        naming = [key for key, value in records.items() if segment.encode() in value]
        assert all(key.startswith(paths.SEGMENTS) for key in naming), naming
        assert name not in str(await self.process.storage.directories())
        await assert_lawful(self.world)


@pytest.fixture
async def topic(world: World) -> AsyncIterator[Removing]:
    found = await Removing.split(world)
    yield found
    await found.process.stop()


# -- when ------------------------------------------------------------------------------------------------------


async def test_a_segment_that_is_trimmed_and_drained_goes_with_every_trace(topic: Removing, world: World) -> None:
    txn = await world.begin()
    await topic.receive()
    await topic.acked(topic.ids, txn)
    await topic.commit(txn)
    await topic.passes()
    assert await topic.layout() == [PARENT, *CHILDREN], "its messages are there"
    await topic.trim(PARENT)
    await topic.passes()
    await topic.assert_gone()
    assert await topic.layout() == CHILDREN
    assert topic.process.metrics.segments_removed._value.get() == 1
    for key, value in ((LOW, "low"), (HIGH, "high")):
        await send(topic.process, key, value)
    assert sorted(await browse(topic.process)) == ["high", "low"]
    assert sorted(await topic.values("s")) == ["high", "low"]
    await topic.crash()
    assert await topic.layout() == CHILDREN
    await topic.assert_gone()


async def test_a_policy_drops_the_last_ledger_of_a_sealed_segment_and_then_the_segment(topic: Removing) -> None:
    await topic.asked("PATCH", "", {"retention_ms": 1})
    await topic.passes(2)
    assert await topic.layout() == [PARENT, *CHILDREN], "the subscription has not acknowledged it"
    await topic.drain()
    await topic.passes(2)
    await topic.assert_gone()


async def test_who_has_not_heard_of_the_children_reads_the_record_again(topic: Removing) -> None:
    """Another broker has completed a merge, or the answer was lost."""
    await topic.drain()
    await topic.trim(PARENT)
    parent = await topic.segment(PARENT)
    while parent._tasks:  # what follows the trim reads the record, too
        await asyncio.wait(parent._tasks)
    parent.record, parent.recorded_at = parent.record.model_copy(update={"children": ()}), 0
    await topic.passes()
    await topic.assert_gone()


async def test_hard_retention_asks_no_subscription(topic: Removing) -> None:
    await topic.asked("PATCH", "", {"retention_ms": 1, "retention": "hard"})
    await topic.passes(2)
    await topic.assert_gone()
    await send(topic.process, LOW, "d")
    assert await topic.values("s") == ["d"]


async def test_hidden_entries_at_the_end_do_not_keep_a_segment(world: World) -> None:
    """Nobody acknowledges anything after them. What a consumer has passed over becomes durable."""
    topic = await Removing.start(world)
    assert isinstance(topic, Removing)
    await topic.subscribe("s", "failover")
    ids = [await send(topic.process, LOW, "a")]
    txn = await world.begin()
    await send(topic.process, LOW, "never", txn)
    await topic.receive()
    await topic.acked(ids)
    await topic.abort(txn)
    await post(topic.process, PARENT, "split")
    assert await topic.values("s") == []
    await topic.asked("PATCH", "", {"retention_ms": 1})
    await topic.passes(2)
    await topic.assert_gone()
    await topic.process.stop()


async def test_a_segment_that_was_never_written_to_goes_if_the_policy_drops_anything(world: World) -> None:
    topic = await Removing.start(world)
    assert isinstance(topic, Removing)
    await post(topic.process, PARENT, "split")
    await topic.passes()
    assert PARENT in await topic.layout()
    await topic.asked("PATCH", "", {"retention_ms": 1})
    await topic.passes()
    await topic.assert_gone()
    await topic.process.stop()


async def test_parents_of_a_merge_go_once_both_are_bare_and_layers_go_from_the_first(topic: Removing) -> None:
    one, other = CHILDREN
    for key in (LOW, HIGH):
        await send(topic.process, key, "a message")
    await post(topic.process, one, "merge", **{"with": other})
    await topic.trim(one)
    await topic.passes()
    assert await topic.layout() == [PARENT, *CHILDREN, MERGED], "their parent has messages"
    await topic.trim(PARENT)
    await topic.passes()
    assert await topic.layout() == [*CHILDREN, MERGED], "the other one has messages"
    await topic.trim(other)
    await topic.passes()
    assert await topic.layout() == [MERGED]
    for gone in (PARENT, *CHILDREN):
        await topic.assert_gone(gone)
    assert await topic.values("s") == []


async def test_a_child_that_has_not_recorded_what_it_inherited_keeps_its_parents(topic: Removing, world: World) -> None:
    """As one that an earlier version opened; it records that when it is opened again."""
    child = await record_of(world, CHILDREN[0])
    stored = await world.store.inner.get(paths.segment(CHILDREN[0]))
    assert stored is not None and child.dedup is not None
    old = child.model_copy(update={"dedup": None}).encode()
    await world.store.inner.apply(world.store.inner.batch().replace(stored, old))
    await topic.trim(PARENT)
    await topic.passes()
    assert PARENT in await topic.layout()
    assert (await topic.refused())["segments"] == [CHILDREN[0]]
    await topic.crash()
    await topic.passes()
    await topic.assert_gone()


# -- by hand ---------------------------------------------------------------------------------------------------


async def test_delete_names_what_still_needs_the_segment_and_then_drops_what_is_left(
    topic: Removing, world: World
) -> None:
    found = await topic.refused()
    assert found["subscriptions"] == ["s"] and "subscription s has not" in found["detail"]
    txn = await world.begin()
    await topic.receive()
    await topic.acked(topic.ids[:1], txn)
    await topic.acked(topic.ids[1:])
    found = await topic.refused()
    assert found["holders"] == [str(txn)] and found["subscriptions"] == ["s"]
    assert sorted(await browse(topic.process)) == ["a", "b", "c"], "a refusal changes nothing"
    await topic.commit(txn)
    await topic.deleted(PARENT)
    await topic.assert_gone()
    await topic.deleted(PARENT)


async def test_delete_waits_until_what_ended_transactions_did_is_final(topic: Removing, world: World) -> None:
    """Their operations are deleted a moment after their decisions."""
    await topic.receive()
    for message in topic.ids:
        txn = await world.begin()
        await topic.acked([message], txn)
        await world.commit(txn)
    await topic.deleted(PARENT)
    await topic.assert_gone()


async def test_delete_of_an_active_segment_waits_for_nothing(topic: Removing, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is written to, it has operations of transactions that have just ended all the time."""

    async def never(*_: object) -> None:
        raise AssertionError("it was waited for")

    monkeypatch.setattr(Removal, "_ended_are_gone", never)
    assert "accepts messages" in (await topic.refused(CHILDREN[0]))["detail"]


async def test_delete_is_refused_for_segments_that_are_in_the_way(topic: Removing) -> None:
    assert "accepts messages" in (await topic.refused(CHILDREN[0]))["detail"]
    await post(topic.process, CHILDREN[0], "merge", **{"with": CHILDREN[1]})
    found = await topic.refused(CHILDREN[0])
    assert found["segments"] == [PARENT]
    await topic.drain()
    await send(topic.process, LOW, "d")
    await post(topic.process, MERGED, "seal")
    assert "no children" in (await topic.refused(MERGED))["detail"]
    await topic.deleted(PARENT)
    await topic.deleted(CHILDREN[1])
    await topic.deleted(CHILDREN[0])
    assert await topic.layout() == [MERGED]
    answer = await topic.delete(f"segment://{TOPIC}/0000-ffff-9")
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


async def test_delete_of_a_merged_segment_waits_for_the_messages_of_the_other_one(topic: Removing) -> None:
    await topic.drain()
    await send(topic.process, HIGH, "in the other")
    await post(topic.process, CHILDREN[0], "merge", **{"with": CHILDREN[1]})
    await topic.deleted(PARENT)
    assert (await topic.refused(CHILDREN[0]))["segments"] == [CHILDREN[1]]
    await topic.trim(CHILDREN[1])
    await topic.deleted(CHILDREN[0])
    await topic.passes()
    assert await topic.layout() == [MERGED]


async def test_a_subscription_that_is_created_while_a_segment_is_deleted_gets_its_messages(topic: Removing) -> None:
    """It writes the record of the topic, so the trim finds that something has changed."""
    await topic.drain()
    fault = topic.world.store.fault(Fault(puts(paths.segment(PARENT)), hold_before=True))
    deleting = asyncio.create_task(topic.delete(PARENT))
    await fault.reached.wait()
    await topic.subscribe("late")
    fault.go.set()
    answer = await deleting
    assert (answer.status_code, answer.json()["subscriptions"]) == (409, ["late"])
    assert await topic.values("late") == ["a", "b", "c"]


# -- readers, writers and consumers with old places ------------------------------------------------------------


async def test_readers_go_on_in_the_children_or_are_told_what_they_missed(topic: Removing) -> None:
    values, middle = await topic.page(limit=2)
    assert values == ["a", "b"]
    _, start = await topic.page(limit=1)
    values, end = await topic.page(middle)
    assert values == ["c"]
    parent = await topic.process.broker.segment(PARENT)
    last, before = parent.ledgers.last_durable, parent.ledgers.last_durable.before
    await topic.trim(PARENT)
    await topic.passes()
    await send(topic.process, LOW, "d")
    values, after = await topic.page(end)
    assert values == ["d"] and PARENT not in str(after)
    assert (await topic.page(after))[0] == []
    for missed in (middle, start):
        answer = await topic.ask("GET", f"/messages?after={missed}")
        assert (answer.status_code, answer.json()["code"]) == (410, "POSITION_TRIMMED")
        assert answer.json()["children"] == CHILDREN
    assert (await topic.read(PARENT, before)).status_code == 410
    for place in (last, None):
        answer = await topic.read(PARENT, place)
        assert (answer.status_code, answer.content, answer.headers["Metatxn-End"]) == (200, b"", "true")
    snapshot = await topic.process.http.get(
        f"/v1/segments/{quoted(PARENT)}/entries", params={"after": str(last), "isolation": "snapshot"}
    )
    assert (snapshot.status_code, snapshot.content) == (200, b"") and int(snapshot.headers[REVISION_HEADER]) > 0
    wanted = {PARENT: {"after": str(last)}, CHILDREN[0]: {}}
    looked = (await topic.process.http.post("/v1/horizons", json={"segments": wanted})).json()
    assert looked["gone"] == []
    horizon = looked["segments"][PARENT]
    assert (horizon["end"], horizon["trimmed_up_to"], horizon["ended"]) == (str(last), str(last), True)
    assert horizon["children"] == CHILDREN


async def test_a_reader_that_had_finished_misses_what_was_trimmed_of_a_child(world: World) -> None:
    """It has no place in the child yet."""
    topic = await Removing.start(world)
    assert isinstance(topic, Removing)
    await send(topic.process, LOW, "a")
    _, end = await topic.page()
    await post(topic.process, PARENT, "split")
    await topic.trim(PARENT)
    await topic.passes()
    for value in ("missed", "d"):
        await send(topic.process, LOW, value)
    assert (await topic.page(end))[0] == ["missed", "d"]
    await topic.trim(CHILDREN[0], 1)
    answer = await topic.ask("GET", f"/messages?after={end}")
    assert (answer.status_code, answer.json()["code"]) == (410, "POSITION_TRIMMED")
    await topic.process.stop()


@pytest.mark.parametrize("heirs", ["children", "a grandchild"])
async def test_a_reader_that_had_finished_misses_a_child_that_was_removed(world: World, heirs: str) -> None:
    """It has no place in the child yet, and the other child is there, which says that the reader has passed the parent.
    A grandchild tells only of children of the child, in which there was nothing."""
    topic = await Removing.start(world)
    assert isinstance(topic, Removing)
    await send(topic.process, LOW, "a")
    _, end = await topic.page()
    snapshot = (await topic.asked("GET", "/messages?isolation=snapshot"))["next"]
    one, _ = await post(topic.process, PARENT, "split")
    for key, value in ((LOW, "missed"), (HIGH, "b")):
        await send(topic.process, key, value)
    values, passed = await topic.page(end)
    assert sorted(values) == ["b", "missed"]
    below = await post(topic.process, one, "split")
    gone = [PARENT, one]
    if heirs == "a grandchild":
        await post(topic.process, below[0], "merge", **{"with": below[1]})
        gone += below
    await send(topic.process, LOW, "c")
    values, passed = await topic.page(passed)
    assert values == ["c"]
    for segment in gone:
        await topic.deleted(segment)
    assert (await topic.page(passed))[0] == [], "who was there has missed nothing"
    for path in ("messages", "batches"):
        answer = await topic.ask("GET", f"/{path}?after={end}")
        assert (answer.status_code, answer.json()["code"]) == (410, "POSITION_TRIMMED")
        assert answer.json()["segment"] in gone[1:]
    await topic.asked("GET", f"/messages?isolation=snapshot&after={snapshot}")  # its segments are older
    await topic.process.stop()


async def test_a_place_in_a_segment_whose_children_are_gone_as_well(topic: Removing) -> None:
    _, middle = await topic.page(limit=2)
    for key, value in ((LOW, "d"), (HIGH, "e")):
        await send(topic.process, key, value)
    values, passed = await topic.page()
    assert sorted(values) == ["a", "b", "c", "d", "e"]
    await post(topic.process, CHILDREN[0], "merge", **{"with": CHILDREN[1]})
    assert (await topic.page(passed))[0] == []
    for segment in (PARENT, *CHILDREN):
        await topic.trim(segment)
    await topic.passes()
    assert await topic.layout() == [MERGED]
    await send(topic.process, LOW, "f")
    assert (await topic.page(passed))[0] == ["f"]
    assert (await topic.ask("GET", f"/messages?after={middle}")).status_code == 410
    horizons = (await topic.process.http.post("/v1/horizons", json={"segments": {PARENT: {}}})).json()
    assert horizons["gone"] == [PARENT]


async def test_a_page_of_a_compacted_view_is_refused_once_its_segment_is_gone(topic: Removing) -> None:
    for number in range(3):
        await send(topic.process, f"{LOW}{number}", number)
    answer = await topic.asked("GET", "/messages?compacted=true&max=1")
    await topic.trim(PARENT)
    await topic.passes()
    assert (await topic.ask("GET", f"/messages?after={answer['next']}")).status_code == 410


async def test_a_retry_is_recognized_by_the_children_and_a_writer_is_sent_to_them(world: World) -> None:
    topic = await Removing.start(world)
    assert isinstance(topic, Removing)
    first = await send(topic.process, LOW, "once", sequence=1)
    await post(topic.process, PARENT, "split")
    await topic.trim(PARENT)
    await topic.passes()
    assert await send(topic.process, LOW, "once", sequence=1) == first
    await topic.crash()
    assert await send(topic.process, LOW, "once", sequence=1) == first
    child = await topic.process.broker.segment(CHILDREN[0])
    with pytest.raises(AppendedBefore):
        await child.publish(Entry(b"x", PayloadKind.BYTES, 1, None, None, "p", 1), lambda: frozenset({0}))
    answer = await topic.process.http.post(f"/v1/segments/{quoted(PARENT)}/entries", content=b"late")
    assert (answer.status_code, answer.json()["code"]) == (409, "SEGMENT_SEALED")
    assert answer.json()["children"] == CHILDREN
    assert await browse(topic.process) == []
    await topic.process.stop()


async def test_the_owner_of_the_next_segment_becomes_the_home(topic: Removing) -> None:
    """Its generation may be lower. An acknowledgement that is repeated is none."""
    await topic.drain()
    while (parent := await topic.segment(PARENT)).ownership.generation < 4:
        parent.lose("for the test")
        while topic.process.broker.not_ready:
            await asyncio.sleep(0.001)
    ids = [await send(topic.process, LOW, value) for value in "de"]
    assert [each["value"] for each in await topic.receive(consumer="first")] == ["d", "e"]
    await topic.acked(ids[:1], for_all=False)
    waiting = asyncio.create_task(topic.ask("POST", "/subscriptions/s/receive", {"consumer": "other", "wait_ms": 500}))
    await topic.trim(PARENT)
    await topic.passes()
    await topic.assert_gone()
    answer = await waiting
    assert answer.status_code in (200, 503)
    given = [each["value"] for each in answer.json().get("messages", ())]
    for consumer in ("second", "other"):
        given += await topic.values(consumer=consumer)
    assert "e" in given
    await topic.acked(topic.ids)
    assert await topic.conflicts(topic.ids, await topic.world.begin())


async def test_a_share_refuses_the_home_of_before(topic: Removing) -> None:
    await topic.drain()
    await topic.trim(PARENT)
    await topic.passes()
    assert await topic.values("s") == []
    taking = {"incarnation": 1, "session": 1, "sessions": [1], "newest": 1, "segments": [CHILDREN[1]]}
    taking |= {"max": 1, "max_bytes": 1000, "home": 10**6}
    answer = await topic.ask("POST", "/subscriptions/s/share/take", taking)
    assert (answer.status_code, answer.json()["code"]) == (503, "STORE_UNAVAILABLE")


# -- deaths and races ------------------------------------------------------------------------------------------


async def test_whoever_dies_between_two_writes_leaves_what_the_next_one_finishes(topic: Removing, world: World) -> None:
    await topic.drain()
    await topic.trim(PARENT)
    for survives in range(1_000):
        death = Death(world, survives)
        removing = asyncio.create_task(topic.passes())
        reached = asyncio.create_task(death.reached.wait())
        await asyncio.wait([removing, reached], return_when=asyncio.FIRST_COMPLETED)
        ended = removing.done() and not death.reached.is_set()
        reached.cancel()
        removing.cancel()
        topic.process = await death.next_life(topic.process)
        await assert_lawful(world)
        if ended:
            break
    await topic.passes()
    await topic.assert_gone()
    assert sorted(await topic.values("s")) == []


@pytest.mark.parametrize("landed", [True, False])
async def test_an_unknown_answer_is_repeated(topic: Removing, world: World, landed: bool) -> None:
    await topic.drain()
    lost = OutcomeUnknown("lost")
    fault = Fault(REMOVES, after=lost) if landed else Fault(REMOVES, before=lost)
    world.store.fault(fault)
    assert (await topic.delete(PARENT)).status_code == 504
    await topic.deleted(PARENT)
    await topic.passes()
    await topic.assert_gone()


@pytest.mark.parametrize("told", [True, False])
async def test_what_is_removed_serves_nobody_although_the_rest_is_still_there(
    topic: Removing, world: World, told: bool
) -> None:
    """Found by the simulation, as a 500 of `GET` behind a trim. Not `told`: the answer of the removal was lost."""
    await topic.drain()
    end = (await topic.process.broker.segment(PARENT)).ledgers.last_durable.next
    removal = world.store.fault(Fault(REMOVES, hold_after=True, after=None if told else OutcomeUnknown("lost")))
    removing = asyncio.create_task(topic.delete(PARENT))
    await removal.reached.wait()
    world.store.away = StoreUnavailable("gone") if told else None
    removal.go.set()
    assert (await removing).status_code == (204 if told else 504)
    world.store.away = None
    path = f"/v1/segments/{quoted(PARENT)}"
    if told:
        assert (await topic.process.http.get(path)).status_code in (404, 503)
    for _ in range(2):
        answer = await topic.process.http.post(f"{path}/trim", json={"before": str(end)})
        assert answer.status_code in (404, 503), answer.text
        assert (await topic.process.http.get(path)).status_code in (404, 503)
    await topic.passes(2)
    await topic.assert_gone()


@on_both
async def test_what_is_removed_in_the_background_serves_nobody_from_then_on(topic: Removing, world: World) -> None:
    """Also while nothing else about it can be read or deleted. Nothing is trimmed beside it that would find that out,
    too."""
    await topic.drain()
    await topic.trim(PARENT)
    segment = await topic.process.broker.segment(PARENT)
    while (await stored_record(world, PARENT)).trimmed:
        await asyncio.sleep(0)
    removal = world.store.fault(Fault(REMOVES, hold_after=True))
    passing = asyncio.create_task(topic.passes())
    await removal.reached.wait()
    assert segment.lost is None or not topic.process.storage.exclusive, "or it was seen by the watch of what is shared"
    world.store.away = StoreUnavailable("gone")
    removal.go.set()
    await passing
    assert segment.lost is not None
    world.store.away = None
    await topic.passes(2)
    await topic.assert_gone()


async def stored_record(world: World, segment: str) -> SegmentRecord:
    stored = await world.store.get(paths.segment(segment))
    assert stored is not None
    return SegmentRecord.decode(stored.value)


async def test_a_broker_that_is_about_to_take_what_is_gone_by_now_keeps_it_no_longer(topic: Removing) -> None:
    """Found by the simulation: it tried again forever, and what concerns the whole topic was refused until then."""
    await topic.drain()
    await topic.deleted(PARENT)
    await topic.passes()
    await topic.assert_gone()
    broker = topic.process.broker
    broker._keep(PARENT)
    await broker.until_opened([PARENT])
    assert PARENT not in broker.kept
    assert (await topic.read(PARENT)).status_code == 200, "the end of a removed segment"


async def test_the_rest_is_deleted_later_if_the_store_goes_away(topic: Removing, world: World) -> None:
    await topic.drain()
    world.store.fault(Fault(_deletes_record, before=StoreUnavailable("gone"), times=1))
    await topic.deleted(PARENT)
    assert await topic.layout() == CHILDREN
    await topic.passes()
    await topic.assert_gone()


def _deletes_record(batch: Any) -> bool:
    return paths.segment(PARENT) in batch.deletes


async def test_the_topic_can_be_deleted_and_made_again_while_a_removed_segment_is_deleted(
    topic: Removing, world: World
) -> None:
    await topic.drain()
    world.store.fault(Fault(_deletes_record, before=StoreUnavailable("gone"), times=10))
    await topic.deleted(PARENT)
    assert (await topic.ask("DELETE", "")).status_code == 204
    world.store._faults.clear()
    (again,) = await topic.process.create("t")
    await topic.passes(2)
    stored = await world.store.inner.get(paths.segment_owner(PARENT))
    assert stored is None or OwnerRecord.decode(stored.value).deleted
    assert await world.store.inner.get(paths.segment(PARENT)) is None
    answer = await topic.read(PARENT)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND"), "it is of another topic"
    assert again not in (PARENT, *CHILDREN)
    await assert_lawful(world)


# -- the records -----------------------------------------------------------------------------------------------


def test_what_a_topic_had() -> None:
    left = (f"segment://{TOPIC}/0000-7fff-4", f"segment://{TOPIC}/8000-ffff-2")
    topic = TopicRecord(name=TOPIC, segments=left, next_segment=9, created_ms=0, first_segment=0)
    assert topic.home == left[1]
    assert topic.had(PARENT) and topic.had(f"segment://{TOPIC}/0000-7fff-1")
    never = ["", "segment://other/n/t/0000-ffff-0", left[0], f"segment://{TOPIC}/0000-ffff-9"]
    never.append(f"segment://{TOPIC}/8000-ffff-3")  # that would be a child of one that is there
    assert not any(map(topic.had, never))
    assert not topic.model_copy(update={"first_segment": None}).had(PARENT)
    assert not topic.model_copy(update={"first_segment": 1}).had(PARENT)
    assert not topic.model_copy(update={"deleted": True}).had(PARENT)


@pytest.mark.parametrize(
    ("ledgers", "first", "bare"),
    [([4], "1:4", True), ([4], "1:3", False), ([0], "0:-1", True), ([4, 0], "1:4", True), ([4, 2], "1:4", False)],
)
def test_what_is_bare(ledgers: list[int], first: str, bare: bool) -> None:
    listed = [{"id": number + 1, "storage": "s", "entries": entries} for number, entries in enumerate(ledgers)]
    record = SegmentRecord.model_validate(
        {"topic": "t", "range": (0, 1), "storage": "s", "state": "sealed", "ledgers": listed, "first_position": first}
    )
    assert record.is_bare == bare
    assert not record.model_copy(update={"state": "active"}).is_bare
