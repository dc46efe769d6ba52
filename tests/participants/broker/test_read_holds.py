"""Goal: while a reader holds a revision of a topic, no policy takes anything of it away, whatever was under way when
the hold was taken; a hold that comes too late is refused, and one that is over holds nothing.

Method: a broker in this process, with a clock that the test sets; requests that are held between their steps. What
collection does is in `tests/coordinator/test_gc_sweep.py`. DESIGN §5.24; scenario 130.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from metastore.txn import paths
from metastore.txn.records.topics import ReadHoldRecord
from metastore.txn.records.transactions import GcHorizon
from metastore.types import Revision
from metatxn.wire import errors
from participants.messages import read_holds
from tests.participants.broker.test_compacting import Compacting
from tests.participants.broker.test_removal import PARENT, Removing
from tests.participants.broker.test_retention import POLICY
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.world import World, snapshot
from tests.participants.subscription.consuming import TOPIC, Consuming

DAY_MS = 86_400_000
HOLDS = "/read-holds"
HOLD = puts(paths.READ_HOLDS)


async def hold(topic: Consuming, hold_id: str = "a", hold_ms: int = DAY_MS, **wanted: Any) -> httpx.Response:
    return await topic.ask("POST", HOLDS, {"hold_id": hold_id, "hold_ms": hold_ms, **wanted})


async def held(topic: Consuming, hold_id: str = "a", hold_ms: int = DAY_MS, **wanted: Any) -> Revision:
    answer = await hold(topic, hold_id, hold_ms, **wanted)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["revision"])


async def refused(topic: Consuming, **wanted: Any) -> str:
    answer = await hold(topic, **wanted)
    assert answer.status_code != 200 and answer.json()["definite"], answer.text
    return str(answer.json()["code"])


async def release(topic: Consuming, hold_id: str = "a") -> None:
    assert (await topic.ask("DELETE", f"{HOLDS}/{hold_id}")).status_code == 204


async def ids(topic: Consuming) -> list[str]:
    return [each["hold_id"] for each in (await topic.asked("GET", HOLDS))["items"]]


@pytest.fixture
async def topic(world: World) -> AsyncIterator[Compacting]:
    found = await Compacting.start(world)
    assert isinstance(found, Compacting)
    yield found
    await found.process.stop()


async def test_nothing_is_dropped_until_the_last_hold_has_ended(topic: Compacting) -> None:
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    topic.at_hour(5)
    revision = await held(topic, "a")
    await held(topic, "b", revision=revision)
    await topic.passes()
    assert await topic.left() == ["a"] and await ids(topic) == ["a", "b"]
    await release(topic, "a")
    await release(topic, "a")
    await topic.passes()
    assert await topic.left() == ["a"] and await topic.findings() == []
    await release(topic, "b")
    await topic.passes()
    assert await topic.left() == [] and await ids(topic) == []


async def test_by_hand_everything_can_be_dropped(topic: Compacting) -> None:
    await topic.publish("a")
    await held(topic)
    segment = await topic.segment()
    await topic.process.http.post(
        f"/v1/segments/{topic.segments[0].replace('/', '%2F')}/trim",
        json={"before": str(segment.ledgers.last_durable.next)},
    )
    assert await topic.left() == []
    await topic.process.http.delete("/v1/topics/t")
    assert (await topic.world.store.inner.scan(paths.READ_HOLDS)).records == []
    assert (await topic.ask("POST", f"{HOLDS}/a/keep-alive", {})).json()["code"] == "NOT_FOUND"
    assert await refused(topic) == "NOT_FOUND"


async def test_nobody_begins_to_read_what_a_trim_before_the_hold_has_dropped(topic: Compacting) -> None:
    """Found by the simulation: the trim had no answer yet, and the second page was refused, under the hold."""
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    topic.at_hour(5)
    trim = topic.world.store.fault(Fault(puts("/segment/"), hold_after=True))
    passing = asyncio.create_task(topic.passes())
    await trim.reached.wait()
    revision = await held(topic)
    segment = await topic.segment()
    before, start = segment.ledgers.start, segment.ledgers.open
    assert start is not None and before < start.last_durable
    with pytest.raises(errors.MetatxnError) as error:
        await segment.reader.read_snapshot(before, 1_000, revision)
    assert error.value.code == "STORE_UNAVAILABLE"
    assert (await segment.reader.read_committed(before, 1_000)).frames, "without a hold it may still be seen"
    trim.go.set()
    await passing
    assert await snapshot(segment, revision) == await topic.left() == []


@pytest.mark.parametrize("step", ["the holds were read", "the trim is on its way"])
async def test_a_hold_that_is_taken_in_the_middle_of_a_pass_keeps_everything(topic: Compacting, step: str) -> None:
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    topic.at_hour(5)
    store = topic.world.store
    on_its_way = (
        store.hold_range(paths.READ_HOLDS)
        if step == "the holds were read"
        else store.fault(Fault(puts("/segment/"), hold_before=True))
    )
    passing = asyncio.create_task(topic.process.broker.reconcile())
    await on_its_way.reached.wait()
    await held(topic)
    on_its_way.go.set()
    await passing
    await topic.passes()
    assert await topic.left() == ["a"]


async def test_what_was_dropped_before_the_hold_is_gone_and_no_more(topic: Compacting) -> None:
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    await topic.ledger_at(4.9, "b")
    topic.at_hour(5)
    holding = topic.world.store.fault(Fault(HOLD, hold_before=True))
    asked = asyncio.create_task(held(topic))
    await holding.reached.wait()
    await topic.passes()
    holding.go.set()
    await asked
    topic.at_hour(9)
    await topic.passes()
    assert await topic.left() == ["b"]


async def test_a_held_topic_is_not_compacted(topic: Compacting) -> None:
    await topic.set(cleanup="compact")
    await topic.ledger(("a", 1), ("a", 2))
    revision = await held(topic)
    await topic.ledger(("a", 3))
    await topic.compacted()
    assert len(await snapshot(await topic.segment(), revision)) == 3, "a snapshot shows what is outside of transactions"
    await release(topic)
    await topic.compacted()
    assert await topic.read() == [("a", 3)]
    assert await refused(topic, revision=revision) == "POSITION_TRIMMED"
    assert await ids(topic) == [], "it was taken back"


async def test_a_hold_that_is_taken_while_a_form_is_named_keeps_the_former_one(topic: Compacting) -> None:
    await topic.set(cleanup="compact")
    await topic.ledger(("a", 1), ("a", 2))
    naming = topic.world.store.fault(Fault(puts("/segment/"), hold_before=True))
    passing = asyncio.create_task(topic.compacted())
    await naming.reached.wait()
    revision = await held(topic)
    naming.go.set()
    await passing
    assert len(await snapshot(await topic.segment(), revision)) == 2
    assert (await topic.record()).compaction is None


@pytest.mark.parametrize("named", [True, False])
async def test_a_compaction_that_lands_before_the_hold_refuses_an_earlier_revision(
    topic: Compacting, named: bool
) -> None:
    """A hold of the current revision is taken again, at a later one."""
    await topic.set(cleanup="compact")
    await topic.ledger(("a", 1), ("a", 2))
    before = await topic.world.store.current_revision()
    holding = topic.world.store.fault(Fault(HOLD, hold_before=True))
    wanted: dict[str, Any] = {"revision": before} if named else {}
    asked = asyncio.create_task(hold(topic, **wanted))
    await holding.reached.wait()
    await topic.world.begin()  # so that the compaction has a later revision
    await topic.compacted()
    compaction = (await topic.record()).compaction
    assert compaction is not None and compaction.revision > before
    holding.go.set()
    answer = await asked
    if named:
        assert answer.json()["code"] == "POSITION_TRIMMED" and await ids(topic) == []
    else:
        assert answer.json()["revision"] >= compaction.revision
        assert len(await snapshot(await topic.segment(), answer.json()["revision"])) == 1


async def test_a_collected_revision_cannot_be_held_also_if_it_is_collected_meanwhile(topic: Compacting) -> None:
    store = topic.world.store
    before = await store.current_revision()
    holding = store.fault(Fault(HOLD, hold_before=True))
    asked = asyncio.create_task(refused(topic, revision=before))
    await holding.reached.wait()
    await store.inner.apply(store.inner.batch().create(paths.GC_HORIZON, GcHorizon(revision=before + 1).encode()))
    holding.go.set()
    assert await asked == "INVALID_ARGUMENT" and await ids(topic) == []
    assert await held(topic) > before
    assert await refused(topic, hold_id="b", revision=await store.current_revision() + 1_000) == "INVALID_ARGUMENT"
    assert await topic.findings() == []


async def test_a_hold_lasts_until_its_time_is_over_and_somebody_is_in_need(topic: Compacting) -> None:
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    topic.at_hour(5)
    await held(topic, hold_ms=60_000)
    topic.at_hour(6)
    assert (await topic.ask("POST", f"{HOLDS}/a/keep-alive", {"hold_ms": 60_000})).status_code == 200, "not removed yet"
    await topic.passes()
    assert await topic.left() == ["a"]
    topic.at_hour(7)
    await topic.passes()
    assert await topic.left() == [] and await ids(topic) == []
    ended = await topic.ask("POST", f"{HOLDS}/a/keep-alive", {"hold_ms": 60_000})
    assert ended.json()["code"] == "NOT_FOUND"


async def test_a_hold_that_is_prolonged_while_it_is_removed_counts(topic: Compacting) -> None:
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    topic.at_hour(5)
    await held(topic, hold_ms=1_000)
    topic.at_hour(6)
    reading = topic.world.store.hold_range(paths.READ_HOLDS)
    passing = asyncio.create_task(topic.passes())
    await reading.reached.wait()
    assert (await topic.ask("POST", f"{HOLDS}/a/keep-alive", {"hold_ms": DAY_MS})).status_code == 200
    reading.go.set()
    await passing
    assert await topic.left() == ["a"] and await ids(topic) == ["a"]


async def test_the_request_may_be_repeated_and_the_number_of_holds_is_bounded(
    topic: Compacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_holds, "MAX_HOLDS", 2)
    first = await held(topic, "a", hold_ms=60_000)
    assert await held(topic, "a") == first, "an answer may be lost"
    assert await refused(topic, hold_id="a", revision=first + 1) == "INVALID_ARGUMENT"
    await held(topic, "b", hold_ms=1_000)
    assert await refused(topic, hold_id="c") == "RATE_LIMITED"
    topic.at_hour(1)
    await held(topic, "c")
    assert await ids(topic) == ["a", "c"], "one that is over does not count"
    stored = await topic.world.store.inner.get(paths.read_hold(TOPIC, "a"))
    assert stored is not None and ReadHoldRecord.decode(stored.value).until_ms >= DAY_MS


async def test_a_segment_that_a_reader_may_have_listed_stays_in_the_layout(world: World) -> None:
    topic = await Removing.split(world)
    await topic.drain()
    await topic.trim(PARENT)
    await held(topic)
    await topic.passes(2)
    assert PARENT in await topic.layout()
    await release(topic)
    await topic.passes(2)
    await topic.assert_gone()
    await topic.process.stop()
