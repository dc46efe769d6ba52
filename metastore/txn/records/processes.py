"""The records of the cluster: which processes serve, and which life of the store this is."""

from __future__ import annotations

from metastore.txn.records.json_record import JsonRecord


class CoordinatorRecord(JsonRecord):
    """`/cluster/coordinator/<id>`: an ephemeral record, liveness only. A process that is older than coordinator ids has
    0."""

    url: str
    coordinator_id: int = 0


class BrokerRecord(JsonRecord):
    """`/cluster/broker/<id>`: an ephemeral record, liveness only. `storage` is the one that the broker has open."""

    url: str
    storage: str | None = None


class Incarnation(JsonRecord):
    """`/cluster/incarnation`: one life of the store, from its first start, or its recovery, to the next recovery.

    Every process serves only the incarnation that it has started with. `earlier` are those that were recovered, the
    latest first, and `recovered_ms` is when the latest recovery was: new counters begin there. `went_back` says how a
    process found out that the store had been restored from a backup: then nobody serves it before it has been
    recovered. `recovering` is set while that goes on.
    """

    id: str
    begun_ms: int
    earlier: tuple[str, ...] | None = None
    recovered_ms: int | None = None
    went_back: str | None = None
    recovering: bool | None = None
