"""`metatxn subscription …`: create, show and drop subscriptions, whichever brokers serve the topic."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal

import typer

import metatxn
from metatxn.cli.blockers import say_what_holds_back
from metatxn.cli.completion import complete_subscription, complete_topic
from metatxn.cli.consent import ConsentOptions, counted, takes_consent
from metatxn.cli.options import CliError, LimitOption, ServiceOptions, takes_session
from metatxn.cli.output import print_fields, print_json, print_more, print_rows, when
from metatxn.cli.progress import ProgressLine, each_of
from metatxn.cli.redrive import redrive
from metatxn.cli.times import TIME_HELP, milliseconds_of, time_of
from metatxn.cli.topic import TopicArgument
from metatxn.subscription_totals import SubscriptionTotals
from metatxn.wire.broker import BlockingMessage, SeekPreview, SubscriptionInfo, SubscriptionSummary
from metatxn.words import duration, size_text

app = typer.Typer(
    help="Create, show and drop subscriptions. `metatxn topic consume --subscription` reads them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command(epilog="Example: metatxn subscription redrive orders billing --limit 100")(redrive)
NameArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", autocompletion=complete_subscription)]
LAG_COLUMNS = ("TOPIC", "SUBSCRIPTION", "TYPE", "BACKLOG", "SIZE", "OLDEST", "CONSUMERS", "HELD", "PENDING")
LIST_COLUMNS = ("SUBSCRIPTION", "TYPE", "INITIAL", "DEAD_LETTERS", "CREATED")


class Initial(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


class SubscriptionKind(StrEnum):
    EXCLUSIVE = "exclusive"
    FAILOVER = "failover"
    SHARED = "shared"
    KEY_SHARED = "key_shared"


class SubscriptionIsolation(StrEnum):
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@app.command(epilog="Example: metatxn subscription create orders billing --type shared --dead-letters orders-dead")
@takes_session
def create(
    session: ServiceOptions,
    topic: TopicArgument,
    subscription: NameArgument,
    kind: Annotated[
        SubscriptionKind, typer.Option("--type", help="How consumers share the subscription.")
    ] = SubscriptionKind.SHARED,
    initial: Annotated[Initial, typer.Option(help="Where the subscription begins.")] = Initial.EARLIEST,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="The topic for messages that were redelivered too often.",
            autocompletion=complete_topic,
        ),
    ] = None,
    max_redeliveries: Annotated[
        int | None,
        typer.Option(min=0, help="How often a message is redelivered before that. [default: 16 with --dead-letters]"),
    ] = None,
    ack_timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="A message that is not acknowledged in this time is redelivered."),
    ] = None,
    redelivery_delay: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long a message that was returned or has timed out waits. [default: not at all]",
        ),
    ] = None,
    max_redelivery_delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The delay doubles with each return, up to this.")
    ] = None,
    isolation: Annotated[
        SubscriptionIsolation,
        typer.Option(help="Whether consumers also get messages of open and aborted transactions."),
    ] = SubscriptionIsolation.READ_COMMITTED,
) -> None:
    """Create a subscription, or find one that already has these settings."""
    with session.connect() as client:
        client.create_subscription(
            topic,
            subscription,
            kind.value,
            initial.value,
            dead_letters,
            max_redeliveries,
            ack_timeout_ms=duration_ms("--ack-timeout", ack_timeout),
            redelivery_delay_ms=duration_ms("--redelivery-delay", redelivery_delay),
            max_redelivery_delay_ms=duration_ms("--max-redelivery-delay", max_redelivery_delay),
            isolation=isolation.value,
        )
        show_subscription(session, client.subscription(topic, subscription))


def duration_ms(option: str, text: str | None) -> int | None:
    return None if text is None else milliseconds_of(option, text)


@app.command(
    "list", epilog="Examples: metatxn subscription list orders · metatxn subscription list --lag --text billing"
)
@takes_session
def list_(
    session: ServiceOptions,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="The topic. [default: all topics]", autocompletion=complete_topic),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="Of all topics, those with this text in their name or in that of the topic, in any case."),
    ] = None,
    lag: Annotated[
        bool, typer.Option("--lag", help="Show how far each is behind instead of its settings, the furthest first.")
    ] = False,
    limit: LimitOption = 1000,
) -> None:
    """List the subscriptions of a topic, or of all topics that you may consume, by name."""
    if topic is not None and text is not None:
        raise CliError("--text searches all topics. Leave out the topic, or the text.")
    with session.connect() as client:
        found = client.all_subscriptions(text=text) if topic is None else client.subscriptions(topic)
        if lag:
            _print_lags(session, client, topic, found, limit)
        elif topic is None:
            session.print_list(found, limit, ("TOPIC", *LIST_COLUMNS), lambda each: (each.topic, *_list_cells(each)))
        else:
            session.print_list(found, limit, LIST_COLUMNS, _list_cells)


def _list_cells(found: SubscriptionSummary) -> tuple[Any, ...]:
    return found.name, found.type, found.initial, found.dead_letter_topic, when(found.created_ms)


def _print_lags(
    session: ServiceOptions,
    client: metatxn.Client,
    topic: str | None,
    found: Iterator[SubscriptionSummary],
    limit: int,
    clock: Callable[[], float] = time.time,
) -> None:
    """Print the first `limit` subscriptions with how far each is behind. Those of which that is not known, because a
    broker does not answer, come before all others."""
    listed = list(itertools.islice(found, limit))

    def behind(each: SubscriptionSummary) -> dict[str, Any] | None:
        about = {"topic": each.topic or topic, "name": each.name, "type": each.type}
        try:
            told = client.subscription(each.topic or topic or "", each.name)
        except (metatxn.ServiceUnreachable, metatxn.StoreUnavailable):
            return about | {"consumers": None, "lag": None}
        except metatxn.NotFound:
            return None  # it was dropped meanwhile
        return about | {"consumers": len(told.consumers), "lag": asdict(SubscriptionTotals.of(told.segments))}

    rows = [row for row in each_of("subscriptions", behind, listed) if row is not None]
    rows.sort(key=lambda row: -row["lag"]["messages"] if row["lag"] else -math.inf)
    if session.json:
        print_json(rows)
    else:
        print_rows(LAG_COLUMNS, map(partial(_lag_cells, int(clock() * 1000)), rows))
    print_more(found, len(listed), limit)


def _lag_cells(now_ms: int, row: dict[str, Any]) -> tuple[Any, ...]:
    about = row["topic"], row["name"], row["type"]
    if (lag := row["lag"]) is None:
        return *about, "not known", *[None] * (len(LAG_COLUMNS) - 4)
    oldest = duration(max(0, now_ms - lag["oldest_ms"])) if lag["oldest_ms"] is not None else None
    return *about, lag["messages"], size_text(lag["size_bytes"]), oldest, row["consumers"], lag["held"], lag["pending"]


@app.command(epilog="Example: metatxn subscription show orders billing")
@takes_session
def show(session: ServiceOptions, topic: TopicArgument, subscription: NameArgument) -> None:
    """Show a subscription's progress on every segment, its consumers, its pending acknowledgements by transaction, and
    what keeps messages from being delivered in the order of their keys."""
    with session.connect() as client:
        found = client.subscription(topic, subscription)
        show_subscription(session, found)
        if not session.json and found.isolation == "read_committed":
            say_what_holds_back(client, found.topic, found.name)


@app.command(epilog="Example: metatxn subscription seek orders billing --to 1h")
@takes_session
@takes_consent
def seek(
    session: ServiceOptions,
    consent: ConsentOptions,
    topic: TopicArgument,
    subscription: NameArgument,
    to: Annotated[
        str | None, typer.Option(metavar="PLACE", help=f"`earliest`, `latest`, {TIME_HELP}.", show_default=False)
    ] = None,
    positions: Annotated[
        list[str] | None,
        typer.Option(
            "--position",
            metavar="SEGMENT=POSITION",
            help="Instead of --to, once for every segment: the first entry to be delivered.",
        ),
    ] = None,
    revision: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Instead of --to: just after what a snapshot at this revision shows.", show_default=False
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Abort open transactions that have acknowledged messages.")
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Only print what would be delivered again, and what would never be.")
    ] = False,
) -> None:
    """Move a subscription, on all segments at once. Everything before the new place is acknowledged, and everything
    after it is delivered, again or for the first time."""
    if [to, positions, revision].count(None) != 2:
        raise CliError("give one of --to, --position and --revision. Use --to for a time or an end of the topic.")
    target = seek_target(to, positions or []) if revision is None else None
    with session.connect() as client:

        def previewed() -> SeekPreview:
            with ProgressLine("messages would be delivered at least", beside_output=False) as counting:
                return client.preview_seek(topic, subscription, target, revision=revision, progress=counting.at)

        if preview:
            show_preview(session, previewed())
            return

        def effect() -> str:
            return _move_of(previewed(), subscription, force)

        if not consent.given(session, effect):
            return
        moved = client.seek(topic, subscription, target, revision=revision, force=force)
        if moved.aborted and not session.json:
            print(f"aborted {', '.join(moved.aborted)}")
        show_subscription(session, moved)


def _move_of(preview: SeekPreview, subscription: str, force: bool) -> str:
    again, never = (sum(getattr(each, name) for each in preview.segments) for name in ("again", "skipped"))
    said = f"{counted(again, 'message')} would be delivered again, and {counted(never, 'message')} never"
    if preview.holders and force:
        said += f"; it would abort {counted(len(preview.holders), 'open transaction')}"
    elif preview.holders:
        said += f"; it would be refused without --force, because of {counted(len(preview.holders), 'open transaction')}"
    return f"move the subscription {subscription}: {said}."


def show_preview(session: ServiceOptions, found: SeekPreview) -> None:
    if session.json:
        print_json(found)
        return
    print_rows(
        ("SEGMENT", "POSITION", "MESSAGES", "AGAIN", "SKIPPED"),
        ((s.segment, s.position, s.messages, s.again, s.skipped) for s in found.segments),
    )
    if found.holders:
        print(f"\nopen transactions have acknowledged messages: {', '.join(found.holders)}")


def seek_target(to: str | None, positions: list[str]) -> Literal["earliest", "latest"] | datetime | dict[str, str]:
    if to == "earliest":
        return "earliest"
    if to == "latest":
        return "latest"
    if to is not None:
        return time_of("--to", to)
    wanted = {}
    for each in positions:
        segment, equals, position = each.rpartition("=")
        if not equals:
            raise CliError(f"--position: {each!r} is not SEGMENT=POSITION. Write it as `metatxn topic show` names it.")
        wanted[segment] = position
    return wanted


@app.command(epilog="Example: metatxn subscription drop orders billing")
@takes_session
@takes_consent
def drop(session: ServiceOptions, consent: ConsentOptions, topic: TopicArgument, subscription: NameArgument) -> None:
    """Drop a subscription and all of its state. Open transactions lose their acknowledgements on it."""

    def effect() -> str:
        found = client.subscription(topic, subscription)
        left = counted(sum(each.backlog for each in found.segments), "message")
        pending = len({txn_id for each in found.segments for txn_id in each.pending_acks})
        lost = f"; {counted(pending, 'open transaction')} would lose acknowledgements" if pending else ""
        who = f"{left} not acknowledged, {counted(len(found.consumers), 'consumer')} connected"
        return f"drop the subscription {subscription} of {found.topic}: {who}{lost}."

    with session.connect() as client:
        if not consent.given(session, effect):
            return
        client.drop_subscription(topic, subscription)
    session.print_done({"dropped": subscription, "topic": topic}, f"dropped {subscription}")


def show_subscription(session: ServiceOptions, found: SubscriptionInfo, clock: Callable[[], float] = time.time) -> None:
    if session.json:
        print_json(found)
        return
    now_ms = int(clock() * 1000)
    lag = SubscriptionTotals.of(found.segments)
    backlog = f"{lag.messages} messages, {size_text(lag.size_bytes)}"
    if lag.delayed:
        backlog += f", {lag.delayed} of them to be delivered later"
    if lag.redelivered:
        backlog += f", {lag.redelivered} of them delivered more than once"
    if lag.oldest_ms is not None:
        backlog += f", the oldest published {duration(max(0, now_ms - lag.oldest_ms))} ago"
    fields: dict[str, str | None] = {"subscription": found.name, "topic": found.topic}
    fields |= {"type": found.type, "initial": found.initial}
    consumers = ", ".join(consumer_text(found, name) for name in found.consumers) or None
    if found.isolation != "read_committed":
        fields |= {"isolation": found.isolation}
    fields |= {"dead letters": found.dead_letter_topic}
    if (redelivery := redelivery_text(found)) is not None:
        fields |= {"redelivered": redelivery}
    print_fields(fields | {"consumers": consumers, "backlog": backlog})
    print()
    print_rows(
        ("SEGMENT", "MARK_DELETE", "BACKLOG", "SIZE", "OLDEST", "UNACKED", "PENDING", "BLOCKED_BY"),
        (
            (
                *(s.segment, s.mark_delete, s.backlog, size_text(s.backlog_bytes)),
                *(duration(max(0, now_ms - s.oldest_ms)) if s.oldest_ms is not None else None, s.unacked),
                ",".join(f"{t}:{n}" for t, n in s.pending_acks.items()),
                blocked_by(s.blocking),
            )
            for s in found.segments
        ),
    )


def redelivery_text(found: SubscriptionInfo) -> str | None:
    """When messages are redelivered, if the subscription has a setting for it."""
    parts = []
    if found.ack_timeout_ms is not None:
        parts.append(f"without an acknowledgement for {found.ack_timeout_ms} ms")
    if found.redelivery_delay_ms is not None:
        up_to = f", doubled up to {found.max_redelivery_delay_ms} ms" if found.max_redelivery_delay_ms else ""
        parts.append(f"after {found.redelivery_delay_ms} ms{up_to}")
    return "; ".join(parts) or None


def consumer_text(found: SubscriptionInfo, name: str) -> str:
    """The name of a consumer, with the number of messages that it holds."""
    if name in found.blocked:
        return f"{name} (holds all it may)"
    held = sum(segment.held.get(name, 0) for segment in found.segments)
    return f"{name} ({held} held)" if held else name


def blocked_by(found: BlockingMessage | None) -> str | None:
    if found is None:
        return None
    at = found.consumer or found.txn_id
    return f"{found.position}:{found.index}" + (f" at {at}" if at is not None else "")
