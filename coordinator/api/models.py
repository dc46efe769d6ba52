"""Wire models of the coordinator. Imported by the client library too, so nothing but pydantic is needed here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.models import Cluster as Cluster
from service.models import Process as Process

MAX_TIMEOUT_MS = 86_400_000
MAX_WRITERS = 10_000

State = Literal["OPEN", "COMMITTED", "ABORTED"]
MAX_NUMBER = 2**53 - 1


MAX_KEY_LENGTH = 512


def no_control_characters(value: str) -> str:
    if any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in value):
        raise ValueError("must not hold control characters")
    return value


def valid_key(value: str) -> str:
    if "&" in value:
        raise ValueError("must not hold '&'")
    if not 1 <= len(value) <= MAX_KEY_LENGTH:
        raise ValueError(f"must have 1 to {MAX_KEY_LENGTH} characters")
    return no_control_characters(value)


Name = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(no_control_characters)]
TransactionKeyName = Annotated[str, AfterValidator(valid_key)]
WriterName = Name
Writers = Annotated[list[WriterName], Field(max_length=MAX_WRITERS)]
TimeoutMs = Annotated[int, Field(ge=1, le=MAX_TIMEOUT_MS)]
Number = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
PropertyName = Annotated[str, Field(min_length=1, max_length=256)]
PropertyValue = Annotated[str, Field(max_length=1024)]


class Request(BaseModel):
    """Request bodies refuse unknown fields, and numbers written as text."""

    model_config = ConfigDict(extra="forbid", strict=True)


class BeginRequest(Request):
    """`timeout_ms` is a duration."""

    timeout_ms: TimeoutMs = 60_000
    owner: Name | None = None
    transaction_key: TransactionKeyName | None = None
    epoch: Number | None = None
    version: Number | None = None
    properties: Annotated[dict[PropertyName, PropertyValue], Field(max_length=64)] | None = None


class CommitRequest(Request):
    writers: Writers | None = None


class AbortRequest(Request):
    reason: Annotated[str, Field(max_length=1024)] | None = None
    force: bool = False


class WritersRequest(Request):
    add: Writers


class KeepAliveRequest(Request):
    timeout_ms: TimeoutMs


class PrepareRequest(Request):
    prepared_timeout_ms: TimeoutMs | None = None


class ConnectRequest(Request):
    """`epoch` -1 takes over from whoever holds the key; any other must be the current one. Both bump the epoch.

    With `session`, taking over twice under the same name answers the same epoch, so that a lost reply costs nothing;
    and a session that was taken over from can never connect again.
    """

    epoch: Annotated[int, Field(ge=-1, le=MAX_NUMBER)]
    owner: Name | None = None
    session: Name | None = None


class TransactionHeader(BaseModel):
    """A transaction as every verb answers it."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "txn_id": "0000000000000000000000000000002a",
                "state": "OPEN",
                "created_ms": 1767225600000,
                "deadline_ms": 1767225660000,
            }
        }
    )

    txn_id: str | None = None
    state: State
    created_ms: int | None = None
    deadline_ms: int | None = None
    finalized_ms: int | None = None
    owner: str | None = None
    transaction_key: str | None = None
    epoch: int | None = None
    version: int | None = None
    writers: list[str] | None = None
    reason: str | None = None
    expired_by: Literal["timeout", "fencing"] | None = None
    prepared: bool | None = None
    already_committed: bool | None = None
    revision: int | None = Field(default=None, description="Store revision at which the header was last written.")
    properties: dict[str, str] | None = None


class TransactionPage(BaseModel):
    items: list[TransactionHeader]
    next_page_token: str | None = None


class Operation(BaseModel):
    """One operation record; `key` is its key in the metadata store."""

    key: str
    kind: Literal["write", "ack"]
    segment: str
    after: str | None = None
    count: int | None = None
    subscription: str | None = None
    position: str | None = None
    writer: str | None = None
    sequence: int | None = None


class OperationPage(BaseModel):
    items: list[Operation]
    next_page_token: str | None = None


class ConnectAnswer(BaseModel):
    epoch: int
    aborted_txn_id: str | None = None
    prepared_txn_id: str | None = None
    last_version: int | None = None


class TransactionKeyInfo(BaseModel):
    key: str
    owner: str | None = None
    epoch: int
    txn_id: str | None = None
    last_version: int | None = None
    updated_ms: int


class DeletedTransactionKey(BaseModel):
    """What deleting a key left behind: its epoch never repeats, and `last_version` still counts as committed."""

    key: str
    owner: str | None = None
    epoch: int
    last_version: int | None = None
    aborted_txn_id: str | None = None


class TransactionKeyPage(BaseModel):
    items: list[TransactionKeyInfo]
    next_page_token: str | None = None
