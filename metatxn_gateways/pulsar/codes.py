"""Pulsar's error codes, and which one stands for which of our errors.

What a client does depends on the code: after some it tries again, following a new lookup, and after others it gives up.
"""

from __future__ import annotations

from enum import IntEnum

from metastore.errors import MetastoreError
from metatxn.service.http import from_store
from metatxn.wire import errors


class PulsarCode(IntEnum):
    UNKNOWN = 0
    PERSISTENCE = 2
    AUTHENTICATION = 3
    AUTHORIZATION = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    """The client looks the topic up again, and repeats its request."""
    CHECKSUM = 9
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    TOO_MANY_REQUESTS = 14
    """The client waits, and repeats its request; after many such answers it connects again."""
    TOPIC_TERMINATED = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    """The client gives up the producer, or the message, that has this schema."""
    COORDINATOR_NOT_FOUND = 20
    """The client connects again, and repeats its request."""
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED = 22
    """The client gives up what it has asked for."""
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24


class PulsarError(Exception):
    """The request is refused with this code."""

    def __init__(self, code: PulsarCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_OF_TRANSACTION = (PulsarCode.INVALID_TXN_STATUS, PulsarCode.TRANSACTION_CONFLICT, PulsarCode.TRANSACTION_NOT_FOUND)
REFUSALS = (PulsarError, errors.MetatxnError, MetastoreError)


def pulsar_code(error: Exception) -> PulsarCode:
    """The code for one of `REFUSALS`."""
    match _known(error):
        case PulsarError() as refused:
            return refused.code
        case errors.NotFound():
            return PulsarCode.TOPIC_NOT_FOUND
        case errors.SegmentSealed():
            return PulsarCode.TOPIC_TERMINATED
        case errors.TransactionNotFound():
            return PulsarCode.TRANSACTION_NOT_FOUND
        case errors.TransactionConflict():
            return PulsarCode.TRANSACTION_CONFLICT
        case errors.ExpiredTransaction() | errors.InvalidTransactionState():
            return PulsarCode.INVALID_TXN_STATUS
        case errors.StorageFull() | errors.RateLimited():
            return PulsarCode.PERSISTENCE
        case errors.InvalidArgument() | errors.NotAllowed() | errors.PayloadTooLarge():
            return PulsarCode.NOT_ALLOWED
    return PulsarCode.SERVICE_NOT_READY


def txn_code_of(error: Exception) -> PulsarCode:
    """The same for a request to the transaction coordinator. It is repeated whenever its outcome is unknown."""
    code = pulsar_code(error)
    return PulsarCode.COORDINATOR_NOT_FOUND if code is PulsarCode.SERVICE_NOT_READY else code


def send_code_of(error: Exception) -> PulsarCode:
    """The same for a message. Its client goes on after one that is not allowed, and sends all others again."""
    code = pulsar_code(error)
    return PulsarCode.NOT_ALLOWED if code in _OF_TRANSACTION else code


def explained(error: Exception) -> str:
    """What went wrong, and what to do."""
    known = _known(error)
    action = known.action if isinstance(known, errors.MetatxnError) else None
    return f"{known} {action}" if action else str(known)


def _known(error: Exception) -> Exception:
    return from_store(error) if isinstance(error, MetastoreError) else error
