"""`metatxn subscription redrive`: publish a subscription's dead letters to its topic again, each exactly once."""

from __future__ import annotations

from typing import Annotated

import typer

from metatxn.cli.completion import complete_subscription
from metatxn.cli.consent import counted
from metatxn.cli.options import CliError, ServiceOptions, takes_session
from metatxn.cli.progress import ProgressLine
from metatxn.cli.topic import TopicArgument


@takes_session
def redrive(
    session: ServiceOptions,
    topic: TopicArgument,
    subscription: Annotated[str, typer.Argument(metavar="SUBSCRIPTION", autocompletion=complete_subscription)],
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many messages. [default: all]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
) -> None:
    """Publish the dead letters of a subscription to its topic again.

    Each is moved in a transaction, exactly once, however often this is run; those of other subscriptions stay. All
    subscriptions of the topic receive what is published."""
    with session.connect() as client:
        found = client.subscription(topic, subscription)
        if found.dead_letter_topic is None:
            raise CliError(f"subscription {subscription} has no dead-letter topic. Create it with --dead-letters.")
        if dry_run:
            number = client.preview_redrive(topic, subscription)
            would = f"publish {counted(number if limit is None else min(number, limit), 'message')} of "
            would += f"{found.dead_letter_topic} to {found.topic} again"
            session.print_done({"dry_run": True, "would": would}, f"would {would}")
            return
        with ProgressLine("messages published again", total=limit, beside_output=False) as progress:
            moved = client.redrive(topic, subscription, limit, progress=progress.at)
    done = {"redriven": moved, "from": found.dead_letter_topic, "to": found.topic}
    session.print_done(done, f"published {moved} messages of {found.dead_letter_topic} to {found.topic} again")
