"""Goal: a message that is given up has one dead letter and is acknowledged, both or neither, whatever fails and no
matter who acknowledges it at the same moment.

Method: each step of the broker's transaction is held, refused or left without an answer, and brokers die. Every prefix
of it is in `tests/participants/prefixes`. DESIGN §5.10; scenario 123.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.states import TxnState
from metastore.types import Batch
from participants.subscription import dead_letters
from participants.subscription.segment_subscriptions import subscriptions_of
from participants.topic.messages import Messages, PublishOptions
from tests.participants.segment.faulty_store import Fault, Matches
from tests.participants.subscription.consuming import Consuming


def _op(letter: str) -> Matches:
    return lambda batch: any(key.startswith(paths.OPS) and f":{letter}:" in key for key in batch.puts)


def _header(state: TxnState) -> Matches:
    def matches(batch: Batch) -> bool:
        return any(
            key.startswith(paths.HEADERS) and f'"{state}"'.encode() in value for key, value in batch.puts.items()
        )

    return matches


BEGIN, COMMIT = _header(TxnState.OPEN), _header(TxnState.COMMITTED)
PUBLISH, ACKNOWLEDGE = _op("w"), _op("a")
STEPS: dict[str, Matches] = {"begin": BEGIN, "publish": PUBLISH, "acknowledge": ACKNOWLEDGE, "commit": COMMIT}


async def letters(consuming: Consuming) -> list[Any]:
    await consuming.idle()
    for segment in consuming.process.broker.served.values():
        while segment.buffer.undecided():
            await segment.changed.wait()
    answer = await consuming.process.http.get("/v1/topics/dead/messages?max=1000")
    return sorted(message["value"] for message in answer.json()["messages"])


async def poisoned(consuming: Consuming, *values: Any, kind: str = "shared") -> list[str]:
    """Messages whose next return is their last one, at a consumer."""
    await consuming.subscribe(kind=kind, dead_letter_topic="dead", max_redeliveries=0)
    ids = await consuming.publish_each(*values)
    assert await consuming.values() == list(values)
    return ids


async def settled(consuming: Consuming) -> None:
    """What a broker has left open ends by its timeout, and consumers come until nothing is left."""
    await consuming.carried_out(await consuming.world.time_out())
    while (await consuming.shown())["backlog"]:
        await consuming.receive()
        await consuming.redeliver()
        await consuming.idle()


async def test_letters_that_arrive_twice_count_once(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulation: the request to the owner of the dead-letter topic was repeated on its way, and both
    copies were appended, in one transaction."""
    await poisoned(consuming, "a", "b")
    publish = Messages.publish

    async def twice(self: Messages, topic: str, messages: Any, options: PublishOptions) -> Any:
        await publish(self, topic, messages, options)
        return await publish(self, topic, messages, options)

    monkeypatch.setattr(Messages, "publish", twice)
    await consuming.redeliver()
    await settled(consuming)
    assert await letters(consuming) == ["a", "b"]


