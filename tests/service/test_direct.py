"""Goal: a direct route saves time and changes nothing.

Method: the same endpoint as a direct route and as a strict one of FastAPI's, in the same application; whatever is
asked, both answer with the same status, the same media type and the same bytes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query
from fastapi import Request as HttpRequest
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, BeforeValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metatxn.service.direct import DirectRoute, add_routes
from metatxn.service.http import Caller, PathText, TxnIdPath, create_app
from metatxn.service.strict import StrictRoute
from metatxn.wire import errors
from metatxn.wire.coordinator import BatchItem, BeginRequest
from metatxn.wire.models import RequestBody

ID = "0000000000000000000000000000002a"
FIRST = "00000000000000000000000000000001"
UTF16 = '{"owner": "é"}'.encode("utf-16")
JSON_TYPE = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


FAILURES: dict[str, Exception] = {
    "a bug": ZeroDivisionError("nobody thought of that"),
    "the store": StoreUnavailable("nobody listens"),
    "the outcome": OutcomeUnknown("no answer"),
    "another owner": errors.NotOwner("elsewhere", owner_url="http://other"),
    "plain HTTP": HTTPException(404, "not here", {"X-Reason": "none"}),
}


class _FailsAsItIsSent(Response):
    """It has not begun to send when it fails."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise errors.StoreUnavailable("the file is gone")


class Items(RequestBody):
    items: list[BatchItem]


class Seen(BaseModel):
    txn_id: str | None = None
    caller: str | None = None
    body: Any = None


def _routes(prefix: str, route_class: type[StrictRoute]) -> APIRouter:
    router = APIRouter(prefix=prefix, route_class=route_class)

    @router.post("/txns", status_code=201, response_model_exclude_none=True)
    async def begin(caller: Caller, body: BeginRequest | None = None) -> Seen:
        return Seen(caller=caller.name, body=body)

    @router.post("/txns/batch", response_model_exclude_none=True)
    async def batch(body: Items) -> Seen:
        return Seen(body=body)

    @router.post("/txns/{txn_id}/commit", response_model_exclude_none=True)
    async def commit(txn_id: TxnIdPath) -> Seen:
        return Seen(txn_id=txn_id)

    @router.post("/txns/{txn_id}/refused", response_model_exclude_none=True)
    async def refused(txn_id: TxnIdPath) -> Seen:
        raise errors.TransactionNotFound("unknown", txn_id=txn_id)

    @router.post("/failing/{how}", response_model_exclude_none=True)
    async def failing(how: PathText) -> Response:
        if how == "as it is sent":
            return _FailsAsItIsSent()
        raise FAILURES[how]

    @router.get("/txns/{txn_id}/ops", response_model_exclude_none=True, dependencies=[Depends(_refuse_the_first)])
    async def operations(
        txn_id: TxnIdPath,
        request: HttpRequest,
        limit: Annotated[int, Query(ge=1, le=10)] = 5,
        after: Annotated[Any, BeforeValidator(_reversed), Query()] = None,
        kind: Literal["write", "ack"] | None = None,
        whole: bool = False,
    ) -> Seen:
        return Seen(txn_id=txn_id, body=[request.url.path[-3:], limit, after, kind, whole])

    return router


def _reversed(text: str) -> str:
    if "x" in text:
        raise ValueError("has an x")
    return text[::-1]


async def _refuse_the_first(txn_id: TxnIdPath, caller: Caller) -> None:
    if txn_id == FIRST:
        raise errors.NotAllowed(f"not for {caller.name}")


def _app() -> FastAPI:
    app = create_app("test", "test", "0", CollectorRegistry())
    add_routes(app, _routes("/plain", StrictRoute))
    add_routes(app, _routes("/quick", DirectRoute), first=True)
    return app


def _client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


