"""The records of the cluster: the running services, the incarnation of the store, and the cluster version."""

from __future__ import annotations

from metastore.txn.records.json_record import JsonRecord


class CoordinatorRecord(JsonRecord):
    """`/cluster/coordinator/<id>`: an ephemeral record, for liveness only. Processes of versions without coordinator
    ids have 0. `listeners` are its other addresses, by the names of the listeners that clients use."""

    url: str
    coordinator_id: int = 0
    listeners: dict[str, str] | None = None


class BrokerRecord(JsonRecord):
    """`/cluster/broker/<id>`: an ephemeral record, for liveness only. `storage` is the one that the broker has open.
    `draining` tells that its segments are to go to other brokers. `listeners` are as those of a coordinator. `peer` is
    the hash of a secret that it shows to other brokers. `kafka` is the address at which Kafka's clients reach it, as
    `host:port`, and `pulsar` the URL at which Pulsar's do."""

    url: str
    storage: str | None = None
    draining: bool | None = None
    listeners: dict[str, str] | None = None
    peer: str | None = None
    kafka: str | None = None
    pulsar: str | None = None


class DrainRecord(JsonRecord):
    """`/cluster/drain/<storage>`: the broker with these local files takes no new topics, also after a restart."""

    since_ms: int


class ProcessRecord(JsonRecord):
    """`/cluster/process/<id>`: an ephemeral record of a running service, under the same id as its announcement as a
    coordinator or a broker. It is there before the process reads the cluster version. `speaks` is the highest version
    that the process knows (see `metastore.versions`). Processes of release 0.2.0 have no such record."""

    service: str
    url: str
    release: str
    speaks: int


class VersionRecord(JsonRecord):
    """`/cluster/version`: the cluster version, and when it was raised last.

    Every process that starts writes the record again, as it was, after it was announced; so a process that raises the
    version cannot overlook a process.
    """

    version: int
    finalized_ms: int | None = None


class Incarnation(JsonRecord):
    """`/cluster/incarnation`: one life of the store, from its first start, or its recovery, to the next recovery.

    Every process serves only the incarnation with which it has started. `earlier` are those that were recovered, the
    latest first, and `recovered_ms` is the time of the latest recovery: new counters begin there. `went_back` says how
    a process detected that the store had been restored from a backup: then no process serves it before it has been
    recovered. `recovering` is set during the recovery.

    With a `barrier`, the store has not gone back: `went_back` is then addressed to processes of release 0.2.0, which
    know no cluster version, and must not serve a store of a later one.

    `restoring` names the backup that is being written into this store (see `participants.backup.restoring`).
    """

    id: str
    begun_ms: int
    earlier: tuple[str, ...] | None = None
    recovered_ms: int | None = None
    went_back: str | None = None
    recovering: bool | None = None
    barrier: bool | None = None
    restoring: str | None = None

    @property
    def restored_how(self) -> str | None:
        """How it was detected that the store was restored from a backup, if that was detected."""
        return None if self.barrier else self.went_back
