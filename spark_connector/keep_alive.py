"""Keeps a transaction open while its rows are still being written."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType

import metatxn

PER_TIMEOUT = 3
"""Two keep-alives may be lost before the transaction expires."""
FAILED_TIMEOUT_MS = 60_000
"""How long a transaction stays open after a task attempt in it has failed, if no other attempt keeps it alive."""
LONGEST_INTERVAL_S = FAILED_TIMEOUT_MS / PER_TIMEOUT / 1000


class KeepAlive:
    """A context manager with one small thread. Within a third of the timeout, or 20 s, nothing is sent at all.

    When the block fails, the transaction is given `FAILED_TIMEOUT_MS` more, no longer. Spark's driver learns from the
    tasks that succeed which transaction they were in: when all of them fail it cannot abort it. An attempt that is
    retried, and every other task, keeps it alive in time.

    A keep-alive that fails is not an error here: a transaction that is over refuses the next write or the commit,
    which says so in its own words, and anything else is tried again at the next tick.
    """

    def __init__(self, transaction: metatxn.Transaction, timeout_ms: int) -> None:
        self._transaction = transaction
        self._timeout_ms = timeout_ms
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keep-alive-{transaction.id}", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Not joined: a keep-alive may be waiting for a service that is down. A late one changes nothing, because
        # the service refuses it once the transaction is decided.
        self._stopped.set()
        if error is not None and self._timeout_ms > FAILED_TIMEOUT_MS:
            with suppress(metatxn.MetatxnError):
                self._transaction.keep_alive(FAILED_TIMEOUT_MS)

    def _run(self) -> None:
        while not self._stopped.wait(min(self._timeout_ms / PER_TIMEOUT / 1000, LONGEST_INTERVAL_S)):
            try:
                self._transaction.keep_alive(self._timeout_ms)
            except metatxn.MetatxnError as error:
                if not error.retriable and error.definite:
                    return
