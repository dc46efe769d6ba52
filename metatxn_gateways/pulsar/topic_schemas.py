"""The schemas of a topic that Pulsar's clients name: kept as they are, and numbered (DESIGN §5.27).

No schema is ever read here, and none is compared with another one but for equality. So every change is accepted, which
Pulsar calls ALWAYS_COMPATIBLE.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, NamedTuple

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed
from metastore.incarnation import first_number
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records.topics import PulsarSchemaRecord, TopicRecord
from metastore.types import AtVersion, Record
from metatxn.service.patience import Patience
from metatxn_gateways.pulsar.codes import PulsarCode, PulsarError
from participants.messages.topics import not_found

MAX_SCHEMA_BYTES = 100_000
"""The most bytes of a schema, with its name and its properties."""
MAX_VERSIONS = 100
MAX_SCHEMAS_BYTES = 1_000_000
"""The most bytes of all versions of a topic."""
VERSION_BYTES = 8
_NO_SCHEMA = 0
"""The type of a schema for bytes, which is none."""
_TYPES = (*range(1, 21), 22)
"""The types that clients know how to read: of 21 is a consumer that takes any schema."""


class Versioned(NamedTuple):
    version: int
    schema: PulsarSchemaRecord


class TopicSchemas:
    """The schemas in the store. Every process may write them: each apply checks the topic's record."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def version_of(self, topic: str, wanted: Any) -> int | None:
        """The version of a schema that a producer names, which is stored if there is no equal one; None for the schema
        of bytes. Raises INCOMPATIBLE_SCHEMA for one that is not kept, NOT_ALLOWED for a topic without the format
        `pulsar`, NOT_FOUND and the store's errors."""
        schema = kept_schema(wanted, self._clock())
        patience = Patience()
        while await patience.lasts():
            stored = await self._store.get(paths.topic(topic))
            record = TopicRecord.decode(stored.value) if stored is not None else None
            if stored is None or record is None or record.deleted:
                raise not_found(topic)
            assert_writable(topic, record.format)
            if schema is None:
                return None
            known = await self._known(topic)
            if (found := next((each for each in known if each.schema.is_same(schema)), None)) is not None:
                return found.version
            _assert_room(topic, [each.schema for each in known], schema)
            begin = await first_number(self._store, per_ms=1)
            version = max(known[-1].version + 1 if known else 0, begin)
            batch = self._store.batch().check(AtVersion(stored.key, stored.version))
            try:
                await self._store.apply(batch.create(paths.pulsar_schema(topic, version), schema.encode()))
            except CheckFailed:  # the topic was changed, or another schema has this version
                continue
            return version
        raise patience.over(f"topic {topic}")

    async def get(self, topic: str, version: int | None) -> Versioned | None:
        """The schema of a version, or the latest one. Raises the store's errors."""
        if version is None:
            prefix = paths.pulsar_schemas(topic)
            latest = (await self._store.range(prefix, prefix_end(prefix), limit=1, reverse=True)).records
            return _versioned(latest[0]) if latest else None
        stored = await self._store.get(paths.pulsar_schema(topic, version))
        return _versioned(stored) if stored is not None else None

    async def _known(self, topic: str) -> list[Versioned]:
        """Every version, from the first one on."""
        return [_versioned(each) for each in (await self._store.scan(paths.pulsar_schemas(topic))).records]


def _versioned(stored: Record) -> Versioned:
    return Versioned(paths.parse_pulsar_schema(stored.key)[1], PulsarSchemaRecord.decode(stored.value))


def kept_schema(wanted: Any, now_ms: int) -> PulsarSchemaRecord | None:
    """The record of a schema; None for that of bytes. Raises INCOMPATIBLE_SCHEMA."""
    if wanted.type == _NO_SCHEMA:
        return None
    if wanted.type not in _TYPES:
        raise PulsarError(PulsarCode.INCOMPATIBLE_SCHEMA, f"a schema of the type {wanted.type} is not kept for a topic")
    schema = PulsarSchemaRecord(
        type=wanted.type,
        data=b64encode(wanted.schema_data).decode(),
        created_ms=now_ms,
        name=wanted.name or None,
        properties={each.key: each.value for each in wanted.properties} or None,
    )
    if (size := _size(schema)) > MAX_SCHEMA_BYTES:
        message = f"a schema has at most {MAX_SCHEMA_BYTES} bytes, with its name and its properties, and not {size}"
        raise PulsarError(PulsarCode.INCOMPATIBLE_SCHEMA, message)
    return schema


def _assert_room(topic: str, known: list[PulsarSchemaRecord], wanted: PulsarSchemaRecord) -> None:
    """Raises INCOMPATIBLE_SCHEMA."""
    if len(known) < MAX_VERSIONS and sum(map(_size, [*known, wanted])) <= MAX_SCHEMAS_BYTES:
        return
    message = (
        f"topic {topic} has {len(known)} versions of its schema, and there are at most {MAX_VERSIONS}, with "
        f"{MAX_SCHEMAS_BYTES} bytes together. Write messages with another schema to another topic"
    )
    raise PulsarError(PulsarCode.INCOMPATIBLE_SCHEMA, message)


def _size(schema: PulsarSchemaRecord) -> int:
    """The bytes of a schema, of its name, and of its properties as they are stored."""
    texts = json.dumps([schema.name, schema.properties], ensure_ascii=False)
    return len(schema.content) + len(texts.encode())


def assert_writable(topic: str, format: str | None) -> None:
    """Raises `PulsarError` unless Pulsar's clients may write to the topic."""
    if format != "pulsar":
        message = (
            f"topic {topic} accepts no messages from Pulsar's clients: it does not have the format pulsar. "
            "Create another one: metatxn topic create NAME --format pulsar"
        )
        raise PulsarError(PulsarCode.NOT_ALLOWED, message)


def version_bytes(version: int) -> bytes:
    """A version as messages and commands carry it."""
    return version.to_bytes(VERSION_BYTES)
