"""`metatxn subscription …`: make and look at subscriptions, whichever brokers serve the topic."""

from __future__ import annotations

import itertools
from enum import StrEnum
from typing import Annotated

import typer

from metatxn.cli.options import OutputOption, TokenOption, UrlOption, connect, output_of
from metatxn.cli.output import Output, print_fields, print_json, print_rows, when
from metatxn.cli.topic import TopicArgument
from participants.api.models import SubscriptionInfo

app = typer.Typer(
    help="Make and look at subscriptions; `metatxn topic consume --subscription` reads them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
NameArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION")]


class Initial(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


class Kind(StrEnum):
    EXCLUSIVE = "exclusive"
    FAILOVER = "failover"
    SHARED = "shared"


@app.command(epilog="Example: metatxn subscription create orders billing --type shared --dead-letters orders-dead")
def create(
    context: typer.Context,
    topic: TopicArgument,
    subscription: NameArgument,
    kind: Annotated[Kind, typer.Option("--type", help="Who may consume at the same time.")] = Kind.SHARED,
    initial: Annotated[Initial, typer.Option(help="Where it begins.")] = Initial.EARLIEST,
    dead_letters: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Takes messages that were given too often.")
    ] = None,
    max_redeliveries: Annotated[int | None, typer.Option(min=0, help="With --dead-letters; 16 unless given.")] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """Create a subscription, or find it as it is asked for."""
    with connect(context, url, token) as client:
        client.create_subscription(topic, subscription, kind.value, initial.value, dead_letters, max_redeliveries)
        show_subscription(client.subscription(topic, subscription), output_of(context, output))


@app.command("list", epilog="Example: metatxn subscription list orders -o json")
def list_(
    context: typer.Context,
    topic: TopicArgument,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 1000,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """A topic's subscriptions by name."""
    with connect(context, url, token) as client:
        found = list(itertools.islice(client.subscriptions(topic), limit))
    if output_of(context, output) is Output.JSON:
        print_json(found)
        return
    columns = ("SUBSCRIPTION", "TYPE", "INITIAL", "DEAD_LETTERS", "CREATED")
    print_rows(columns, [(s.name, s.type, s.initial, s.dead_letter_topic, when(s.created_ms)) for s in found])


@app.command(epilog="Example: metatxn subscription show orders billing")
def show(
    context: typer.Context,
    topic: TopicArgument,
    subscription: NameArgument,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """How far it is on every segment, who consumes it, and what is pending in which transaction."""
    with connect(context, url, token) as client:
        show_subscription(client.subscription(topic, subscription), output_of(context, output))


@app.command(epilog="Example: metatxn subscription drop orders billing")
def drop(
    context: typer.Context,
    topic: TopicArgument,
    subscription: NameArgument,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """Drop it and every trace of it. Open transactions lose their acknowledgements on it."""
    with connect(context, url, token) as client:
        client.drop_subscription(topic, subscription)
    if output_of(context, output) is Output.JSON:
        print_json({"dropped": subscription, "topic": topic})
    else:
        print(f"dropped {subscription}")


def show_subscription(found: SubscriptionInfo, output: Output) -> None:
    if output is Output.JSON:
        print_json(found)
        return
    fields = {"subscription": found.name, "topic": found.topic, "type": found.type, "initial": found.initial}
    print_fields(fields | {"dead letters": found.dead_letter_topic, "consumers": ", ".join(found.consumers) or None})
    print()
    print_rows(
        ("SEGMENT", "MARK_DELETE", "BACKLOG", "UNACKED", "PENDING"),
        (
            (s.segment, s.mark_delete, s.backlog, s.unacked, ",".join(f"{t}:{n}" for t, n in s.pending_acks.items()))
            for s in found.segments
        ),
    )
