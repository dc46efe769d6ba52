"""Goal: a refusal that says that nothing happened is true, wherever in the request the metadata store went away.

Method: every request of an operator that changes something is sent while the store refuses the first of its calls,
then the second one, and so on, until nothing is refused any more. After each refusal that is definite, the store has
what it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from metastore.errors import StoreUnavailable
from metastore.measured import EFFECTS
from metastore.txn import paths
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.world import World, publish

_MOST_CALLS = 60
_JUDGED = (
    paths.TOPICS,
    paths.SUBSCRIPTIONS,
    paths.SEGMENTS,
    paths.POLICIES,
    paths.HEADERS,
    paths.READ_HOLDS,
    paths.EXCLUSIVE_PRODUCERS,
)


class Case(NamedTuple):
    """A request, with the numbers of its topic and segment filled in."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


TOPIC = "/v1/topics/t{n}"
SUBSCRIPTION = f"{TOPIC}/subscriptions/s"
CASES = {
    "create topic": Case("POST", "/v1/topics", {"name": "new{n}", "segments": 2}),
    "delete topic": Case("DELETE", TOPIC),
    "change policy": Case("PATCH", TOPIC, {"retention_ms": 60_000}),
    "change policy of namespace": Case("PATCH", "/v1/policies/namespaces/public/default", {"retention_ms": "{n}000"}),
    "change policy of cluster": Case("PATCH", "/v1/policies/cluster", {"retention_ms": "{n}000"}),
    "replace schema": Case("PUT", f"{TOPIC}/schema", {"schema": {"fields": [{"name": "c{n}", "type": "string"}]}}),
    "create subscription": Case("PUT", f"{TOPIC}/subscriptions/other", {"initial": "earliest", "type": "shared"}),
    "create with dead letters": Case(
        "PUT", f"{TOPIC}/subscriptions/dying", {"initial": "earliest", "type": "shared", "dead_letter_topic": "dead{n}"}
    ),
    "seek": Case("POST", f"{SUBSCRIPTION}/seek", {"to": "latest"}),
    "seek by force": Case("POST", f"{SUBSCRIPTION}/seek", {"to": "latest", "force": True}),
    "drop subscription": Case("DELETE", SUBSCRIPTION),
    "split": Case("POST", "/v1/segments/{segment}/split", {}),
    "merge": Case("POST", "/v1/segments/{segment}/merge", {"with": "{other}"}),
    "seal": Case("POST", "/v1/segments/{segment}/seal", {}),
    "delete segment": Case("DELETE", "/v1/segments/{segment}"),
    "trim": Case("POST", "/v1/segments/{segment}/trim", {"before": "1:1"}),
    "hold reads": Case("POST", f"{TOPIC}/read-holds", {"hold_id": "h{n}", "hold_ms": 60_000}),
    "claim the topic": Case("POST", f"{TOPIC}/exclusive-producer", {"session": "s"}),
}

MAY_BE_MISSED = ("trim", "seal", "create topic", "create with dead letters", "split", "merge")
"""What is refused behind the effect may be nothing, or calls of the segments that open, which do it again."""


@pytest.mark.parametrize("what", CASES)
async def test_what_is_refused_for_certain_has_changed_nothing(
    process: BrokerProcess, world: World, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, outcomes = CASES[what], set[int]()
    for refused_call in range(_MOST_CALLS):
        names = await _prepared(process, world, refused_call, what)
        before = await _judged(world)
        calls = 0

        def assert_near(refused_call: int = refused_call) -> None:
            nonlocal calls
            calls += EFFECTS.get() is not None  # what the broker does meanwhile for itself goes on
            if calls == refused_call + 1 and EFFECTS.get() is not None:
                raise StoreUnavailable("the connection was refused")

        monkeypatch.setattr(world.store, "_assert_near", assert_near)
        answer = await process.http.request(case.method, _filled(case.path, names), json=_filled(case.body, names))
        monkeypatch.undo()
        outcomes.add(answer.status_code)
        if answer.status_code < 400 and calls <= refused_call:
            break
        if answer.status_code >= 400 and answer.json()["definite"]:
            assert answer.status_code == 503, answer.text
            assert await _judged(world) == before, f"call {refused_call + 1} was refused: {answer.text}"
    else:
        pytest.fail("it never ends")
    assert 503 in outcomes, "or this test shows nothing"
    assert 504 in outcomes or what in MAY_BE_MISSED, "or nothing was refused behind an effect"


async def _prepared(process: BrokerProcess, world: World, number: int, what: str) -> Mapping[str, str]:
    """A topic of two segments with a subscription, in which an open transaction has acknowledged something."""
    answer = await process.http.post("/v1/topics", json={"name": f"t{number}", "segments": 2})
    assert answer.status_code == 201, answer.text
    segment, other = (each["segment"] for each in answer.json()["segments"])
    await publish(process.broker.served[segment], "first")
    await publish(process.broker.served[segment], "second")
    if what == "delete segment":
        answer = await process.http.post(f"/v1/segments/{quote(segment, safe='')}/split", json={})
        assert answer.status_code == 200, answer.text
        return {"n": str(number), "segment": quote(segment, safe="")}
    path = f"/v1/topics/t{number}/subscriptions/s"
    assert (await process.http.put(path, json={"initial": "earliest", "type": "shared"})).status_code == 200
    if what == "seek by force":
        (message, _) = (await process.http.post(f"{path}/receive", json={"consumer": "c"})).json()["messages"]
        acks = {"kind": "individual", "message_ids": [message["message_id"]], "txn_id": str(await world.begin())}
        assert (await process.http.post(f"{path}/acks", json=acks)).status_code == 200
    return {"n": str(number), "segment": quote(segment, safe=""), "other": other}


def _filled(given: Any, names: Mapping[str, str]) -> Any:
    match given:
        case str():
            for name, value in names.items():
                given = given.replace(f"{{{name}}}", value)
            return int(given) if given.isdigit() else given
        case list():
            return [_filled(each, names) for each in given]
        case dict():
            return {key: _filled(value, names) for key, value in given.items()}
    return given


async def _judged(world: World) -> dict[str, bytes]:
    """What the requests are about, but what a broker does for itself meanwhile."""
    found = [record for prefix in _JUDGED for record in (await world.store.inner.scan(prefix)).records]
    return {record.key: record.value for record in found}
