"""Errors on the wire: `application/problem+json` (RFC 9457) with our members.

One table says, for each code of the public contract, its HTTP status, whether the same request may succeed later
(`retriable`), whether it certainly did nothing (`definite`), and what the caller should do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

MEDIA_TYPE = "application/problem+json"


class ErrorCode(StrEnum):
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    TXN_NOT_FOUND = "TXN_NOT_FOUND"
    INVALID_TXN_STATE = "INVALID_TXN_STATE"
    TXN_CONFLICT = "TXN_CONFLICT"
    EXPIRED_TRANSACTION = "EXPIRED_TRANSACTION"
    NOT_ALLOWED = "NOT_ALLOWED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
    POSITION_TRIMMED = "POSITION_TRIMMED"
    RATE_LIMITED = "RATE_LIMITED"
    STORAGE_FULL = "STORAGE_FULL"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    SEGMENT_SEALED = "SEGMENT_SEALED"
    NOT_OWNER = "NOT_OWNER"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    status: int
    title: str
    action: str
    retriable: bool = False
    definite: bool = True


KINDS: dict[ErrorCode, ErrorKind] = {
    ErrorCode.INVALID_ARGUMENT: ErrorKind(422, "Invalid argument", "Correct the named field and send it again."),
    ErrorCode.TXN_NOT_FOUND: ErrorKind(
        404, "Transaction not found", "Check the id; a finished transaction is forgotten after the retention time."
    ),
    ErrorCode.INVALID_TXN_STATE: ErrorKind(
        409, "Transaction already decided", "Read the transaction; its decision is final."
    ),
    ErrorCode.TXN_CONFLICT: ErrorKind(
        409,
        "Transaction conflict",
        "This transaction takes no more operations: read its state, and do the work in a new one.",
    ),
    ErrorCode.EXPIRED_TRANSACTION: ErrorKind(
        409, "Transaction expired", "Begin a new transaction; this one was aborted by timeout or by a newer owner."
    ),
    ErrorCode.NOT_ALLOWED: ErrorKind(403, "Not allowed", "Connect again to take over, or use the right principal."),
    ErrorCode.NOT_FOUND: ErrorKind(404, "Not found", "Check the name; create it first if it does not exist."),
    ErrorCode.ALREADY_EXISTS: ErrorKind(409, "Already exists", "Use the existing one or choose another name."),
    ErrorCode.SCHEMA_MISMATCH: ErrorKind(
        409, "Schema mismatch", "Make the named columns match the topic's schema; nothing was written."
    ),
    ErrorCode.POSITION_TRIMMED: ErrorKind(
        410, "Position trimmed", "Continue at the first readable position; older data was removed."
    ),
    ErrorCode.RATE_LIMITED: ErrorKind(429, "Too many requests", "Wait for Retry-After seconds.", retriable=True),
    ErrorCode.STORAGE_FULL: ErrorKind(
        507, "Storage full", "Free space; writing goes on by itself then. Nothing was acknowledged.", retriable=True
    ),
    ErrorCode.UNAUTHENTICATED: ErrorKind(401, "Unauthenticated", "Send a valid bearer token."),
    ErrorCode.SEGMENT_SEALED: ErrorKind(409, "Segment sealed", "Write to the children named in the answer."),
    ErrorCode.NOT_OWNER: ErrorKind(307, "Not the owner", "Follow Location to the owning broker.", retriable=True),
    ErrorCode.PAYLOAD_TOO_LARGE: ErrorKind(413, "Payload too large", "Send smaller pieces."),
    ErrorCode.STORE_UNAVAILABLE: ErrorKind(
        503, "Metadata store unavailable", "Try again; nothing happened.", retriable=True
    ),
    ErrorCode.OUTCOME_UNKNOWN: ErrorKind(
        504, "Outcome unknown", "Read the transaction again to learn what happened.", definite=False
    ),
}


class Problem(BaseModel):
    """One error answer. Further members carry the ids that help: `txn_id`, `segment`, `field`, `children`, …"""

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
    action: str = Field(description="What the caller should do, one sentence.")


class ServiceError(Exception):
    """Raised anywhere in a service; the HTTP layer turns it into a `Problem`."""

    def __init__(self, code: ErrorCode, detail: str, *, action: str | None = None, **members: object) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.action = action
        self.members = {name: value for name, value in members.items() if value is not None}
        self._partly = False

    def partly(self) -> ServiceError:
        """The same, of a request of which other parts were carried out, or may have been: it is not definite."""
        same = ServiceError(self.code, self.detail, action=self.action, **self.members)
        same._partly = True
        return same

    @property
    def definite(self) -> bool:
        """The whole request has certainly done nothing."""
        return KINDS[self.code].definite and not self._partly

    def problem(self) -> Problem:
        kind = KINDS[self.code]
        return Problem(
            status=kind.status,
            title=kind.title,
            detail=self.detail,
            code=self.code,
            retriable=kind.retriable,
            definite=self.definite,
            action=self.action or kind.action,
            **self.members,
        )
