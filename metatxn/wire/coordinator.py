"""Wire models of the coordinator. The client library imports this module too, so it needs nothing but pydantic."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from metatxn.wire import errors
from metatxn.wire.ids import TxnId
from metatxn.wire.models import Cluster as Cluster
from metatxn.wire.models import Process as Process
from metatxn.wire.models import RequestBody, example
from metatxn.wire.problems import Problem, problem_of
from metatxn.wire.text import no_control_characters

MAX_TIMEOUT_MS = 86_400_000
MAX_WRITERS = 10_000
MAX_BATCH_ITEMS = 1_000

State = Literal["OPEN", "COMMITTED", "ABORTED"]
MAX_NUMBER = 2**53 - 1


MAX_KEY_LENGTH = 512
_TXN_ID = "0000000000000000000000000000002a"
_UNKNOWN_TXN = problem_of(errors.TransactionNotFound(f"transaction {_TXN_ID} is unknown", txn_id=_TXN_ID))
_SEGMENT_KEY = "segment%3A%2F%2Fpublic%2Fdefault%2Forders%2F0000-ffff-0"
_HANGING = {
    "txn_id": _TXN_ID,
    "state": "OPEN",
    "created_ms": 1767225600000,
    "deadline_ms": 1767229200000,
    "owner": "billing",
    "revision": 1042,
    "age_ms": 1800000,
    "touched": [{"segment": "segment://public/default/orders/0000-ffff-0", "after": "7:11"}],
}
_KEY = {
    "key": "nightly",
    "owner": "billing",
    "epoch": 4,
    "txn_id": _TXN_ID,
    "last_version": 41,
    "updated_ms": 1767225600000,
}


def valid_key(value: str) -> str:
    if "&" in value:
        raise ValueError("must not contain '&'")
    if not 1 <= len(value) <= MAX_KEY_LENGTH:
        raise ValueError(f"must have 1 to {MAX_KEY_LENGTH} characters")
    return no_control_characters(value)


TXN_ID_FIELD = Field(
    description="32 lower-case hexadecimal digits", examples=[_TXN_ID], json_schema_extra={"pattern": "^[0-9a-f]{32}$"}
)
OwnerName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(no_control_characters)]
TransactionKeyName = Annotated[str, AfterValidator(valid_key)]
WriterName = OwnerName
Writers = Annotated[list[WriterName], Field(max_length=MAX_WRITERS)]
TimeoutMs = Annotated[int, Field(ge=1, le=MAX_TIMEOUT_MS)]
Number = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
PropertyName = Annotated[str, Field(min_length=1, max_length=256)]
PropertyValue = Annotated[str, Field(max_length=1024)]


class BeginRequest(RequestBody):
    """The begin of a transaction. `timeout_ms` is a duration."""

    model_config = example(
        timeout_ms=60_000, owner="billing", transaction_key="nightly", epoch=3, version=42, properties={"job": "load"}
    )

    timeout_ms: TimeoutMs = 60_000
    owner: OwnerName | None = None
    transaction_key: TransactionKeyName | None = None
    epoch: (
        Annotated[Number, Field(description="The epoch that connect returned; required with transaction_key.")] | None
    ) = None
    version: Number | None = None
    properties: Annotated[dict[PropertyName, PropertyValue], Field(max_length=64)] | None = None


class CommitRequest(RequestBody):
    """A commit. `writers` are the writers that count. Without it the remembered writers count, or all if none are
    remembered."""

    model_config = example(writers=["task-0-attempt-1", "task-1-attempt-0"])

    writers: Writers | None = None


class AbortRequest(RequestBody):
    """An abort. `force` is for administrators: it also ends a prepared transaction."""

    model_config = example(reason="the input was wrong", force=False)

    reason: Annotated[str, Field(max_length=1024)] | None = None
    force: bool = False


class BeginItem(BeginRequest):
    model_config = example(op="begin", timeout_ms=60_000)

    op: Literal["begin"]


class CommitItem(CommitRequest):
    model_config = example(op="commit", txn_id=_TXN_ID)

    op: Literal["commit"]
    txn_id: Annotated[TxnId, TXN_ID_FIELD]


class AbortItem(AbortRequest):
    model_config = example(op="abort", txn_id=_TXN_ID, reason="the input was wrong")

    op: Literal["abort"]
    txn_id: Annotated[TxnId, TXN_ID_FIELD]


BatchItem = Annotated[BeginItem | CommitItem | AbortItem, Field(discriminator="op")]


class BatchRequest(RequestBody):
    """Several requests in one. Each item has the fields of the single request. If one item is malformed, the whole
    request is refused and has no effect."""

    model_config = example(
        items=[{"op": "begin", "timeout_ms": 60_000}, {"op": "commit", "txn_id": _TXN_ID, "writers": ["task-0"]}]
    )

    items: Annotated[list[BatchItem], Field(max_length=MAX_BATCH_ITEMS)]


class WritersRequest(RequestBody):
    model_config = example(add=["task-0-attempt-1"])

    add: Writers


class KeepAliveRequest(RequestBody):
    """A new deadline. `timeout_ms` is a duration that begins now."""

    model_config = example(timeout_ms=60_000)

    timeout_ms: TimeoutMs


class PrepareRequest(RequestBody):
    """A prepare. `prepared_timeout_ms` is a duration that begins now."""

    model_config = example(prepared_timeout_ms=3_600_000)

    prepared_timeout_ms: TimeoutMs | None = None


class ConnectRequest(RequestBody):
    """A connection to a transaction key. `epoch` -1 takes over from any holder of the key; any other value must be the
    current epoch. Both increment the epoch.

    With `session`, a repeated takeover with the same session returns the same epoch, so a lost reply does no harm. A
    session that was taken over can never connect again.
    """

    model_config = example(epoch=-1, owner="billing", session="run-2")

    epoch: Annotated[int, Field(ge=-1, le=MAX_NUMBER)]
    owner: OwnerName | None = None
    session: OwnerName | None = None


class FenceRequest(RequestBody):
    """A request to fence the holder of a key. `epoch` must be the current one, so that a process that has taken over
    meanwhile is left alone."""

    model_config = example(epoch=4)

    epoch: Number


class TransactionHeader(BaseModel):
    """A transaction, as every request returns it. `deadline_ms` is the deadline in force; only an open transaction has
    one."""

    model_config = example(
        txn_id=_TXN_ID, state="OPEN", created_ms=1767225600000, deadline_ms=1767225660000, revision=1042
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
    ended_by: str | None = Field(
        default=None, description="The principal that committed or aborted it, if it was authenticated."
    )
    renewed_ms: int | None = Field(default=None, description="The last keep-alive, once it is decided.")
    renewals: int | None = Field(default=None, description="The number of keep-alives, once it is decided.")
    prepared: bool | None = None
    already_committed: bool | None = None
    revision: int | None = Field(default=None, description="The store revision at which the header was last written.")
    properties: dict[str, str] | None = None


class BatchItemAnswer(BaseModel):
    """What the single request would have answered: `txn` with a status below 300, or else `problem`."""

    status: int
    txn: TransactionHeader | None = None
    problem: Problem | None = None


class BatchAnswer(BaseModel):
    """One answer for each item, in the order of the items."""

    model_config = example(
        items=[
            {"status": 201, "txn": {"txn_id": _TXN_ID, "state": "OPEN", "created_ms": 1767225600000}},
            {"status": 404, "problem": _UNKNOWN_TXN.model_dump(mode="json")},
        ]
    )

    items: list[BatchItemAnswer]


class TransactionPage(BaseModel):
    model_config = example(
        items=[
            {
                "txn_id": _TXN_ID,
                "state": "COMMITTED",
                "created_ms": 1767225600000,
                "finalized_ms": 1767225601500,
                "revision": 1043,
            }
        ],
        next_page_token=None,
    )

    items: list[TransactionHeader]
    next_page_token: str | None = None


class TouchedSegment(BaseModel):
    """A place where a transaction has operations. A write may hold back the segment's readers at the position `after`;
    an acknowledgement prevents messages of the subscription from being redelivered; an offset is one that the consumer
    `group` of Kafka's clients commits."""

    segment: str
    subscription: str | None = None
    group: str | None = None
    after: str | None = None


