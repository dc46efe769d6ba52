"""The records of transactions and of their keys, which the coordinators write."""

from __future__ import annotations

from functools import lru_cache
from typing import Self

from pydantic import TypeAdapter

from metastore.txn.records.json_record import JsonRecord
from metastore.txn.states import ExpiredBy, TxnState

SHORT_HEADER_BYTES = 512


class Header(JsonRecord):
    """`/txn/<txnId>`: the linearization point. It is written exactly twice: created OPEN, then made final.

    `timeout_ms` is the absolute deadline given at begin; a keep-alive or a prepare moves the deadline in a record of
    its own, because the header must stay at its first version while it is OPEN. `writers`, once COMMITTED, is the list
    of writers that count (None: all of them; empty: only operations without a writer). `ended_by` is the principal that
    requested the decision, if it was authenticated. `renewals` and `renewed_ms` are those of the lease, whose record
    the decision deletes.
    """

    state: TxnState
    timeout_ms: int
    created_ms: int
    finalized_ms: int | None = None
    owner: str | None = None
    key: str | None = None
    epoch: int | None = None
    version: int | None = None
    writers: tuple[str, ...] | None = None
    reason: str | None = None
    expired_by: ExpiredBy | None = None
    ended_by: str | None = None
    renewed_ms: int | None = None
    renewals: int | None = None
    properties: dict[str, str] | None = None

    @property
    def as_begun(self) -> Header:
        """The header as it was before the decision."""
        decided = ("finalized_ms", "writers", "reason", "expired_by", "ended_by", "renewed_ms", "renewals")
        return self.model_copy(update={"state": TxnState.OPEN, **dict.fromkeys(decided)})

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Transactions that begin or end in one millisecond have equal headers, so decoded ones are cached. Long ones
        (lists of writers) are not kept in memory for that."""
        return cls._decode_short(value) if len(value) <= SHORT_HEADER_BYTES else super().decode(value)

    @classmethod
    @lru_cache(maxsize=2048)
    def _decode_short(cls, value: bytes) -> Self:
        return super().decode(value)


class Lease(JsonRecord):
    """`/txn-lease/<txnId>`: exists only after a keep-alive; its deadline replaces the header's.

    `renewals` is the number of keep-alives, and `renewed_ms` the time of the last one.
    """

    deadline_ms: int
    renewed_ms: int | None = None
    renewals: int | None = None


class Prepared(JsonRecord):
    """`/txn-prepared/<txnId>`: exists only between an external prepare and the decision.

    `renewals` and `renewed_ms` are those of the lease, whose record it replaces.
    """

    prepared_ms: int
    deadline_ms: int
    renewed_ms: int | None = None
    renewals: int | None = None


_WRITERS: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[str, ...])


class RememberedWriters(JsonRecord):
    """`/txn-writers/<txnId>`: writers that count, remembered before the commit. Stored as a plain list."""

    writers: tuple[str, ...]

    def encode(self) -> bytes:
        return _WRITERS.dump_json(self.writers)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        return cls(writers=_WRITERS.validate_json(value))


class TransactionKey(JsonRecord):
    """`/txn-key/<owner>&<key>`: fencing and idempotence. Deleting leaves a tombstone. What is not used is forgotten
    (DESIGN §5.26), and epochs never repeat.

    `session` names the connection that holds `epoch`, if it gave a name: connecting again with the same name returns
    the same epoch instead of incrementing it. `fenced_sessions` are the last sessions that were taken over from.

    `last_txn_id` is the transaction that was begun last to follow another one, and `ended_by_holder` tells that the
    holder of the key has ended it, or knows how it ended (DESIGN §5.22).
    """

    epoch: int
    updated_ms: int
    txn_id: str | None = None
    last_version: int | None = None
    session: str | None = None
    fenced_sessions: tuple[str, ...] | None = None
    deleted: bool | None = None
    last_txn_id: str | None = None
    ended_by_holder: bool | None = None


class GcHorizon(JsonRecord):
    """`/gc/horizon`: the highest decision revision whose header was deleted.

    `finalized_ms` is the latest time at which one of those was decided. It tells a restored store which of the
    transactions without a header were collected, and which began after the backup (see `participants.restored`).
    """

    revision: int
    finalized_ms: int | None = None

    def joined(self, other: Self) -> Self:
        """Both combined: the later revision, and the later time."""
        times = [time for time in (self.finalized_ms, other.finalized_ms) if time is not None]
        revision = max(self.revision, other.revision)
        return self.model_copy(update={"revision": revision, "finalized_ms": max(times, default=None)})


class FirstNumber(JsonRecord):
    """`/gc/first-number`: where a counter continues that the store does not know, because its record was forgotten
    (DESIGN §5.26): of segments of a topic, of incarnations of a subscription, of epochs."""

    number: int
