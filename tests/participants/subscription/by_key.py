"""What a `key_shared` subscription promises, as a model: who may be given which message next.

The model knows what was published under each key, in order, and is told everything that consumers do. It judges every
answer: the messages of a key are at one consumer, and each follows the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from metatxn.wire.broker import hash_of_key
from metatxn.wire.ids import TxnId
from participants.subscription.assignment import assignment
from tests.participants.subscription.consuming import Consuming


async def put(consuming: Consuming, *pairs: tuple[str | None, Any], txn_id: TxnId | None = None) -> list[str]:
    """One request with a message for each pair of a key and a value."""
    inside = f"?txn_id={txn_id}" if txn_id else ""
    messages = [{"key": key, "value": value} for key, value in pairs]
    return list((await consuming.asked("POST", f"/messages{inside}", {"messages": messages}))["message_ids"])


def key_of(session: int, sessions: Sequence[int], after: int = 0) -> str:
    """A key for which this consumer is due among these."""
    due = assignment(tuple(sessions))
    return next(key for key in map(str, range(after, 10_000)) if due.consumer_of(hash_of_key(key)) == session)


class Model:
    def __init__(self) -> None:
        self.order: dict[str, list[str]] = {}
        """The ids of the messages of each key."""
        self.key_of: dict[str, str] = {}
        self.held: dict[str, str] = {}
        """By message the consumer that has it."""
        self.pending: dict[str, tuple[TxnId, str]] = {}
        self.done: set[str] = set()

    def published(self, key: str, message_id: str) -> None:
        self.order.setdefault(key, []).append(message_id)
        self.key_of[message_id] = key

    def given(self, consumer: str, messages: Iterable[dict[str, Any]]) -> None:
        for message in messages:
            self._given(consumer, message["message_id"])

    def _given(self, consumer: str, message_id: str) -> None:
        assert message_id not in self.done and message_id not in self.pending and message_id not in self.held
        order = self.order[self.key_of[message_id]]
        for other in order:
            assert self.held.get(other, consumer) == consumer, f"{other} of the same key is at {self.held[other]}"
            assert self.pending.get(other, (None, consumer))[1] == consumer, f"{other} of the same key is pending"
        for earlier in order[: order.index(message_id)]:
            assert earlier in self.done or earlier in self.pending or earlier in self.held, f"{earlier} comes first"
        self.held[message_id] = consumer

    def acknowledged(self, message_id: str, txn_id: TxnId | None = None) -> None:
        consumer = self.held.pop(message_id)
        if txn_id is None:
            self.done.add(message_id)
        else:
            self.pending[message_id] = (txn_id, consumer)

    def returned(self, ids: Iterable[str]) -> None:
        for message_id in ids:
            order = self.order[self.key_of[message_id]]
            for later in order[order.index(message_id) :]:
                self.held.pop(later, None)

    def left(self, consumer: str) -> None:
        for message_id in [each for each, holder in self.held.items() if holder == consumer]:
            del self.held[message_id]
        for message_id, (txn_id, holder) in self.pending.items():
            if holder == consumer:
                self.pending[message_id] = txn_id, "nobody"

    def decided(self, txn_id: TxnId, *, commit: bool) -> None:
        ended = [each for each, (holder, _) in self.pending.items() if holder == txn_id]
        for message_id in ended:
            del self.pending[message_id]
        if commit:
            self.done.update(ended)
        else:
            self.returned(ended)

    def opened_again(self) -> None:
        """The broker is another one, which knows only what is acknowledged."""
        self.held.clear()
        self.pending = {each: (txn_id, "nobody") for each, (txn_id, _) in self.pending.items()}
