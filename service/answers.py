"""A `Problem` as an HTTP response."""

from __future__ import annotations

from fastapi.responses import Response

from service.problems import MEDIA_TYPE, ErrorCode, Problem

RETRY_AFTER_SECONDS = 1
_COMES_BACK = (ErrorCode.STORE_UNAVAILABLE, ErrorCode.STORAGE_FULL, ErrorCode.RATE_LIMITED)


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    headers = dict(headers or {})
    if problem.code in _COMES_BACK:
        headers.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    return Response(
        problem.model_dump_json(exclude_none=True), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers
    )
