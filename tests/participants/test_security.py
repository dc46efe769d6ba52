"""Goal: on a broker a principal does what its rights on a topic say, and inside a transaction only what it began.

Method: a real coordinator and broker; principals with one right each try every endpoint. The command line as a user
meets it, and what its log says afterwards.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

import metatxn
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metastore.types import Record
from metatxn.service.quotas.quotas import _moved
from metatxn.wire.entry_groups import MEDIA_TYPE, pack_entries
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.problems import Problem
from participants.api import rights
from participants.service import BrokerService
from participants.txn.header_mirror import HeaderMirror
from tests.metatxn.command_line import run_here
from tests.metatxn.dev_server import COMMAND
from tests.service.secured import Caller, secured
from tests.service.security import TokenFile, bearer, public_pem, signed

ORDERS = "public/default/orders"
MESSAGE = {"messages": [{"value": 1}]}


def refused(answer: httpx.Response, code: ErrorCode = ErrorCode.NOT_ALLOWED) -> Problem:
    problem = Problem.model_validate(answer.json())
    assert (problem.code, answer.status_code) == (code, problem.status), answer.text
    return problem


@pytest.fixture
async def callers(tmp_path: Path) -> AsyncIterator[dict[str, Caller]]:
    """One principal for each right on `orders` alone, one with none, and an administrator."""
    tokens = TokenFile(tmp_path)
    known = {right: tokens.add(f"the-{right}r", topics={ORDERS: right}) for right in ("produce", "consume", "admin")}
    known["nothing"] = tokens.add("nobody", topics={"public/default/other": "produce,consume,admin"})
    known["root"] = tokens.add("root", admin=True)
    async with secured(tmp_path / "data", token_file=tokens.path) as cluster, AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(cluster.caller(token)) for name, token in known.items()}


async def test_each_right_opens_its_own_endpoints_and_no_other(callers: dict[str, Caller]) -> None:
    await callers["root"].broker.post("/v1/topics", json={"name": "elsewhere"})
    (elsewhere,) = (await callers["root"].broker.get("/v1/topics/elsewhere")).json()["segments"]
    created = await callers["admin"].broker.post("/v1/topics", json={"name": "orders"})
    assert created.status_code == 201, created.text
    segment = quote(created.json()["segments"][0]["segment"], safe="")
    endpoints: list[tuple[str, set[str], dict[str, Any]]] = [
        ("GET /v1/topics/orders", {"produce", "consume", "admin"}, {}),
        ("POST /v1/topics/orders/messages", {"produce"}, {"json": MESSAGE}),
        ("GET /v1/topics/orders/messages", {"consume"}, {}),
        ("GET /v1/topics/orders/read-holds", {"produce", "consume", "admin"}, {}),
        ("POST /v1/topics/orders/read-holds", {"consume"}, {"json": {"hold_id": "a"}}),
        ("POST /v1/topics/orders/read-holds/a/keep-alive", {"consume"}, {"json": {}}),
        (f"POST /v1/segments/{segment}/entries", {"produce"}, {"content": b"x"}),
        (f"GET /v1/segments/{segment}/entries", {"consume"}, {}),
        (f"GET /v1/segments/{segment}", {"consume"}, {}),
        ("POST /v1/horizons", {"consume"}, {"json": {"segments": {unquote(segment): {}}}}),
        ("POST /v1/horizons", set(), {"json": {"segments": {unquote(segment): {}, elsewhere["segment"]: {}}}}),
        ("POST /v1/topics/elsewhere/messages", set(), {"json": MESSAGE}),
        (f"GET /v1/segments/{quote(elsewhere['segment'], safe='')}/entries", set(), {}),
    ]
    for endpoint, allowed, body in endpoints:
        method, path = endpoint.split()
        for name, caller in callers.items():
            answer = await caller.broker.request(method, path, **body)
            if name in (*allowed, "root"):
                assert answer.status_code == 200, f"{endpoint} by {name}: {answer.text}"
            else:
                problem = refused(answer)
                assert problem.principal and "lacks" in problem.detail and "topic" in problem.detail  # type: ignore[attr-defined]


async def test_each_entry_of_a_group_asks_for_the_right_on_its_topic(callers: dict[str, Caller]) -> None:
    segments = []
    for name in ("orders", "other"):
        created = await callers["root"].broker.post("/v1/topics", json={"name": name})
        segments.append(created.json()["segments"][0]["segment"])
    entry = Entry(b"x", PayloadKind.BYTES, 1, sequence=0)
    body = pack_entries([(segment, entry) for segment in [*segments, "nonsense"]])
    appended = {"root": [True, True, False], "produce": [True, False, False], "nothing": [False, True, False]}
    for name, caller in callers.items():
        txn = (await caller.coordinator.post("/v1/txns")).json()["txn_id"]
        answer = await caller.broker.post(f"/v1/txns/{txn}/entries", content=body, headers={"Content-Type": MEDIA_TYPE})
        outcomes = answer.json()["outcomes"]
        assert ["position" in outcome for outcome in outcomes] == appended.get(name, [False] * 3), name
        if name != "root":
            details = [outcome["detail"] for outcome in outcomes if "detail" in outcome]
            assert all("lacks the right produce on topic" in detail for detail in details)


async def test_an_announcement_asks_for_the_right_on_each_topic_and_for_the_transaction(
    callers: dict[str, Caller],
) -> None:
    segments, txns = [], []
    for name in ("orders", "other"):
        created = await callers["root"].broker.post("/v1/topics", json={"name": name})
        segments.append(created.json()["segments"][0]["segment"])
    for name in ("root", "produce"):
        txns.append((await callers[name].coordinator.post("/v1/txns")).json()["txn_id"])

    async def announce(name: str, txn_ids: list[str], *at: int) -> httpx.Response:
        body = {"txn_ids": txn_ids, "segments": [segments[number] for number in at]}
        return await callers[name].broker.post("/v1/intents", json=body)

    assert (await announce("root", txns, 0, 1)).json() == {"stored": 4}
    assert "lacks the right produce on topic" in refused(await announce("produce", [txns[1]], 0, 1)).detail
    assert "was begun by a principal other" in refused(await announce("produce", txns, 0)).detail
    unknown = await announce("produce", ["0" * 31 + "9"], 0)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "TXN_NOT_FOUND")
    assert (await announce("produce", [txns[1]], 0)).json() == {"stored": 0}, "it is there"


async def test_a_refusal_comes_before_everything_else_and_names_the_right(callers: dict[str, Caller]) -> None:
    """Before what the body says, and for topics and segments that do not exist: existence is told to nobody."""
    broker = callers["nothing"].broker
    for answer in (
        await broker.post("/v1/topics/orders/messages", json={"messages": "not a list"}),
        await broker.post(f"/v1/segments/{quote(f'segment://{ORDERS}/0000-ffff-99', safe='')}/entries", content=b"x"),
        await broker.post("/v1/segments/nonsense/entries", content=b"x"),
    ):
        assert "lacks the right produce on topic" in refused(answer).detail
    refused(await broker.get("/v1/topics/orders"))
    problem = refused(await callers["produce"].broker.post("/v1/topics", json={"name": "orders"}))
    assert problem.detail == f"principal 'the-producer' lacks the right admin on topic {ORDERS}"


async def test_a_list_of_topics_shows_what_one_has_a_right_on(callers: dict[str, Caller]) -> None:
    for name in ("orders", "other", "third"):
        await callers["root"].broker.post("/v1/topics", json={"name": name})

    async def listed(name: str) -> list[str]:
        answer = (await callers[name].broker.get("/v1/topics?count=true")).json()
        assert answer["count"] == {"topics": len(answer["items"]), "more": False}
        return [topic["name"].rpartition("/")[2] for topic in answer["items"]]

    assert await listed("root") == ["orders", "other", "third"]
    assert await listed("produce") == await listed("consume") == ["orders"]
    assert await listed("nothing") == ["other"]


async def test_a_broker_says_when_the_token_ends_that_it_shows_to_others(tmp_path: Path) -> None:
    """And nothing else of it."""
    token = signed(ec.generate_private_key(ec.SECP256R1()), "ES256", exp=17)
    store = MemoryStore(INDEXES)
    service = BrokerService(store, data_dir=tmp_path, port=0, peer_token=token)
    await service.start()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
        said = await http.get("/v1/status")
    await service.stop()
    await store.close()
    assert said.json()["peer_token_ends_ms"] == 17_000 and not [part for part in token.split(".") if part in said.text]


async def test_every_endpoint_of_a_broker_asks_for_a_right(tmp_path: Path) -> None:
    """So that one that is added without is noticed. Those that name no topic in their path ask in their body, and
    those of a transaction ask who owns it, and for a right on the topic of each entry."""
    store = MemoryStore(INDEXES)
    service = BrokerService(store, data_dir=tmp_path, port=0)
    await service.start()
    asking = {
        f"{method} {route.path}": any(
            getattr(needed.call, "__module__", "") == rights.__name__ for needed in route.dependant.dependencies
        )
        for route in routes_of(service.app.routes)
        for method in route.methods or ()
        if route.path.startswith("/v1/")
    }
    await service.stop()
    await store.close()
    without = {endpoint for endpoint, asks in asking.items() if not asks}
    assert without == {
        *("POST /v1/topics", "GET /v1/topics", "GET /v1/subscriptions", "POST /v1/horizons"),
        *("GET /v1/cluster", "GET /v1/status", "GET /v1/access", "GET /v1/throughput"),
        *("GET /v1/txns/{txn_id}/work", "POST /v1/txns/{txn_id}/entries", "POST /v1/intents"),
    }
    assert len(asking) - len(without) >= 6


async def test_every_endpoint_that_moves_messages_counts_their_bytes(tmp_path: Path) -> None:
    """So that one that is added is noticed, by the last word of its path: quotas do not count what they do not know."""
    store = MemoryStore(INDEXES)
    service = BrokerService(store, data_dir=tmp_path, port=0)
    await service.start()
    counted: dict[str, set[str]] = {"bytes_in_per_second": set(), "bytes_out_per_second": set(), "requests": set()}
    for route in routes_of(service.app.routes):
        for method in route.methods or ():
            path = re.sub("{[^}]+}", "public%2Fdefault%2Fx", route.path)
            _, *moved = _moved({"method": method, "path": path, "raw_path": path.encode()})
            counted[moved[0] if moved else "requests"].add(f"{method} {route.path}")
    await service.stop()
    await store.close()
    assert counted["bytes_in_per_second"] == {
        *("POST /v1/topics/{topic}/messages", "POST /v1/segments/{segment}/entries"),
        "POST /v1/txns/{txn_id}/entries",
    }
    assert counted["bytes_out_per_second"] == {
        *("GET /v1/topics/{topic}/messages", "GET /v1/topics/{topic}/batches", "GET /v1/segments/{segment}/entries"),
        "POST /v1/topics/{topic}/subscriptions/{subscription}/receive",
        "POST /v1/topics/{topic}/subscriptions/{subscription}/share/take",
    }
    words = ("messages", "batches", "entries", "frames", "rows", "receive", "take", "publish", "read")
    assert not [endpoint for endpoint in counted["requests"] if endpoint.rpartition("/")[2] in words]


def routes_of(routes: list[BaseRoute]) -> list[APIRoute]:
    found: list[APIRoute] = []
    for route in routes:
        if isinstance(route, APIRoute):
            found.append(route)
        elif (router := getattr(route, "original_router", None)) is not None:
            found.extend(routes_of(router.routes))
    return found


MESSAGES = "/v1/topics/orders/messages"


@pytest.mark.parametrize("mirrored", [True, False])
async def test_b14_a_write_into_a_transaction_of_another_is_refused(
    callers: dict[str, Caller], monkeypatch: pytest.MonkeyPatch, mirrored: bool
) -> None:
    """Whether or not the watch has told the broker of the header by then."""
    root, other = callers["root"], callers["produce"].broker
    await root.broker.post("/v1/topics", json={"name": "orders"})
    if not mirrored:
        monkeypatch.setattr(HeaderMirror, "seen", lambda *_: None)
    txn = (await root.coordinator.post("/v1/txns")).json()["txn_id"]
    assert "a principal other" in refused(await other.post(MESSAGES, params={"txn_id": txn}, json=MESSAGE)).detail
    entry = Entry(b"x", PayloadKind.BYTES, 1, sequence=0)
    group = pack_entries([(f"segment://{ORDERS}/0000-ffff-0", entry)])
    assert "a principal other" in refused(await other.post(f"/v1/txns/{txn}/entries", content=group)).detail
    assert (await root.broker.post(MESSAGES, params={"txn_id": txn}, json=MESSAGE)).status_code == 200
    assert (await root.coordinator.post(f"/v1/txns/{txn}/commit")).status_code == 200


async def test_b14_an_id_that_was_foreseen_is_of_no_use(
    callers: dict[str, Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids follow one another. Anyone who writes into the next one must not get in when it begins at that very moment:
    here the begin falls between the broker's look at the header and everything after it. Looks at other headers, in the
    background, do not count."""
    root, other = callers["root"], callers["produce"].broker
    await root.broker.post("/v1/topics", json={"name": "orders"})
    first = (await root.coordinator.post("/v1/txns")).json()["txn_id"]
    foreseen = f"{int(first, 16) + 1:032x}"
    look = HeaderMirror.read
    begun: list[str] = []
    once = iter([True])

    async def begin_after_look(mirror: HeaderMirror, txn_ids: Iterable[TxnId]) -> dict[TxnId, Record | None]:
        asked = list(txn_ids)
        seen = await look(mirror, asked)
        if foreseen in asked and next(once, False):
            begun.append((await root.coordinator.post("/v1/txns")).json()["txn_id"])
        return seen

    monkeypatch.setattr(HeaderMirror, "read", begin_after_look)
    refused(await other.post(MESSAGES, params={"txn_id": foreseen}, json=MESSAGE), ErrorCode.TXN_NOT_FOUND)
    assert begun == [foreseen]
    assert (await root.coordinator.post(f"/v1/txns/{foreseen}/commit")).status_code == 200
    assert (await root.broker.get(MESSAGES)).json()["messages"] == []