ASKED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "nothing": ("POST", "/txns", {}),
    "an empty object": ("POST", "/txns", {"json": {}}),
    "null": ("POST", "/txns", {"content": "null", "headers": JSON_TYPE}),
    "all fields": (
        "POST",
        "/txns",
        {"json": {"timeout_ms": 5, "owner": "é", "transaction_key": "k", "epoch": 1, "properties": {"a": "b"}}},
    ),
    "a field twice": ("POST", "/txns", {"content": '{"timeout_ms": 1, "timeout_ms": 2}', "headers": JSON_TYPE}),
    "an unknown field": ("POST", "/txns", {"json": {"timeout": 5}}),
    "a number as text": ("POST", "/txns", {"json": {"timeout_ms": "5"}}),
    "a number with a point": ("POST", "/txns", {"content": '{"timeout_ms": 5.0}', "headers": JSON_TYPE}),
    "no number": ("POST", "/txns", {"content": '{"timeout_ms": NaN}', "headers": JSON_TYPE}),
    "endless digits": ("POST", "/txns", {"content": '{"timeout_ms": ' + "9" * 5000 + "}", "headers": JSON_TYPE}),
    "half of a surrogate pair": ("POST", "/txns", {"content": r'{"owner": "\ud800"}', "headers": JSON_TYPE}),
    "broken JSON": ("POST", "/txns", {"content": '{"owner"', "headers": JSON_TYPE}),
    "broken UTF-8": ("POST", "/txns", {"content": b'{"owner": "\xff"}', "headers": JSON_TYPE}),
    "UTF-16": ("POST", "/txns", {"content": UTF16, "headers": JSON_TYPE}),
    "deep nesting": ("POST", "/txns", {"content": "[" * 100_000, "headers": JSON_TYPE}),
    "as curl -d names it": ("POST", "/txns", {"content": '{"timeout_ms": 5}', "headers": FORM}),
    "no type": ("POST", "/txns", {"content": '{"timeout_ms": 5}'}),
    "JSON of a kind": ("POST", "/txns", {"content": "{}", "headers": {"Content-Type": "application/x+json"}}),
    "with a charset": ("POST", "/txns", {"content": "{}", "headers": {"Content-Type": "application/json; a=b"}}),
    "another type": ("POST", "/txns", {"content": "{}", "headers": {"Content-Type": "text/plain"}}),
    "a type for nothing": ("POST", "/txns", {"headers": {"Content-Type": "text/plain"}}),
    "a query": ("POST", "/txns?timeout_ms=7", {}),
    "another method": ("PUT", "/txns", {}),
    "a required body": ("POST", "/txns/batch", {"json": {"items": [{"op": "commit", "txn_id": ID}]}}),
    "a required body left out": ("POST", "/txns/batch", {}),
    "null for a required body": ("POST", "/txns/batch", {"content": "null", "headers": JSON_TYPE}),
    "a bad item": ("POST", "/txns/batch", {"json": {"items": [{"op": "commit", "txn_id": "2a"}]}}),
    "an item of no kind": ("POST", "/txns/batch", {"json": {"items": [{"op": "end"}]}}),
    "an id": ("POST", f"/txns/{ID}/commit", {}),
    "an encoded id": ("POST", f"/txns/%30{ID[1:]}/commit", {}),
    "no id": ("POST", "/txns/2a/commit", {}),
    "a broken escape": ("POST", "/txns/%2/commit", {}),
    "another slash": ("POST", f"/txns/{ID}%2F/commit", {}),
    "a trailing slash": ("POST", f"/txns/{ID}/commit/", {}),
    "no query": ("GET", f"/txns/{ID}/ops", {}),
    "a whole query": ("GET", f"/txns/{ID}/ops?limit=7&after=a%20b+c%C3%A9&kind=ack&whole=true", {}),
    "an empty parameter": ("GET", f"/txns/{ID}/ops?after=", {}),
    "a parameter without a value": ("GET", f"/txns/{ID}/ops?after&limit=1", {}),
    "an encoded name": ("GET", f"/txns/{ID}/ops?%6Cimit=2", {}),
    "an empty number": ("GET", f"/txns/{ID}/ops?limit=", {}),
    "a number too large": ("GET", f"/txns/{ID}/ops?limit=11", {}),
    "a value of no kind": ("GET", f"/txns/{ID}/ops?kind=other", {}),
    "a value that its parser refuses": ("GET", f"/txns/{ID}/ops?after=x", {}),
    "a parameter twice": ("GET", f"/txns/{ID}/ops?limit=1&limit=2", {}),
    "an unknown parameter": ("GET", f"/txns/{ID}/ops?limits=1", {}),
    "a query that is not UTF-8": ("GET", f"/txns/{ID}/ops?after=%FF", {}),
    "what a dependency refuses": ("GET", f"/txns/{FIRST}/ops", {}),
    "what a dependency and a parser refuse": ("GET", f"/txns/{FIRST}/ops?limit=11", {}),
    "a refusal": ("POST", f"/txns/{ID}/refused", {}),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_both_ways_answer_alike(asked: tuple[str, str, dict[str, Any]]) -> None:
    method, path, options = asked
    async with _client(_app()) as client:
        plain = await client.request(method, f"/plain{path}", **options)
        quick = await client.request(method, f"/quick{path}", **options)
    assert quick.status_code == plain.status_code
    assert quick.content == plain.content
    assert {**quick.headers, "location": ""} == {**plain.headers, "location": ""}


