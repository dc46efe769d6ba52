"""The records of subscriptions and of their cursors."""

from __future__ import annotations

from typing import Literal

from metastore.txn.records.json_record import JsonRecord


class SubscriptionRecord(JsonRecord):
    """`/subscription/<topic>/<subscription>`: written when it is created, and when it is dropped.

    Every ack operation and every write of a cursor checks it, so that no write for a dropped one can take effect. Since
    `deleted_ms` the record remains as a tombstone, until it is forgotten (DESIGN §5.26): if it is created again, the
    subscription has a later incarnation. `starts` is, by segment, where a subscription begins that began with `latest`
    or was moved; on all other segments it begins with the earliest entry. `acked` has, by segment, ranges after that
    place that count as acknowledged from the beginning, each from `ledger:entry:index` up to, but not including,
    another place.
    """

    incarnation: int
    type: Literal["exclusive", "failover", "shared", "key_shared"]
    initial: Literal["earliest", "latest"]
    created_ms: int
    dead_letter_topic: str | None = None
    max_redeliveries: int | None = None
    ack_timeout_ms: int | None = None
    redelivery_delay_ms: int | None = None
    max_redelivery_delay_ms: int | None = None
    isolation: Literal["read_uncommitted"] | None = None
    """Absent: `read_committed`."""
    starts: dict[str, str] | None = None
    acked: dict[str, tuple[tuple[str, str], ...]] | None = None
    deleted: bool | None = None
    deleted_ms: int | None = None


class MarkDelete(JsonRecord):
    """`/cursor/…/mark-delete`: every message before the place `ledger:entry:index` is acknowledged."""

    before: str


class AckedBucket(JsonRecord):
    """`/cursor/…/acked/<bucket>`: acknowledged ranges after the mark-delete position, in order; each is from
    `ledger:entry:index` up to, but not including, another place."""

    ranges: tuple[tuple[str, str], ...]


class DeliveryCountsRecord(JsonRecord):
    """`/cursor/…/deliveries`: nothing at or after the place `through` was ever delivered. In each range of `counts`,
    from `ledger:entry:index` up to another place, every unacknowledged message was delivered at least this often."""

    through: str
    counts: tuple[tuple[str, str, int], ...] = ()
