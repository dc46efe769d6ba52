"""Goal: a topic whose segments are on several brokers is published to and browsed through any of them.

Method: three brokers in-process that share an object store; every request goes to each one in turn. Brokers ask the
owners of what they lack, and nobody further.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from obstore.store import MemoryStore

from metatxn.transport.api import Answer
from metatxn.wire import errors
from metatxn.wire.broker import hash_of_key
from metatxn.wire.problems import problem_of
from participants.broker import peers
from tests.over_httpx import OverHttpx
from tests.participants.broker.shared import SharedBroker
from tests.participants.broker.test_placement import create, spread
from tests.participants.devices import only
from tests.participants.pages import assert_read_alike
from tests.participants.segment.world import World

device = only("objects", "Local files are those of one broker; here several have the same ledgers.")

MESSAGES = [{"key": f"k{number}", "value": number} for number in range(40)]


@pytest.fixture
async def brokers(world: World) -> AsyncIterator[list[SharedBroker]]:
    objects = MemoryStore()
    started = [await SharedBroker.start(world, objects, f"http://broker-{number}") for number in range(3)]
    for broker in started:
        broker.can_reach(started)
    names = await create(started[0], 30)
    await spread(started, names)
    yield started
    await asyncio.gather(*(broker.stop() for broker in started))


async def browsed(broker: SharedBroker, **params: Any) -> list[Any]:
    """Every value, page by page."""
    found: list[dict[str, Any]] = []
    token = None
    while True:
        answer = await broker.http.get(
            "/v1/topics/t/messages", params={**params, **({"after": token} if token else {})}
        )
        assert answer.status_code == 200, answer.text
        if not answer.json()["messages"]:
            await assert_read_alike(broker.http, "t", found, params)
            return [message["value"] for message in found]
        found += answer.json()["messages"]
        token = answer.json()["next"]


async def test_any_broker_takes_messages_for_all_segments_and_shows_those_of_all(
    brokers: list[SharedBroker], world: World
) -> None:
    for number, broker in enumerate(brokers):
        txn = await world.begin()
        body = {"messages": MESSAGES, "producer": f"p{number}", "sequence": 1}
        ids = []
        for _ in range(2):  # a retry, at the same broker and at another
            answer = await broker.http.post("/v1/topics/t/messages", params={"txn_id": str(txn)}, json=body)
            assert answer.status_code == 200, answer.text
            ids.append(answer.json()["message_ids"])
        again = await brokers[number - 1].http.post("/v1/topics/t/messages", params={"txn_id": str(txn)}, json=body)
        assert ids[0] == ids[1] == again.json()["message_ids"]
        assert len(set(ids[0])) == len(MESSAGES)
        await (world.commit(txn) if number != 1 else world.abort(txn))
    wanted = sorted(list(range(40)) * 2)
    for broker in brokers:
        while sorted(await browsed(broker, max=7)) != wanted:
            await asyncio.sleep(0.001)
        assert sorted(await browsed(broker, isolation="snapshot")) == wanted
        assert len(await browsed(broker, isolation="read_uncommitted")) == 120


async def test_any_broker_makes_the_compacted_view_of_all_segments(brokers: list[SharedBroker]) -> None:
    """A view begun at one broker goes on at another, which makes it again."""
    for value in range(3):
        messages = [{"key": f"k{number}", "value": value if number or value < 2 else None} for number in range(40)]
        answer = await brokers[value].http.post("/v1/topics/t/messages", json={"messages": messages})
        assert answer.status_code == 200, answer.text
    found: dict[str, Any] = {}
    token = None
    for number in range(100):
        params: dict[str, Any] = {"max": 7, "compacted": "true"} | ({"after": token} if token else {})
        page = (await brokers[number % 3].http.get("/v1/topics/t/messages", params=params)).json()
        if not page["messages"]:
            break
        assert not found.keys() & {message["key"] for message in page["messages"]}, "each key once"
        found |= {message["key"]: message["value"] for message in page["messages"]}
        token = page["next"]
    assert found == {f"k{number}": 2 for number in range(1, 40)}


async def test_a_long_poll_hears_of_what_another_broker_takes(brokers: list[SharedBroker]) -> None:
    here, there = brokers[0], brokers[1]
    empty = (await here.http.get("/v1/topics/t/messages")).json()
    waiting = asyncio.create_task(
        here.http.get("/v1/topics/t/messages", params={"after": empty["next"], "wait_ms": 60_000})
    )
    segment = next(iter(there.broker.served))
    answer = await there.http.post(
        f"/v1/segments/{quote(segment, safe='')}/entries",
        content=b'[{"value": "far"}]',
        headers={"Content-Type": "application/vnd.metatxn.messages+json"},
    )
    assert answer.status_code == 200, answer.text
    assert [message["value"] for message in (await waiting).json()["messages"]] == ["far"]


async def test_an_owner_that_is_gone_or_relieved_is_a_reason_to_try_again(
    brokers: list[SharedBroker], world: World
) -> None:
    """Never a redirect that leads back, and never "nothing happened" where something may have."""

    def relieved(request: httpx.Request) -> httpx.Response:
        return httpx.Response(307, headers={"Location": str(request.url)})

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    def cut_off(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("reset", request=request)

    here = brokers[0]
    params = {"txn_id": str(await world.begin())}
    own = [segment.record.range for segment in here.broker.served.values()]
    far = next(each for each in MESSAGES if not any(low <= hash_of_key(str(each["key"])) <= high for low, high in own))
    for fault, browse, publish in [
        (relieved, "STORE_UNAVAILABLE", "STORE_UNAVAILABLE"),
        (gone, "STORE_UNAVAILABLE", "STORE_UNAVAILABLE"),
        (cut_off, "STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"),
    ]:
        here.broker.peers = OverHttpx(httpx.MockTransport(fault))
        answer = await here.http.get("/v1/topics/t/messages")
        assert answer.json()["code"] == browse
        answer = await here.http.post("/v1/topics/t/messages", params=params, json={"messages": [far]})
        assert answer.json()["code"] == publish
        answer = await here.http.post("/v1/topics/t/messages", params=params, json={"messages": MESSAGES})
        assert answer.json()["code"] == "OUTCOME_UNKNOWN", "its own segments took their part"


async def test_a_broker_names_who_knows_the_horizon_of_a_segment(brokers: list[SharedBroker]) -> None:
    """So that anyone who watches many segments asks each broker once, for all that it has."""
    segments = (await brokers[0].http.get("/v1/topics/t")).json()["segments"]
    places: dict[str, dict[str, str]] = {each["segment"]: {} for each in segments}
    known: dict[str, str] = {}
    for broker in brokers:
        answer = (await broker.http.post("/v1/horizons", json={"segments": places})).json()
        assert answer["segments"].keys() | answer["elsewhere"].keys() == places.keys()
        assert answer["segments"].keys() == broker.broker.served.keys()
        known |= dict.fromkeys(answer["segments"], broker.url)
        assert all(url != broker.url for url in answer["elsewhere"].values())
    for broker in brokers:
        answer = (await broker.http.post("/v1/horizons", json={"segments": places})).json()
        assert answer["elsewhere"] == {each: url for each, url in known.items() if url != broker.url}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"not found", b'{"code":"NOT_FOUND"}', b'{"code":"NOT_FOUND","definite":1}']
)
def test_what_a_gateway_says_is_not_taken_for_the_answer_of_a_broker(body: bytes) -> None:
    """A problem is one of ours only as a whole, else nobody knows what became of the request."""
    assert peers._problem_of(Answer("GET", "http://other/v1", 404, body=body)) is None


@pytest.mark.parametrize("definite", [True, False])
def test_a_problem_of_another_broker_is_its_error_here(definite: bool) -> None:
    told = errors.TransactionConflict("held", definite=definite, holder="t")
    answer = Answer("POST", "http://other/v1", 409, body=problem_of(told).model_dump_json().encode())
    error = peers._problem_of(answer)
    assert isinstance(error, errors.TransactionConflict)
    assert (error.detail, error.definite, error.members) == ("held", definite, {"holder": "t"})
