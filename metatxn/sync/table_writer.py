"""`TableWriter`: what `AsyncTableWriter` is, for threads."""

from __future__ import annotations

from metatxn.sync.background import Facade, blocking
from metatxn.table_writer import AsyncTableWriter


class TableWriter(Facade[AsyncTableWriter]):
    """Rows of one topic, inside one transaction or outside of any. From one thread. Nothing is promised before `flush`
    or `close` returns: rows outside of a transaction may be read before that, entry by entry.

    Rows of one segment keep the order written, each is there once, whatever is tried again, and behind a failure none
    follow. Leaving its `with` closes it; an exception drops what was not sent.
    """

    write = blocking(AsyncTableWriter.write)
    flush = blocking(AsyncTableWriter.flush)
    close = blocking(AsyncTableWriter.close)

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def rows(self) -> int:
        """Taken so far."""
        return self._core.rows

    @property
    def bytes(self) -> int:
        """Taken so far, as they were in memory."""
        return self._core.bytes