@pytest.mark.parametrize("how", [*FAILURES, "as it is sent"])
async def test_both_ways_fail_alike(how: str) -> None:
    transport = httpx.ASGITransport(app=_app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        plain = await client.post(f"/plain/failing/{quote(how)}")
        quick = await client.post(f"/quick/failing/{quote(how)}")
    assert plain.is_error or plain.is_redirect
    assert quick.status_code == plain.status_code
    assert quick.content == plain.content
    moved = plain.headers.get("location", "").replace("/plain", "/quick")
    assert {**quick.headers} == {**plain.headers} | ({"location": moved} if moved else {})


async def test_a_request_goes_to_the_route_that_comes_first() -> None:
    """Also if that is one that has no shortcut, in front of one that has; and routes may be added later."""
    app = create_app("test", "test", "0", CollectorRegistry())
    first, second = (APIRouter(route_class=kind) for kind in (StrictRoute, DirectRoute))

    @first.get("/v1/{name}", response_model_exclude_none=True)
    async def slow(name: PathText) -> Seen:
        return Seen(body=f"slow {name}")

    @second.get("/v1/{name}", response_model_exclude_none=True)
    async def quick(name: PathText) -> Seen:
        return Seen(body=f"quick {name}")

    @second.post("/v1/{name}", response_model_exclude_none=True)
    async def posted(name: PathText) -> Seen:
        return Seen(body=f"posted {name}")

    async with _client(app) as client:
        assert (await client.get("/v1/x")).status_code == 404
        add_routes(app, second, first=True)
        assert (await client.get("/v1/x")).json()["body"] == "quick x"
        add_routes(app, first, first=True)
        assert (await client.get("/v1/x")).json()["body"] == "slow x"
        assert (await client.post("/v1/x")).json()["body"] == "posted x"
        assert (await client.put("/v1/x")).status_code == 405


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "all fields",
        "as curl -d names it",
        "no type",
        "a required body",
        "an id",
        "no query",
        "a whole query",
    ],
)
async def test_what_fits_does_not_meet_the_slow_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = _app()
    monkeypatch.setattr(APIRouter, "__call__", _slow)
    method, path, options = ASKED[name]
    async with _client(app) as client:
        assert (await client.request(method, f"/quick{path}", **options)).is_success


async def _slow(router: APIRouter, scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("this request fits, and FastAPI was asked for it")


async def test_a_request_that_has_lost_its_body_is_refused_by_either() -> None:
    """It names the type of a body, and neither brings one nor says how long it is (`metatxn/service/gate.py`)."""
    answers = []
    async with _client(_app()) as client:
        for prefix in ("/plain", "/quick"):
            request = client.build_request("POST", f"{prefix}/txns", headers=JSON_TYPE)
            del request.headers["Content-Length"]
            answers.append(await client.send(request))
    assert [answer.status_code for answer in answers] == [422, 422]
    assert answers[0].content == answers[1].content
