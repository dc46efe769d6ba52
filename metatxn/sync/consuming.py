"""What the blocking consumers of one topic and of several have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar

from metatxn.consumer import AsyncConsumer
from metatxn.reader import Message
from metatxn.sync.background import Facade
from metatxn.sync.transaction import Transaction
from metatxn.topics_consumer import AsyncTopicsConsumer

K = TypeVar("K", bound=AsyncConsumer | AsyncTopicsConsumer, covariant=True)


class Consuming(Facade[K]):
    @property
    def core(self) -> K:
        return self._core

    @property
    def subscription(self) -> str:
        return self._core.subscription

    @property
    def others_hold(self) -> bool:
        """Whether messages were left, when `receive` found none, that other consumers or open transactions have, or
        that are due for other consumers; otherwise nothing was left then. Of several topics: in any of them."""
        return self._core.others_hold

    @abstractmethod
    def receive(self, timeout_s: float | None = None) -> Message | None: ...

    def __iter__(self) -> Iterator[Message]:
        while not self._core.closed:
            if (message := self.receive()) is not None:
                yield message

    def acknowledge(
        self, message: Message | Sequence[Message], txn: Transaction | None = None, writer: str | None = None
    ) -> None:
        """See `AsyncConsumer.acknowledge`."""
        self._background.run(self._core.acknowledge(message, txn.core if txn else None, writer))

    def acknowledge_cumulative(
        self, message: Message, txn: Transaction | None = None, writer: str | None = None
    ) -> None:
        """See `AsyncConsumer.acknowledge_cumulative`."""
        self._background.run(self._core.acknowledge_cumulative(message, txn.core if txn else None, writer))
