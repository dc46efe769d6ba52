"""CONTRACT: the OpenAPI page of a service shows all of it, with examples; and it does so without the internet.

Method: read `/openapi.json` and `/docs` of both services as a browser would.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

import metatxn.wire.broker
import metatxn.wire.coordinator
import metatxn.wire.models
from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metatxn.service.openapi import problems
from metatxn.wire.errors import BY_CODE, ErrorCode
from metatxn.wire.problems import MEDIA_TYPE, Problem
from participants.service import BrokerService

JSON = "application/json"
METHODS = {"get", "post", "put", "delete", "patch"}


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        yield http


@pytest.fixture(params=["coordinator", "broker"])
async def http(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of each service."""
    store = MemoryStore(INDEXES)
    if request.param == "coordinator":
        async with served(CoordinatorService(store).app) as http:
            yield http
    else:
        broker = BrokerService(store, data_dir=tmp_path, port=0)
        await broker.start()
        try:
            async with served(broker.app) as http:
                yield http
        finally:
            await broker.stop()
    await store.close()


@pytest.fixture
async def described(http: httpx.AsyncClient) -> dict[str, Any]:
    return dict((await http.get("/openapi.json")).json())


def operations(described: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if method in METHODS:
                yield f"{method.upper()} {path}", operation


def has_example(described: dict[str, Any], content: dict[str, Any]) -> bool:
    """At the content itself, or at the schema it refers to (an optional body is one of `schema` and null)."""
    schema = content["schema"]
    for choice in schema.get("anyOf", [schema]):
        if "$ref" in choice:
            schema = described["components"]["schemas"][choice["$ref"].rpartition("/")[2]]
    return "example" in content or "examples" in content or "example" in schema


async def test_every_operation_is_described(described: dict[str, Any]) -> None:
    for name, operation in operations(described):
        assert operation.get("summary") and operation.get("description"), name


async def test_every_body_and_every_answer_has_an_example(described: dict[str, Any]) -> None:
    seen = 0
    for name, operation in operations(described):
        contents = {"body": operation.get("requestBody", {}).get("content", {})}
        contents |= {status: answer.get("content", {}) for status, answer in operation["responses"].items()}
        for where, content in contents.items():
            if JSON in content:
                seen += 1
                assert has_example(described, content[JSON]), f"{name}: {where}"
    assert seen > 8


async def test_every_error_is_a_problem_with_examples(described: dict[str, Any]) -> None:
    """And nothing else: not plain JSON too. The one exception is /readyz, whose 503 says what is missing."""
    for name, operation in operations(described):
        for status, answer in operation["responses"].items():
            if int(status) < 300 or (name, status) == ("GET /readyz", "503"):
                continue
            assert set(answer["content"]) == {MEDIA_TYPE}, f"{name}: {status}"
            content = answer["content"][MEDIA_TYPE]
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            assert content["examples"], f"{name}: {status}"
            for code, example in content["examples"].items():
                problem = Problem.model_validate(example["value"])
                assert (problem.code, problem.status) == (code, int(status))


async def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    """A page with a dangling reference shows an error in place of the schema."""
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)))
    assert {"Problem", "ErrorCode"} <= named <= set(described["components"]["schemas"])


async def test_the_page_needs_no_other_host(http: httpx.AsyncClient) -> None:
    page = (await http.get("/docs")).text
    links = re.findall(r"""(?:src|href)="([^"]+)"|url: '([^']+)'""", page)
    paths = [link or url for link, url in links]
    assert len(paths) >= 4
    for path in paths:
        assert path.startswith("/") and not path.startswith("//"), path
        assert (await http.get(path)).status_code == 200, path
    assert "://" not in page
    (script,) = [path for path in paths if path.endswith(".js")]
    assert "SwaggerUIBundle" in (await http.get(script)).text


MODELS = [
    model
    for module in (metatxn.wire.coordinator, metatxn.wire.broker, metatxn.wire.models)
    for model in vars(module).values()
    if isinstance(model, type) and issubclass(model, BaseModel) and model.model_config.get("json_schema_extra")
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_examples_are_valid(model: type[BaseModel]) -> None:
    """An example that the service would refuse teaches the wrong thing."""
    extra = model.model_config["json_schema_extra"]
    assert isinstance(extra, dict)
    example = extra["example"]
    assert isinstance(example, dict)
    known = {field.alias or name for name, field in model.model_fields.items()}
    assert set(example) <= known or model.model_config.get("extra") == "allow"
    model.model_validate_json(json.dumps(example))


def test_a_status_stands_for_all_its_codes() -> None:
    assert set(problems(409)[409]["content"][MEDIA_TYPE]["examples"]) == {
        code for code, kind in BY_CODE.items() if kind.status == 409
    }
    assert problems(ErrorCode.NOT_FOUND)[404]["description"] == "`NOT_FOUND`"
