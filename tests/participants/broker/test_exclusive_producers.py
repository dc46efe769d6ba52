"""Goal: a program has a topic for itself from the answer to its claim on, whatever was under way, no matter who owns
the segments by then, and however late its own or another's requests arrive.

Method: a broker in this process, with a clock that the test sets; requests that are held between their steps. What
several brokers do is in `test_exclusive_claims`. DESIGN §5.23; scenario 129.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.topics import ExclusiveProducerRecord
from metatxn.wire.ids import TxnId
from participants.restored.sequences import leap
from tests.participants.broker.stories import quoted
from tests.participants.segment.faulty_store import INTENT, Fault, puts
from tests.participants.segment.world import World, committed
from tests.participants.subscription.consuming import TOPIC, Consuming, SetClock

HOLD = paths.exclusive_producer(TOPIC)
PATH = "/exclusive-producer"


class Claiming(Consuming):
    clock: SetClock

    async def claim(self, session: str, *, fence: bool = False, ttl_ms: int = 30_000) -> httpx.Response:
        body = {"session": session, "producer": f"producer {session}", "fence": fence, "ttl_ms": ttl_ms}
        return await self.ask("POST", PATH, body)

    async def claimed(self, session: str, **options: Any) -> int:
        answer = await self.claim(session, **options)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["epoch"])

    async def sent(
        self, value: str, epoch: int | None = None, txn_id: TxnId | None = None, sequence: int | None = None
    ) -> httpx.Response:
        """To the first segment, or one that has taken over from it."""
        named = {"producer_epoch": epoch, "txn_id": txn_id, "sequence": sequence, "producer": "p"}
        params = {name: str(each) for name, each in named.items() if each is not None}
        path = f"/v1/segments/{quoted(self.segments[0])}/entries"
        return await self.process.http.post(path, params=params, content=value.encode())

    async def taken(self, value: str, epoch: int | None = None, txn_id: TxnId | None = None) -> bool:
        answer = await self.sent(value, epoch, txn_id)
        if answer.status_code == 200:
            return True
        said = answer.json()
        assert (answer.status_code, said["code"], said["definite"]) == (403, "NOT_ALLOWED", True), answer.text
        return False

    async def until_held(self) -> None:
        while not await self.keys(HOLD):
            await asyncio.sleep(0)

    async def read(self) -> list[str]:
        return await committed(await self.segment())

    async def hold(self) -> ExclusiveProducerRecord:
        stored = await self.world.store.inner.get(HOLD)
        assert stored is not None
        return ExclusiveProducerRecord.decode(stored.value)


@pytest.fixture
async def topic(world: World) -> AsyncIterator[Claiming]:
    found = await Claiming.start(world)
    assert isinstance(found, Claiming)
    found.clock = SetClock(found)
    yield found
    await found.process.stop()


async def test_nobody_else_publishes_while_a_program_has_the_topic(topic: Claiming) -> None:
    assert not await topic.taken("not claimed", 1), "an epoch that nobody was given"
    epoch, txn = await topic.claimed("a"), await topic.world.begin()
    assert not await topic.taken("plain") and not await topic.taken("another epoch", epoch + 1)
    assert not await topic.taken("inside", txn_id=txn)
    assert not (await topic.keys(f"{paths.OPS}{txn}")), "it is refused before anything is written of it"
    answer = await topic.ask("POST", "/messages", {"messages": [{"value": "by key"}]})
    assert answer.json()["code"] == "NOT_ALLOWED" and "producer a" in answer.json()["detail"]
    body = {"messages": [{"value": "own"}], "producer_epoch": epoch}
    await topic.asked("POST", "/messages", body)
    assert await topic.taken("own", epoch) and await topic.taken("own, inside", epoch, txn)
    await topic.commit(txn)
    shown = (await topic.asked("GET", ""))["exclusive_producer"]
    assert shown == {"epoch": epoch, "producer": "producer a", "claimed_ms": 1_000_000, "until_ms": 1_030_000}
    assert (await topic.ask("DELETE", f"{PATH}?epoch={epoch + 1}")).status_code == 204
    assert not await topic.taken("plain"), "another epoch's release says nothing"
    await topic.asked("DELETE", f"{PATH}?epoch={epoch}")
    assert await topic.taken("plain") and not await topic.taken("own", epoch)
    assert (await topic.asked("GET", ""))["exclusive_producer"] is None
    assert (await topic.read())[1:] == ["own", "own, inside", "plain"] and not await topic.findings()


async def test_a_late_copy_of_a_claim_does_not_let_its_program_go_on(topic: Claiming) -> None:
    """A, then B, then A's claim once more, of which A never hears: A's entries would be around B's."""
    first = await topic.claimed("a")
    assert await topic.claimed("a") == first, "the answer may have been lost"
    refused = await topic.claim("b")
    assert (refused.status_code, refused.json()["code"], refused.json()["until_ms"]) == (403, "NOT_ALLOWED", 1_030_000)
    second = await topic.claimed("b", fence=True)
    third = await topic.claimed("a", fence=True)
    assert first < second < third
    assert not await topic.taken("a", first) and not await topic.taken("b", second) and await topic.taken("a", third)


