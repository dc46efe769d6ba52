"""`TopicsConsumer`: the blocking counterpart of `AsyncTopicsConsumer`."""

from __future__ import annotations

from metatxn.sync.background import blocking
from metatxn.sync.consuming import Consuming
from metatxn.topics_consumer import AsyncTopicsConsumer


class TopicsConsumer(Consuming[AsyncTopicsConsumer]):
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
