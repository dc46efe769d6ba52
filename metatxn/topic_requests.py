"""What a client asks about topics, their segments, schemas and policies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import pyarrow as pa

from metatxn.answers import parsed
from metatxn.connection import Connection, post
from metatxn.http import Call, json_body, path_of
from metatxn.paging import Listing
from metatxn.read_hold import HOLD_S, AsyncReadHold
from metatxn.reader import milliseconds
from metatxn.topics import arrow_schema, wire_schema
from metatxn.wire.broker import (
    ChildrenAnswer,
    HorizonPlace,
    HorizonsAnswer,
    PositionAnswer,
    ReadHoldInfo,
    ReadHoldPage,
    SegmentDetail,
    TopicCount,
    TopicInfo,
    TopicPage,
    TopicSchema,
    TrimAnswer,
)
from metatxn.wire.errors import (
    AlreadyExists,
    InvalidArgument,
    SegmentSealed,
)
from metatxn.wire.names import TopicFormat, namespace_name
from metatxn.wire.policies import PolicyInfo
from metatxn.wire.schemas import SchemaCheck, SchemaInfo


class TopicRequests:
    """The part of `AsyncClient` for requests about topics."""

    _connection: Connection

    async def create_topic(
        self,
        name: str,
        segments: int = 1,
        schema: pa.Schema | TopicSchema | None = None,
        exist_ok: bool = False,
        format: TopicFormat | None = None,
    ) -> TopicInfo:
        """Create a topic. Raises `AlreadyExists`; with `exist_ok` an existing topic is returned as it is.

        With the format `kafka` its segments are the partitions that Kafka's clients see; with the format `pulsar`
        Pulsar's clients may write to it.
        """
        columns = wire_schema(schema) if schema is not None else None
        body = {"name": name, "segments": segments, "schema": columns}
        if format is not None:  # a broker before 0.3 does not know it
            body["format"] = format
        # `AlreadyExists` does not say that an unanswered attempt was refused: that attempt may have created it.
        call = post(path_of("topics"), body, settled_by=(AlreadyExists,) if exist_ok else ())
        try:
            return parsed(TopicInfo, await self._connection.broker(call))
        except AlreadyExists:
            if not exist_ok:
                raise
            return await self.topic(name)

    async def topic(self, name: str) -> TopicInfo:
        """The topic and its segments as they are now. Raises `NotFound`."""
        return await self._connection.topics.read(name)

    def topics(self, *, text: str | None = None, limit: int | None = None) -> Listing[TopicInfo]:
        """All topics that the caller has a right on, ordered by name, or those whose full name has this text, in any
        case. `limit` is the size of a page."""
        connection = self._connection
        return Listing(connection, connection.brokers, path_of("topics"), {"text": text, "limit": limit}, TopicInfo)

    async def count_topics(self, *, text: str | None = None) -> TopicCount | None:
        """How many topics `topics` would list with this text: exactly, among the first 20,000 of the cluster. None if
        the broker is of a release that does not count them."""
        call = Call("GET", path_of("topics"), {"text": text, "limit": 1, "count": "true"})
        return parsed(TopicPage, await self._connection.broker(call)).count

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all of its messages and subscriptions. Transactions that wrote to it end like any others.
        Raises `NotFound` for a topic that never existed."""
        connection = self._connection
        await connection.http.request(connection.brokers, Call("DELETE", path_of("topics", name)))
        connection.topics.forget(name)

    async def topic_policy(self, name: str) -> PolicyInfo:
        """The policy of a topic: what was set on it, and what applies. Raises `NotFound`."""
        return await self._policy(path_of("topics", name, "policy"))

    async def set_topic_policy(self, /, name: str, **settings: int | str | None) -> PolicyInfo:
        """Change settings of a topic's policy, such as `retention_ms`; None removes one. Raises `NotFound`."""
        return await self._set_policy(path_of("topics", name), settings)

    async def namespace_policy(self, namespace: str) -> PolicyInfo:
        """The policy of a namespace `tenant/name`, which applies where those of its topics say nothing."""
        return await self._policy(path_of("policies", "namespaces", *_namespace_parts(namespace)))

    async def set_namespace_policy(self, /, namespace: str, **settings: int | str | None) -> PolicyInfo:
        """Change settings of a namespace's policy; None removes one."""
        return await self._set_policy(path_of("policies", "namespaces", *_namespace_parts(namespace)), settings)

    async def cluster_policy(self) -> PolicyInfo:
        """The policy of the cluster, which applies where those of topics and namespaces say nothing."""
        return await self._policy(path_of("policies", "cluster"))

    async def set_cluster_policy(self, /, **settings: int | str | None) -> PolicyInfo:
        """Change settings of the cluster's policy; None removes one."""
        return await self._set_policy(path_of("policies", "cluster"), settings)

    async def _policy(self, path: str) -> PolicyInfo:
        return parsed(PolicyInfo, await self._connection.broker(Call("GET", path)))

    async def _set_policy(self, path: str, settings: dict[str, int | str | None]) -> PolicyInfo:
        call = Call("PATCH", path, content=json.dumps(settings).encode())  # null removes
        return parsed(PolicyInfo, await self._connection.broker(call))

    async def read_hold(self, topic: str, seconds: float = HOLD_S, revision: int | None = None) -> AsyncReadHold:
        """Hold a topic at a revision of the store, the current one unless you name one, for use with `async with`:
        until it is released, no policy drops anything of the topic, nothing of it is compacted, and snapshots at
        `hold.revision` are not refused as too old. It is prolonged in the background; if the program dies, it ends
        after `seconds`.

        Raises `NotFound`, `InvalidArgument` for a revision that is too old, `PositionTrimmed` for one before the last
        compaction, and `RateLimited` if the topic has too many holds.
        """
        return await AsyncReadHold.take(self._connection, topic, seconds, revision)

    async def read_holds(self, topic: str) -> list[ReadHoldInfo]:
        """The holds on a topic: who holds it, and at which revision."""
        call = Call("GET", path_of("topics", topic, "read-holds"))
        return parsed(ReadHoldPage, await self._connection.broker(call)).items

    async def topic_schema(self, name: str) -> pa.Schema | None:
        """The topic's columns, or None for a topic that accepts any message."""
        return arrow_schema((await self.topic(name)).topic_schema)

    async def schema(self, name: str) -> SchemaInfo:
        """The topic's schema, the versions that it had before, and what its policy says about changes. Raises
        `NotFound`."""
        return parsed(SchemaInfo, await self._connection.broker(Call("GET", path_of("topics", name, "schema"))))

    async def check_schema(self, name: str, schema: pa.Schema | TopicSchema) -> SchemaCheck:
        """Whether these columns may become the next version of the topic's schema, and if not, why. Raises
        `NotFound`."""
        call = post(path_of("topics", name, "schema", "check"), {"schema": wire_schema(schema)})
        return parsed(SchemaCheck, await self._connection.broker(call))

    async def set_schema(
        self, name: str, schema: pa.Schema | TopicSchema, expected_version: int | None = None
    ) -> SchemaInfo:
        """Make these columns the next version of the topic's schema, unless it has them already. Raises `NotFound`, and
        `SchemaMismatch` if the policy does not allow them after the earlier versions, or if the topic does not
        have `expected_version` any more."""
        body = {"schema": wire_schema(schema), "expected_version": expected_version}
        call = Call("PUT", path_of("topics", name, "schema"), content=json_body(body))
        found = parsed(SchemaInfo, await self._connection.broker(call))
        self._connection.topics.forget(name)
        return found

    async def segment(self, segment_id: str, max_open: int | None = None) -> SegmentDetail:
        """A segment as its owner sees it. With `max_open` at most this many of its open transactions are named: those
        that hold readers back at the lowest positions. Raises `NotFound`."""
        call = Call("GET", path_of("segments", segment_id), {"max_open": max_open})
        return parsed(SegmentDetail, await self._connection.owner_of(segment_id, call))

    async def position_at(self, segment_id: str, at: datetime) -> PositionAnswer:
        """The position of the first entry of a segment that was published at a time or later, or of the next one to
        come. The time needs a time zone. Raises `NotFound`."""
        call = Call("GET", path_of("segments", segment_id, "position"), {"at_ms": milliseconds("at", at)})
        return parsed(PositionAnswer, await self._connection.owner_of(segment_id, call))

    async def position_before(self, segment_id: str, before: str, entries: int = 1) -> PositionAnswer:
        """The position of the first of the last `entries` entries of a segment (at most 1,000) before a position; where
        reading begins if there are none. Raises `NotFound`."""
        call = Call("GET", path_of("segments", segment_id, "position"), {"before": before, "entries": entries})
        return parsed(PositionAnswer, await self._connection.owner_of(segment_id, call))

    async def split_segment(self, segment_id: str, at: int | None = None) -> list[str]:
        """Seal a segment and return the two children that take over: one for the hashes below `at`, one for those from
        `at` on (default: the middle). Producers and readers find them by themselves. Raises `SegmentSealed`."""
        return await self._change_layout(segment_id, "split", {"at": at})

    async def merge_segments(self, segment_id: str, other_id: str) -> list[str]:
        """Seal two neighbours and return the one child that takes over from both. Raises `SegmentSealed`."""
        return await self._change_layout(segment_id, "merge", {"with": other_id})

    async def seal_segment(self, segment_id: str) -> list[str]:
        """Seal a segment without a successor: it accepts no more messages. Returns its children if it already has
        some."""
        return await self._change_layout(segment_id, "seal", {})

    async def trim_segment(self, segment_id: str, before: str) -> str:
        """Drop the entries below a position that readers could see, and return the first readable position."""
        call = post(path_of("segments", segment_id, "trim"), {"before": before})
        return parsed(TrimAnswer, await self._connection.owner_of(segment_id, call)).first_position

    async def delete_segment(self, segment_id: str) -> None:
        """Drop what is left in a sealed segment that has children, and remove it from its topic. Readers and consumers
        go on in its children. Raises `SegmentInUse`, which names what still needs it; a segment that is already removed
        is not an error."""
        await self._connection.owner_of(segment_id, Call("DELETE", path_of("segments", segment_id)))

    async def horizons(
        self,
        segments: Mapping[str, HorizonPlace],
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        wait_ms: int = 0,
    ) -> HorizonsAnswer:
        """How far these segments can be read, as the owner of the first one sees it. For a segment that this owner does
        not serve, the answer names the broker that does. With `wait_ms` the answer is held back until one of the
        segments has something after its position."""
        first = next(iter(segments))
        wanted = {segment: place.model_dump(exclude_none=True) for segment, place in segments.items()}
        body = {"segments": wanted, "isolation": isolation, "wait_ms": wait_ms}
        call = Call("POST", path_of("horizons"), content=json_body(body), wait_s=wait_ms / 1000)
        answer = parsed(HorizonsAnswer, await self._connection.owner_of(first, call))
        for segment, url in answer.elsewhere.items():
            self._connection.topics.set_owner(segment, url.rstrip("/"))
        return answer

    async def _change_layout(self, segment_id: str, verb: str, body: dict[str, str | int | None]) -> list[str]:
        # A change that is already done is a success, so a refusal means that another change came before all attempts.
        call = post(path_of("segments", segment_id, verb), body, settled_by=(SegmentSealed,))
        return parsed(ChildrenAnswer, await self._connection.owner_of(segment_id, call)).children


def _namespace_parts(namespace: str) -> list[str]:
    try:
        return namespace_name(namespace).split("/")
    except ValueError as error:
        raise InvalidArgument(f"namespace: {error}", field="namespace") from None