async def test_a_hold_ends_when_its_time_is_over_and_somebody_needs_the_topic(topic: Claiming) -> None:
    first = await topic.claimed("a", ttl_ms=10_000)
    topic.clock.ms += 9_000
    kept = await topic.asked("POST", f"{PATH}/keep-alive", {"epoch": first, "ttl_ms": 10_000})
    assert kept["until_ms"] == 1_019_000
    topic.clock.ms += 10_000
    assert not await topic.taken("too early")
    assert (await topic.claim("b")).status_code == 403
    topic.clock.ms += 1
    assert await topic.taken("nobody has needed the topic", first)
    await topic.asked("POST", f"{PATH}/keep-alive", {"epoch": first, "ttl_ms": 1_000})
    topic.clock.ms += 1_001
    second = await topic.claimed("b", ttl_ms=1_000)
    assert not await topic.taken("a", first)
    late = await topic.ask("POST", f"{PATH}/keep-alive", {"epoch": first, "ttl_ms": 1_000})
    assert late.status_code == 403, "another one has it"
    topic.clock.ms += 1_001
    assert await topic.taken("plain") and not await topic.taken("b", second)
    late = await topic.ask("POST", f"{PATH}/keep-alive", {"epoch": second, "ttl_ms": 1_000})
    assert late.status_code == 403, "it was ended"
    assert not (await topic.hold()).held and await topic.claimed("c") > second


async def test_the_end_of_a_hold_that_the_store_does_not_take_is_no_refusal(topic: Claiming) -> None:
    await topic.claimed("a", ttl_ms=1_000)
    topic.clock.ms += 1_001
    topic.world.store.fault(Fault(puts(HOLD), before=StoreUnavailable("away")))
    assert (await topic.sent("plain")).json()["code"] == "STORE_UNAVAILABLE"
    topic.world.store.fault(Fault(puts(HOLD), after=OutcomeUnknown("lost")))
    answer = (await topic.sent("plain")).json()
    assert (answer["code"], answer["definite"]) == ("STORE_UNAVAILABLE", True), "of the entry nothing was written"
    assert await topic.taken("plain") and await topic.read() == ["plain"]


async def test_what_waits_for_its_intent_when_the_topic_is_claimed_is_refused(topic: Claiming) -> None:
    txn = await topic.world.begin()
    fault = topic.world.store.fault(Fault(INTENT, hold_after=True))
    sending = asyncio.create_task(topic.taken("before the claim", txn_id=txn))
    await fault.reached.wait()
    epoch = await topic.claimed("a")
    assert await topic.taken("own", epoch)
    fault.go.set()
    assert not await sending
    await topic.commit(txn)
    assert await topic.read() == ["own"] and not await topic.findings()


async def test_a_claim_is_answered_when_nothing_is_under_way_that_was_begun_before(topic: Claiming) -> None:
    device = topic.process.device
    device.hold()
    sending = asyncio.create_task(topic.taken("begun before"))
    await device.held()
    claiming = asyncio.create_task(topic.claimed("a"))
    await topic.until_held()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not claiming.done()
    device.go()
    epoch = await claiming
    assert await topic.read() == ["begun before"], "the one who was answered reads everything of before"
    assert await sending and await topic.taken("own", epoch)