class HangingTransaction(TransactionHeader):
    """A transaction that has been open since `created_ms`. `writers` are those remembered so far; `more_touched` is
    true if it touches more than is shown."""

    model_config = example(**_HANGING)

    age_ms: int
    touched: list[TouchedSegment]
    more_touched: bool | None = None


class HangingPage(BaseModel):
    model_config = example(items=[_HANGING], next_page_token=None)

    items: list[HangingTransaction]
    next_page_token: str | None = None


class Operation(BaseModel):
    """One operation record; `key` is its key in the metadata store."""

    key: str
    kind: Literal["write", "ack", "offset"]
    segment: str
    after: str | None = None
    count: int | None = None
    subscription: str | None = None
    position: str | None = None
    writer: str | None = None
    sequence: int | None = None
    group: str | None = None
    offset: int | None = None


class OperationPage(BaseModel):
    model_config = example(
        items=[
            {
                "key": f"/txn-op/{_TXN_ID}/{_SEGMENT_KEY}:w:{1:020d}:{1:020d}",
                "kind": "write",
                "segment": "segment://public/default/orders/0000-ffff-0",
                "after": "7:11",
                "count": 100,
                "writer": "task-0-attempt-1",
                "sequence": 0,
            }
        ],
        next_page_token=None,
    )

    items: list[Operation]
    next_page_token: str | None = None


