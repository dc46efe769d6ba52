"""Everything the client library raises.

    MetatxnError
    ├── InvalidArgument            INVALID_ARGUMENT
    ├── TransactionNotFound        TXN_NOT_FOUND
    ├── InvalidTransactionState    INVALID_TXN_STATE
    ├── TransactionConflict        TXN_CONFLICT
    ├── ExpiredTransaction         EXPIRED_TRANSACTION
    ├── NotAllowed                 NOT_ALLOWED
    ├── NotFound                   NOT_FOUND
    ├── AlreadyExists              ALREADY_EXISTS
    ├── SchemaMismatch             SCHEMA_MISMATCH
    ├── PositionTrimmed            POSITION_TRIMMED
    ├── RateLimited                RATE_LIMITED          retriable
    ├── StorageFull                STORAGE_FULL          retriable
    ├── Unauthenticated            UNAUTHENTICATED
    ├── SegmentSealed              SEGMENT_SEALED
    ├── NotOwner                   NOT_OWNER             retriable
    ├── PayloadTooLarge            PAYLOAD_TOO_LARGE
    ├── StoreUnavailable           STORE_UNAVAILABLE     retriable
    ├── OutcomeUnknown             OUTCOME_UNKNOWN       not definite
    └── ServiceUnreachable         nothing answered      retriable

Two facts about each: `retriable` (the same request may succeed later; the library has already tried for as long as
`request_timeout_s` allows) and `definite` (the request certainly did nothing). `action` says what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from metatxn.wire.problems import KINDS, ErrorCode

MEMBERS_OF_EVERY_PROBLEM = {"type", "status", "title", "detail", "code", "retriable", "definite", "action"}


class MetatxnError(Exception):
    """`detail` says what happened; `members` holds the ids the service gave: `txn_id`, `segment`, `field`, …"""

    code: ClassVar[ErrorCode | None] = None
    default_action: ClassVar[str] = ""
    default_retriable: ClassVar[bool] = False
    default_definite: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        if cls.code is not None:
            kind = KINDS[cls.code]
            cls.default_action, cls.default_retriable, cls.default_definite = kind.action, kind.retriable, kind.definite

    def __init__(
        self,
        detail: str,
        *,
        action: str | None = None,
        retriable: bool | None = None,
        definite: bool | None = None,
        retry_after_s: float | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.action = self.default_action if action is None else action
        self.retriable = self.default_retriable if retriable is None else retriable
        self.definite = self.default_definite if definite is None else definite
        self.retry_after_s = retry_after_s
        self.members = members

    def __reduce__(self) -> tuple[Any, ...]:
        """Spark carries errors from its tasks to the driver."""
        facts = {"action": self.action, "retriable": self.retriable, "definite": self.definite}
        return _rebuild, (type(self), self.detail, facts | {"retry_after_s": self.retry_after_s} | self.members)


def _rebuild(kind: type[MetatxnError], detail: str, arguments: dict[str, Any]) -> MetatxnError:
    return kind(detail, **arguments)


class InvalidArgument(MetatxnError):
    """A malformed id, an unknown field, a value out of range; a client that was closed."""

    code = ErrorCode.INVALID_ARGUMENT


class TransactionNotFound(MetatxnError):
    """It never began, or its header was removed after the retention time."""

    code = ErrorCode.TXN_NOT_FOUND


class InvalidTransactionState(MetatxnError):
    """It was already decided the other way."""

    code = ErrorCode.INVALID_TXN_STATE


class TransactionConflict(MetatxnError):
    """A write or acknowledgement after the decision, or one that another transaction holds."""

    code = ErrorCode.TXN_CONFLICT


class ExpiredTransaction(MetatxnError):
    """It was aborted by its timeout or by a newer owner of its key."""

    code = ErrorCode.EXPIRED_TRANSACTION


class NotAllowed(MetatxnError):
    """A stale epoch, a wrong owner, or missing rights."""

    code = ErrorCode.NOT_ALLOWED


class NotFound(MetatxnError):
    """No such topic, segment, subscription or key."""

    code = ErrorCode.NOT_FOUND


class AlreadyExists(MetatxnError):
    """A topic, subscription or key of this name exists."""

    code = ErrorCode.ALREADY_EXISTS


class SchemaMismatch(MetatxnError):
    """The columns do not fit the topic's schema. No row was taken."""

    code = ErrorCode.SCHEMA_MISMATCH


class PositionTrimmed(MetatxnError):
    """The position lies below the first readable one."""

    code = ErrorCode.POSITION_TRIMMED


class RateLimited(MetatxnError):
    """The service answers too many requests already."""

    code = ErrorCode.RATE_LIMITED


class StorageFull(MetatxnError):
    """The broker's disk is full. Nothing was acknowledged."""

    code = ErrorCode.STORAGE_FULL


class Unauthenticated(MetatxnError):
    """The token is missing or wrong."""

    code = ErrorCode.UNAUTHENTICATED


class SegmentSealed(MetatxnError):
    """The segment takes no more entries. Producers and table writers go on at its `children` by themselves."""

    code = ErrorCode.SEGMENT_SEALED

    @property
    def children(self) -> list[str]:
        return list(self.members.get("children") or [])


class NotOwner(MetatxnError):
    """Another broker owns the segment. Redirects are followed; this is what remains when they go in circles."""

    code = ErrorCode.NOT_OWNER


class PayloadTooLarge(MetatxnError):
    """One entry is larger than a broker takes."""

    code = ErrorCode.PAYLOAD_TOO_LARGE


class StoreUnavailable(MetatxnError):
    """The service cannot reach its metadata store."""

    code = ErrorCode.STORE_UNAVAILABLE


class OutcomeUnknown(MetatxnError):
    """The request may have taken effect, now or later. Read the transaction to learn what became of it."""

    code = ErrorCode.OUTCOME_UNKNOWN


class ServiceUnreachable(MetatxnError):
    """Nothing answers at the URL, or what answers is no metatxn service."""

    default_action = "Check that the service runs and that the URL and port are right."
    default_retriable = True


BY_CODE: dict[str, type[MetatxnError]] = {
    kind.code: kind for kind in MetatxnError.__subclasses__() if kind.code is not None
}


def from_problem(problem: Mapping[str, Any], retry_after_s: float | None = None) -> MetatxnError:
    """The error a `problem+json` body describes. Of a code that this version does not know it is a plain
    `MetatxnError` with that `code` among its members; what the problem says of itself holds all the same."""
    code = problem["code"]
    kind = BY_CODE.get(code, MetatxnError)
    members = {name: value for name, value in problem.items() if name not in MEMBERS_OF_EVERY_PROBLEM}
    if kind is MetatxnError:
        members["code"] = code
    return kind(
        str(problem.get("detail") or problem.get("title") or code),
        action=problem.get("action"),
        retriable=problem.get("retriable"),
        definite=problem.get("definite"),
        retry_after_s=retry_after_s,
        **{name: value for name, value in members.items() if name not in ("retry_after_s", "self")},
    )
