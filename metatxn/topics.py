"""Topics and their segments: to which segment a key belongs, and which broker owns a segment."""

from __future__ import annotations

import base64
import bisect
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from metatxn.answers import parsed
from metatxn.cluster import AnyOf, Directory
from metatxn.http import Call, Http, base_of, path_of
from metatxn.wire.arrow_types import type_named
from metatxn.wire.broker import SegmentInfo, TopicInfo, TopicSchema, hash_of_key
from metatxn.wire.errors import NotFound, SchemaMismatch


class Layout:
    """The segments of one topic at some moment. Immutable.

    Keys go to the `leaves`: active segments, and sealed ones without a child here. Such a child either does not
    exist yet, while two segments are merged and only one of them is sealed, or it was created while the layout was
    read. The segment's owner knows: it answers that this takes a moment, or names the children. So every key has a
    segment at any time, except keys of segments that were sealed without a successor. Only their owners know which ones
    these are, and `without` them their keys have no segment.
    """

    def __init__(self, topic: TopicInfo, ended: frozenset[str] = frozenset()) -> None:
        self.topic = topic
        self.schema = arrow_schema(topic.topic_schema)
        known = {segment.segment for segment in topic.segments}
        leaves = [s for s in topic.segments if s.segment not in ended and known.isdisjoint(s.children)]
        self.leaves = sorted(leaves, key=lambda segment: segment.range[0])
        self.names = frozenset(segment.segment for segment in self.leaves)
        self._starts = [segment.range[0] for segment in self.leaves]
        # Messages without a key need not wait for a merge.
        self._any = [s for s in self.leaves if s.state == "active"] or self.leaves

    def segment_of(self, key: str) -> str:
        """The leaf that `key` hashes to. Raises `NotFound` if there is none."""
        hash_value = hash_of_key(key)
        found = bisect.bisect_right(self._starts, hash_value) - 1
        if found < 0 or self.leaves[found].range[1] < hash_value:
            raise NotFound(f"topic {self.topic.name} has no active segment for this key", topic=self.topic.name)
        return self.leaves[found].segment

    def any_segment(self, turn: int) -> str:
        """A segment for messages without a key. Raises `NotFound` if there is none."""
        if not self._any:
            raise NotFound(f"topic {self.topic.name} has no active segment", topic=self.topic.name)
        return self._any[turn % len(self._any)].segment

    def without(self, ended: Iterable[str]) -> Layout:
        return Layout(self.topic, frozenset(ended))

    def in_order(self) -> list[SegmentInfo]:
        """Every segment, parents before their children, so that the entries of a key come in the order in which they
        were written."""
        return _parents_first(self.topic.segments)


def _parents_first(segments: Iterable[SegmentInfo]) -> list[SegmentInfo]:
    left = {segment.segment: segment for segment in segments}
    ordered: list[SegmentInfo] = []
    while left:
        ready = [s for s in left.values() if not any(parent in left for parent in s.parents)]
        assert ready, "the segments of a topic form no cycle"
        ordered += sorted(ready, key=lambda segment: (segment.range[0], segment.segment))
        for segment in ready:
            del left[segment.segment]
    return ordered


class LayoutCache:
    """Layouts, cached until a broker reports that they are out of date."""

    def __init__(self, http: Http, directory: Directory) -> None:
        self._http = http
        self._brokers = AnyOf(directory, "broker")
        self._layouts: dict[str, Layout] = {}
        self._owners: dict[str, str] = {}

    async def read(self, topic: str) -> TopicInfo:
        """The topic as it is now, from a broker."""
        return (await self.refresh(topic)).topic

    async def layout(self, topic: str) -> Layout:
        return self._layouts.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> Layout:
        answer = await self._http.request(self._brokers, Call("GET", path_of("topics", topic)))
        info = parsed(TopicInfo, answer)
        layout = self._layouts[topic] = Layout(info)
        for segment in info.segments:
            if segment.owner:
                self._owners[segment.segment] = segment.owner.rstrip("/")
                self._http.learned(segment.owner.rstrip("/"), base_of(answer.url))
        return layout

    def forget(self, topic: str) -> None:
        self._layouts.pop(topic, None)

    def owner(self, segment: str) -> str | None:
        return self._owners.get(segment)

    def set_owner(self, segment: str, url: str | None) -> None:
        if url is None:
            self._owners.pop(segment, None)
        else:
            self._owners[segment] = url


class OwnerOf:
    """An endpoint: the broker that owns a segment or another thing with one owner, or any broker, which knows where to
    redirect the client."""

    def __init__(self, topics: LayoutCache, directory: Directory, segment: str) -> None:
        self._topics = topics
        self._directory = directory
        self._segment = segment

    async def url(self) -> str:
        return self._topics.owner(self._segment) or await self._directory.url("broker")

    def failed(self, url: str) -> None:
        self._topics.set_owner(self._segment, None)
        self._directory.failed("broker", url)

    def unavailable(self, url: str) -> bool:
        """An owner that was deposed and does not know its successor says so; others may know. But they only
        redirect."""
        self._topics.set_owner(self._segment, None)
        self._directory.last("broker", url)
        return False

    def answered(self, url: str) -> None:
        self._topics.set_owner(self._segment, url)


def wire_schema(schema: pa.Schema | TopicSchema) -> dict[str, Any]:
    """The schema in the form in which a topic is created with it. Raises `TypeError` for anything else."""
    if isinstance(schema, TopicSchema):
        return schema.model_dump(exclude_none=True)
    if not isinstance(schema, pa.Schema):
        raise TypeError(
            f"schema is a pyarrow.Schema, such as pyarrow.schema([('id', pyarrow.int64())]), not {schema!r}"
        )
    return {"arrow": base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()}


def arrow_schema(schema: TopicSchema | None) -> pa.Schema | None:
    """The columns of a topic, or None for a topic that accepts any message."""
    if schema is None:
        return None
    if schema.arrow is not None:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema.arrow)))
    try:
        return pa.schema([pa.field(f.name, type_named(f.type), f.nullable) for f in schema.fields or []])
    except ValueError as error:
        raise SchemaMismatch(f"the topic's schema names a type unknown here: {error}") from error
