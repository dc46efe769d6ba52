"""Kafka's error codes, and which one stands for which of our errors."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from metastore.errors import MetastoreError
from metatxn.service.http import from_store
from metatxn.wire import errors


class KafkaCode(IntEnum):
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_TRANSACTION_TIMEOUT = 50
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    TRANSACTIONAL_ID_NOT_FOUND = 105
    UNSUPPORTED_ENDPOINT_TYPE = 115


TRANSACTION_ENDED = (
    errors.ExpiredTransaction,
    errors.InvalidTransactionState,
    errors.NotAllowed,
    errors.TransactionConflict,
    errors.TransactionNotFound,
)


FENCED_SINCE = 2
"""The version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn that has PRODUCER_FENCED."""


class KafkaError(Exception):
    """The request is refused with this code."""

    def __init__(self, code: KafkaCode) -> None:
        super().__init__(code.name)
        self.code = code


REFUSALS = (KafkaError, errors.MetatxnError, MetastoreError)


def code_of(error: Exception, unavailable: KafkaCode = KafkaCode.NOT_LEADER_OR_FOLLOWER) -> KafkaCode:
    """The code for one of `REFUSALS`. `unavailable` is the one that sends the client to look for another server."""
    if isinstance(error, KafkaError):
        return error.code
    if isinstance(error, MetastoreError):
        error = from_store(error)
    match error:
        case errors.NotFound():
            return KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        case errors.OutcomeUnknown():
            return KafkaCode.REQUEST_TIMED_OUT  # the retry is deduplicated
        case errors.StorageFull():
            return KafkaCode.KAFKA_STORAGE_ERROR
        case errors.PayloadTooLarge():
            return KafkaCode.MESSAGE_TOO_LARGE
        case errors.PositionTrimmed():
            return KafkaCode.OFFSET_OUT_OF_RANGE
        case errors.AlreadyExists():
            return KafkaCode.TOPIC_ALREADY_EXISTS
        case errors.InvalidArgument():
            return KafkaCode.INVALID_REQUEST
    return KafkaCode.INVALID_PRODUCER_EPOCH if isinstance(error, TRANSACTION_ENDED) else unavailable


def as_known(code: KafkaCode, known: bool) -> KafkaCode:
    """The code that tells a client that it was fenced, whether its version of the request has one for that or not."""
    return KafkaCode.INVALID_PRODUCER_EPOCH if code is KafkaCode.PRODUCER_FENCED and not known else code


def status_of(error: Exception) -> int:
    """The status that REST would have answered for one of `REFUSALS`, for the audit log."""
    if isinstance(error, KafkaError):
        refused = error.code in (KafkaCode.TOPIC_AUTHORIZATION_FAILED, KafkaCode.GROUP_AUTHORIZATION_FAILED)
        return (errors.NotAllowed if refused else errors.InvalidArgument).status
    return (from_store(error) if isinstance(error, MetastoreError) else error).status  # type: ignore[attr-defined,no-any-return]


def error_code(code: KafkaCode) -> Any:
    """The code as kio writes it. It is loaded late, because that takes long."""
    from kio.schema.errors import ErrorCode

    return ErrorCode(int(code))