async def test_a_signed_token_carries_its_rights(tmp_path: Path) -> None:
    """A JWT and a listed token of the same name are the same principal; an expired one is none."""
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "key.pem").write_bytes(public_pem(key))
    tokens = TokenFile(tmp_path)
    listed = tokens.add("ada", topics={"*": "admin"})
    jwt = signed(key, "ES256", metatxn={"topics": {ORDERS: ["produce"]}})
    options: dict[str, Any] = {"token_file": tokens.path, "jwt_public_key": tmp_path / "key.pem"}
    async with secured(tmp_path / "data", **options) as cluster:
        async with cluster.caller(listed) as ada:
            assert (await ada.broker.post("/v1/topics", json={"name": "orders"})).status_code == 201
            txn = (await ada.coordinator.post("/v1/txns")).json()["txn_id"]
        async with cluster.caller(jwt) as ada:
            assert (await ada.broker.post(MESSAGES, params={"txn_id": txn}, json=MESSAGE)).status_code == 200
            assert (await ada.coordinator.post(f"/v1/txns/{txn}/commit")).json()["state"] == "COMMITTED"
            refused(await ada.broker.get(MESSAGES))
        async with cluster.caller(signed(key, "ES256", exp=1)) as late:
            for http in (late.coordinator, late.broker):
                assert "expired" in refused(await http.get("/v1/cluster"), ErrorCode.UNAUTHENTICATED).detail


