"""`Reader`: the blocking counterpart of `AsyncReader`."""

from __future__ import annotations

from collections.abc import Iterator

from metatxn.reader import AsyncReader, Message
from metatxn.sync.background import Facade, items_of


class Reader(Facade[AsyncReader]):
    """A reader, made by `Client.reader`, for one thread. Without `follow` the iteration ends where nothing more is
    readable, and may be resumed later; with `follow` it waits for more."""

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def token(self) -> str | None:
        """The position of the reader: a new reader started there misses nothing, and may repeat the last page."""
        return self._core.token

    def __iter__(self) -> Iterator[Message]:
        return items_of(self._core, self._background)
