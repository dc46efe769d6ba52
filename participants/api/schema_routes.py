"""The schemas of topics and their versions."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from metatxn.service.audited import audited
from metatxn.service.http import problems
from metatxn.wire.schemas import CheckSchemaRequest, SchemaCheck, SchemaInfo, SetSchemaRequest
from participants.api.rights import TopicPath, on_topic, seeing_topic
from participants.broker.broker import Broker
from participants.messages import schemas

_PATH = "/v1/topics/{topic}/schema"


def add_schema_routes(api: APIRouter, broker: Broker) -> None:
    seeing = [Depends(seeing_topic)]

    @api.get(_PATH, tags=["schemas"], responses=problems(404, 422, 503), dependencies=seeing)
    async def get_schema(topic: TopicPath) -> SchemaInfo:
        """Get a topic's schema, the versions that it had before, and what its policy says about changes."""
        return await broker.schemas.show(topic)

    @api.post(f"{_PATH}/check", tags=["schemas"], responses=problems(404, 422, 503), dependencies=seeing)
    async def check_schema(topic: TopicPath, request: CheckSchemaRequest) -> SchemaCheck:
        """Tell whether these columns may become the next version of a topic's schema. Nothing is changed."""
        return await broker.schemas.check(topic, schemas.from_wire(request.topic_schema))

    @api.put(_PATH, tags=["schemas"], responses=problems(404, 409, 422, 503, 504), dependencies=[on_topic("admin")])
    @audited("schema.change", body=("schema", "expected_version"))
    async def set_schema(topic: TopicPath, request: SetSchemaRequest) -> SchemaInfo:
        """Make these columns the next version of a topic's schema, unless it has them already. Messages that were
        published before stay as they are, and are read in the new columns."""
        schema = schemas.from_wire(request.topic_schema)
        changed = await broker.schemas.replace(topic, schema, request.expected_version, broker.clock())
        broker.forget_topic(topic)
        return changed