async def test_an_append_with_an_unknown_outcome_does_not_confirm_a_claim(topic: Claiming) -> None:
    """It may yet be found, when the segment is opened again: until then nobody can read to the end."""
    device = topic.process.device
    device.hold()
    sending = asyncio.create_task(topic.sent("begun before"))
    await device.held()
    claiming = asyncio.create_task(topic.claim("a"))
    await topic.until_held()
    device.fail()
    device.go()
    answer = await claiming
    assert (answer.status_code, answer.json()["code"]) == (504, "OUTCOME_UNKNOWN")
    assert (await sending).json()["code"] == "OUTCOME_UNKNOWN"
    device.heal()
    while (answer := await topic.claim("a")).status_code != 200:
        assert answer.json()["code"] == "OUTCOME_UNKNOWN"
    assert not await topic.taken("plain") and await topic.taken("own", answer.json()["epoch"])


async def test_a_read_that_is_overtaken_takes_nothing_back(topic: Claiming) -> None:
    first = await topic.claimed("a")
    late = topic.world.store.hold_read(lambda keys: HOLD in keys and len(keys) == 2)
    asking = asyncio.create_task(topic.taken("plain"))  # has read that A has the topic
    await late.reached.wait()
    second = await topic.claimed("b", fence=True)
    late.go.set()
    assert not await asking and not await topic.taken("a", first) and await topic.taken("b", second)


async def test_a_segment_that_is_opened_again_knows_who_has_the_topic(topic: Claiming) -> None:
    epoch = await topic.claimed("a")
    await topic.crash()
    segment = await topic.segment()
    topic.world.store.away = StoreUnavailable("away")
    assert await topic.taken("own", epoch), "without asking the store"
    topic.world.store.away = None
    assert not await topic.taken("plain") and segment.publisher.admission is not None


async def test_children_take_what_comes_from_the_holder_alone(topic: Claiming) -> None:
    epoch = await topic.claimed("a")
    await topic.process.http.post(f"/v1/segments/{quoted(topic.segments[0])}/split", json={})
    topic.segments = [each["segment"] for each in (await topic.asked("GET", ""))["segments"]][1:]
    assert len(topic.segments) == 2
    for child in list(topic.segments):
        topic.segments.insert(0, child)
        assert not await topic.taken("plain") and await topic.taken("own", epoch)


async def test_a_retry_of_what_the_holder_has_appended_is_answered_after_its_hold(topic: Claiming) -> None:
    epoch = await topic.claimed("a")
    first = await topic.sent("once", epoch, sequence=1)
    await topic.claimed("b", fence=True)
    again = await topic.sent("once", epoch, sequence=1)
    assert again.json() == first.json() | {"duplicate": True}
    assert (await topic.sent("later", epoch, sequence=2)).status_code == 403 and await topic.read() == ["once"]


async def test_the_hold_ends_with_the_topic_and_its_epochs_go_on(topic: Claiming) -> None:
    first = await topic.claimed("a")
    fault = topic.world.store.fault(Fault(puts(paths.topic(TOPIC)), hold_before=True))
    deleting = asyncio.create_task(topic.asked("DELETE", ""))
    await fault.reached.wait()
    second = await topic.claimed("b", fence=True)
    fault.go.set()
    await deleting
    assert not (await topic.hold()).held and not await topic.findings()
    assert (await topic.claim("c")).status_code == 404
    topic.segments = await topic.process.create("t", 1)
    assert await topic.taken("plain") and not await topic.taken("b", second)
    assert first < second < await topic.claimed("c")


async def test_a_restored_store_gives_out_no_epoch_again(topic: Claiming) -> None:
    epoch = await topic.claimed("a")
    await leap(topic.world.store.inner, 5_000_000)
    assert not (await topic.hold()).held
    while (answer := await topic.claim("b")).status_code != 200:
        assert answer.json()["code"] == "OUTCOME_UNKNOWN", "its owners are forgotten, too"
    assert answer.json()["epoch"] == 5_000_001 > epoch
