"""One transaction, from any thread.

    OPEN ──commit()──▶ COMMITTED
     │
     └──abort(), a failed send, an exception inside `with`, the timeout, a newer owner of its key──▶ ABORTED

The decision is one compare-and-set in the metadata store. When the answer to a commit is lost, the header knows what
became of it, so that is read until it is final or the time is over (`OutcomeUnknown`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from coordinator.api.models import TransactionHeader
from metatxn.connection import Connection, parsed, post
from metatxn.errors import (
    ExpiredTransaction,
    InvalidTransactionState,
    MetatxnError,
    OutcomeUnknown,
    ServiceUnreachable,
    TransactionNotFound,
)
from metatxn.http import Call, path_of

REREAD_PAUSE_S = 0.1


class Sender(Protocol):
    """Something that delivers inside a transaction."""

    def flush(self, txn_id: str | None = None) -> None: ...

    def discard(self, txn_id: str) -> None: ...


class Transaction:
    """Made by `Client.begin`, `Client.transaction` and `Client.attach`. Leaving its `with` commits; an exception, or
    a send that failed, aborts."""

    def __init__(self, connection: Connection, txn_id: str, header: TransactionHeader | None = None) -> None:
        self._connection = connection
        self._id = txn_id
        self._header = header
        self._senders: set[Sender] = set()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Transaction({self._id!r}, {self._header.state if self._header else 'not read yet'})"

    @property
    def id(self) -> str:
        """32 hex digits. Empty for a version that was committed already and whose transaction is forgotten."""
        return self._id

    @property
    def header(self) -> TransactionHeader:
        """As it was last read; read now if it never was. `refresh` reads it again."""
        return self._header or self.refresh()

    @property
    def state(self) -> Literal["OPEN", "COMMITTED", "ABORTED"]:
        """The state in `header`."""
        return self.header.state

    @property
    def already_committed(self) -> bool:
        """Begun with a `version` that is committed: there is nothing to do, and nothing can be sent."""
        return bool(self._header and self._header.already_committed)

    def refresh(self) -> TransactionHeader:
        """Read the header. Raises `TransactionNotFound`."""
        return self._keep(self._connection.coordinator(Call("GET", path_of("txns", self._id))))

    def keep_alive(self, timeout_ms: int) -> TransactionHeader:
        """Move the deadline to `timeout_ms` from now. Raises `ExpiredTransaction`, `InvalidTransactionState`."""
        return self._keep(self._post("keep-alive", {"timeout_ms": timeout_ms}))

    def remember_writers(self, writers: list[str]) -> TransactionHeader:
        """Add to the writers that count when it is committed without a list. With none remembered, all count.

        Raises `TransactionConflict`, `ExpiredTransaction`: it is decided.
        """
        return self._keep(self._post("writers", {"add": writers}))

    def commit(self, writers: list[str] | None = None) -> TransactionHeader:
        """Flush what was sent inside, then decide. With `writers`, only their entries count, and unnamed ones.

        Raises the failure of a send, after aborting; `ExpiredTransaction`, `InvalidTransactionState`: it is aborted;
        `OutcomeUnknown`: nobody could be asked. Whatever else is raised says that it was not committed.
        """
        if self.already_committed:
            return self.header
        if self._failure is not None:
            raise InvalidTransactionState(
                f"transaction {self._id} failed and is to be aborted: {self._failure}",
                action="Begin a new transaction and do the work again.",
                txn_id=self._id,
            ) from self._failure
        try:
            for sender in self._sent_inside():
                sender.flush(self._id)
        except BaseException as failure:
            self._abort_after(failure)
            raise
        return self._decide({"writers": writers})

    def abort(self, reason: str | None = None, *, force: bool = False) -> TransactionHeader:
        """With `force` a prepared one too. Raises `InvalidTransactionState` when it is committed."""
        if self.already_committed:
            return self.header
        header = self._keep(self._post("abort", {"reason": reason, "force": force or None}))
        for sender in self._sent_inside():
            sender.discard(self._id)
        return header

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._abort_after(error)
            return
        try:
            self.commit()
        except OutcomeUnknown:
            raise
        except MetatxnError as failure:
            self._abort_after(failure)
            raise

    # -- for producers, table writers and consumers ------------------------------------------------------------

    def joined_by(self, sender: Sender) -> None:
        """`sender` is about to send inside. Raises `InvalidTransactionState` when nothing can be sent any more."""
        self.check_takes_operations()
        with self._lock:
            self._senders.add(sender)

    def failed(self, failure: BaseException) -> None:
        """Something that belongs inside did not happen: it cannot be committed any more."""
        self._failure = failure

    def check_takes_operations(self) -> None:
        """Raises `InvalidTransactionState` when it was begun for a version that is committed."""
        if self.already_committed:
            raise InvalidTransactionState(
                f"version {self.header.version} of this key is committed already",
                action="Check `already_committed` before sending.",
                txn_id=self._id,
            )

    # -- inside ------------------------------------------------------------------------------------------------

    def _sent_inside(self) -> list[Sender]:
        with self._lock:
            return list(self._senders)

    def _keep(self, answer: Any) -> TransactionHeader:
        self._header = parsed(TransactionHeader, answer)
        return self._header

    def _post(self, verb: str, body: dict[str, Any], *, idempotent: bool = True) -> Any:
        return self._connection.coordinator(post(path_of("txns", self._id, verb), body, idempotent=idempotent))

    def _decide(self, body: dict[str, Any]) -> TransactionHeader:
        deadline = time.monotonic() + self._connection.request_timeout_s
        while True:
            try:
                return self._keep(self._post("commit", body, idempotent=False))
            except OutcomeUnknown as unknown:
                header = self._reread(unknown)
                if header.state == "COMMITTED":
                    return header
                if header.state == "ABORTED":
                    raise _aborted(header) from unknown
                if time.monotonic() >= deadline:
                    raise
            self._connection.http.sleep(REREAD_PAUSE_S)

    def _reread(self, unknown: OutcomeUnknown) -> TransactionHeader:
        try:
            return self.refresh()
        except (ServiceUnreachable, TransactionNotFound, OutcomeUnknown) as error:
            unknown.add_note(f"the header could not be read: {error}")
            raise unknown from error

    def _abort_after(self, failure: BaseException) -> None:
        """The failure is what the caller hears. If the abort fails too, the timeout will do it; until then nobody may
        commit what is incomplete."""
        self._failure = failure
        try:
            self.abort(reason=f"{type(failure).__name__}: {failure}"[:1024])
        except MetatxnError as error:
            failure.add_note(f"aborting transaction {self._id} failed too: {error}")
            with contextlib.suppress(MetatxnError):
                for sender in self._sent_inside():
                    sender.discard(self._id)


def _aborted(header: TransactionHeader) -> MetatxnError:
    detail = f"transaction {header.txn_id} was ABORTED at {header.finalized_ms}"
    if header.expired_by is not None:
        return ExpiredTransaction(f"{detail} by {header.expired_by}", txn_id=header.txn_id)
    return InvalidTransactionState(detail, txn_id=header.txn_id)
