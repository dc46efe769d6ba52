"""`TopicsConsumer`: the blocking counterpart of `AsyncTopicsConsumer`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metatxn.reader import Message
from metatxn.sync.background import Facade, blocking
from metatxn.sync.transaction import Transaction
from metatxn.topics_consumer import AsyncTopicsConsumer


class TopicsConsumer(Facade[AsyncTopicsConsumer]):
    """A consumer of several topics, made by `Client.subscribe_topics`, for one thread. It has the methods of
    `Consumer`; messages are acknowledged on the topic that they come from. Close it, so that the messages it holds are
    redelivered at once.
    """

    look = blocking(AsyncTopicsConsumer.look)
    receive = blocking(AsyncTopicsConsumer.receive)
    receive_many = blocking(AsyncTopicsConsumer.receive_many)
    negative_acknowledge = blocking(AsyncTopicsConsumer.negative_acknowledge)
    seek = blocking(AsyncTopicsConsumer.seek)
    close = blocking(AsyncTopicsConsumer.close)

    @property
    def topics(self) -> list[str]:
        return self._core.topics

    @property
    def subscription(self) -> str:
        return self._core.subscription

    @property
    def others_hold(self) -> bool:
        """Whether messages were left in any topic, when `receive` found none; see `Consumer`."""
        return self._core.others_hold

    def __iter__(self) -> Iterator[Message]:
        while not self._core.closed:
            if (message := self.receive()) is not None:
                yield message

    def acknowledge(
        self, message: Message | Sequence[Message], txn: Transaction | None = None, writer: str | None = None
    ) -> None:
        """See `AsyncTopicsConsumer.acknowledge`."""
        self._background.run(self._core.acknowledge(message, txn.core if txn else None, writer))

    def acknowledge_cumulative(
        self, message: Message, txn: Transaction | None = None, writer: str | None = None
    ) -> None:
        """See `AsyncConsumer.acknowledge_cumulative`."""
        self._background.run(self._core.acknowledge_cumulative(message, txn.core if txn else None, writer))
