"""The versions of topics' schemas: what may follow (see `compatibility`), and what is remembered.

    columns ─▶ do they fit the policy and all earlier versions? ─▶ one apply on the topic's record, beside its policies

The topic's record has the current columns and the versions before. Of those that are no longer listed, because there
are too many or they are too large, it has the columns that later versions lack, so that no check forgets a type.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.txn import paths
from metastore.txn.records.topics import FormerSchema, SchemaHistory, TopicRecord
from metastore.versions import ClusterVersion, Feature
from metatxn.service.patience import Patience
from metatxn.service.versions import require
from metatxn.wire import errors
from metatxn.wire.batches import unpack_batch
from metatxn.wire.broker import ARROW_MEDIA_TYPE, Message
from metatxn.wire.columns import first_misfit
from metatxn.wire.names import topic_of_segment
from metatxn.wire.schemas import SchemaCheck, SchemaInfo, SchemaVersion
from participants.messages import schemas
from participants.messages.compatibility import Incompatible, incompatible
from participants.messages.policies import InForce, Policies
from participants.messages.topics import Topics, not_found, segment_not_found

MAX_FORMER_VERSIONS = 20
MAX_FORMER_CHARACTERS = 100_000
"""The most bytes of the former versions together, as they are stored."""


class SchemaVersions:
    def __init__(
        self, store: MetadataStore, topics: Topics, policies: Policies, version: ClusterVersion | None = None
    ) -> None:
        self._store = store
        self._version = version or ClusterVersion()
        self._topics = topics
        self._policies = policies

    async def show(self, name: str) -> SchemaInfo:
        """Raises NOT_FOUND."""
        return _info(await self._in_force(name))

    async def check(self, name: str, schema: pa.Schema) -> SchemaCheck:
        """Whether an administrator may set these columns. Raises NOT_FOUND, and INVALID_ARGUMENT for a topic of Kafka's
        or too large a schema."""
        found = await self._in_force(name)
        _assert_settable(found.topic, schema)
        problems = _problems(found, schema)
        versions = [version for version, arrow in _remembered(found.topic) if arrow == schemas.encode_schema(schema)]
        return SchemaCheck(
            compatible=not problems,
            problems=[f"column {each.column} {each.why}" for each in problems],
            columns=list(dict.fromkeys(each.column for each in problems)),
            version=max(versions, default=None),
        )

    async def replace(self, name: str, schema: pa.Schema, expected_version: int | None, now_ms: int) -> SchemaInfo:
        """Make these columns the next version, unless they are the current one. Raises NOT_FOUND, SCHEMA_MISMATCH,
        UPGRADE_PENDING and INVALID_ARGUMENT."""
        await require(self._store, self._version, Feature.SCHEMA_VERSIONS)
        patience = Patience()
        while await patience.lasts():
            found = await self._in_force(name)
            _assert_settable(found.topic, schema)
            if found.topic.arrow_schema == schemas.encode_schema(schema):
                return _info(found)
            if expected_version not in (None, found.topic.schema_version):
                raise errors.SchemaMismatch(
                    f"topic {name} has version {found.topic.schema_version} of its schema, not {expected_version}",
                    action="Look at the schema that the topic has now, and decide again.",
                    topic=name,
                )
            _assert_compatible(found, schema)
            if await self._set(found, schema, now_ms) is not None:
                return await self.show(name)
        raise patience.over(f"topic {name}")

    async def extend(self, segment_id: str, schema: pa.Schema, now_ms: int) -> TopicRecord:
        """Set the schema of the segment's topic, for its first writer or for one that adds columns after the existing
        ones: earlier rows have nulls in them. Any other schema changes nothing. Returns the topic as it is then.

        Raises NOT_FOUND, also if there is now another topic of that name; SCHEMA_MISMATCH if the policy does not let
        producers do it; and INVALID_ARGUMENT.
        """
        name = topic_of_segment(segment_id)
        patience = Patience()
        while await patience.lasts():
            found = await self._in_force(name)
            topic = found.topic
            if segment_id not in topic.segments:
                raise segment_not_found(segment_id)
            if topic.arrow_schema is not None and not schemas.extends(topic, schema):
                return topic
            _assert_settable(topic, schema)
            if found.policy.schema_updates.value == "admins":
                raise _left_to_admins(topic, schema)
            _assert_compatible(found, schema)
            if (extended := await self._set(found, schema, now_ms)) is not None:
                return extended
        raise patience.over(f"topic {name}")

    async def _in_force(self, name: str) -> InForce:
        found = await self._policies.in_force(name)
        if found is None:
            raise not_found(name)
        return found

    async def _set(self, found: InForce, schema: pa.Schema, now_ms: int) -> TopicRecord | None:
        """The topic with this schema, or None if it or one of its policies has changed meanwhile."""
        topic = with_schema(found.topic, schema, now_ms)
        if not self._version.allows(Feature.SCHEMA_VERSIONS):
            topic = topic.model_copy(update={"schema_history": None})
        batch = self._store.batch().put(paths.topic(topic.name), topic.encode())
        for check in found.checks:
            batch.check(check)
        try:
            await self._store.apply(batch)
        except CheckFailed:
            return None
        return topic


# -- what is remembered ----------------------------------------------------------------------------------------


def with_schema(topic: TopicRecord, schema: pa.Schema, now_ms: int) -> TopicRecord:
    """The topic with the next version of its schema."""
    history = topic.schema_history
    former = list(history.former) if history is not None else []
    forgotten = schemas.decode_schema(history.forgotten) if history is not None and history.forgotten else None
    if topic.arrow_schema is not None:
        since = history.created_ms if history is not None else None
        former.append(FormerSchema(version=topic.schema_version, arrow_schema=topic.arrow_schema, created_ms=since))
    while len(former) > MAX_FORMER_VERSIONS or sum(len(each.arrow_schema) for each in former) > MAX_FORMER_CHARACTERS:
        oldest = schemas.decode_schema(former.pop(0).arrow_schema)
        forgotten = _last_types(forgotten, oldest)
    later = [schemas.decode_schema(each.arrow_schema) for each in former]
    forgotten = _lacking(forgotten, [*later, schema])
    return topic.model_copy(
        update={
            "arrow_schema": schemas.encode_schema(schema),
            "schema_history": SchemaHistory(
                version=topic.schema_version + 1,
                created_ms=now_ms,
                former=tuple(former),
                forgotten=schemas.encode_schema(forgotten) if forgotten is not None else None,
            ),
        }
    )


def _last_types(forgotten: pa.Schema | None, later: pa.Schema) -> pa.Schema:
    earlier = [field for field in forgotten or () if field.name not in later.names]
    return pa.schema([*earlier, *later])


def _lacking(forgotten: pa.Schema | None, later: list[pa.Schema]) -> pa.Schema | None:
    """The columns that no later version has, or None: their types say all that needs to be known about the others,
    because a type that follows another one includes it, or the reverse."""
    known = {name for schema in later for name in schema.names}
    left = [field for field in forgotten or () if field.name not in known]
    return pa.schema(left) if left else None


def _remembered(topic: TopicRecord) -> Iterator[tuple[int, str]]:
    """The versions and their encoded columns, from the current one on."""
    if topic.arrow_schema is None:
        return
    yield topic.schema_version, topic.arrow_schema
    for each in reversed(topic.schema_history.former if topic.schema_history is not None else ()):
        yield each.version, each.arrow_schema


def _info(found: InForce) -> SchemaInfo:
    topic, history = found.topic, found.topic.schema_history
    since: dict[int, int | None] = {each.version: each.created_ms for each in history.former} if history else {}
    if history is not None:
        since[history.version] = history.created_ms
    return SchemaInfo(
        topic=topic.name,
        version=topic.schema_version,
        topic_schema=schemas.to_wire(topic.arrow_schema) if topic.arrow_schema is not None else None,
        schema_compatibility=found.policy.schema_compatibility,
        schema_updates=found.policy.schema_updates,
        versions=[
            SchemaVersion(version=version, version_schema=schemas.to_wire(arrow), created_ms=since.get(version))
            for version, arrow in _remembered(topic)
        ],
    )


# -- what fits -------------------------------------------------------------------------------------------------


def check_messages_fit(topic: TopicRecord, messages: Sequence[Message]) -> None:
    """Raises SCHEMA_MISMATCH, which names the first message and column, if the values cannot be rows of the topic. A
    message without a value is a row of nulls."""
    if topic.arrow_schema is not None:
        _check_values_fit(topic, topic.arrow_schema, [schemas.value_of(message) for message in messages])


def check_batch_fits(topic: TopicRecord, payload: bytes, count: int) -> None:
    """Like `check_messages_fit`. Nothing is decoded for a topic without a schema."""
    if topic.arrow_schema is not None:
        _check_values_fit(topic, topic.arrow_schema, list(unpack_batch(payload, count).values))


def _check_values_fit(topic: TopicRecord, arrow_schema: str, values: list[Any]) -> None:
    misfit = first_misfit(values, schemas.decode_schema(arrow_schema))
    if misfit is None or any(first_misfit(values, former) is None for former in _former_that_fit(topic)):
        return
    raise errors.SchemaMismatch(
        f"topic {topic.name}: message {misfit.index} does not fit: {misfit}",
        topic=topic.name,
        columns=[misfit.column],
        message=misfit.index,
    )


def check_table_fits(topic: TopicRecord, schema: pa.Schema) -> None:
    """Raises SCHEMA_MISMATCH, which names the columns, before any row is accepted."""
    encoded = schemas.encode_schema(schema)
    if encoded == topic.arrow_schema or encoded in map(schemas.encode_schema, _former_that_fit(topic)):
        return
    if topic.arrow_schema is None:
        raise errors.SchemaMismatch(f"topic {topic.name} has no schema", topic=topic.name)
    found = schemas.differences(schemas.decode_schema(topic.arrow_schema), schema)
    problems = "; ".join(f"{column} {how}" for column, how in found) or "the columns are in another order"
    raise errors.SchemaMismatch(
        f"topic {topic.name}: {problems}", topic=topic.name, columns=[column for column, _ in found]
    )


def check_bytes_fit(topic: TopicRecord) -> None:
    """Raises SCHEMA_MISMATCH for a topic with a schema."""
    if topic.arrow_schema is not None:
        raise errors.SchemaMismatch(
            f"topic {topic.name} has columns, and opaque bytes have none",
            action=f"Send an Arrow stream ({ARROW_MEDIA_TYPE}) or JSON messages.",
            topic=topic.name,
        )


def _former_that_fit(topic: TopicRecord) -> Iterator[pa.Schema]:
    """The former versions that the current one holds."""
    for _, arrow in list(_remembered(topic))[1:]:
        former = schemas.decode_schema(arrow)
        if not any(incompatible("backward", schemas.decode_schema(topic.arrow_schema or ""), {"": former})):
            yield former


# -- what may follow -------------------------------------------------------------------------------------------


def _problems(found: InForce, schema: pa.Schema) -> list[Incompatible]:
    return list(incompatible(found.policy.schema_compatibility.value, schema, _earlier(found.topic)))


def _earlier(topic: TopicRecord) -> Mapping[str, pa.Schema]:
    earlier = {f"version {version}": schemas.decode_schema(arrow) for version, arrow in _remembered(topic)}
    history = topic.schema_history
    if history is not None and history.forgotten is not None:
        oldest = min(version for version, _ in _remembered(topic))
        earlier[f"a version before {oldest}"] = schemas.decode_schema(history.forgotten)
    return earlier


def _assert_compatible(found: InForce, schema: pa.Schema) -> None:
    problems = _problems(found, schema)
    if problems:
        mode = found.policy.schema_compatibility
        raise errors.SchemaMismatch(
            f"topic {found.topic.name}: these columns may not come next (schema_compatibility is {mode.value}): "
            + "; ".join(f"column {each.column} {each.why}" for each in problems),
            action="Choose other names or types, or change schema_compatibility in the policy.",
            topic=found.topic.name,
            columns=list(dict.fromkeys(each.column for each in problems)),
        )


def _assert_settable(topic: TopicRecord, schema: pa.Schema) -> None:
    if topic.format is not None:
        problem = f"schema: topic {topic.name} has the format {topic.format}, and no schema"
        raise errors.InvalidArgument(problem, field="schema")
    schemas.assert_sound(schema)


def _left_to_admins(topic: TopicRecord, schema: pa.Schema) -> errors.MetatxnError:
    known = schemas.decode_schema(topic.arrow_schema).names if topic.arrow_schema is not None else []
    added = [name for name in schema.names if name not in known]
    what = f"does not have column {', '.join(added)}" if known else "has no schema"
    return errors.SchemaMismatch(
        f"topic {topic.name} {what}, and its policy (schema_updates) leaves that to administrators",
        action="Leave them out, or have an administrator set the schema: "
        f"metatxn schema set {shlex.quote(topic.name)}.",
        topic=topic.name,
        columns=added,
    )