@pytest.mark.parametrize("answered", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("step", STEPS)
async def test_123_a_broker_dies_while_it_gives_a_message_up(consuming: Consuming, step: str, answered: bool) -> None:
    await poisoned(consuming, "a", "b")
    fault = Fault(STEPS[step], hold_after=True) if answered else Fault(STEPS[step], hold_before=True)
    held = consuming.world.store.fault(fault)
    await consuming.redeliver()
    await held.reached.wait()
    await consuming.crash()
    await settled(consuming)
    assert await letters(consuming) == ["a", "b"]
    assert await consuming.findings() == []


@pytest.mark.parametrize("lost", [False, True], ids=["refused", "no answer"])
@pytest.mark.parametrize("step", STEPS)
async def test_123_the_store_fails_while_a_message_is_given_up(consuming: Consuming, step: str, lost: bool) -> None:
    await poisoned(consuming, "a", "b")
    failure = {"after": OutcomeUnknown("no answer")} if lost else {"before": StoreUnavailable("away")}
    consuming.world.store.fault(Fault(STEPS[step], **failure))
    await consuming.redeliver()
    await consuming.idle()
    await settled(consuming)
    assert await letters(consuming) == ["a", "b"]


async def test_what_is_acknowledged_before_its_turn_has_no_letter(consuming: Consuming) -> None:
    ids = await poisoned(consuming, "a", "b")
    held = consuming.world.store.fault(Fault(PUBLISH, hold_before=True))
    await consuming.redeliver()
    await held.reached.wait()
    txn = await consuming.world.begin()
    assert await consuming.conflicts(ids[:1], txn), "it is being given up"
    await consuming.acked(ids[:1])
    held.go.set()
    await consuming.idle()
    assert await letters(consuming) == ["b"]
    assert (await consuming.shown())["backlog"] == 0


@pytest.mark.parametrize("kind", ["individual", "cumulative"])
@pytest.mark.parametrize("step", ["acknowledge", "commit"])
async def test_an_acknowledgement_waits_while_the_message_is_given_up(
    consuming: Consuming, step: str, kind: str
) -> None:
    ids = await poisoned(consuming, "a", "b", kind="failover")
    held = consuming.world.store.fault(Fault(STEPS[step], hold_before=True))
    await consuming.redeliver(ids[:1])
    await held.reached.wait()
    number = 1 if kind == "individual" else 2
    acknowledging = asyncio.ensure_future(consuming.acked(ids[:number][-1:], kind=kind, for_all=False))
    await _until_waiting(consuming)
    assert not acknowledging.done()
    held.go.set()
    await acknowledging
    await consuming.idle()
    assert await letters(consuming) == ["a"]
    assert (await consuming.shown())["backlog"] == 2 - number


async def _until_waiting(consuming: Consuming) -> None:
    changed = (await consuming.segment()).changed
    while changed._next is None:
        await asyncio.sleep(0)


async def test_one_letter_that_cannot_be_published_does_not_hold_back_the_others(consuming: Consuming) -> None:
    columns = {"fields": [{"name": "n", "type": "int64"}]}
    body = {"name": "dead", "segments": 1, "schema": columns}
    assert (await consuming.process.http.post("/v1/topics", json=body)).status_code == 201
    await poisoned(consuming, {"n": 1}, {"n": "no number"}, {"n": 2})
    await consuming.redeliver()
    segment = await consuming.segment()
    while segment.traffic.dead_letters < 2:
        await asyncio.sleep(0)
    while consuming.process.broker.served["segment://public/default/dead/0000-ffff-0"].buffer.undecided():
        await asyncio.sleep(0)
    answer = await consuming.process.http.get("/v1/topics/dead/messages")
    assert sorted(message["value"]["n"] for message in answer.json()["messages"]) == [1, 2]
    assert (await consuming.shown())["backlog"] == 1
    assert await consuming.values() == []


async def test_many_messages_are_given_up_in_few_transactions(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "TOGETHER", 4)
    await poisoned(consuming, *range(10))
    consuming.world.store.applied.clear()
    await consuming.redeliver()
    await consuming.idle()
    assert await letters(consuming) == list(range(10))
    assert sum(map(COMMIT, consuming.world.store.applied)) == 3


async def test_a_message_that_can_no_longer_be_read_is_given_up_without_a_letter(consuming: Consuming) -> None:
    await poisoned(consuming, "a", "b")
    held = consuming.world.store.fault(Fault(BEGIN, hold_before=True, before=StoreUnavailable("away")))
    await consuming.redeliver()
    await held.reached.wait()
    segment = await consuming.segment()
    second = segment.buffer.last_durable
    answer = await consuming.process.http.post(
        f"/v1/segments/{quote(segment.id, safe='')}/trim", json={"before": str(second)}
    )
    assert answer.status_code in (200, 204), answer.text
    held.go.set()
    await consuming.idle()
    (part,) = subscriptions_of(segment)
    assert part.cursor.mark_delete.last_before == second, "it holds nothing back"
    assert (await consuming.shown())["backlog"] == 0
    assert await letters(consuming) == ["b"]