class StoredRecord(BaseModel):
    """A record as it is in the metadata store. `value` is its JSON; null if it is empty. `version` grows with each
    write of the record; on etcd it is the revision of the last one. `command` shows the record with the tool of the
    store."""

    key: str
    value: Any = None
    version: int
    command: str | None = None


class StoredRecordPage(BaseModel):
    model_config = example(
        items=[
            {
                "key": f"/txn/{_TXN_ID}",
                "value": {"state": "OPEN", "timeout_ms": 1767225660000, "created_ms": 1767225600000},
                "version": 1042,
                "command": f"etcdctl get /txn/{_TXN_ID}",
            }
        ],
        next_page_token=None,
    )

    items: list[StoredRecord]
    next_page_token: str | None = None


class StoreFinding(BaseModel):
    """A record that contradicts others, or the layout of the store, and what to do about it."""

    key: str
    problem: str
    action: str


class CheckedRecords(BaseModel):
    """Records whose keys have the same beginning: how many were examined, the bytes of their keys and values, and what
    is wrong with them."""

    prefix: str
    records: int = 0
    bytes: int = 0
    findings: list[StoreFinding] = []


class StoreCheckPage(BaseModel):
    model_config = example(
        items=[
            {"prefix": "/txn-lease/", "records": 3, "bytes": 183, "findings": []},
            {
                "prefix": "/txn-seq/",
                "records": 1,
                "bytes": 12,
                "findings": [
                    {
                        "key": "/txn-seq/7",
                        "problem": "the value cannot be read: it is not a number",
                        "action": "Restore the record from a backup.",
                    }
                ],
            },
        ],
        next_page_token=None,
    )

    items: list[CheckedRecords]
    next_page_token: str | None = None


def key_prefix(key: str) -> str:
    """The beginning of a key by which records are counted: `/txn/` for `/txn/…`."""
    return key[: key.find("/", 1) + 1] or "/"


class ConnectAnswer(BaseModel):
    """The new epoch, the transaction that the previous connection had open, and the last version that was committed."""

    model_config = example(epoch=4, aborted_txn_id=_TXN_ID, last_version=41)

    epoch: int
    aborted_txn_id: str | None = None
    prepared_txn_id: str | None = None
    last_version: int | None = None


class TransactionKeyInfo(BaseModel):
    model_config = example(**_KEY)

    key: str
    owner: str | None = None
    epoch: int
    txn_id: str | None = None
    last_version: int | None = None
    updated_ms: int


class DeletedTransactionKey(BaseModel):
    """What remains of a deleted key: its epoch never repeats, and `last_version` still counts as committed."""

    model_config = example(key="nightly", owner="billing", epoch=4, last_version=41, aborted_txn_id=_TXN_ID)

    key: str
    owner: str | None = None
    epoch: int
    last_version: int | None = None
    aborted_txn_id: str | None = None


class TransactionKeyPage(BaseModel):
    model_config = example(items=[_KEY], next_page_token=None)

    items: list[TransactionKeyInfo]
    next_page_token: str | None = None


class FinalizeRequest(RequestBody):
    """The raise of the cluster version. With `accept_absent` it goes on although brokers that are not running own
    segments. They must never be started again with an earlier release."""

    model_config = example(accept_absent=False)

    accept_absent: bool = False


class UpgradeProcess(BaseModel):
    """A running process: the release that it runs, and the highest cluster version that it speaks."""

    service: str
    url: str
    release: str
    speaks: int


class UpgradeStatus(BaseModel):
    """`version` is the cluster version, and `target` the one that the answering process speaks, which `release` was the
    first to speak. `obstacles` say what has to be done before the version can become `target`, and `features` what that
    will allow."""

    model_config = example(
        version=1,
        target=2,
        release="0.3.0",
        processes=[
            {"service": "coordinator", "url": "http://127.0.0.1:8470", "release": "0.3.0", "speaks": 2},
            {"service": "broker", "url": "http://127.0.0.1:8471", "release": "0.2.0", "speaks": 1},
        ],
        obstacles=["broker http://127.0.0.1:8471 runs release 0.2.0: restart it with a release that speaks version 2"],
        features=["policies of topics"],
    )

    version: int
    target: int
    release: str | None = None
    finalized_ms: int | None = None
    processes: list[UpgradeProcess]
    obstacles: list[str]
    features: list[str]
