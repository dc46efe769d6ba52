"""The records of topics."""

from __future__ import annotations

from pydantic import Field

from metastore.txn.records.json_record import JsonRecord
from metastore.txn.records.policies import PolicyRecord


class TopicRecord(JsonRecord):
    """`/topic/<name>`. `next_segment` is the number of the next segment: segment ids are never reused.

    A deleted topic remains as a tombstone, so that the counter survives; `segments` are then those that are not
    completely deleted yet.
    """

    name: str
    segments: tuple[str, ...]
    next_segment: int
    created_ms: int
    arrow_schema: str | None = Field(default=None, description="Serialized Arrow schema, base64.")
    policy: PolicyRecord | None = None
    deleted: bool | None = None
