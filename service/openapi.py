"""What a service says about itself: `/openapi.json`, and the page at `/docs` that shows it without the internet.

Every documented error is a `Problem` with an example for each code it may carry.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from pydantic.json_schema import models_json_schema

from service.problems import KINDS, MEDIA_TYPE, ErrorCode, Problem, ServiceError

_REFERENCE = "#/components/schemas/{model}"


def problems(*refusals: ErrorCode | int) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of an endpoint that can answer these codes; a status stands for all codes that it can mean."""
    codes = [code for code, kind in KINDS.items() if code in refusals or kind.status in refusals]
    by_status: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        by_status.setdefault(KINDS[code].status, {"description": "", "content": {MEDIA_TYPE: _problem_content()}})
        answer = by_status[KINDS[code].status]
        answer["description"] += f"{', ' if answer['description'] else ''}`{code}`"
        example = ServiceError(code, KINDS[code].title).problem().model_dump(mode="json")
        answer["content"][MEDIA_TYPE]["examples"][code.value] = {"summary": KINDS[code].action, "value": example}
    return by_status


def _problem_content() -> dict[str, Any]:
    return {"schema": {"$ref": _REFERENCE.format(model=Problem.__name__)}, "examples": {}}


def documented_app(title: str, description: str, version: str) -> FastAPI:
    """An application with its own copy of the page's scripts; FastAPI's page loads them from other hosts."""
    app = FastAPIOffline(
        redoc_url=None, static_url="/docs-assets", title=title, description=description, version=version
    )
    described = app.openapi

    def with_problem() -> dict[str, Any]:
        """`problems` only refers to the schema: as a `model` FastAPI would also offer errors as plain JSON."""
        if app.openapi_schema is None:
            _, definitions = models_json_schema([(Problem, "serialization")], ref_template=_REFERENCE)
            described().setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        return described()

    app.openapi = with_problem  # type: ignore[method-assign]
    return app
