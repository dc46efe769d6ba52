"""Goal: with authentication on, a transaction is its owner's (scenarios B13–B16), and `/admin/…` an administrator's.

Method: a real coordinator and broker on one store; three principals with tokens, who try what is not theirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, begin
from metatxn.service.exposure import InvalidExposure, open_exposure
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.problems import Problem
from tests.service.secured import Caller, Secured, secured
from tests.service.security import TokenFile, bearer

ALL = {"*": "produce,consume,admin"}
ENDS: dict[str, Any] = {
    "commit": {},
    "abort": {},
    "keep-alive": {"timeout_ms": 1000},
    "writers": {"add": ["w"]},
    "prepare": {},
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Secured, dict[str, str]]]:
    tokens = TokenFile(tmp_path)
    known = {name: tokens.add(name, topics=ALL) for name in ("ada", "bob")}
    known["root"] = tokens.add("root", admin=True)
    async with secured(tmp_path / "data", token_file=tokens.path) as cluster:
        yield cluster, known


@pytest.fixture
async def callers(cluster: tuple[Secured, dict[str, str]]) -> AsyncIterator[dict[str, Caller]]:
    service, tokens = cluster
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(service.caller(token)) for name, token in tokens.items()}


def refused(answer: httpx.Response, code: ErrorCode) -> Problem:
    problem = Problem.model_validate(answer.json())
    assert (problem.code, answer.status_code) == (code, problem.status), answer.text
    assert problem.action.endswith(".")
    return problem


async def begun(caller: Caller, **body: Any) -> str:
    answer = await caller.coordinator.post("/v1/txns", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["txn_id"])


async def values(caller: Caller, topic: str) -> list[Any]:
    answer = await caller.broker.get(f"/v1/topics/{topic}/messages", params={"wait_ms": 20_000})
    return [message["value"] for message in answer.json()["messages"]]


async def test_b13_the_owner_ends_what_it_began_and_so_does_a_superuser(callers: dict[str, Caller]) -> None:
    for ender in ("ada", "root"):
        for verb in ("commit", "abort"):
            txn = await begun(callers["ada"])
            assert (await callers["ada"].coordinator.get(f"/v1/txns/{txn}")).json()["owner"] == "ada"
            for before in ("keep-alive", "writers"):
                answer = await callers[ender].coordinator.post(f"/v1/txns/{txn}/{before}", json=ENDS[before])
                assert answer.status_code == 200, answer.text
            answer = await callers[ender].coordinator.post(f"/v1/txns/{txn}/{verb}")
            assert answer.status_code == 200 and answer.json()["owner"] == "ada"
            assert answer.json()["ended_by"] == ender


async def test_b14_another_principal_changes_nothing_and_the_owner_goes_on(callers: dict[str, Caller]) -> None:
    """Its end, its keep-alive and its write are refused; nothing is visible; then the owner commits what it wrote."""
    ada, bob = callers["ada"], callers["bob"]
    await ada.broker.post("/v1/topics", json={"name": "t"})
    (segment,) = (await ada.broker.get("/v1/topics/t")).json()["segments"]
    txn = await begun(ada)
    before = (await ada.coordinator.get(f"/v1/txns/{txn}")).json()
    one = {"messages": [{"value": 1}]}
    assert (await ada.broker.post("/v1/topics/t/messages", params={"txn_id": txn}, json=one)).status_code == 200
    for verb, body in ENDS.items():
        refused(await bob.coordinator.post(f"/v1/txns/{txn}/{verb}", json=body), ErrorCode.NOT_ALLOWED)
    refused(await bob.coordinator.get(f"/v1/txns/{txn}"), ErrorCode.NOT_ALLOWED)
    refused(await bob.coordinator.get(f"/v1/txns/{txn}/ops"), ErrorCode.NOT_ALLOWED)
    late = {"messages": [{"value": "bob's"}]}
    refused(await bob.broker.post("/v1/topics/t/messages", params={"txn_id": txn}, json=late), ErrorCode.NOT_ALLOWED)
    entries = f"/v1/segments/{segment['segment'].replace('/', '%2F')}/entries"
    refused(await bob.broker.post(entries, params={"txn_id": txn}, content=b"bob's"), ErrorCode.NOT_ALLOWED)
    other = await begun(ada)  # two that do not touch would be ended in one apply
    for ends in ([(txn, "commit"), (txn, "abort")], [(txn, "commit"), (other, "commit")]):
        items = [{"op": verb, "txn_id": each} for each, verb in ends]
        answers = (await bob.coordinator.post("/v1/txns/batch", json={"items": items})).json()["items"]
        assert [answer["problem"]["code"] for answer in answers] == ["NOT_ALLOWED"] * 2
    assert (await ada.coordinator.get(f"/v1/txns/{txn}")).json() == before
    browsed = await bob.broker.get("/v1/topics/t/messages")
    assert browsed.json()["messages"] == []
    assert (await ada.coordinator.post(f"/v1/txns/{txn}/commit")).json()["state"] == "COMMITTED"
    assert await values(bob, "t") == [1]
    refused(await bob.coordinator.post(f"/v1/txns/{txn}/commit"), ErrorCode.NOT_ALLOWED)


async def test_b13_the_owner_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """B13, "also after coordinator reload": the owner is in the header, and no coordinator remembers it."""
    tokens = TokenFile(tmp_path)
    ada, bob = tokens.add("ada"), tokens.add("bob")
    store = MemoryStore(INDEXES)
    for life in range(2):
        service = CoordinatorService(store, port=0, exposure=open_exposure(token_file=tokens.path))
        await service.start()
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
            if life == 0:
                txn = (await http.post("/v1/txns", headers=bearer(ada))).json()["txn_id"]
            refused(await http.post(f"/v1/txns/{txn}/abort", headers=bearer(bob)), ErrorCode.NOT_ALLOWED)
            if life == 1:
                assert (await http.post(f"/v1/txns/{txn}/commit", headers=bearer(ada))).status_code == 200
        await service.stop()
    await store.close()


async def test_b15_what_was_begun_by_nobody_may_be_ended_by_anyone(tmp_path: Path) -> None:
    """Transactions from before authentication was turned on; and one that nobody began is nobody's secret."""
    tokens = TokenFile(tmp_path)
    ada = tokens.add("ada")
    store = MemoryStore(INDEXES)
    old = TxnId.parse("0" * 31 + "7")
    await store.apply(begin(store.batch(), old, Header(state=TxnState.OPEN, timeout_ms=1 << 50, created_ms=1)))
    service = CoordinatorService(store, port=0, exposure=open_exposure(token_file=tokens.path))
    await service.start()
    async with httpx.AsyncClient(base_url=service.url, headers=bearer(ada), timeout=60) as http:
        assert (await http.get(f"/v1/txns/{old}")).status_code == 200
        assert (await http.post(f"/v1/txns/{old}/commit")).json()["state"] == "COMMITTED"
        refused(await http.post(f"/v1/txns/{'f' * 32}/commit"), ErrorCode.TXN_NOT_FOUND)
    await service.stop()
    await store.close()


