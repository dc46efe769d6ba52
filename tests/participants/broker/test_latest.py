"""Goal: anyone who begins at the end of a topic is given what becomes readable from then on, and nothing was read to
find the end.

Method: a broker in-process and random histories of plain messages, transactions, splits and merges. The place that
`start=latest` answers must be as good as the one that reading through the whole topic comes to.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from metatxn.wire.ids import TxnId
from participants.topic import messages
from participants.topic.reading import read_page
from tests.extent import usually
from tests.participants.broker.process import BrokerProcess
from tests.participants.broker.stories import HIGH, LOW, post
from tests.participants.broker.test_compaction import MESSAGES, decided, page, put, rest
from tests.participants.segment.world import World

ISOLATIONS = ("read_committed", "read_uncommitted", "snapshot")


async def read_through(process: BrokerProcess, isolation: str) -> str:
    found = await page(process, isolation=isolation)
    while found["messages"]:
        found = await page(process, isolation=isolation, after=found["next"])
    return str(found["next"])


async def latest(process: BrokerProcess, isolation: str) -> str:
    """Fails when more is read of a segment than an entry of those that come meanwhile."""
    sizes = []

    async def noted(segment: Any, after: Any, max_bytes: int, *rest: Any) -> Any:
        sizes.append(max_bytes)
        return await read_page(segment, after, max_bytes, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "read_page", noted)
        found = await page(process, isolation=isolation, start="latest")
    assert found["messages"] == [] and set(sizes) == {1} and len(sizes) <= len(process.broker.served)
    return str(found["next"])


@pytest.mark.parametrize("seed", usually(range(3), range(8)))
async def test_the_end_is_where_reading_through_comes_to(process: BrokerProcess, world: World, seed: int) -> None:
    dice = random.Random(seed)
    await process.create("t", segments=1 + seed % 2)
    opened: list[TxnId] = []
    places: list[tuple[str, str, str]] = []
    for value in range(40):
        match dice.choice(["plain", "inside", "inside", "begin", "end", "change", "look"]):
            case "begin":
                opened.append(await world.begin())
            case "inside" if opened:
                await put(process, dice.choice([LOW, HIGH]), value, dice.choice(opened))
            case "end" if opened:
                await decided(process, world, opened.pop(dice.randrange(len(opened))), dice.random() < 0.6)
            case "change":
                await change(process, dice)
            case "look":
                places += [
                    (each, await read_through(process, each), await latest(process, each)) for each in ISOLATIONS
                ]
            case _:
                await put(process, dice.choice([LOW, HIGH]), value)
    for txn in opened:
        await decided(process, world, txn, True)
    assert places
    for isolation, reached, told in places:
        assert await rest(process, told, isolation=isolation) == await rest(process, reached, isolation=isolation)


async def change(process: BrokerProcess, dice: random.Random) -> None:
    """Split a segment, or merge two neighbours."""
    segments = (await process.http.get("/v1/topics/t")).json()["segments"]
    active = sorted((each for each in segments if each["state"] == "active"), key=lambda each: each["range"])
    if len(active) > 1 and dice.random() < 0.5:
        at = dice.randrange(len(active) - 1)
        await post(process, active[at]["segment"], "merge", **{"with": active[at + 1]["segment"]})
    else:
        await post(process, dice.choice(active)["segment"], "split")


async def test_the_compacted_view_has_one_beginning(process: BrokerProcess) -> None:
    await process.create("t")
    for params in ({"start": "latest", "compacted": "true"}, {"start": "later"}):
        answer = await process.http.get(MESSAGES, params=params)
        assert (answer.status_code, answer.json()["field"]) == (422, "start")
