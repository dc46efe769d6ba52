"""Putting off what a program cannot process yet: it is published to a retry topic, with a delivery time, and
acknowledged where it was received, in one transaction. So it exists exactly once, and does not hold up later messages.

What has happened to a message goes with it as properties, so any program can take it up again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta

from metatxn.consumer import AsyncConsumer
from metatxn.reader import Message
from metatxn.redrive import ORIGIN
from metatxn.topics_consumer import AsyncTopicsConsumer
from metatxn.transaction import AsyncTransaction

RETRIES = "metatxn.retries"


Send = Callable[[str, Message, dict[str, str], datetime | None], Awaitable[object]]
"""Queue a message for a topic, with these properties, to be delivered at this time."""


async def put_off(
    messages: Iterable[Message],
    consumer: AsyncConsumer | AsyncTopicsConsumer,
    txn: AsyncTransaction,
    send: Send,
    retry_topic: str,
    after: timedelta,
    max_retries: int,
    dead_letter_topic: str | None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Put messages off as `AsyncClient.retry_later` does, inside `txn`."""
    held = list(messages)
    due = datetime.fromtimestamp(clock(), UTC) + after
    for message in held:
        made = retries_of(message)
        properties = with_origin(message, consumer.subscription)
        if dead_letter_topic is not None and made >= max_retries:
            await send(dead_letter_topic, message, properties, None)
        else:
            await send(retry_topic, message, properties | {RETRIES: str(made + 1)}, due)
    await consumer.acknowledge(held, txn)


def retries_of(message: Message) -> int:
    """How often the message has been put off already."""
    told = message.properties.get(RETRIES, "")
    return int(told) if told.isdecimal() else 0


def with_origin(message: Message, subscription: str) -> dict[str, str]:
    """The properties of a message, and where it was first received."""
    origin = {"topic": message.topic, "subscription": subscription, "message-id": message.message_id}
    return {f"{ORIGIN}{name}": text for name, text in origin.items()} | message.properties
