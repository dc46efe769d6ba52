"""Topics as the connector needs them: found by name or pattern, with their Arrow schema."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import pyarrow as pa

import metatxn
from metatxn.topics import arrow_schema
from spark_connector.message_rows import MESSAGE_COLUMNS

DEFAULT_NAMESPACE = "public/default/"


@dataclass(frozen=True, slots=True)
class TopicSegment:
    """A segment. `owner` is the URL of its broker. `children` have taken over from it, as it has from its `parents`."""

    id: str
    owner: str | None
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `columns` is None if it has no schema."""

    name: str
    columns: pa.Schema | None
    segments: tuple[TopicSegment, ...]

    @property
    def declared(self) -> pa.Schema:
        """The columns. Raises `SchemaMismatch` for a topic without columns."""
        if self.columns is None:
            raise metatxn.SchemaMismatch(
                f"topic {self.name} has no schema yet",
                action="Write a table to it first, or create it with a schema.",
            )
        return self.columns

    def has_more_than(self, columns: pa.Schema) -> bool:
        """Whether there are columns besides some of them."""
        return self.columns is not None and len(self.columns) > len(columns)

    @property
    def offered(self) -> pa.Schema:
        """The columns for readers: without a schema those of messages."""
        return MESSAGE_COLUMNS if self.columns is None else self.columns


def find_topic(client: metatxn.Client, name: str) -> Topic:
    try:
        found = client.topic(name)
    except metatxn.NotFound as error:
        raise metatxn.NotFound(
            f"topic {name} does not exist", action=f"Create it first: metatxn topic create {shlex.quote(name)}."
        ) from error
    segments = tuple(
        TopicSegment(each.segment, each.owner or None, tuple(each.parents), tuple(each.children))
        for each in found.segments
    )
    return Topic(found.name, arrow_schema(found.topic_schema), segments)


def find_topics(client: metatxn.Client, names: tuple[str, ...], pattern: str | None) -> list[Topic]:
    """Topics by name, or all that `pattern` matches in full, with or without the default namespace."""
    if pattern is None:
        return [find_topic(client, name) for name in names]
    matching = matching_topics(client, pattern)
    if not matching:
        raise metatxn.NotFound(
            f"no topic matches subscribePattern={pattern!r}", action="See the names with: metatxn topic list."
        )
    return [find_topic(client, name) for name in matching]


def matching_topics(client: metatxn.Client, pattern: str) -> list[str]:
    expression = re.compile(pattern)
    return [
        topic.name
        for topic in client.topics()
        if expression.fullmatch(topic.name) or expression.fullmatch(topic.name.removeprefix(DEFAULT_NAMESPACE))
    ]


def full_name(topic: str) -> str:
    return topic if "/" in topic else DEFAULT_NAMESPACE + topic


def common_schema(topics: list[Topic]) -> pa.Schema:
    """The one schema of all topics. Raises `SchemaMismatch`, which names a topic that differs."""
    first, *others = topics
    for other in others:
        if not other.offered.equals(first.offered):
            raise metatxn.SchemaMismatch(
                f"topics {first.name} and {other.name} have different columns",
                action="Read them separately: a DataFrame has one schema.",
            )
    return first.offered
