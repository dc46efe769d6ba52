"""The errors that a service answers, and that the client library raises, when a request was not carried out.

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
    ├── SegmentInUse               SEGMENT_IN_USE
    ├── UpgradePending             UPGRADE_PENDING
    ├── NotOwner                   NOT_OWNER             retriable
    ├── PayloadTooLarge            PAYLOAD_TOO_LARGE
    ├── StoreUnavailable           STORE_UNAVAILABLE     retriable
    ├── OutcomeUnknown             OUTCOME_UNKNOWN       not definite
    └── ServiceUnreachable         nothing answered      retriable

Each has two facts: `retriable` (the same request may succeed later; the library has already tried for as long as
`request_timeout_s` allows) and `definite` (the request certainly had no effect). `action` says what to do about it; a
traceback shows it below the error. For its code of the public contract, a class gives the HTTP status and the defaults
of the other members.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar


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
    SEGMENT_IN_USE = "SEGMENT_IN_USE"
    UPGRADE_PENDING = "UPGRADE_PENDING"
    NOT_OWNER = "NOT_OWNER"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"


class MetatxnError(Exception):
    """`detail` says what happened; `members` holds the ids that help: `txn_id`, `segment`, `field`, …"""

    code: ClassVar[ErrorCode | None] = None
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Error"
    action: str = ""
    retriable: bool = False
    definite: bool = True

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
        self.action = self.action if action is None else action
        self.retriable = self.retriable if retriable is None else retriable
        self.definite = self.definite if definite is None else definite
        self.retry_after_s = retry_after_s
        self.members = {name: value for name, value in members.items() if value is not None}
        if self.action and not detail.endswith(self.action):
            self.add_note(self.action)

    def not_definite(self) -> MetatxnError:
        """The same error, for a request whose other parts were, or may have been, carried out."""
        kind = MetatxnError if self.code is None else BY_CODE[self.code]
        return kind(
            self.detail,
            action=self.action,
            retriable=self.retriable,
            definite=False,
            retry_after_s=self.retry_after_s,
            **self.members,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error: Spark carries errors from its tasks to the driver."""
        facts = {"action": self.action, "retriable": self.retriable, "definite": self.definite}
        return _rebuild, (type(self), self.detail, facts | {"retry_after_s": self.retry_after_s} | self.members)


def _rebuild(kind: type[MetatxnError], detail: str, arguments: dict[str, Any]) -> MetatxnError:
    return kind(detail, **arguments)


class InvalidArgument(MetatxnError):
    """An id is malformed, a field is unknown, a value is out of range, or a client was closed."""

    code = ErrorCode.INVALID_ARGUMENT
    status = 422
    title = "Invalid argument"
    action = "Correct the named field and send the request again."


class TransactionNotFound(MetatxnError):
    """The transaction never began, or its header was deleted after the retention time."""

    code = ErrorCode.TXN_NOT_FOUND
    status = 404
    title = "Transaction not found"
    action = "Check the id; a finished transaction is forgotten after the retention time."


class InvalidTransactionState(MetatxnError):
    """The transaction is already decided the other way."""

    code = ErrorCode.INVALID_TXN_STATE
    status = 409
    title = "Transaction already decided"
    action = "Read the transaction; its decision is final."


class TransactionConflict(MetatxnError):
    """A write or an acknowledgement came after the decision, or another transaction holds what it acknowledges."""

    code = ErrorCode.TXN_CONFLICT
    status = 409
    title = "Transaction conflict"
    action = "This transaction accepts no more operations. Read its state, and do the work in a new transaction."


class ExpiredTransaction(MetatxnError):
    """The transaction was aborted by its timeout or by a newer owner of its key."""

    code = ErrorCode.EXPIRED_TRANSACTION
    status = 409
    title = "Transaction expired"
    action = "Begin a new transaction; this one was aborted by timeout or by a newer owner."


class NotAllowed(MetatxnError):
    """The epoch is stale, the owner is another one, or a right is missing."""

    code = ErrorCode.NOT_ALLOWED
    status = 403
    title = "Not allowed"
    action = "Connect again to take over, or use the right principal."


class NotFound(MetatxnError):
    """There is no topic, segment, subscription or key with this name."""

    code = ErrorCode.NOT_FOUND
    status = 404
    title = "Not found"
    action = "Check the name; create it first if it does not exist."


