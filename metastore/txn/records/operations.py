"""The records of the operations of transactions on segments and for consumer groups, and of the entries that are hidden
on segments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from metastore.txn.records.json_record import JsonRecord


class WriteOp(JsonRecord):
    """The appends of one writer of a transaction on a segment. `after` is a lower bound of the positions of all their
    frames, known before the first one is appended; `count` and `sequence` are those of the first."""

    kind: Literal["write"] = "write"
    segment: str
    after: str
    count: int
    writer: str | None = None
    sequence: int | None = None


class AckOp(JsonRecord):
    """One acknowledgement of a transaction: of message `batch_index` of the entry at `position`, which contains
    `batch_size` messages, of all from it up to `batch_last`, or of the whole entry if there is no index; with
    `cumulative` also of everything before it."""

    kind: Literal["ack"] = "ack"
    segment: str
    subscription: str
    incarnation: int
    position: str
    batch_index: int | None = None
    batch_size: int | None = None
    batch_last: int | None = None
    cumulative: bool | None = None
    writer: str | None = None


class OffsetOp(JsonRecord):
    """The offset of a segment that a consumer group commits with a transaction. See `CommittedOffset`."""

    kind: Literal["offset"] = "offset"
    segment: str
    group: str
    offset: int
    leader_epoch: int | None = None
    metadata: str | None = None


OpRecord = Annotated[WriteOp | AckOp | OffsetOp, Field(discriminator="kind")]
_OP: TypeAdapter[WriteOp | AckOp | OffsetOp] = TypeAdapter(OpRecord)


def decode_op(value: bytes) -> WriteOp | AckOp | OffsetOp:
    return _OP.validate_json(value)


class Outcome(JsonRecord):
    """`/segment-state/<segment>/outcome/<txnId>`: which entries of a transaction on one segment readers must skip.

    It exists only if the transaction is not simply committed. `highest` is the last position that a frame of it can
    have.
    """

    highest: str
    aborted: bool | None = None
    counted_writers: tuple[str, ...] | None = None
