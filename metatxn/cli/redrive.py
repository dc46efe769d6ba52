"""`metatxn subscription redrive`: publish a subscription's dead letters to its topic again, each exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated

import typer

import metatxn
from metatxn.cli.options import CliError, ServiceOptions, takes_session
from metatxn.cli.topic import TopicArgument
from metatxn.wire.broker import MAX_NAME, SubscriptionInfo

TOGETHER = 100
WAIT_S = 1.0
ORIGIN = "metatxn.origin-"
REDRIVEN = "metatxn.redriven-message-id"


@takes_session
def redrive(
    session: ServiceOptions,
    topic: TopicArgument,
    subscription: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many messages. [default: all]")] = None,
) -> None:
    """Publish the dead letters of a subscription to its topic again.

    Each is moved in a transaction, exactly once, however often this is started; those of other subscriptions stay. All
    subscriptions of the topic receive what is published."""
    with session.connect() as client:
        found = client.subscription(topic, subscription)
        if found.dead_letter_topic is None:
            raise CliError(f"subscription {subscription} has no dead-letter topic. Create it with --dead-letters.")
        moved = move_letters(client, found, found.dead_letter_topic, limit)
    done = {"redriven": moved, "from": found.dead_letter_topic, "to": found.topic}
    session.print_done(done, f"published {moved} messages of {found.dead_letter_topic} to {found.topic} again")


def move_letters(client: metatxn.Client, to: SubscriptionInfo, letters: str, limit: int | None) -> int:
    """Returns how many messages were published. Raises `AlreadyExists` while the same is done elsewhere."""
    moved = 0
    with (
        client.subscribe(letters, reader_name(to), "exclusive", "earliest") as consumer,
        client.producer(to.topic) as producer,
    ):
        while limit is None or moved < limit:
            held = consumer.receive_many(TOGETHER if limit is None else min(TOGETHER, limit - moved), WAIT_S)
            if not held:
                break
            with client.transaction() as txn:
                ours = letters_of(held, to)
                for letter in ours:
                    kept = {name: text for name, text in letter.properties.items() if not name.startswith(ORIGIN)}
                    redriven = kept | {REDRIVEN: letter.properties[f"{ORIGIN}message-id"]}
                    producer.send(letter.value, letter.key, txn, redriven)
                consumer.acknowledge(held, txn)
            moved += len(ours)
    return moved


def letters_of(letters: Sequence[metatxn.Message], wanted: SubscriptionInfo) -> list[metatxn.Message]:
    """The letters that were undeliverable to this subscription."""
    origin = {f"{ORIGIN}topic": wanted.topic, f"{ORIGIN}subscription": wanted.name}
    return [letter for letter in letters if origin.items() <= letter.properties.items()]


def reader_name(of: SubscriptionInfo) -> str:
    """The subscription of the dead-letter topic that remembers what was moved. It is always the same."""
    name = f"redrive of {of.topic} {of.name}"
    return name if len(name) <= MAX_NAME else f"redrive of {sha256(name.encode()).hexdigest()}"
