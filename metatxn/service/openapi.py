"""The description of a service: `/openapi.json`, and the page at `/docs` that shows it without internet access.

Every documented error is a `Problem` with an example for each code it may carry.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from pydantic.json_schema import models_json_schema

from metatxn.wire.errors import BY_CODE, ErrorCode
from metatxn.wire.problems import MEDIA_TYPE, Problem, problem_of

_REFERENCE = "#/components/schemas/{model}"
_SCHEME = "bearer"
_WITHOUT_TOKEN = ("/healthz", "/readyz")
_NO_TELEMETRY = {"tracing": False, "metrics": False, "logs": False}  # otherwise each request looks for a provider
_AT_THE_GATE = (ErrorCode.RATE_LIMITED,)
_WITH_TOKEN = (ErrorCode.UNAUTHENTICATED, ErrorCode.NOT_ALLOWED)
_WITH_BODY = (ErrorCode.PAYLOAD_TOO_LARGE,)


def problems(*refusals: ErrorCode | int) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of an endpoint that can answer these codes; a status stands for all codes that it can have."""
    codes = [code for code, kind in BY_CODE.items() if code in refusals or kind.status in refusals]
    by_status: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        kind = BY_CODE[code]
        answer = by_status.setdefault(kind.status, {"description": "", "content": {MEDIA_TYPE: _problem_content()}})
        answer["description"] += f"{', ' if answer['description'] else ''}`{code}`"
        example = problem_of(kind(kind.title)).model_dump(mode="json")
        answer["content"][MEDIA_TYPE]["examples"][code.value] = {"summary": kind.action, "value": example}
    return by_status


def _problem_content() -> dict[str, Any]:
    return {"schema": {"$ref": _REFERENCE.format(model=Problem.__name__)}, "examples": {}}


def documented_app(title: str, description: str, version: str, *, needs_token: bool) -> FastAPI:
    """An application that serves the scripts of the page itself; FastAPI's page loads them from other hosts.

    Every operation shows the refusals of the gate, and that it requires a token if authentication is on.
    """
    app = FastAPIOffline(
        redoc_url=None,
        static_url="/docs-assets",
        title=title,
        description=description,
        version=version,
        telemetry=_NO_TELEMETRY,
    )
    described = app.openapi

    def with_problem() -> dict[str, Any]:
        """`problems` only refers to the schema: as a `model`, FastAPI would also describe errors as plain JSON."""
        if app.openapi_schema is None:
            _, definitions = models_json_schema([(Problem, "serialization")], ref_template=_REFERENCE)
            components = described().setdefault("components", {})
            components.setdefault("schemas", {}).update(definitions["$defs"])
            components["securitySchemes"] = {_SCHEME: {"type": "http", "scheme": "bearer"}}
            for path, methods in described()["paths"].items():
                for operation in methods.values():
                    _add_gate(operation, open_to_all=path in _WITHOUT_TOKEN, needs_token=needs_token)
        return described()

    app.openapi = with_problem  # type: ignore[method-assign]
    return app


def _add_gate(operation: dict[str, Any], *, open_to_all: bool, needs_token: bool) -> None:
    codes = [*_AT_THE_GATE, *(() if open_to_all else _WITH_TOKEN), *(_WITH_BODY if "requestBody" in operation else ())]
    for status, answer in problems(*codes).items():
        operation["responses"].setdefault(str(status), answer)
    if needs_token and not open_to_all:
        operation["security"] = [{_SCHEME: []}]
