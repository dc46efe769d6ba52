"""`Transaction`: the blocking counterpart of `AsyncTransaction`."""

from __future__ import annotations

from typing import Literal

from metatxn.sync.background import Facade, blocking
from metatxn.transaction import AsyncTransaction
from metatxn.wire.coordinator import TransactionHeader


class Transaction(Facade[AsyncTransaction]):
    """A transaction, made by `Client.begin`, `Client.transaction` and `Client.attach`. Leaving its `with` commits it;
    an exception, or a send or a flush that failed, aborts it. So does closing the client that began it and did
    something inside, unless a commit was tried, it was begun for a `version`, or it is to be left open
    (`leave_open`)."""

    refresh = blocking(AsyncTransaction.refresh)
    keep_alive = blocking(AsyncTransaction.keep_alive)
    prepare = blocking(AsyncTransaction.prepare)
    remember_writers = blocking(AsyncTransaction.remember_writers)
    commit = blocking(AsyncTransaction.commit)
    abort = blocking(AsyncTransaction.abort)

    def leave_open(self) -> None:
        """See `AsyncTransaction.leave_open`."""
        self._background.call_soon(self._core.leave_open)

    @property
    def core(self) -> AsyncTransaction:
        return self._core

    @property
    def id(self) -> str:
        """The id, 32 hexadecimal digits. It is empty for a version that is already committed and whose transaction is
        forgotten."""
        return self._core.id

    @property
    def header(self) -> TransactionHeader:
        """The header as it was last read; it is read now if it never was. `refresh` reads it again."""
        return self._core.header or self.refresh()

    @property
    def state(self) -> Literal["OPEN", "COMMITTED", "ABORTED"]:
        """The state in `header`."""
        return self.header.state

    @property
    def already_committed(self) -> bool:
        """Whether it was begun with a `version` that is already committed: then there is nothing to do, and nothing can
        be sent."""
        return self._core.already_committed
