"""Wire models of the schemas of topics, with their versions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from metatxn.wire.broker import TopicSchema
from metatxn.wire.models import RequestBody, example
from metatxn.wire.policies import CompatibilityKind, SchemaUpdates, Setting

_COLUMNS: dict[str, Any] = {"fields": [{"name": "id", "type": "int64"}, {"name": "name", "type": "string"}]}
_VERSION: dict[str, Any] = {"version": 2, "schema": _COLUMNS, "created_ms": 1767225600000}


class SchemaVersion(BaseModel):
    """The columns that a topic has, or had. `created_ms` is null if an earlier version of metatxn set them."""

    model_config = ConfigDict(populate_by_name=True) | example(**_VERSION)

    version: int
    version_schema: Annotated[TopicSchema, Field(alias="schema")]
    created_ms: int | None = None


class SchemaInfo(BaseModel):
    """The schema of a topic: its version, or 0 without a schema; the columns; the policy for changes; and the versions
    that are remembered, from the current one on."""

    model_config = ConfigDict(populate_by_name=True) | example(
        topic="public/default/orders",
        version=2,
        schema=_COLUMNS,
        schema_compatibility={"value": "full", "source": "default"},
        schema_updates={"value": "producers", "source": "default"},
        versions=[_VERSION],
    )

    topic: str
    version: int
    topic_schema: Annotated[TopicSchema | None, Field(alias="schema")] = None
    schema_compatibility: Setting[CompatibilityKind]
    schema_updates: Setting[SchemaUpdates]
    versions: list[SchemaVersion]


class SchemaCheck(BaseModel):
    """Whether these columns may become the next version, and if not, why. `version` is the latest of the remembered
    ones that has exactly these columns, or null."""

    model_config = example(
        compatible=False,
        problems=["column id is string, and version 1 has written int64, which string cannot hold"],
        columns=["id"],
        version=None,
    )

    compatible: bool
    problems: list[str]
    columns: list[str]
    version: int | None = None


class CheckSchemaRequest(RequestBody):
    model_config = example(schema=_COLUMNS)

    topic_schema: Annotated[TopicSchema, Field(alias="schema")]


class SetSchemaRequest(CheckSchemaRequest):
    """A new schema. With `expected_version` nothing happens if the topic has another version by then."""

    model_config = example(schema=_COLUMNS, expected_version=1)

    expected_version: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None
