"""`Reader`: what `AsyncReader` is, for threads."""

from __future__ import annotations

from collections.abc import Iterator

from metatxn.reader import AsyncReader, Message
from metatxn.sync.background import Facade, items_of


class Reader(Facade[AsyncReader]):
    """Made by `Client.reader`; iterate it from one thread. Without `follow` it ends where nothing more is readable,
    and may be iterated again later to go on; with it, it waits for more."""

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def token(self) -> str | None:
        """Where it stands: a new reader started there misses nothing, and may repeat the last page."""
        return self._core.token

    def __iter__(self) -> Iterator[Message]:
        return items_of(self._core, self._background)
