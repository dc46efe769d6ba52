"""What the OpenAPI page says about errors: for each endpoint its codes, each with an example of its problem."""

from __future__ import annotations

from typing import Any

from service.problems import KINDS, MEDIA_TYPE, ErrorCode, Problem, ServiceError

ALWAYS = (ErrorCode.INVALID_ARGUMENT, ErrorCode.STORE_UNAVAILABLE)
WRITES = (*ALWAYS, ErrorCode.OUTCOME_UNKNOWN, ErrorCode.STORAGE_FULL)
ENDS = (*WRITES, ErrorCode.TXN_NOT_FOUND, ErrorCode.INVALID_TXN_STATE, ErrorCode.EXPIRED_TRANSACTION)


def refusals(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of an endpoint that can answer `codes`; those that share a status share its entry."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        kind = KINDS[code]
        answer = by_status.setdefault(
            kind.status,
            {
                "model": Problem,
                "description": "",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}},
            },
        )
        answer["description"] += f"{', ' if answer['description'] else ''}`{code}`"
        example = ServiceError(code, kind.title).problem().model_dump(mode="json")
        answer["content"][MEDIA_TYPE]["examples"][code.value] = {"summary": kind.action, "value": example}
    return by_status