# -- the command line ----------------------------------------------------------------------------------------------


def test_nothing_secret_is_logged_or_listed(tmp_path: Path) -> None:
    """A server at its most talkative, good, wrong and expired tokens, in headers and in URLs; then its whole output is
    searched for each of them. The token comes from the command, and the client takes it from its variable."""
    made = json.loads(
        run_here("token", "create", "--name", "ada", "--topic", "*=produce,consume,admin", "-o", "json").stdout
    )
    token, entry = made["token"], made["entry"]
    (tmp_path / "tokens.toml").write_text(entry)
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "key.pem").write_bytes(public_pem(key))
    good, expired = signed(key, "ES256", sub="bob"), signed(key, "ES256", exp=1)
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    command = [*COMMAND, "dev", "--data-dir", str(tmp_path / "data"), "--port", "0", "--broker-port", "0", "-o", "json"]
    command += ["--log-level", "debug", "--token-file", str(tmp_path / "tokens.toml")]
    command += ["--jwt-public-key", str(tmp_path / "key.pem")]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    try:
        said = json.loads(server.stdout.readline())
        assert said["access"] == "with a token, without TLS"
        for url in (said["coordinator"], said["broker"]):
            for presented in (token, good, wrong, expired):
                headers = bearer(presented)
                with httpx.Client(base_url=url, timeout=60) as http:
                    answers = [http.get("/v1/cluster", headers=headers), http.get("/x", headers=headers)]
                    answers += [http.get("/v1/cluster", params={"token": presented})]
                    answers += [http.post("/v1/txns", headers=headers, content=b"{")]
                assert not any(presented in answer.text for answer in answers)
        listed = run_here("txn", "list", METATXN_URL=said["coordinator"], METATXN_TOKEN=token)
        assert listed.returncode == 0, listed.stderr
        denied = run_here("txn", "list", METATXN_URL=said["coordinator"], METATXN_TOKEN=wrong)
        assert denied.returncode == 1 and denied.stderr.startswith("metatxn: ") and denied.stderr.count("\n") == 1
        assert "--token, or METATXN_TOKEN." in denied.stderr
        with metatxn.connect(said["broker"], token=token) as client:
            client.create_topic("t")
            client.producer("t").send({"id": 7})
    finally:
        server.terminate()
        rest = server.communicate(timeout=60)[0]
    written = rest + (tmp_path / "log").read_text() + listed.stdout + denied.stdout + denied.stderr
    assert "request refused" in written, "the log is not as talkative as this test needs"
    for secret in (token, token.rpartition("_")[2], wrong, good, expired, good.rpartition(".")[2]):
        assert secret not in written
    on_disk = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert token.encode() not in on_disk and good.encode() not in on_disk