async def test_b16_without_a_token_no_transaction_begins(cluster: tuple[Secured, dict[str, str]]) -> None:
    """No token, a wrong one, one in a place that ends up in logs: 401, the same for all, on every kind of path."""
    service, tokens = cluster
    token = tokens["ada"]
    attempts: list[dict[str, Any]] = [
        {},
        {"headers": bearer(token[:-1] + ("0" if token[-1] != "0" else "1"))},
        {"headers": bearer(token.replace("mtx_", ""))},
        {"headers": {"Authorization": f"Basic {token}"}},
        {"headers": {"Cookie": f"token={token}"}},
        {"params": {"token": token}},
        {"params": {"access_token": token}},
    ]
    async with service.caller(None) as nobody:
        for attempt in attempts:
            for method, path in (
                ("POST", "/v1/txns"),
                ("GET", "/v1/cluster"),
                ("GET", "/v1/status"),
                ("GET", "/metrics"),
                ("GET", "/no/such"),
            ):
                for http in (nobody.coordinator, nobody.broker):
                    answer = await http.request(method, path, **attempt)
                    assert "header" in refused(answer, ErrorCode.UNAUTHENTICATED).detail or "headers" in attempt
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
                    assert token not in answer.text
        for path in ("/healthz", "/readyz", "/docs", "/openapi.json", "/docs-assets/swagger-ui.css"):
            for http in (nobody.coordinator, nobody.broker):
                assert (await http.get(path)).status_code == 200, path
    async with service.caller(tokens["root"]) as root:
        assert (await root.coordinator.get("/v1/txns")).json()["items"] == []


