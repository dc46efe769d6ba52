"""The values of the transaction records: compact JSON, read by people with `etcdctl`.

Unknown fields are ignored when reading, so that an older process can read what a newer one wrote. Times are epoch
milliseconds. Positions are `ledger:entry`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from metastore.txn.states import ExpiredBy, TxnState


class JsonRecord(BaseModel):
    """A record that is stored as compact JSON; absent fields are left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        # As `model_dump_json`, which makes text of it first and takes three times as long.
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        return cls.model_validate_json(value)


SHORT_HEADER_BYTES = 512


class Header(JsonRecord):
    """`/txn/<txnId>`: the linearization point. Written exactly twice: created OPEN, made final.

    `timeout_ms` is the absolute deadline given at begin; a keep-alive or a prepare moves the deadline in a record of
    its own, because the header must stay at its first version while it is OPEN. `writers`, once COMMITTED, is the
    list of writers that count (None: all of them; empty: only operations without a writer).
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
    properties: dict[str, str] | None = None

    @property
    def as_begun(self) -> Header:
        """What it was before it was decided."""
        decided = dict.fromkeys(("finalized_ms", "writers", "reason", "expired_by"))
        return self.model_copy(update={"state": TxnState.OPEN, **decided})

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """What begins or ends in one millisecond has equal headers. Long ones (lists of writers) are not kept in memory
        for that."""
        return cls._decode_short(value) if len(value) <= SHORT_HEADER_BYTES else super().decode(value)

    @classmethod
    @lru_cache(maxsize=2048)
    def _decode_short(cls, value: bytes) -> Self:
        return super().decode(value)


class Lease(JsonRecord):
    """`/txn-lease/<txnId>`: exists only after a keep-alive; its deadline replaces the header's."""

    deadline_ms: int


class Prepared(JsonRecord):
    """`/txn-prepared/<txnId>`: exists only between an external prepare and the decision."""

    prepared_ms: int
    deadline_ms: int


_WRITERS: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[str, ...])


class RememberedWriters(JsonRecord):
    """`/txn-writers/<txnId>`: writers that count, remembered before the commit. Stored as a plain list."""

    writers: tuple[str, ...]

    def encode(self) -> bytes:
        return _WRITERS.dump_json(self.writers)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        return cls(writers=_WRITERS.validate_json(value))


class WriteOp(JsonRecord):
    """One transactional append. `after` is a lower bound of where its frame lands, known before it is appended."""

    kind: Literal["write"] = "write"
    segment: str
    after: str
    count: int
    writer: str | None = None
    sequence: int | None = None


class AckOp(JsonRecord):
    """One transactional acknowledgement: of message `batch_index` of the entry at `position`, which holds `batch_size`
    messages, or of the whole entry when there is no index; with `cumulative` of everything before it too."""

    kind: Literal["ack"] = "ack"
    segment: str
    subscription: str
    incarnation: int
    position: str
    batch_index: int | None = None
    batch_size: int | None = None
    cumulative: bool | None = None
    writer: str | None = None


OpRecord = Annotated[WriteOp | AckOp, Field(discriminator="kind")]
_OP: TypeAdapter[WriteOp | AckOp] = TypeAdapter(OpRecord)


def decode_op(value: bytes) -> WriteOp | AckOp:
    return _OP.validate_json(value)


class TransactionKey(JsonRecord):
    """`/txn-key/<owner>&<key>`: fencing and idempotence. Deleting leaves a tombstone, so that epochs never repeat.

    `session` names the connection that holds `epoch`, when it gave a name: connecting again under the same name
    finds the epoch instead of bumping it. `fenced_sessions` are the last ones it took over from.
    """

    epoch: int
    updated_ms: int
    txn_id: str | None = None
    last_version: int | None = None
    session: str | None = None
    fenced_sessions: tuple[str, ...] | None = None
    deleted: bool | None = None


class Outcome(JsonRecord):
    """`/segment-state/<segment>/outcome/<txnId>`: what a reader must hide of a transaction on one segment.

    Exists only where the transaction is not simply committed. `highest` is the last position a frame of it can have.
    """

    highest: str
    aborted: bool | None = None
    counted_writers: tuple[str, ...] | None = None


class GcHorizon(JsonRecord):
    """`/gc/horizon`: the highest decision revision whose header was deleted.

    `finalized_ms` is the latest time at which one of those was decided. It tells a restored store which of the
    transactions without a header were collected, and which began after the backup (see `participants.restored`).
    """

    revision: int
    finalized_ms: int | None = None

    def joined(self, other: Self) -> Self:
        """Both together: the later revision, and the later time."""
        times = [time for time in (self.finalized_ms, other.finalized_ms) if time is not None]
        revision = max(self.revision, other.revision)
        return self.model_copy(update={"revision": revision, "finalized_ms": max(times, default=None)})


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


class SubscriptionRecord(JsonRecord):
    """`/subscription/<topic>/<subscription>`: written when it is created, and when it is dropped.

    Every ack operation and every write of a cursor checks it, so that nothing of a dropped one can land. The record
    stays as a tombstone: created again, the subscription has the next incarnation. `starts` is where a subscription
    that began with `latest` begins, by segment; everywhere else it begins with the earliest entry.
    """

    incarnation: int
    type: Literal["exclusive", "failover", "shared"]
    initial: Literal["earliest", "latest"]
    created_ms: int
    dead_letter_topic: str | None = None
    max_redeliveries: int | None = None
    starts: dict[str, str] | None = None
    deleted: bool | None = None


class MarkDelete(JsonRecord):
    """`/cursor/…/mark-delete`: every message before the place `ledger:entry:index` is acknowledged."""

    before: str


class AckedBucket(JsonRecord):
    """`/cursor/…/acked/<bucket>`: acknowledged ranges behind the mark-delete, `ledger:entry:index` up to before
    another one, in order."""

    ranges: tuple[tuple[str, str], ...]
