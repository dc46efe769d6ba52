"""Moving a subscription, with a look at what that would do, and publishing its dead letters again."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.pages.subscriptions import may_consume, subscription_url
from metatxn.console.visit import CHANGE_TIMEOUT_S, MadeChange, SentForm, Visit, time_of_form
from metatxn.consumer import SeekTarget
from metatxn.words import count_text

MOST_SEGMENTS = 100
NUMBERS = ("messages", "again", "skipped")
MOST_REDRIVEN = 1_000
COUNTED_FOR_S = 0.1
"""How long one request counts what a move to a revision would do."""
LONGEST_REDRIVE_S = 20
"""The time of one request to the console: what is left is published by the next one."""
ENDS = {"earliest": "the earliest message", "latest": "the position after the latest message"}


async def preview(visit: Visit) -> Response:
    """The page that shows a move before it is made. What the move would do follows in its place."""
    place = {"to": visit.query("to"), "at": visit.query("at")}
    _, revision = _target(place)
    if visit.by_script:  # it asks whether the page can be shown
        return Response()
    topic = await visit.client.topic(visit.part("topic"))
    url = subscription_url(topic.name, visit.part("subscription"))
    return visit.page(
        "seek.html",
        topic=topic,
        name=visit.part("subscription"),
        where=ENDS.get(place["to"]) or (place["at"] if revision is None else f"revision {revision}"),
        effect=f"{url}/seek/effect?{urlencode(place)}",
    )


async def effect(visit: Visit) -> Response:
    """What a move would do, and the form that makes it. It changes nothing. For a revision, everything kept of the
    topic is looked through, for a moment with each request: the part of the page asks again until all is counted."""
    place = {"to": visit.query("to"), "at": visit.query("at")}
    try:
        to, revision = _target(place)
        client = visit.client_with(CHANGE_TIMEOUT_S)
        told = await client.preview_seek(
            visit.part("topic"), visit.part("subscription"), to, revision=revision, for_s=COUNTED_FOR_S
        )
    except metatxn.MetatxnError as error:
        return visit.fragment("problem.html", "live", error=error)
    return visit.fragment(
        "seek_effect.html",
        "part",
        told=told,
        total={number: sum(getattr(each, number) for each in told.segments) for number in NUMBERS},
        segments=told.segments[:MOST_SEGMENTS],
        more=len(told.segments) - MOST_SEGMENTS,
        place=place,
        base=subscription_url(told.topic, told.name),
        go_on=visit.here,
        may_change=may_consume(visit, told.topic),
        may_force=visit.access.may("admin", told.topic),
    )


async def seek(visit: Visit, form: SentForm) -> MadeChange:
    topic, name = visit.part("topic"), visit.part("subscription")
    place = {"to": form.get("to", "").strip(), "at": form.get("at", "").strip()}
    (to, revision), force = _target(place), form.get("force") == "yes"
    where = (
        {"to": place["at"] if place["to"] == "time" else place["to"]} if revision is None else {"revision": revision}
    )
    with visit.recording("subscription.seek", {"topic": topic, "subscription": name}, **where, force=force):
        moved = await visit.client.seek(topic, name, to, revision=revision, force=force)
    left = sum(each.backlog for each in moved.segments)
    said = f"{moved.name} is moved: {count_text(left)} messages are to be delivered."
    if moved.aborted:
        said += f" {count_text(len(moved.aborted))} transactions were aborted."
    return MadeChange(said, subscription_url(moved.topic, moved.name))


async def redrive_letters(visit: Visit, form: SentForm) -> MadeChange:
    """Publish as many dead letters as fit into one request, which can be repeated."""
    topic, name = visit.part("topic"), visit.part("subscription")
    if form.get("sure") != "yes":
        raise metatxn.InvalidArgument("sure: confirm that all subscriptions of the topic are to get them", field="sure")
    until_ms = visit.site.now_ms() + 1_000 * LONGEST_REDRIVE_S
    with visit.recording("subscription.redrive", {"topic": topic, "subscription": name}):
        moved = await visit.client.redrive(topic, name, MOST_REDRIVEN, for_s=LONGEST_REDRIVE_S)
    ended = moved < MOST_REDRIVEN and visit.site.now_ms() < until_ms
    said = f"{count_text(moved)} {'message was' if moved == 1 else 'messages were'} published again."
    return MadeChange(said if ended else f"{said} There may be more: repeat it.", subscription_url(topic, name))


def _target(place: Mapping[str, str]) -> tuple[SeekTarget | None, int | None]:
    """A target, or a revision. Raises `InvalidArgument`."""
    match place["to"]:
        case "earliest":
            return "earliest", None
        case "latest":
            return "latest", None
        case "time":
            return time_of_form("at", place["at"]), None
        case "revision":
            return None, _revision(place["at"])
    raise metatxn.InvalidArgument(f"to: {place['to']!r} is not earliest, latest, time or revision", field="to")


def _revision(text: str) -> int:
    """Raises `InvalidArgument`."""
    if not (text.isascii() and text.isdigit()):
        raise metatxn.InvalidArgument(f"at: {text!r} is not a revision: give a number, such as 4711", field="at")
    return int(text)