async def test_a_revoked_token_ends_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metatxn.service.security.watched_file.LOOK_EVERY_S", 0)
    tokens = TokenFile(tmp_path)
    ada = tokens.add("ada")
    async with secured(tmp_path / "data", token_file=tokens.path) as service, service.caller(ada) as caller:
        assert (await caller.coordinator.post("/v1/txns")).status_code == 201
        bob = tokens.add("bob")
        tokens.remove("ada")
        refused(await caller.coordinator.post("/v1/txns"), ErrorCode.UNAUTHENTICATED)
        async with service.caller(bob) as other:
            assert (await other.coordinator.post("/v1/txns")).status_code == 201


async def test_the_owner_is_the_caller_whatever_the_body_says(callers: dict[str, Caller]) -> None:
    for name in ("ada", "root"):
        http = callers[name].coordinator
        assert (await http.post("/v1/txns", json={"owner": name})).json()["owner"] == name
        assert (await http.post("/v1/txns")).json()["owner"] == name
        assert refused(await http.post("/v1/txns", json={"owner": "bob"}), ErrorCode.NOT_ALLOWED).field == "owner"  # type: ignore[attr-defined]
        items = [{"op": "begin"}, {"op": "begin", "owner": "bob"}]
        first, second = (await http.post("/v1/txns/batch", json={"items": items})).json()["items"]
        assert first["txn"]["owner"] == name and second["problem"]["code"] == "NOT_ALLOWED"


async def test_a_transaction_key_is_its_owners(callers: dict[str, Caller]) -> None:
    """Two principals use the same key, and neither fences the other."""
    ada, bob = callers["ada"].coordinator, callers["bob"].coordinator
    connect = "/v1/transaction-keys/nightly/connect"
    assert [(await ada.post(connect, json={"epoch": -1})).json()["epoch"] for _ in range(2)] == [0, 1]
    txn = await begun(callers["ada"], transaction_key="nightly", epoch=1)
    assert (await bob.post(connect, json={"epoch": -1})).json() == {"epoch": 0}
    refused(await bob.post(connect, json={"epoch": -1, "owner": "ada"}), ErrorCode.NOT_ALLOWED)
    assert (await ada.post(f"/v1/txns/{txn}/commit")).json()["state"] == "COMMITTED"
    both = (await callers["root"].coordinator.get("/admin/v2/transactions/transaction-keys")).json()["items"]
    assert {(key["owner"], key["epoch"]) for key in both} == {("ada", 1), ("bob", 0)}


async def test_a_list_shows_what_is_the_callers(callers: dict[str, Caller]) -> None:
    mine, others = await begun(callers["ada"]), await begun(callers["bob"])

    async def listed(name: str, **params: str) -> set[str]:
        answer = await callers[name].coordinator.get("/v1/txns", params=params)
        return {header["txn_id"] for header in answer.json()["items"]}

    assert await listed("ada") == await listed("ada", owner="ada") == {mine}
    assert await listed("root") == {mine, others} and await listed("root", owner="bob") == {others}
    answer = await callers["ada"].coordinator.get("/v1/txns", params={"owner": "bob"})
    refused(answer, ErrorCode.NOT_ALLOWED)


