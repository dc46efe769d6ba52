"""`TableWriter`: the blocking counterpart of `AsyncTableWriter`."""

from __future__ import annotations

from metatxn.sync.background import Facade, blocking
from metatxn.table_writer import AsyncTableWriter


class TableWriter(Facade[AsyncTableWriter]):
    """A writer of rows of one topic, inside one transaction or without one, for one thread. Nothing is guaranteed
    before `flush` or `close` returns: rows outside a transaction may be read before that, entry by entry.

    Rows of one segment keep the order in which they were written. Each is written once, whatever is retried, and none
    follow after a failure. Leaving its `with` closes the writer; an exception drops what was not sent.
    """

    write = blocking(AsyncTableWriter.write)
    flush = blocking(AsyncTableWriter.flush)
    close = blocking(AsyncTableWriter.close)

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def rows(self) -> int:
        """The number of rows accepted so far."""
        return self._core.rows

    @property
    def bytes(self) -> int:
        """The size in memory of the rows accepted so far."""
        return self._core.bytes
