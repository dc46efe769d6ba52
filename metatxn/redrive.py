"""Publishing the dead letters of a subscription to its topic again, each exactly once.

Each transaction publishes some letters and acknowledges them on a subscription of the dead-letter topic, which always
has the same name: so it remembers what was moved, and however often this is run, no letter is moved twice. The
subscription is exclusive, so no other program does the same at the same time.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256

from metatxn.consumer import AsyncConsumer
from metatxn.producer import AsyncProducer
from metatxn.reader import Message
from metatxn.transaction import AsyncTransaction
from metatxn.wire.broker import MAX_NAME, SubscriptionInfo
from metatxn.wire.names import MessageId

TOGETHER = 100
WAIT_S = 1.0
ORIGIN = "metatxn.origin-"
REDRIVEN = "metatxn.redriven-message-id"


async def move_letters(
    to: SubscriptionInfo,
    consumer: AsyncConsumer,
    producer: AsyncProducer,
    transaction: Callable[[], AbstractAsyncContextManager[AsyncTransaction]],
    limit: float = math.inf,
    for_s: float = math.inf,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Move at most `limit` letters, and begin none after `for_s`. Returns how many, and tells `progress` meanwhile.
    Letters of other subscriptions stay."""
    loop, moved = asyncio.get_running_loop(), 0
    end_s = loop.time() + for_s
    while moved < limit and loop.time() < end_s:
        held = await consumer.receive_many(int(min(TOGETHER, limit - moved)), WAIT_S)
        if not held:
            break
        ours = letters_of(held, to)
        async with transaction() as txn:
            for letter in ours:
                kept = {name: text for name, text in letter.properties.items() if not name.startswith(ORIGIN)}
                properties = kept | {REDRIVEN: letter.properties[f"{ORIGIN}message-id"]}
                await producer.send(letter.value, letter.key, txn, properties)
            await consumer.acknowledge(held, txn)
        moved += len(ours)
        if progress is not None:
            progress(moved)
    return moved


async def count_letters(to: SubscriptionInfo, letters: AsyncIterator[Message], moved: SubscriptionInfo | None) -> int:
    """How many letters would be moved now, of all that are on the dead-letter topic. `moved` is the subscription there
    that remembers what was moved; None if nothing was. It is acknowledged in the order of each segment, so what is left
    of one is at its end."""
    left = {each.segment: each.backlog for each in moved.segments} if moved is not None else {}
    ends: dict[str, deque[bool]] = {}
    async for letter in letters:
        segment = MessageId.parse(letter.message_id).segment
        ends.setdefault(segment, deque(maxlen=left.get(segment))).append(bool(letters_of([letter], to)))
    return sum(sum(each) for each in ends.values())


def letters_of(letters: Sequence[Message], wanted: SubscriptionInfo) -> list[Message]:
    """The letters that were undeliverable to this subscription."""
    origin = {f"{ORIGIN}topic": wanted.topic, f"{ORIGIN}subscription": wanted.name}
    return [letter for letter in letters if origin.items() <= letter.properties.items()]


def reader_name(of: SubscriptionInfo) -> str:
    """The subscription of the dead-letter topic that remembers what was moved. It is always the same."""
    name = f"redrive of {of.topic} {of.name}"
    return name if len(name) <= MAX_NAME else f"redrive of {sha256(name.encode()).hexdigest()}"