async def test_callers_are_told_who_they_are_and_what_they_may_do(callers: dict[str, Caller]) -> None:
    """The same at both services. A pattern has its rights in their order."""
    ada = {"principal": "ada", "admin": False, "topics": {"*": ["admin", "consume", "produce"]}}
    for http in (callers["ada"].coordinator, callers["ada"].broker):
        assert (await http.get("/v1/access")).json() == ada
    root = (await callers["root"].coordinator.get("/v1/access")).json()
    assert root == {"principal": "root", "admin": True, "topics": {}}


async def test_everything_below_admin_needs_the_right(callers: dict[str, Caller]) -> None:
    """Whatever is there, or will be: the prefix decides, not the endpoint. And no spelling of it slips through."""
    keys = "/admin/v2/transactions/transaction-keys"
    for method, path in (
        ("GET", keys),
        ("GET", f"{keys}/k"),
        ("DELETE", f"{keys}/k"),
        ("POST", f"{keys}/k/fence"),
        ("GET", "/admin/v2/transactions/hanging"),
        ("GET", "/admin/no/such/thing"),
    ):
        problem = refused(await callers["ada"].coordinator.request(method, path), ErrorCode.NOT_ALLOWED)
        assert "lacks the right admin" in problem.detail
        assert (await callers["root"].coordinator.request(method, path)).status_code in (200, 404, 422)
    for path in (
        "/%61dmin/v2/transactions/hanging",
        "//admin/v2/transactions/hanging",
        "/Admin/v2/transactions/hanging",
    ):
        assert (await callers["ada"].coordinator.get(path)).status_code == 404


async def test_administrators_see_which_tokens_are_accepted(callers: dict[str, Caller]) -> None:
    """Page by page, and nothing that lets somebody in."""
    http, found, token = callers["root"].coordinator, [], ""
    while True:
        page = (await http.get("/admin/v2/tokens", params={"limit": 1, "page_token": token})).json()
        found += page["items"]
        token = page["next_page_token"]
        if token is None:
            break
    assert {each["principal"] for each in found} >= {"ada", "root"}
    assert [each["principal"] for each in found] == sorted(each["principal"] for each in found)
    (root,) = [each for each in found if each["principal"] == "root"]
    assert root.keys() == {"kind", "id", "principal", "admin", "topics"} and root["admin"] is True
    refused(await callers["ada"].coordinator.get("/admin/v2/tokens"), ErrorCode.NOT_ALLOWED)


async def test_a_prepared_transaction_is_aborted_by_force_by_an_administrator_only(callers: dict[str, Caller]) -> None:
    """CONTRACT: an administrator's abort of a prepared transaction needs `force`; of its owner's nothing is asked."""
    ada, bob, root = (callers[name].coordinator for name in ("ada", "bob", "root"))
    for owner_ends in (True, False):
        txn = await begun(callers["ada"])
        assert (await ada.post(f"/v1/txns/{txn}/prepare")).json()["prepared"] is True
        for http in (ada, bob):
            refused(await http.post(f"/v1/txns/{txn}/abort", json={"force": True}), ErrorCode.NOT_ALLOWED)
        assert "force=true" in refused(await root.post(f"/v1/txns/{txn}/abort"), ErrorCode.NOT_ALLOWED).action
        answer = await (
            ada.post(f"/v1/txns/{txn}/abort")
            if owner_ends
            else root.post(f"/v1/txns/{txn}/abort", json={"force": True})
        )
        assert answer.json()["state"] == "ABORTED"
        assert (await ada.get(f"/v1/txns/{txn}")).json()["ended_by"] == ("ada" if owner_ends else "root")


async def test_without_configuration_only_this_machine_may_connect() -> None:
    store = MemoryStore(INDEXES)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with pytest.raises(InvalidExposure, match="--allow-anonymous"):
            CoordinatorService(store, host=host)
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        CoordinatorService(store, host=host)
    CoordinatorService(store, host="0.0.0.0", exposure=open_exposure(allow_anonymous=True))
    assert (await store.scan(paths.COORDINATORS)).records == []
    await store.close()
