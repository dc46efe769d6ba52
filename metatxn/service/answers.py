"""Models as HTTP responses."""

from __future__ import annotations

from fastapi.responses import Response
from pydantic import BaseModel
from pydantic_core import to_json

from metatxn.wire.errors import ErrorCode
from metatxn.wire.problems import MEDIA_TYPE, Problem

RETRY_AFTER_SECONDS = 1
_COMES_BACK = (ErrorCode.STORE_UNAVAILABLE, ErrorCode.STORAGE_FULL, ErrorCode.RATE_LIMITED)


def model_response(model: BaseModel, status: int = 200) -> Response:
    """The answer of `response_model_exclude_none=True`, for a model that needs no second validation."""
    return Response(model.model_dump_json(exclude_none=True), status_code=status, media_type="application/json")


def json_response(value: object, status: int = 200) -> Response:
    """A response for frequent or large answers: anything that JSON can express, without a model."""
    return Response(to_json(value), status_code=status, media_type="application/json")


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    headers = dict(headers or {})
    if problem.code in _COMES_BACK:
        headers.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    return Response(
        problem.model_dump_json(exclude_none=True), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers
    )
