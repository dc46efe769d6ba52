"""Goal: a claim is answered when the owner of every segment knows it, and no earlier, however the segments move; one
that was deposed answers for nothing.

Method: as in `test_placement`, several brokers in-process over one store and one object store. DESIGN §5.23;
scenario 129.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metatxn.wire.errors import ErrorCode
from tests.participants.broker.shared import SharedBroker, Start, shared_brokers
from tests.participants.broker.stories import quoted
from tests.participants.broker.test_placement import create, refused, spread
from tests.participants.devices import only
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.world import World, committed, publish
from tests.participants.subscription.consuming import TOPIC

device = only("objects", "Local files are those of one broker; here several have the same ledgers.")
HOLD = paths.exclusive_producer(TOPIC)


@pytest.fixture
async def start(world: World) -> AsyncIterator[Start]:
    async with shared_brokers(world) as start:
        yield start


async def claim(process: SharedBroker, session: str, *, fence: bool = False) -> httpx.Response:
    body = {"session": session, "producer": session, "fence": fence}
    return await process.http.post("/v1/topics/t/exclusive-producer", json=body)


async def sent(process: SharedBroker, segment_id: str, value: str, epoch: int | None = None) -> int:
    params = {"producer_epoch": str(epoch)} if epoch is not None else {}
    path = f"/v1/segments/{quoted(segment_id)}/entries"
    return (await process.http.post(path, params=params, content=value.encode())).status_code


async def divided(start: Start) -> tuple[SharedBroker, SharedBroker, list[str]]:
    """Two brokers, each of which owns some of the segments, of which there are so many that none may own all."""
    first, second = await start(), await start()
    names = await create(first, 20)
    goal = await spread([first, second], names)
    assert len(set(goal.values())) == 2
    return first, second, names


async def test_after_the_answer_no_owner_takes_what_another_one_sends(start: Start) -> None:
    first, second, names = await divided(start)
    owners = {name: each for each in (first, second) for name in names if name in each.broker.served}
    asked = await claim(first, "a")
    epoch = asked.json()["epoch"]
    for name, owner in owners.items():
        assert await sent(owner, name, "plain") == 403 and await sent(owner, name, "a", epoch) == 200
    taken = (await claim(second, "b", fence=True)).json()["epoch"]
    for each in (first, second):
        each.store.away = StoreUnavailable("away")
    for name, owner in owners.items():
        assert await sent(owner, name, "b", taken) == 200, "it knows without asking the store"
    for each in (first, second):
        each.store.away = None
    assert {await sent(owner, name, "a", epoch) for name, owner in owners.items()} == {403}


async def test_a_claim_of_which_an_owner_has_not_heard_is_not_answered(start: Start) -> None:
    first, second, names = await divided(start)
    first.can_reach([first])
    answer = await claim(first, "a")
    assert (answer.status_code, answer.json()["code"]) == (504, "OUTCOME_UNKNOWN")
    assert (await claim(second, "b")).status_code == 403, "the topic is claimed"
    first.can_reach([first, second])
    answer = await claim(first, "a")
    assert answer.status_code == 200
    statuses = [await sent(each, name, "plain") for each in (first, second) for name in each.broker.served]
    assert statuses == [403] * len(names)


async def test_a_deposed_owner_does_not_confirm(start: Start, world: World) -> None:
    """It would confirm while its successor, which has read the hold before the claim, takes everything."""
    first = await start()
    (name,) = await create(first)
    deposed = await first.serving(name)
    await first.freeze()
    second = await start()
    await second.serving(name)
    assert await refused(deposed.learn_producer()) is ErrorCode.STORE_UNAVAILABLE
    assert deposed.lost


async def test_a_takeover_in_the_middle_of_a_claim_lets_nothing_in(start: Start, world: World) -> None:
    """The claim is stored while the next owner opens the segment."""
    first = await start()
    (name,) = await create(first)
    segment = await first.serving(name)
    await publish(segment, "before")
    claiming = first.store.fault(Fault(puts(HOLD), hold_before=True))
    asked = asyncio.create_task(claim(first, "a"))
    await claiming.reached.wait()
    second = await start()
    opening = second.store.hold_read(lambda keys: HOLD in keys)
    await first.freeze()
    await opening.reached.wait()  # its answer, without the claim, is on its way
    claiming.go.set()
    answer = await asked
    assert answer.status_code == 504, "nobody serves the segment who could confirm"
    opening.go.set()
    found = await second.serving(name)
    assert await sent(second, name, "until the claim is answered") == 200
    epoch = (await claim(second, "a")).json()["epoch"]
    assert await sent(second, name, "plain") == 403 and await sent(second, name, "a", epoch) == 200
    assert (await committed(found))[-1] == "a"
