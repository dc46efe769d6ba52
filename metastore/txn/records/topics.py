"""The records of topics."""

from __future__ import annotations

from base64 import b64decode

from pydantic import Field

from metastore.txn.records.json_record import JsonRecord
from metastore.txn.records.policies import PolicyRecord
from metatxn.wire.names import SegmentParts, TopicFormat, number_of_segment


class FormerSchema(JsonRecord):
    """An earlier version of a schema. `created_ms` is absent of one that an earlier version of metatxn has set."""

    version: int
    arrow_schema: str
    created_ms: int | None = None


class SchemaHistory(JsonRecord):
    """The current version of a topic's schema, the former ones that are remembered, from the oldest on, and, as one
    schema, the columns of those that are not: of each the last type."""

    version: int
    created_ms: int
    former: tuple[FormerSchema, ...] = ()
    forgotten: str | None = None


class TopicRecord(JsonRecord):
    """`/topic/<name>`. `next_segment` is the number of the next segment: segment ids are never reused.

    A deleted topic remains as a tombstone, so that the counter survives, until it is forgotten (DESIGN §5.26);
    `segments` are then those that are not completely deleted yet, and `deleted_ms` is when it was deleted.

    `first_segment` is the number of the first segment that the topic had. It is known once a segment was removed, and
    tells such a segment from one that never was in this topic (see `had`).

    `schema_history` is absent as long as the schema has one version, or none.

    With the format `kafka` its i-th segment is the partition i, and each entry is a record batch of Kafka's. With the
    format `pulsar` entries may be those of Pulsar's clients.
    """

    name: str
    segments: tuple[str, ...]
    next_segment: int
    created_ms: int
    arrow_schema: str | None = Field(default=None, description="Serialized Arrow schema, base64.")
    policy: PolicyRecord | None = None
    deleted: bool | None = None
    first_segment: int | None = None
    format: TopicFormat | None = None
    schema_history: SchemaHistory | None = None
    deleted_ms: int | None = None

    @property
    def schema_version(self) -> int:
        """The version of the schema, or 0 without one."""
        return self.schema_history.version if self.schema_history else int(self.arrow_schema is not None)

    @property
    def home(self) -> str:
        """The segment with the lowest number, whose owner delivers the messages of subscriptions. Segments are removed
        and never come back, and no new one has a lower number than all others, so the number of the home only grows."""
        return min(self.segments, key=number_of_segment)

    def had(self, segment: str) -> bool:
        """Whether this segment was in the topic and has been removed. Ancestors go before their descendants, so none
        of the segments that are left is an ancestor of it."""
        try:
            found = SegmentParts.parse(segment)
        except ValueError:
            return False
        if self.deleted or self.first_segment is None or found.topic != self.name or segment in self.segments:
            return False
        if not self.first_segment <= found.number < self.next_segment:
            return False
        left = map(SegmentParts.parse, self.segments)
        return all(each.number > found.number for each in left if each.overlaps(found))


class ExclusiveProducerRecord(JsonRecord):
    """`/exclusive-producer/<topic>`. With a `session`, only entries of this epoch may be appended to the topic; without
    one, only entries without an epoch. `producer` is a name for people. The record stays when a hold has ended, as long
    as the topic's, so that no epoch is used twice."""

    epoch: int
    session: str | None = None
    producer: str | None = None
    claimed_ms: int | None = None
    until_ms: int | None = None

    @property
    def held(self) -> bool:
        return self.session is not None

    def is_over(self, now_ms: int) -> bool:
        """Whether the hold was not prolonged in time. It lasts anyway until another request ends it."""
        return self.until_ms is not None and self.until_ms < now_ms

    @property
    def ended(self) -> ExclusiveProducerRecord:
        return ExclusiveProducerRecord(epoch=self.epoch)


class ReadHoldRecord(JsonRecord):
    """`/read-hold/<topic>/<hold>`: while it is there, a snapshot of the topic at `revision` stays readable. It lasts
    beyond `until_ms` until it is removed. `principal` is who has taken it, for people."""

    revision: int
    created_ms: int
    until_ms: int
    principal: str | None = None

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms < now_ms


class PulsarSchemaRecord(JsonRecord):
    """`/pulsar-schema/<topic>/<version>`: a schema that a client of Pulsar's has named for the topic (DESIGN §5.27). It
    is never changed, and only these clients know what it means: `type` is Pulsar's number of its kind, and `name` is
    for people."""

    type: int
    data: str = Field(description="The bytes of the schema, base64.")
    created_ms: int
    name: str | None = None
    properties: dict[str, str] | None = None

    @property
    def content(self) -> bytes:
        """The bytes of the schema. Raises `ValueError`."""
        return b64decode(self.data, validate=True)

    def is_same(self, other: PulsarSchemaRecord) -> bool:
        """Whether messages of one can be read by the other. Clients in different languages name the same schema
        differently, so the name does not matter; of a pair of a key and a value the properties tell how it is
        encoded."""
        return (self.type, self.data, self.properties) == (other.type, other.data, other.properties)
