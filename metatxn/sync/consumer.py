"""`Consumer`: what `AsyncConsumer` is, for threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metatxn.consumer import AsyncConsumer
from metatxn.reader import Message
from metatxn.sync.background import Facade, blocking
from metatxn.sync.transaction import Transaction


class Consumer(Facade[AsyncConsumer]):
    """Use it from one thread, and close it: what it holds then returns at once. Made by `Client.subscribe`.

    Iterating waits for messages for ever. It shows the broker that it is there for as long as this object lives.
    """

    negative_acknowledge = blocking(AsyncConsumer.negative_acknowledge)
    close = blocking(AsyncConsumer.close)

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def subscription(self) -> str:
        return self._core.subscription

    @property
    def name(self) -> str:
        return self._core.name

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """As `AsyncConsumer.receive`."""
        return self._core.prefetched() or self._background.run(self._core.receive(timeout_s))

    def __iter__(self) -> Iterator[Message]:
        while not self._core.closed:
            if (message := self.receive()) is not None:
                yield message

    def acknowledge(
        self, message: Message | Sequence[Message], txn: Transaction | None = None, writer: str | None = None
    ) -> None:
        """As `AsyncConsumer.acknowledge`."""
        self._background.run(self._core.acknowledge(message, txn.core if txn else None, writer))

    def acknowledge_cumulative(
        self, message: Message, txn: Transaction | None = None, writer: str | None = None
    ) -> None:
        """As `AsyncConsumer.acknowledge_cumulative`."""
        self._background.run(self._core.acknowledge_cumulative(message, txn.core if txn else None, writer))
