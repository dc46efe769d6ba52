"""Changes of topics: their segments, their policies, and themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast
from urllib.parse import quote

import metatxn
from metatxn.columns import parsed_columns
from metatxn.console.pages.topics import PATH
from metatxn.console.visit import MadeChange, SentForm, Visit
from metatxn.wire.broker import TopicSchema
from metatxn.wire.names import TopicFormat
from metatxn.wire.policies import DEFAULTS
from metatxn.words import parsed_duration


async def create_topic(visit: Visit, form: SentForm) -> MadeChange:
    name, segments, format = _given(form, "name"), _number(form, "segments") or 1, form.get("format") or None
    if format not in (None, "kafka", "pulsar"):
        raise metatxn.InvalidArgument(f"format: {format!r} is not kafka or pulsar", field="format")
    schema = _columns(form.get("schema", "").strip())
    with visit.recording("topic.create", {"topic": name}, segments=segments):
        made = await visit.client.create_topic(name, segments, schema, format=cast(TopicFormat | None, format))
    return MadeChange(f"The topic {made.name} is created.", _url(made.name))


async def delete_topic(visit: Visit, form: SentForm) -> MadeChange:
    """Delete a topic, only if its name was typed: nothing brings it back."""
    topic = await visit.client.topic(visit.part("topic"))
    if form.get("name", "").strip() not in (topic.name, topic.name.removeprefix("public/default/")):
        raise metatxn.InvalidArgument("name: type the name of the topic to delete it", field="name")
    with visit.recording("topic.delete", {"topic": topic.name}):
        await visit.client.delete_topic(topic.name)
    return MadeChange(f"The topic {topic.name} is deleted.", PATH)


async def change_policy(visit: Visit, form: SentForm) -> MadeChange:
    """Change one setting; without a value it is removed, and the policy of the namespace decides."""
    topic, name = visit.part("topic"), _given(form, "setting")
    if name not in DEFAULTS:
        raise metatxn.InvalidArgument(f"setting: there is no setting {name!r}", field="setting")
    text = form.get("value", "").strip()
    value = _setting(name, text) if text else None
    with visit.recording("policy.change", {"topic": topic}, **{name: value}):
        await visit.client.set_topic_policy(topic, **{name: value})
    said = f"{name} is {value}." if text else f"The topic no longer has a value for {name}."
    return MadeChange(said, _url(topic))


async def split_segment(visit: Visit, form: SentForm) -> MadeChange:
    segment, at = _given(form, "segment"), _number(form, "at")
    return await _laid_out(visit, "split", segment, lambda: visit.client.split_segment(segment, at), at=at)


async def merge_segments(visit: Visit, form: SentForm) -> MadeChange:
    segment, other = _given(form, "segment"), _given(form, "with")
    arguments = {"with": other}
    return await _laid_out(visit, "merge", segment, lambda: visit.client.merge_segments(segment, other), **arguments)


async def seal_segment(visit: Visit, form: SentForm) -> MadeChange:
    segment = _given(form, "segment")
    if form.get("sure") != "yes":
        raise metatxn.InvalidArgument("sure: confirm that no one will write to this part of the topic", field="sure")
    return await _laid_out(visit, "seal", segment, lambda: visit.client.seal_segment(segment))


async def trim_segment(visit: Visit, form: SentForm) -> MadeChange:
    segment, before = _given(form, "segment"), _given(form, "before")
    with visit.recording("segment.trim", {"segment": segment}, before=before):
        first = await visit.client.trim_segment(segment, before)
    return MadeChange(f"{_part(segment)} begins at {first} now.", _url(visit.part("topic")))


async def _laid_out(
    visit: Visit, verb: str, segment: str, change: Callable[[], Awaitable[list[str]]], **arguments: int | str | None
) -> MadeChange:
    with visit.recording(f"segment.{verb}", {"segment": segment}, **arguments):
        children = await change()
    then = f"{' and '.join(map(_part, children))} took over." if children else "Nothing follows it."
    return MadeChange(f"{_part(segment)} is sealed. {then}", _url(visit.part("topic")))


def _given(form: SentForm, name: str) -> str:
    value = form.get(name, "").strip()
    if not value:
        raise metatxn.InvalidArgument(f"{name}: a value is missing", field=name)
    return value


def _columns(text: str) -> TopicSchema | None:
    try:
        return parsed_columns(text) if text else None
    except ValueError as error:
        raise metatxn.InvalidArgument(f"schema: {error}", field="schema") from None


def _setting(name: str, text: str) -> int | str:
    """The value of a setting: a text, a number, or a time, which may be given as a duration such as `7d`."""
    if not isinstance(DEFAULTS[name], int):
        return text
    try:
        return parsed_duration(text) if name.endswith("_ms") and not text.lstrip("-").isdigit() else int(text)
    except ValueError:
        what = "a time: write 7d, 12h, 30m or milliseconds" if name.endswith("_ms") else "a whole number"
        raise metatxn.InvalidArgument(f"value: {text!r} is not {what}", field="value") from None


def _number(form: SentForm, name: str) -> int | None:
    text = form.get(name, "").strip()
    try:
        return int(text) if text else None
    except ValueError:
        raise metatxn.InvalidArgument(f"{name}: {text!r} is not a whole number", field=name) from None


def _part(segment: str) -> str:
    return segment.rpartition("/")[2]


def _url(topic: str) -> str:
    return f"{PATH}/{quote(topic, safe='')}"
