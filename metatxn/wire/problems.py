"""Errors on the wire: `application/problem+json` (RFC 9457) with members of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from metatxn.wire.errors import BY_CODE, ErrorCode, MetatxnError

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """One error answer. Further members carry the relevant ids: `txn_id`, `segment`, `field`, `children`, …"""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "about:blank",
                "status": 409,
                "title": "Transaction already decided",
                "detail": "transaction 0000000000000000000000000000002a was COMMITTED at 1767225600000",
                "code": "INVALID_TXN_STATE",
                "retriable": False,
                "definite": True,
                "action": "Read the transaction; its decision is final.",
                "txn_id": "0000000000000000000000000000002a",
            }
        },
    )

    type: str = "about:blank"
    status: int
    title: str
    detail: str
    code: ErrorCode
    retriable: bool
    definite: bool
    action: str = Field(description="One sentence that tells the caller what to do.")


_OWN_MEMBERS = {*Problem.model_fields, "retry_after_s", "self"}


def problem_of(error: MetatxnError) -> Problem:
    """The answer of a service for an error of the public contract, which has a code."""
    assert error.code is not None
    return Problem(
        status=error.status,
        title=error.title,
        detail=error.detail,
        code=error.code,
        retriable=error.retriable,
        definite=error.definite,
        action=error.action,
        **error.members,
    )


def from_problem(problem: Mapping[str, Any], retry_after_s: float | None = None) -> MetatxnError:
    """The error that a `problem+json` body describes. For a code that this version does not know, it is a plain
    `MetatxnError` with that `code` among its members; the facts that the problem states are kept anyway."""
    code = problem["code"]
    kind = BY_CODE.get(code, MetatxnError)
    members = {name: value for name, value in problem.items() if name not in _OWN_MEMBERS}
    if kind is MetatxnError:
        members["code"] = code
    return kind(
        str(problem.get("detail") or problem.get("title") or code),
        action=problem.get("action"),
        retriable=problem.get("retriable"),
        definite=problem.get("definite"),
        retry_after_s=retry_after_s,
        **members,
    )
