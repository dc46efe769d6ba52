"""The records of the consumer groups of Kafka's clients (DESIGN §5.20)."""

from __future__ import annotations

from metastore.txn.records.json_record import JsonRecord


class GroupRecord(JsonRecord):
    """`/group/<group>`: written for each generation. Every committed offset checks it, so nothing of an earlier
    generation can be committed any more."""

    generation: int
    updated_ms: int


class CommittedOffset(JsonRecord):
    """`/group-offset/<group>/<segment>`: where a consumer group goes on in a segment. It may go backwards."""

    offset: int
    committed_ms: int
    leader_epoch: int | None = None
    metadata: str | None = None
