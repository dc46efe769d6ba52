"""Keeps a transaction open while its rows are still being written."""

from __future__ import annotations

import threading
from contextvars import copy_context
from types import TracebackType

import metatxn

PER_TIMEOUT = 3
"""The number of keep-alives per timeout: two may be lost before the transaction expires."""


class KeepAlive:
    """A context manager with one small thread. Within the first third of the timeout nothing is sent at all.

    A keep-alive that fails is not an error here: a transaction that has ended refuses the next write or the commit with
    its own error, and after any other failure the next keep-alive tries again.
    """

    def __init__(self, transaction: metatxn.Transaction, timeout_ms: int) -> None:
        self._transaction = transaction
        self._timeout_ms = timeout_ms
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name=f"keep-alive-{transaction.id}", daemon=True
        )

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Not joined: a keep-alive may be waiting for a service that is down. A late one changes nothing, because
        # the service refuses it once the transaction is decided.
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._timeout_ms / PER_TIMEOUT / 1000):
            try:
                self._transaction.keep_alive(self._timeout_ms)
            except metatxn.MetatxnError as error:
                if not error.retriable and error.definite:
                    return
