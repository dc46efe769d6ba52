"""The REST interface as CONTRACT.md draws it. Method: the application behind an HTTP client, without a network."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metatxn.service.patience import LEAST_ROUNDS, PATIENCE_MS
from metatxn.wire.errors import BY_CODE, ErrorCode
from metatxn.wire.problems import MEDIA_TYPE
from tests.coordinator.conftest import START_MS, FakeClock
from tests.coordinator.stores import Fault, FaultyStore, unavailable

UNKNOWN = "0" * 28 + "beef"
TXN_VERBS = ("commit", "abort", "writers", "keep-alive", "prepare")


def problem(response: httpx.Response, code: ErrorCode) -> dict[str, Any]:
    """The members every error has (CONTRACT, conventions)."""
    assert response.headers["content-type"] == MEDIA_TYPE
    body: dict[str, Any] = response.json()
    kind = BY_CODE[code]
    assert (response.status_code, body["status"], body["code"]) == (kind.status, kind.status, code), body
    assert (body["retriable"], body["definite"]) == (kind.retriable, kind.definite)
    assert body["title"] and body["detail"] and body["action"].endswith(".")
    return body


async def begin(http: httpx.AsyncClient, **body: object) -> dict[str, Any]:
    response = await http.post("/v1/txns", json=body)
    assert response.status_code in (200, 201), response.text
    answer: dict[str, Any] = response.json()
    return answer


async def connected(http: httpx.AsyncClient, key: str = "k") -> int:
    """The epoch of a new connection."""
    epoch: int = (await http.post(f"/v1/transaction-keys/{key}/connect", json={"epoch": -1})).json()["epoch"]
    return epoch


async def test_begin_with_defaults(http: httpx.AsyncClient) -> None:
    """No body, an empty one, and an empty object are the same."""
    for content in (None, b"", b"{}", b"null"):
        response = await http.post("/v1/txns", content=content)
        assert response.status_code == 201
        answer = response.json()
        assert answer["state"] == "OPEN"
        assert (answer["created_ms"], answer["deadline_ms"]) == (START_MS, START_MS + 60_000)
        assert set(answer) == {"txn_id", "state", "created_ms", "deadline_ms", "revision"}


async def test_the_life_of_a_transaction(http: httpx.AsyncClient) -> None:
    txn = f"/v1/txns/{(await begin(http, owner='a', timeout_ms=5))['txn_id']}"
    for verb, body in (
        ("keep-alive", {"timeout_ms": 9_000}),
        ("writers", {"add": ["w"]}),
        ("prepare", {"prepared_timeout_ms": 7_000}),
    ):
        response = await http.post(f"{txn}/{verb}", json=body)
        assert (response.status_code, response.json()["state"]) == (200, "OPEN")
    assert (await http.get(txn)).json()["prepared"] is True
    decided = (await http.post(f"{txn}/commit")).json()
    assert (decided["state"], decided["writers"], "prepared" in decided) == ("COMMITTED", ["w"], False)
    assert (await http.get(txn)).json() == decided
    assert (await http.get(f"{txn}/ops")).json() == {"items": [], "next_page_token": None}


@pytest.mark.parametrize("verb", ["commit", "abort", "prepare"])
async def test_bodies_are_optional(http: httpx.AsyncClient, verb: str) -> None:
    for content in (None, b"", b"{}"):
        txn_id = (await begin(http))["txn_id"]
        assert (await http.post(f"/v1/txns/{txn_id}/{verb}", content=content)).status_code == 200


async def test_begin_under_a_key(http: httpx.AsyncClient) -> None:
    """201 once, then 200 with the same transaction, then 200 "already committed"."""
    body = {"transaction_key": "k", "epoch": await connected(http), "version": 3}
    first = await http.post("/v1/txns", json=body)
    again = await http.post("/v1/txns", json=body)
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    await http.post(f"/v1/txns/{first.json()['txn_id']}/commit")
    done = await http.post("/v1/txns", json=body)
    assert done.status_code == 200
    assert (done.json()["state"], done.json()["already_committed"], done.json()["version"]) == ("COMMITTED", True, 3)


async def test_a_key_without_its_epoch_says_what_to_do(http: httpx.AsyncClient) -> None:
    """Issue 17, A7: it would fence the one who works under the key."""
    running = await begin(http, transaction_key="k", epoch=await connected(http))
    for body in ({"transaction_key": "k"}, {"transaction_key": "unused", "version": 1}):
        refused = problem(await http.post("/v1/txns", json=body), ErrorCode.INVALID_ARGUMENT)
        assert refused["field"] == "epoch" and "/v1/transaction-keys/{key}/connect" in refused["action"]
    assert (await http.get(f"/v1/txns/{running['txn_id']}")).json()["state"] == "OPEN"


async def test_errors_of_the_protocol_have_their_codes(
    http: httpx.AsyncClient, store: FaultyStore, clock: FakeClock
) -> None:
    committed, prepared = [f"/v1/txns/{(await begin(http))['txn_id']}" for _ in range(2)]
    await http.post(f"{committed}/commit")
    await http.post(f"{prepared}/prepare")
    stale = await begin(http, transaction_key="k", epoch=await connected(http))
    assert await connected(http) == 1

    body = problem(await http.post(f"{committed}/abort"), ErrorCode.INVALID_TXN_STATE)
    assert f"COMMITTED at {START_MS}" in body["detail"] and body["finalized_ms"] == START_MS
    problem(await http.post(f"{prepared}/keep-alive", json={"timeout_ms": 1}), ErrorCode.TXN_CONFLICT)
    problem(await http.post(f"/v1/txns/{stale['txn_id']}/commit"), ErrorCode.EXPIRED_TRANSACTION)
    problem(await http.post("/v1/txns", json={"transaction_key": "k", "epoch": 0}), ErrorCode.NOT_ALLOWED)
    problem(await http.post("/v1/transaction-keys/k/connect", json={"epoch": 0}), ErrorCode.NOT_ALLOWED)
    problem(await http.get("/admin/v2/transactions/transaction-keys/none"), ErrorCode.NOT_FOUND)
    problem(await http.get(f"/v1/txns/{UNKNOWN}"), ErrorCode.TXN_NOT_FOUND)
    for verb in TXN_VERBS:
        content = {"writers": {"add": []}, "keep-alive": {"timeout_ms": 1}}.get(verb, {})
        assert (
            problem(await http.post(f"/v1/txns/{UNKNOWN}/{verb}", json=content), ErrorCode.TXN_NOT_FOUND)["txn_id"]
            == UNKNOWN
        )


async def test_errors_of_the_store_have_their_codes(
    http: httpx.AsyncClient, store: FaultyStore, clock: FakeClock
) -> None:
    txn_id = (await begin(http))["txn_id"]
    store.faults.append(Fault.UNAVAILABLE)
    response = await http.post(f"/v1/txns/{txn_id}/commit")
    problem(response, ErrorCode.STORE_UNAVAILABLE)
    assert int(response.headers["retry-after"]) >= 1
    store.before_reads.append(unavailable)
    problem(await http.get(f"/v1/txns/{txn_id}"), ErrorCode.STORE_UNAVAILABLE)
    store.before_reads.append(unavailable)
    assert (await http.get("/readyz")).status_code == 503
    assert (await http.get("/readyz")).status_code == 200
    assert (await http.get("/healthz")).status_code == 200


BAD_BODIES = [
    (b"{", "body"),
    (b"[]", "body"),
    (b"3", "body"),
    (b'"text"', "body"),
    (b"\xff\xfe", "body"),
    (b"[" * 100_000, "body"),
    (b'{"timeout_ms":' + b"9" * 5_000 + b"}", "body"),
    (b'{"timeout_ms": 1e400}', "timeout_ms"),
    (b'{"timeout_ms": NaN}', "timeout_ms"),
    (b'{"timeout_ms": "5"}', "timeout_ms"),
    (b'{"timeout_ms": true}', "timeout_ms"),
    (b'{"timeout_ms": 1.5}', "timeout_ms"),
    (b'{"timeout_ms": 0}', "timeout_ms"),
    (b'{"timeout_ms": 86400001}', "timeout_ms"),
    (b'{"timeout_ms": null}', "timeout_ms"),
    (b'{"owner": ""}', "owner"),
    (b'{"owner": "\\u0000"}', "owner"),
    (b'{"owner": "\\ud800"}', "owner"),
    (b'{"owner": ["x"]}', "owner"),
    (b'{"properties": {"x": 1}}', "properties.x"),
    (b'{"properties": []}', "properties"),
    (b'{"transaction_key": "a&b"}', "transaction_key"),
    (b'{"transaction_key": ""}', "transaction_key"),
    (b'{"transaction_key": "a\\nb"}', "transaction_key"),
    (b'{"transaction_key": "\\ud800"}', "transaction_key"),
    (b'{"properties": {"x": "\\udfff"}}', "properties.x"),
    (b'{"\\ud800": 1}', "body"),
    (b'{"transaction_key": "' + b"k" * 513 + b'"}', "transaction_key"),
    (b'{"transaction_key": "k", "epoch": -1}', "epoch"),
    (b'{"transaction_key": "k", "version": 9007199254740992}', "version"),
    (b'{"epoch": 0}', "epoch"),
    (b'{"version": 0}', "version"),
    (b'{"transaction_key": "k"}', "epoch"),
    (b'{"transaction_key": "k", "version": 1}', "epoch"),
    (b'{"timeout": 5}', "timeout"),
]


@pytest.mark.parametrize(("content", "field"), BAD_BODIES, ids=[repr(body[:40]) for body, _ in BAD_BODIES])
async def test_bad_begins_name_the_field_and_change_nothing(
    http: httpx.AsyncClient, store: FaultyStore, content: bytes, field: str
) -> None:
    revision = await store.current_revision()
    body = problem(await http.post("/v1/txns", content=content), ErrorCode.INVALID_ARGUMENT)
    assert body["field"] == field and field in body["detail"]
    assert await store.current_revision() == revision


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("commit", {"writers": "w"}, "writers"),
        ("commit", {"writers": [1]}, "writers.0"),
        ("commit", {"writers": [""]}, "writers.0"),
        ("commit", {"writers": ["w"] * 10_001}, "writers"),
        ("commit", {"writer": ["w"]}, "writer"),
        ("commit", {"writers": ["\ud800"]}, "writers.0"),
        ("abort", {"reason": 5}, "reason"),
        ("abort", {"reason": "\ud800"}, "reason"),
        ("writers", {"add": ["\ud800"]}, "add.0"),
        ("abort", {"force": "yes"}, "force"),
        ("writers", {}, "add"),
        ("writers", None, "body"),
        ("writers", {"add": None}, "add"),
        ("keep-alive", {}, "timeout_ms"),
        ("keep-alive", {"timeout_ms": -1}, "timeout_ms"),
        ("keep-alive", None, "body"),
        ("prepare", {"prepared_timeout_ms": 0}, "prepared_timeout_ms"),
        ("prepare", [], "body"),
    ],
)
async def test_bad_verbs_name_the_field_and_change_nothing(
    http: httpx.AsyncClient, store: FaultyStore, verb: str, body: object, field: str
) -> None:
    txn_id = (await begin(http))["txn_id"]
    revision = await store.current_revision()
    content = None if body is None else json.dumps(body).encode()
    answer = problem(await http.post(f"/v1/txns/{txn_id}/{verb}", content=content), ErrorCode.INVALID_ARGUMENT)
    assert answer["field"] == field
    assert await store.current_revision() == revision


@pytest.mark.parametrize(
    "txn_id", ["x", "%zz", "%", "0" * 31, "0" * 33, "A" * 32, "%FF", "٠" * 32, "%2E%2E", "0" * 31 + "%0A"]
)
async def test_a_malformed_id_is_named(http: httpx.AsyncClient, txn_id: str) -> None:
    for response in (
        await http.get(f"/v1/txns/{txn_id}"),
        await http.get(f"/v1/txns/{txn_id}/ops"),
        await http.post(f"/v1/txns/{txn_id}/commit"),
    ):
        assert problem(response, ErrorCode.INVALID_ARGUMENT)["field"] == "txn_id"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *(("state=FOO", "state"), ("state=open", "state"), ("state=", "state"), ("status=OPEN", "status")),
        *(("limit=0", "limit"), ("limit=-1", "limit"), ("limit=1001", "limit"), ("limit=" + "9" * 30, "limit")),
        *(("limit=ten", "limit"), ("limit=", "limit"), ("page_token=x", "page_token"), ("owner=", "owner")),
        *(("page_token=" + "A" * 5_000, "page_token"), ("older_than_ms=-1", "older_than_ms")),
        *(
            ("older_than_ms=1e3", "older_than_ms"),
            ("transaction_key=a%26b", "transaction_key"),
            ("segment=", "segment"),
        ),
    ],
)
async def test_bad_queries_name_the_parameter(http: httpx.AsyncClient, query: str, field: str) -> None:
    assert problem(await http.get(f"/v1/txns?{query}"), ErrorCode.INVALID_ARGUMENT)["field"] == field


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        *(("POST", "/v1/txns?timeout_ms=5", "timeout_ms"), ("POST", "/v1/txns/batch?op=begin", "op")),
        *(("POST", "/v1/txns/{}/commit?writers=w", "writers"), ("POST", "/v1/txns/{}/abort?force=true", "force")),
        *(("GET", "/v1/txns/{}?state=OPEN", "state"), ("GET", "/v1/txns/{}/ops?limits=1", "limits")),
        ("POST", "/v1/transaction-keys/k/connect?epoch=-1", "epoch"),
        ("DELETE", "/admin/v2/transactions/transaction-keys/k?owners=a", "owners"),
        ("DELETE", "/admin/v2/transactions/transaction-keys/k?owner=a&owner=b", "owner"),
        *(("GET", "/v1/txns?limit=1&limit=2", "limit"), ("GET", "/v1/txns?owner=%FF", "owner")),
    ],
)
async def test_a_query_that_an_endpoint_does_not_have_is_not_passed_over(
    http: httpx.AsyncClient, store: FaultyStore, method: str, path: str, field: str
) -> None:
    """CONTRACT: bad input never changes anything. What belongs into the body would have been asked for in vain: of a
    commit whose `writers` stand in the URL all would count."""
    txn_id = (await begin(http, transaction_key="k", epoch=await connected(http)))["txn_id"]
    revision = await store.current_revision()
    content = b'{"epoch": -1}' if "connect" in path else b'{"items": []}' if "batch" in path else None
    response = await http.request(method, path.format(txn_id), content=content)
    assert problem(response, ErrorCode.INVALID_ARGUMENT)["field"] == field
    assert await store.current_revision() == revision


async def test_lists_over_http(http: httpx.AsyncClient) -> None:
    first, second = [(await begin(http, owner="ö/&?"))["txn_id"] for _ in range(2)]
    page = (await http.get("/v1/txns", params={"state": "OPEN", "owner": "ö/&?", "limit": 1})).json()
    assert [item["txn_id"] for item in page["items"]] == [first]
    params = {"state": "OPEN", "owner": "ö/&?", "limit": 1, "page_token": page["next_page_token"]}
    rest = (await http.get("/v1/txns", params=params)).json()
    assert [item["txn_id"] for item in rest["items"]] == [second]
    assert rest["next_page_token"] is None and "finalized_ms" not in rest["items"][0]


async def test_keys_are_paged_whatever_their_names(http: httpx.AsyncClient) -> None:
    for key, owner in (keys := [("😀" * 512, "好" * 256), ("x" * 512, "好" * 256), ("好" * 512, "😀" * 256)]):
        path = f"/v1/transaction-keys/{quote(key, safe='')}/connect"
        assert (await http.post(path, json={"epoch": -1, "owner": owner})).status_code == 200
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 1}
    while len(seen) < len(keys):
        answer = await http.get("/admin/v2/transactions/transaction-keys", params=params)
        assert answer.status_code == 200, answer.text
        seen += [item["key"] for item in answer.json()["items"]]
        params["page_token"] = answer.json()["next_page_token"]
    assert sorted(seen) == sorted(key for key, _ in keys) and params["page_token"] is None
    too_long = await http.get("/admin/v2/transactions/transaction-keys", params={"page_token": "x" * 16_385})
    problem(too_long, ErrorCode.INVALID_ARGUMENT)


@pytest.mark.parametrize("key", ["plain", "public/default/orders", "ключ 🔑", "..", "%", "a+b?c#d", "x" * 512])
async def test_any_key_is_one_path_segment(http: httpx.AsyncClient, key: str) -> None:
    """CONTRACT: percent-encoded, any UTF-8 but control characters."""
    path = quote(key, safe="").replace(".", "%2E")
    connected = await http.post(f"/v1/transaction-keys/{path}/connect", json={"epoch": -1, "owner": "ö"})
    assert connected.json() == {"epoch": 0}
    admin = f"/admin/v2/transactions/transaction-keys/{path}?owner=%C3%B6"
    assert (await http.get(admin)).json() == {"key": key, "owner": "ö", "epoch": 0, "updated_ms": START_MS}
    listed = (await http.get("/admin/v2/transactions/transaction-keys?owner=%C3%B6")).json()
    assert [item["key"] for item in listed["items"]] == [key] and listed["next_page_token"] is None
    assert (await http.delete(admin)).json() == {"key": key, "owner": "ö", "epoch": 0}
    problem(await http.get(admin), ErrorCode.NOT_FOUND)


@pytest.mark.parametrize("key", ["a%26b", "a%00b", "%zz", "100%", "%2", "%C2%85", "%FF", "%ED%A0%80", "x" * 513])
async def test_bad_keys_are_named(http: httpx.AsyncClient, key: str) -> None:
    for response in (
        await http.post(f"/v1/transaction-keys/{key}/connect", json={"epoch": -1}),
        await http.get(f"/admin/v2/transactions/transaction-keys/{key}"),
        await http.delete(f"/admin/v2/transactions/transaction-keys/{key}"),
        await http.post(f"/admin/v2/transactions/transaction-keys/{key}/fence", json={"epoch": 0}),
    ):
        assert problem(response, ErrorCode.INVALID_ARGUMENT)["field"] == "key"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *(({}, "epoch"), ({"epoch": -2}, "epoch"), ({"epoch": "0"}, "epoch")),
        *(({"epoch": 0, "session": "\0"}, "session"), ({"epoch": -1, "session": "\ud800"}, "session")),
        ({"epoch": -1, "owner": "\ud800"}, "owner"),
    ],
)
async def test_bad_connections_are_named(http: httpx.AsyncClient, body: object, field: str) -> None:
    response = await http.post("/v1/transaction-keys/k/connect", content=json.dumps(body).encode())
    assert problem(response, ErrorCode.INVALID_ARGUMENT)["field"] == field


async def test_bodies_of_curl_are_json(http: httpx.AsyncClient) -> None:
    """`curl -d '{…}'` names a type that nobody meant."""
    for kind in ("application/x-www-form-urlencoded", "application/json; charset=utf-8"):
        response = await http.post("/v1/txns", content=b'{"timeout_ms": 7}', headers={"content-type": kind})
        assert response.json()["deadline_ms"] == START_MS + 7


async def test_a_body_of_another_type_is_told_that_json_is_expected(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/txns", content=b'{"timeout_ms": 7}', headers={"content-type": "text/plain"})
    body = problem(response, ErrorCode.INVALID_ARGUMENT)
    assert body["field"] == "body" and "JSON" in body["detail"] and "text/plain" in body["detail"]


async def test_a_decided_transaction_refuses_in_words_that_are_true(http: httpx.AsyncClient) -> None:
    """Whatever is asked of it: nothing was decided "the other way" when a commit is repeated with other writers."""
    txn = f"/v1/txns/{(await begin(http))['txn_id']}"
    await http.post(f"{txn}/commit", json={"writers": ["a"]})
    for verb, content in (
        *(("commit", {"writers": ["b"]}), ("abort", {}), ("prepare", {})),
        *(("keep-alive", {"timeout_ms": 1}), ("writers", {"add": ["c"]})),
    ):
        body = problem(await http.post(f"{txn}/{verb}", json=content), ErrorCode.INVALID_TXN_STATE)
        assert body["title"] == "Transaction already decided"


async def test_a_final_transaction_claims_no_deadline(http: httpx.AsyncClient) -> None:
    """What a keep-alive or a prepare had moved is forgotten with the decision; the first deadline would be wrong."""
    kept, prepared = [f"/v1/txns/{(await begin(http))['txn_id']}" for _ in range(2)]
    moved = (await http.post(f"{kept}/keep-alive", json={"timeout_ms": 600_000})).json()
    assert moved["deadline_ms"] == (await http.get(kept)).json()["deadline_ms"] == START_MS + 600_000
    await http.post(f"{prepared}/prepare")
    for txn in (kept, prepared):
        assert "deadline_ms" not in (await http.post(f"{txn}/commit")).json()
        assert "deadline_ms" not in (await http.get(txn)).json()
    assert all("deadline_ms" not in item for item in (await http.get("/v1/txns?state=COMMITTED")).json()["items"])


@pytest.mark.parametrize(
    ("body", "action"),
    [
        ({}, "Read this transaction"),
        ({"transaction_key": "k", "epoch": 0}, "Read this transaction"),
        ({"transaction_key": "k", "epoch": 0, "version": 1}, "same version"),
    ],
)
async def test_a_begin_that_may_have_happened_says_which_and_what_to_do(
    http: httpx.AsyncClient, store: FaultyStore, clock: FakeClock, body: dict[str, Any], action: str
) -> None:
    async def unavailable_for_long() -> None:
        clock.now_ms += PATIENCE_MS
        await unavailable()

    await begin(http)  # takes the block of ids
    assert await connected(http) == 0
    looks = LEAST_ROUNDS if body else LEAST_ROUNDS - 1  # without a key, the first round was the one that lost its reply
    store.faults.append(Fault.LOSE_REPLY)
    store.before_reads.extend([*[None] * ("transaction_key" in body), *[unavailable_for_long] * looks])
    unknown = problem(await http.post("/v1/txns", json=body), ErrorCode.OUTCOME_UNKNOWN)
    assert action in unknown["action"]
    assert not store.before_reads
    assert (await http.get(f"/v1/txns/{unknown['txn_id']}")).json()["state"] == "OPEN"


async def test_liveness_claims_no_readiness(http: httpx.AsyncClient, store: FaultyStore) -> None:
    """It answers while the store is away, so it must not say that the service is ready."""
    store.before_reads.extend([unavailable] * 2)
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    head = await http.head("/healthz")
    assert (head.status_code, head.content) == (200, b"")


async def test_two_coordinators_answer_alike(truth: MemoryStore, http: httpx.AsyncClient, clock: FakeClock) -> None:
    """DESIGN §2: nothing is kept in a process; another one on the same store goes on."""
    txn_id = (await begin(http, transaction_key="k", epoch=await connected(http), version=1))["txn_id"]
    transport = httpx.ASGITransport(app=CoordinatorService(truth, clock=clock).app)
    async with httpx.AsyncClient(transport=transport, base_url="http://other") as other:
        for path in (f"/v1/txns/{txn_id}", "/v1/txns", "/admin/v2/transactions/transaction-keys/k", "/v1/cluster"):
            assert (await other.get(path)).json() == (await http.get(path)).json()
        decided = (await other.post(f"/v1/txns/{txn_id}/commit")).json()
        assert (await http.post(f"/v1/txns/{txn_id}/commit")).json() == decided


async def test_unknown_paths_and_methods_are_problems(http: httpx.AsyncClient) -> None:
    assert problem(await http.get("/v2/txns"), ErrorCode.NOT_FOUND)["action"].startswith("See /docs")
    response = await http.put("/v1/txns")
    assert (response.status_code, response.headers["content-type"]) == (405, MEDIA_TYPE)


async def test_metrics(http: httpx.AsyncClient) -> None:
    await http.post(f"/v1/txns/{(await begin(http))['txn_id']}/commit")
    text = (await http.get("/metrics")).text
    assert 'metatxn_transactions_ended_total{result="committed"} 1.0' in text
    assert 'pulsar_txn_metadata_store_header_cas_total{result="ok"} 1.0' in text


async def test_openapi_shows_every_endpoint_with_its_errors(http: httpx.AsyncClient) -> None:
    """CONTRACT: the page shows all of it, with examples."""
    described = (await http.get("/openapi.json")).json()
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }
    assert set(operations) == {
        *("POST /v1/txns", "GET /v1/txns", "GET /v1/txns/{txn_id}", "GET /v1/txns/{txn_id}/ops"),
        *("POST /v1/txns/batch", "GET /admin/v2/transactions/hanging"),
        *("GET /admin/v2/upgrade", "POST /admin/v2/upgrade/finalize"),
        *(f"POST /v1/txns/{{txn_id}}/{verb}" for verb in TXN_VERBS),
        "POST /v1/transaction-keys/{key}/connect",
        "GET /admin/v2/transactions/transaction-keys",
        *(f"{method} /admin/v2/transactions/transaction-keys/{{key}}" for method in ("GET", "DELETE")),
        "POST /admin/v2/transactions/transaction-keys/{key}/fence",
        *("GET /healthz", "GET /readyz", "GET /metrics", "GET /v1/cluster", "GET /v1/status"),
        *("GET /v1/access", "GET /v1/throughput"),
        *(f"{method} /v1/quotas/{of}" for of in ("default", "principals/{principal}") for method in ("GET", "PATCH")),
        "GET /v1/quotas/principals",
        *("GET /v1/txns/{txn_id}/records", "GET /admin/v2/store/records"),
        *("GET /admin/v2/store/check", "GET /admin/v2/tokens", "GET /admin/v2/audit-log"),
    }
    commit = operations["POST /v1/txns/{txn_id}/commit"]
    assert set(commit["responses"]) == {"200", "401", "403", "404", "409", "413", "422", "429", "503", "504", "507"}
    examples = commit["responses"]["409"]["content"][MEDIA_TYPE]["examples"]
    assert set(examples) == {"INVALID_TXN_STATE", "EXPIRED_TRANSACTION"}
    for name, operation in operations.items():
        assert operation.get("description"), f"{name} has no description"
