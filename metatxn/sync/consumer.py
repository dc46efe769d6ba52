"""`Consumer`: the blocking counterpart of `AsyncConsumer`."""

from __future__ import annotations

from metatxn.consumer import AsyncConsumer
from metatxn.reader import Message
from metatxn.sync.background import blocking
from metatxn.sync.consuming import Consuming


class Consumer(Consuming[AsyncConsumer]):
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
    def name(self) -> str:
        return self._core.name

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """See `AsyncConsumer.receive`."""
        return self._core.prefetched() or self._background.run(self._core.receive(timeout_s))
