"""`Consumer`: the blocking counterpart of `AsyncConsumer`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metatxn.consumer import AsyncConsumer
from metatxn.reader import Message
from metatxn.sync.background import Facade, blocking
from metatxn.sync.transaction import Transaction


class Consumer(Facade[AsyncConsumer]):
    """A consumer, made by `Client.subscribe`, for one thread. Close it, so that the messages it holds are redelivered
    at once.

    Iterating waits for messages indefinitely. It shows signs of life to the broker for as long as this object lives.
    """

    receive_many = blocking(AsyncConsumer.receive_many)
    negative_acknowledge = blocking(AsyncConsumer.negative_acknowledge)
    seek = blocking(AsyncConsumer.seek)
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

    @property
    def others_hold(self) -> bool:
        """Whether messages were left, when `receive` found none, that other consumers or open transactions have, or
        that are due for other consumers; otherwise nothing was left then."""
        return self._core.others_hold

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """See `AsyncConsumer.receive`."""
        return self._core.prefetched() or self._background.run(self._core.receive(timeout_s))

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
