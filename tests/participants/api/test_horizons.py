"""Goal: one request tells how far segments can be read, costs the store nothing, and waits without being asked again.

Method: requests against the application in-process, on a store that can be switched off.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metastore.errors import StoreUnavailable
from metatxn.wire.errors import ErrorCode
from tests.participants.api.test_rest import append, assert_problem, enc, send
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.world import World, released


async def look(process: BrokerProcess, segments: dict[str, dict[str, Any]], **more: Any) -> Any:
    answer = await process.http.post("/v1/horizons", json={"segments": segments, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def end_of(process: BrokerProcess, segment: str, **place: Any) -> tuple[str, int | None]:
    found = (await look(process, {segment: place}))["segments"][segment]
    return found["end"], found["messages"]


async def test_the_horizon_stops_at_the_first_undecided_transaction(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    assert await end_of(process, segment) == ("1:-1", None)
    await append(process, segment)
    txn = await world.begin()
    await append(process, segment, txn_id=str(txn))
    await append(process, segment)
    assert await end_of(process, segment) == ("1:0", None)
    uncommitted = await look(process, {segment: {}}, isolation="read_uncommitted")
    assert uncommitted["segments"][segment]["end"] == "1:2"
    await world.commit(txn)
    await released(await process.broker.segment(segment), txn)
    assert await end_of(process, segment) == ("1:2", None)


async def test_it_is_told_while_the_store_is_away(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    await append(process, segment)
    world.store.away = StoreUnavailable("on purpose")
    assert await end_of(process, segment) == ("1:0", None)
    assert await end_of(process, segment, max_messages=5) == ("1:0", 1)


async def test_a_limit_counts_what_is_visible_in_whole_entries(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    aborted = await world.begin()
    for _ in range(3):
        await send(process, "t", {"value": 1}, {"value": 2}, {"value": 3})
        await append(process, segment, txn_id=str(aborted))
    await world.abort(aborted)
    await released(await process.broker.segment(segment), aborted)
    assert await end_of(process, segment) == ("1:5", None)
    assert await end_of(process, segment, max_messages=1) == ("1:0", 3), "at least one entry"
    assert await end_of(process, segment, max_messages=5) == ("1:0", 3)
    assert await end_of(process, segment, max_messages=6) == ("1:2", 6)
    assert await end_of(process, segment, max_messages=6, after="1:0") == ("1:5", 6), "what is hidden is passed"
    assert await end_of(process, segment, max_messages=9, up_to="1:3") == ("1:3", 6)
    assert await end_of(process, segment, up_to="1:3") == ("1:3", None)
    assert await end_of(process, segment, after="1:4", up_to="1:3") == ("1:4", None), "never backwards"


async def test_a_long_poll_ends_with_news_of_any_segment(process: BrokerProcess, world: World) -> None:
    a, b = await process.create("t", segments=2)
    places = {a: {"after": "1:-1"}, b: {"after": "1:-1"}}
    asked = asyncio.create_task(look(process, places, wait_ms=60_000))
    aborted = await world.begin()
    await append(process, b, txn_id=str(aborted))
    assert not asked.done(), "what is undecided is no news"
    await append(process, a)
    found = (await asked)["segments"]
    assert (found[a]["end"], found[b]["end"]) == ("1:0", "1:-1")
    await world.abort(aborted)


async def test_a_sealed_segment_names_its_children_once_it_is_read_to_its_end(process: BrokerProcess) -> None:
    (parent,) = await process.create("t")
    await append(process, parent)
    asked = asyncio.create_task(look(process, {parent: {"after": "1:0"}}, wait_ms=60_000))
    answer = await process.http.post(f"/v1/segments/{enc(parent)}/split", json={})
    children = answer.json()["children"]
    found = (await asked)["segments"][parent]
    assert (found["ended"], found["children"], found["end"]) == (True, children, "1:0")
    capped = (await look(process, {parent: {"up_to": "1:-1"}}))["segments"][parent]
    assert not capped["ended"], "not behind this end"


async def test_what_was_trimmed_or_deleted_is_told(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    for _ in range(3):
        await append(process, segment)
    assert (await look(process, {segment: {}}))["segments"][segment]["trimmed"] is False
    await process.http.post(f"/v1/segments/{enc(segment)}/trim", json={"before": "1:2"})
    found = (await look(process, {segment: {"after": "1:0", "max_messages": 5}}))["segments"][segment]
    assert (found["start"], found["end"], found["messages"]) == ("1:1", "1:2", 1)
    assert (found["trimmed"], found["trimmed_up_to"]) == (True, "1:1")
    assert (await process.http.delete("/v1/topics/t")).status_code == 204
    assert (await look(process, {segment: {}}, wait_ms=60_000))["gone"] == [segment]


async def test_an_empty_ledger_that_goes_was_not_trimmed(process: BrokerProcess) -> None:
    """A broker begins a new ledger when it starts, and forgets one that held nothing."""
    (segment,) = await process.create("t")
    before = (await look(process, {segment: {}}))["segments"][segment]
    after = await process.crash()
    found = (await look(after, {segment: {"after": before["end"]}}))["segments"][segment]
    assert (before["start"], found["start"]) == ("1:-1", "2:-1")
    assert (found["trimmed"], found["trimmed_up_to"]) == (False, None)
    await after.stop()


@pytest.mark.parametrize(
    "body",
    [
        {"segments": {}},
        {"segments": {"s": {"after": "here"}}},
        {"segments": {"s": {"up_to": "1"}}},
        {"segments": {"s": {"max_messages": 0}}},
        {"segments": {"s": {"behind": "1:1"}}},
        {"segments": {"s": {}}, "isolation": "snapshot"},
        {"segments": {"s": {}}, "wait_ms": 60_001},
    ],
)
async def test_bad_input_is_named(process: BrokerProcess, body: dict[str, Any]) -> None:
    problem = assert_problem(await process.http.post("/v1/horizons", json=body), ErrorCode.INVALID_ARGUMENT)
    assert any(name in problem["detail"] for name in ("segments", "isolation", "wait_ms"))
