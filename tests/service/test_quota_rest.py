"""Goal: quotas are set by administrators only, shown with where they come from, and held at both services.

Method: a coordinator and a broker on real sockets behind the same tokens. Scenarios 160, 162.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.records.processes import VersionRecord
from metastore.txn.store import INDEXES
from metastore.versions import FIRST, SPEAKS, ClusterVersion
from metatxn.service.quotas.stored import StoredQuotas
from metatxn.wire.errors import UpgradePending
from tests.service.secured import Caller, secured
from tests.service.security import TokenFile

OWN = "/v1/quotas/principals/bob"


@pytest.fixture
async def callers(tmp_path: Path) -> AsyncIterator[tuple[Caller, Caller]]:
    """An administrator, and bob, who may do everything with a topic."""
    tokens = TokenFile(tmp_path)
    made = tokens.add("ada", admin=True), tokens.add("bob", topics={"public/default/t": "consume, produce"})
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(secured(tmp_path / "data", token_file=tokens.path))
        ada, bob = [await stack.enter_async_context(services.caller(token)) for token in made]
        yield ada, bob


async def asked(caller: httpx.AsyncClient, method: str, path: str, body: Any = None) -> dict[str, Any]:
    answer = await caller.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def refused(caller: httpx.AsyncClient, method: str, path: str, body: Any = None) -> httpx.Response:
    """Once the service has heard of the quota, and it is used up."""
    async with asyncio.timeout(30):
        while (answer := await caller.request(method, path, json=body)).status_code != 429:
            assert answer.status_code == 200, answer.text
            await asyncio.sleep(0)
    return answer


async def test_162_a_quota_is_set_and_shown_with_where_it_comes_from(callers: tuple[Caller, Caller]) -> None:
    ada, bob = callers
    await asked(ada.coordinator, "PATCH", "/v1/quotas/default", {"requests_per_second": 500, "bytes_in_per_second": 9})
    await asked(ada.coordinator, "PATCH", OWN, {"requests_per_second": 700, "bytes_out_per_second": -1})
    found = await asked(ada.coordinator, "PATCH", OWN, {"requests_per_second": None})
    assert found == {
        "principal": "bob",
        "quota": {"requests_per_second": None, "bytes_in_per_second": None, "bytes_out_per_second": -1},
        "effective": {
            "requests_per_second": {"value": 500, "source": "default"},
            "bytes_in_per_second": {"value": 9, "source": "default"},
            "bytes_out_per_second": {"value": -1, "source": "principal"},
        },
        "use": None,
    }
    assert (await asked(bob.coordinator, "GET", OWN))["effective"] == found["effective"]
    assert set((await asked(bob.coordinator, "GET", OWN))["use"]) == set(found["effective"])
    listed = await asked(ada.coordinator, "GET", "/v1/quotas/principals")
    assert [each["principal"] for each in listed["items"]] == ["bob"] and listed["next_page_token"] is None
    await asked(ada.coordinator, "PATCH", "/v1/quotas/principals/a%2Fb", {"requests_per_second": 5})
    first = await asked(ada.coordinator, "GET", "/v1/quotas/principals?limit=1")
    rest = await asked(ada.coordinator, "GET", f"/v1/quotas/principals?page_token={first['next_page_token']}")
    assert [each["principal"] for each in first["items"] + rest["items"]] == ["a/b", "bob"]
    await asked(ada.coordinator, "PATCH", OWN, {"bytes_out_per_second": None})
    assert len((await asked(ada.coordinator, "GET", "/v1/quotas/principals"))["items"]) == 1
    await asked(ada.coordinator, "PATCH", "/v1/quotas/principals/nobody", {"bytes_out_per_second": None})


async def test_only_administrators_set_quotas_and_see_those_of_others(callers: tuple[Caller, Caller]) -> None:
    ada, bob = callers
    for method, path in (
        ("PATCH", OWN),
        ("PATCH", "/v1/quotas/default"),
        ("GET", "/v1/quotas/default"),
        ("GET", "/v1/quotas/principals"),
        ("GET", "/v1/quotas/principals/ada"),
    ):
        answer = await bob.coordinator.request(method, path, json={"requests_per_second": 5})
        assert answer.status_code == 403, (method, path)
    assert (await asked(ada.coordinator, "GET", OWN))["effective"]["requests_per_second"]["source"] == "none"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"requests_per_second": 0}, "requests_per_second"),
        ({"requests_per_second": -2}, "requests_per_second"),
        ({"bytes_in_per_second": "9"}, "bytes_in_per_second"),
        ({"bytes_out_per_second": 2**53}, "bytes_out_per_second"),
        ({"requests_per_hour": 9}, "requests_per_hour"),
    ],
)
async def test_a_bad_quota_is_refused_by_name(callers: tuple[Caller, Caller], body: Any, field: str) -> None:
    answer = await callers[0].coordinator.patch(OWN, json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert (await asked(callers[0].coordinator, "GET", OWN))["quota"] == dict.fromkeys(
        ("requests_per_second", "bytes_in_per_second", "bytes_out_per_second")
    )


async def test_no_quota_is_set_that_services_of_an_earlier_release_would_ignore() -> None:
    store = MemoryStore(INDEXES)
    await store.apply(store.batch().put(paths.VERSION, VersionRecord(version=FIRST).encode()))
    quotas = StoredQuotas(store, ClusterVersion(FIRST))
    with pytest.raises(UpgradePending, match="quotas of principals: needs cluster version 2"):
        await quotas.change("bob", {"requests_per_second": 5})
    assert (await quotas.get("bob")).quota.requests_per_second is None
    await store.apply(store.batch().put(paths.VERSION, VersionRecord(version=SPEAKS).encode()))
    assert (await quotas.change("bob", {"requests_per_second": 5})).quota.requests_per_second == 5


async def test_160_both_services_keep_a_principal_to_its_quota(callers: tuple[Caller, Caller]) -> None:
    """Who is refused is told how long to wait; others and open paths are not refused, nor what moves no messages."""
    ada, bob = callers
    await ada.broker.post("/v1/topics", json={"name": "t"})
    publish = ("POST", "/v1/topics/t/messages", {"messages": [{"value": "x" * 2_000}]})
    await asked(ada.coordinator, "PATCH", OWN, {"bytes_in_per_second": 1_000, "bytes_out_per_second": 1_000})
    for request in (publish, ("GET", "/v1/topics/t/messages", None)):
        answer = await refused(bob.broker, *request)
        problem = answer.json()
        assert problem["code"] == "RATE_LIMITED" and problem["definite"] and problem["retriable"]
        assert problem["limit"] == 1_000 and int(answer.headers["retry-after"]) >= 1
        assert (await ada.broker.request(request[0], request[1], json=request[2])).status_code == 200
    assert (await bob.broker.get("/v1/topics/t")).status_code == 200

    await asked(ada.coordinator, "PATCH", OWN, {"requests_per_second": 1})
    answer = await refused(bob.coordinator, "GET", OWN)
    assert answer.json()["quota"] == "requests_per_second"
    assert "principal bob: the quota of 1 requests per second" in answer.json()["detail"]
    await refused(bob.broker, "GET", "/v1/topics/t")
    assert (await bob.coordinator.get("/readyz")).status_code == 200
    metrics = (await ada.broker.get("/metrics")).text
    assert 'metatxn_quota_refusals_total{quota="bytes_in_per_second"}' in metrics
    assert (await ada.coordinator.get(OWN)).json()["use"]["requests_per_second"] >= 0
