"""The records of topics, segments and ownership, as they are stored. Positions are `ledger:entry`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from metastore.txn.records import JsonRecord


class TopicRecord(JsonRecord):
    """`/topic/<name>`. `next_segment` numbers the next segment: segment ids are never reused."""

    name: str
    segments: tuple[str, ...]
    next_segment: int
    created_ms: int
    arrow_schema: str | None = Field(default=None, description="Serialized Arrow schema, base64.")


class LedgerRecord(JsonRecord):
    """One ledger of a segment. `entries` is its final length, known once it is sealed; `storage` the only storage
    that holds it."""

    id: int
    storage: str
    entries: int | None = None


class SegmentRecord(JsonRecord):
    """`/segment/<id>`: its place in the topic, and its ledgers in order; only the last one may be unsealed."""

    topic: str
    range: tuple[int, int]
    storage: str
    state: Literal["active", "sealed"] = "active"
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    ledgers: tuple[LedgerRecord, ...] = ()
    first_position: str = "0:-1"


class OwnerRecord(JsonRecord):
    """`/segment-owner/<id>`: written once per generation; every apply of the owner checks it (DESIGN §5.2)."""

    broker: str
    url: str
    generation: int


class ProcessRecord(JsonRecord):
    """`/cluster/broker/<id>`: an ephemeral record, liveness only."""

    url: str