def test_a_password_of_a_store_is_not_shown(tmp_path: Path) -> None:
    """Of a store that cannot be opened, in each place that a password may be put, wrongly or rightly."""
    (tmp_path / "password").write_text("hunter2")
    for url in (
        "etcd://root:hunter2@127.0.0.1:1",
        "etcd://127.0.0.1:1?user=root&password=hunter2",
        f"etcd://127.0.0.1:1?user=root&password_file={tmp_path / 'password'}",
        "zk://root:hunter2@127.0.0.1:1",
    ):
        done = run_here("coordinator", "--store", url, "--port", "0", "--log-level", "debug")
        assert done.returncode == 1, done.stderr
        assert "metatxn: " in done.stderr and "hunter2" not in done.stderr + done.stdout, url


@pytest.mark.parametrize("command", ["dev", "coordinator", "broker"])
def test_another_address_than_this_machines_is_refused_without_authentication(command: str, tmp_path: Path) -> None:
    more = [] if command == "dev" else ["--store", "memory://"]
    more += [] if command == "coordinator" else ["--data-dir", str(tmp_path / "data")]
    done = run_here(command, "--host", "0.0.0.0", *more)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "--token-file" in done.stderr and "--allow-anonymous" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--name", ""], "principal: String should have at least 1 character"),
        (["--name", "a", "--topic", "orders=produce"], "needs two slashes or a *"),
        (["--name", "a", "--topic", "public/default/orders"], "give PATTERN=RIGHTS"),
        (["--name", "a", "--topic", "*=write"], "'produce', 'consume' or 'admin'"),
    ],
)
def test_a_token_with_senseless_rights_is_not_made(arguments: list[str], problem: str) -> None:
    done = run_here("token", "create", *arguments)
    assert done.returncode == 1 and done.stdout == "" and problem in done.stderr
    assert done.stderr.startswith("metatxn: ") and done.stderr.count("\n") == 1