class AlreadyExists(MetatxnError):
    """There already is a topic, subscription or key with this name."""

    code = ErrorCode.ALREADY_EXISTS
    status = 409
    title = "Already exists"
    action = "Use the existing one, or choose another name."


class SchemaMismatch(MetatxnError):
    """The columns do not fit the topic's schema. No row was accepted."""

    code = ErrorCode.SCHEMA_MISMATCH
    status = 409
    title = "Schema mismatch"
    action = "Make the named columns match the topic's schema; nothing was written."


class PositionTrimmed(MetatxnError):
    """The position is below the first readable one."""

    code = ErrorCode.POSITION_TRIMMED
    status = 410
    title = "Position trimmed"
    action = "Continue at the first readable position; older data was removed."


class RateLimited(MetatxnError):
    """The service is already answering too many requests."""

    code = ErrorCode.RATE_LIMITED
    status = 429
    title = "Too many requests"
    action = "Wait for Retry-After seconds."
    retriable = True


class StorageFull(MetatxnError):
    """The broker's disk is full. Nothing was acknowledged."""

    code = ErrorCode.STORAGE_FULL
    status = 507
    title = "Storage full"
    action = "Free space; writing then resumes automatically. Nothing was acknowledged."
    retriable = True


class Unauthenticated(MetatxnError):
    """The token is missing or not valid."""

    code = ErrorCode.UNAUTHENTICATED
    status = 401
    title = "Unauthenticated"
    action = "Send a valid bearer token."


class SegmentSealed(MetatxnError):
    """The segment accepts no more entries. Producers and table writers continue in its `children` by themselves."""

    code = ErrorCode.SEGMENT_SEALED
    status = 409
    title = "Segment sealed"
    action = "Write to the children named in the answer."

    @property
    def children(self) -> list[str]:
        return list(self.members.get("children") or [])


class SegmentInUse(MetatxnError):
    """The segment cannot be deleted, because something still needs it."""

    code = ErrorCode.SEGMENT_IN_USE
    status = 409
    title = "Segment in use"
    action = "End what still needs the segment, and try again."


class UpgradePending(MetatxnError):
    """The request needs a cluster version that has not been finalized yet."""

    code = ErrorCode.UPGRADE_PENDING
    status = 409
    title = "Upgrade pending"
    action = "When every process runs the new release, run `metatxn upgrade finalize`."


class NotOwner(MetatxnError):
    """Another broker owns the segment. The client follows redirects; it raises this error when they go in circles."""

    code = ErrorCode.NOT_OWNER
    status = 307
    title = "Not the owner"
    action = "Follow Location to the owning broker."
    retriable = True

    listeners: Mapping[str, str] | None = None
    """The owner's other addresses, by the names of the listeners that clients use. Services only."""

    @property
    def owner_url(self) -> str:
        return str(self.members["owner_url"])

    def reached_at(self, listeners: Mapping[str, str] | None) -> NotOwner:
        """The same error with these other addresses."""
        self.listeners = listeners
        return self


class PayloadTooLarge(MetatxnError):
    """One entry is larger than a broker accepts."""

    code = ErrorCode.PAYLOAD_TOO_LARGE
    status = 413
    title = "Payload too large"
    action = "Send the data in smaller pieces."


class StoreUnavailable(MetatxnError):
    """The service cannot reach its metadata store."""

    code = ErrorCode.STORE_UNAVAILABLE
    status = 503
    title = "Metadata store unavailable"
    action = "Try again; the request had no effect."
    retriable = True


class OutcomeUnknown(MetatxnError):
    """The request may have taken effect, now or later. Read the transaction to learn what happened to it."""

    code = ErrorCode.OUTCOME_UNKNOWN
    status = 504
    title = "Outcome unknown"
    action = "Read the transaction again to learn what happened."
    definite = False


class ServiceUnreachable(MetatxnError):
    """Nothing answers at the URL, or what answers is not a metatxn service."""

    action = "Check that the service runs and that the URL and port are right."
    retriable = True


BY_CODE: dict[ErrorCode, type[MetatxnError]] = {
    kind.code: kind for kind in MetatxnError.__subclasses__() if kind.code is not None
}


def invalid_field(field: str, detail: str, *, action: str | None = None) -> InvalidArgument:
    """The error for one field of a request, or one of its parameters."""
    return InvalidArgument(f"{field}: {detail}", action=action, field=field)
