"""Wire models that both services use."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


def example(**members: Any) -> ConfigDict:
    """The example of a model on the OpenAPI page."""
    return ConfigDict(json_schema_extra={"example": members})


class RequestBody(BaseModel):
    """A request body. Unknown fields, and numbers that are written as text, are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Process(BaseModel):
    """A service as it has announced itself: its address for the listener that the client uses, and those of all."""

    id: str
    url: str
    listeners: dict[str, str] = {}


class BrokerProcess(Process):
    """A broker as it has announced itself. `storage` is the one that it has open, `kafka` the address at which Kafka's
    clients reach it, and `pulsar` the URL at which Pulsar's do, if they do."""

    storage: str | None = None
    draining: bool = False
    kafka: str | None = None
    pulsar: str | None = None


class Cluster(BaseModel):
    """The services with their URLs, and the revision of the metadata store at which this was read (for `snapshot`
    reads). `version` is the cluster version, which says what every service knows; release 0.2.0 leaves it out."""

    model_config = example(
        coordinators=[{"id": "c1", "url": "http://127.0.0.1:8470"}],
        brokers=[{"id": "b1", "url": "http://127.0.0.1:8471", "storage": "s1", "draining": False}],
        revision=1042,
        version=2,
    )

    coordinators: list[Process]
    brokers: list[BrokerProcess]
    revision: int
    version: int = 1


class BrokerInfo(BaseModel):
    """A broker and its drain. `segments` are those that it has, or is about to open. `shared` means that other brokers
    may have its storage open, too, so that they can take its segments. `waiting_for` says why a drain
    cannot go on, if that is so."""

    model_config = example(
        id="b1",
        url="http://127.0.0.1:8471",
        storage="s1",
        shared=True,
        state="draining",
        segments=12,
    )

    id: str
    url: str
    storage: str
    shared: bool
    state: Literal["serving", "draining", "drained"]
    segments: int
    waiting_for: str | None = None


_BROKER_SEGMENT = {
    "segment": "segment://public/default/orders/0000-ffff-0",
    "topic": "public/default/orders",
    "state": "active",
    "entries": 13,
    "size_bytes": 4096,
}


class BrokerSegment(BaseModel):
    """A segment that a broker has, or is about to open. One that is not served says why in `waiting_for`, and not what
    is in it."""

    model_config = example(**_BROKER_SEGMENT)

    segment: str
    topic: str
    state: Literal["active", "sealed"] | None = None
    entries: int | None = None
    size_bytes: int | None = None
    waiting_for: str | None = None


class BrokerSegmentPage(BaseModel):
    model_config = example(items=[_BROKER_SEGMENT], next_page_token=None)

    items: list[BrokerSegment]
    next_page_token: str | None = None


AuditOutcome = Literal["allowed", "refused", "failed", "unknown"]


class AuditEntry(BaseModel):
    """A line of the audit log: who changed what, or tried to, and what the outcome was. `status` is that of HTTP, and
    `outcome` is `allowed`, `refused`, `failed` or `unknown`."""

    timestamp: str
    verb: str
    object: dict[str, Any] = {}
    arguments: dict[str, Any] | None = None
    principal: str | None = None
    address: str | None = None
    outcome: str
    status: int


class AuditPage(BaseModel):
    model_config = example(
        items=[
            {
                "timestamp": "2026-03-02T09:04:00.000000Z",
                "verb": "topic.delete",
                "object": {"topic": "public/default/orders"},
                "principal": "ada",
                "address": "10.0.0.7",
                "outcome": "allowed",
                "status": 204,
            }
        ],
        next_page_token=None,
    )

    items: list[AuditEntry]
    next_page_token: str | None = None


class Liveness(BaseModel):
    """The process is running. Whether it can serve requests is in `Health`."""

    model_config = example(status="ok")

    status: Literal["ok"] = "ok"


class Health(BaseModel):
    """`ready` is false while something is missing; `waiting_for` says what, and why. `warnings` says what is out of
    order although the process is ready, if anything is."""

    model_config = example(ready=True, waiting_for={})

    ready: bool
    waiting_for: dict[str, str] = {}
    warnings: dict[str, str] | None = None


class StoreStatus(BaseModel):
    """The metadata store as a service sees it. `kind` is the scheme of its URL, and `read_ms` the time in milliseconds
    that a linearizable read took."""

    kind: str
    revision: int
    read_ms: float
    size_bytes: int | None = None


class DiskSpace(BaseModel):
    """The space on the disk of the ledgers."""

    used_bytes: int
    capacity_bytes: int


class ThroughputSample(BaseModel):
    """What a service has done in the interval that ended at `at_ms`. Transactions are those that began or were decided
    at this service; messages and the bytes of their payloads went through this broker."""

    at_ms: int
    transactions_begun: int | None = None
    transactions_committed: int | None = None
    transactions_aborted: int | None = None
    messages_in: int | None = None
    bytes_in: int | None = None
    messages_out: int | None = None
    bytes_out: int | None = None


class ThroughputAnswer(BaseModel):
    """The samples of at most the last quarter of an hour, latest last. `interval_ms` is the time between two
    samples."""

    model_config = example(
        interval_ms=10_000,
        samples=[{"at_ms": 1767225600000, "messages_in": 1200, "bytes_in": 84000, "messages_out": 0, "bytes_out": 0}],
    )

    interval_ms: int
    samples: list[ThroughputSample]


class OpenTransactions(BaseModel):
    """The open transactions of the whole store when a coordinator last counted them, every 15 seconds."""

    count: int
    oldest_ms: int


class KnownServices(BaseModel):
    """The services that were announced when the metadata store last answered."""

    coordinators: list[Process]
    brokers: list[BrokerProcess]


STORE = "metadata store"
"""The name of the metadata store in `waiting_for`."""


class ServiceStatus(BaseModel):
    """One service and what it sees; `ready`, `waiting_for` and `warnings` are those of `Health`. `store` is null if the
    store does not answer, `open_transactions` at brokers and before the first count, `segments` (those that are
    served) and `draining` at coordinators, and `disk` also at brokers with an object store. `gc_backlog` counts the
    headers past their retention time that the last sweep of this coordinator had to keep, because brokers have not
    cleaned up after them; it is null at brokers and before the first sweep. `peer_token_ends_ms` is when a token ends
    that a broker shows to others, if it is signed. `store_answered_ms` is when the store last answered this service,
    which asks it every two seconds; `last_known` are the services that it then knew, and is null while the store
    answers. Times are in milliseconds."""

    model_config = example(
        service="broker",
        version="0.3.0",
        now_ms=1772442240000,
        up_ms=86400000,
        ready=True,
        waiting_for={},
        warnings={},
        store={"kind": "etcd", "revision": 1042, "read_ms": 1.3, "size_bytes": 25_165_824},
        segments=12,
        draining=False,
        disk={"used_bytes": 42_949_672_960, "capacity_bytes": 107_374_182_400},
        open_transactions=None,
        gc_backlog=None,
        peer_token_ends_ms=1774000000000,
        store_answered_ms=1772442239000,
        last_known=None,
    )

    service: Literal["coordinator", "broker"]
    version: str
    now_ms: int
    up_ms: int
    ready: bool
    waiting_for: dict[str, str] = {}
    warnings: dict[str, str] = {}
    store: StoreStatus | None = None
    segments: int | None = None
    draining: bool | None = None
    disk: DiskSpace | None = None
    open_transactions: OpenTransactions | None = None
    gc_backlog: int | None = None
    peer_token_ends_ms: int | None = None
    store_answered_ms: int | None = None
    last_known: KnownServices | None = None
