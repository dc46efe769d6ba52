"""The requests of clients for schemas.

    PRODUCER, GET_OR_CREATE_SCHEMA    a schema ─▶ its version: that of an equal one, or the next number
    GET_SCHEMA                        a version ─▶ its schema; without a version the latest one

A consumer names the schema with which it reads, too (SUBSCRIBE). Nobody else needs that, so it is not kept.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from metastore.txn.records.topics import PulsarSchemaRecord
from metatxn_gateways.pulsar.codes import PulsarCode, PulsarError
from metatxn_gateways.pulsar.commands import command
from metatxn_gateways.pulsar.names import named_topic
from metatxn_gateways.pulsar.session import PulsarSession
from metatxn_gateways.pulsar.topic_schemas import VERSION_BYTES, version_bytes


class Schemas:
    """The requests of one connection."""

    def __init__(self, session: PulsarSession) -> None:
        self._session = session
        self._schemas = session.context.schemas

    def get(self, request: Any) -> None:
        self._session.answer(self._got(request), partial(_refused, "get_schema_response", request))

    async def _got(self, request: Any) -> bytes:
        topic = named_topic(request.topic)
        self._session.require_sight(topic)
        async with self._session.schemas:
            await self._session.link.until_writable()
            found = await self._schemas.get(topic, wanted_version(request))
        self._session.require_sight(topic)
        if found is None:
            raise PulsarError(PulsarCode.TOPIC_NOT_FOUND, f"topic {topic} has no such schema of Pulsar's clients")
        return command(
            "get_schema_response",
            request_id=request.request_id,
            schema=shown_schema(found.schema),
            schema_version=version_bytes(found.version),
        )

    def get_or_create(self, request: Any) -> None:
        self._session.answer(self._created(request), partial(_refused, "get_or_create_schema_response", request))

    async def _created(self, request: Any) -> bytes:
        topic = named_topic(request.topic)
        self._session.require("produce", topic)
        async with self._session.schemas:
            version = await self._schemas.version_of(topic, request.schema)
        shown = version_bytes(version) if version is not None else b""
        return command("get_or_create_schema_response", request_id=request.request_id, schema_version=shown)


def shown_schema(schema: PulsarSchemaRecord) -> dict[str, Any]:
    """A schema as clients get it: as it came."""
    return {
        "name": schema.name or "",
        "type": schema.type,
        "schema_data": schema.content,
        "properties": [{"key": key, "value": value} for key, value in (schema.properties or {}).items()],
    }


def wanted_version(request: Any) -> int | None:
    """The version that is asked for, or None for the latest one. Raises TOPIC_NOT_FOUND if it is not a version."""
    if not request.HasField("schema_version"):
        return None
    if len(request.schema_version) != VERSION_BYTES:
        raise PulsarError(PulsarCode.TOPIC_NOT_FOUND, f"no schema has the version {request.schema_version.hex()}")
    return int.from_bytes(request.schema_version)


def _refused(answer: str, request: Any, code: PulsarCode, message: str) -> bytes:
    return command(answer, request_id=request.request_id, error=int(code), message=message)
