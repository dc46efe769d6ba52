"""The records of what transactions do on segments, and of what is hidden there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from metastore.txn.records.json_record import JsonRecord


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


class Outcome(JsonRecord):
    """`/segment-state/<segment>/outcome/<txnId>`: what a reader must hide of a transaction on one segment.

    Exists only where the transaction is not simply committed. `highest` is the last position a frame of it can have.
    """

    highest: str
    aborted: bool | None = None
    counted_writers: tuple[str, ...] | None = None
