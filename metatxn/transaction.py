"""One transaction.

    OPEN ──commit()──▶ COMMITTED
     │
     └──abort(), a failed send, an exception inside `with`, the timeout, a newer owner of its key──▶ ABORTED

The decision is one compare-and-set in the metadata store. When the answer to a commit is lost, the header records the
outcome, so it is read until it is final or the time is over (`OutcomeUnknown`). It is not enough that the transaction
is committed: another caller may have committed it with a different list of writers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Set
from types import TracebackType
from typing import Any, Protocol, Self

from metatxn.answers import parsed
from metatxn.carried import CarriedCommit, EntryName
from metatxn.connection import Connection, post
from metatxn.http import Call, path_of
from metatxn.transport.api import Answer
from metatxn.wire.coordinator import TransactionHeader
from metatxn.wire.errors import (
    ExpiredTransaction,
    InvalidTransactionState,
    MetatxnError,
    OutcomeUnknown,
    TransactionConflict,
)

REREAD_PAUSE_S = 0.1


class Sender(Protocol):
    """Something that delivers inside a transaction."""

    def is_settled(self, txn_id: str) -> bool: ...

    def under_way(self, txn_id: str) -> Set[EntryName] | None: ...

    async def flush(self, txn_id: str | None = None) -> None: ...

    def discard(self, txn_id: str) -> None: ...


class AsyncTransaction:
    """A transaction, made by `AsyncClient.begin`, `transaction` and `attach`. Leaving its `async with` commits it; an
    exception, or a send or a flush that failed, aborts it. So does closing the client that began it and did something
    inside, unless a commit was tried, it was begun for a `version`, or it is to be left open (`leave_open`)."""

    def __init__(
        self,
        connection: Connection,
        txn_id: str,
        header: TransactionHeader | None = None,
        *,
        ends_with_client: bool = False,
    ) -> None:
        self._connection = connection
        self._id = txn_id
        self._header = header
        self._tells_first_use = ends_with_client
        """Whether the connection is still to hear that it is used: only once, so that nothing takes back `ended`."""
        self._senders: dict[Sender, None] = {}
        """The senders in the order in which they joined, so that a simulation can repeat every step."""
        self._failure: BaseException | None = None
        self._doubt: MetatxnError | None = None
        """Why nobody knows what became of a commit that had departed before something of the transaction failed."""
        self._remembered: set[str] = set()
        """The writers that were remembered through this object."""
        self._used: set[str] = set()
        """The writers that have written or acknowledged through this object."""
        self._acknowledged: dict[tuple[str, str, str], int] = {}
        """Which delivery of a message was acknowledged through this object, by topic, subscription and message."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id!r}, {self._header.state if self._header else 'not read yet'})"

    @property
    def id(self) -> str:
        """The id, 32 hexadecimal digits. It is empty for a version that is already committed and whose transaction is
        forgotten."""
        return self._id

    @property
    def header(self) -> TransactionHeader | None:
        """The header as it was last read, or None if it was never read. `refresh` reads it."""
        return self._header

    @property
    def already_committed(self) -> bool:
        """Whether it was begun with a `version` that is already committed: then there is nothing to do, and nothing can
        be sent."""
        return bool(self._header and self._header.already_committed)

    async def refresh(self) -> TransactionHeader:
        """Read the header. Raises `TransactionNotFound`."""
        return self._keep(await self._connection.coordinator(Call("GET", path_of("txns", self._id))))

    async def keep_alive(self, timeout_ms: int) -> TransactionHeader:
        """Move the deadline to `timeout_ms` from now. Raises `ExpiredTransaction` and `InvalidTransactionState`."""
        return self._keep(await self._post("keep-alive", {"timeout_ms": timeout_ms}))

    async def prepare(self, timeout_ms: int | None = None) -> TransactionHeader:
        """The first phase of an external two-phase commit: from now on only a commit or an abort is accepted. The
        transaction is aborted `timeout_ms` from now (default: a day). Flush what was sent inside it first: it is
        refused afterwards.

        Raises `ExpiredTransaction` and `InvalidTransactionState`.
        """
        self._out_of_hand()  # the process that prepares it decides it, perhaps from elsewhere
        return self._keep(await self._post("prepare", {"prepared_timeout_ms": timeout_ms}))

    async def remember_writers(self, writers: list[str]) -> TransactionHeader:
        """Add to the writers that count if the transaction is committed without a list. If none are remembered, all
        count.

        Raises `TransactionConflict` and `ExpiredTransaction` if the transaction is decided.
        """
        header = self._keep(await self._post("writers", {"add": writers}))
        self._remembered.update(writers)
        return header

    async def commit(self, writers: list[str] | None = None) -> TransactionHeader:
        """Flush everything that was sent inside, then decide. With `writers`, only their entries and those without a
        writer count.

        Raises the failure of a send, after aborting. Raises `ExpiredTransaction` or `InvalidTransactionState` if the
        transaction is aborted, or if it is committed with other writers than `writers` or, without a list, not with all
        that were remembered here (if none were, with all that wrote here); and `OutcomeUnknown` if no service could
        tell. Any other error means that it was not committed.
        """
        if self._header and self._header.already_committed:
            return self._header
        if self._doubt is not None:
            return await self._told(self._doubt, writers)
        carried = CarriedCommit(writers, self._are_all_under_way, self._out_of_hand, self.refresh)
        try:
            # A task for each of many producers would take longer than the commit, and mostly all are settled.
            waiting = [sender for sender in self._senders if not sender.is_settled(self._id)]
            if waiting:
                with self._connection.carrying(self._id, carried):
                    await asyncio.gather(*[sender.flush(self._id) for sender in waiting])
            self._check_complete()
        except BaseException as failure:
            if not carried.may_have_landed:
                await self._abort_after(failure)
                raise
            header = await self._committed_anyway(carried, failure)
            self._discard()  # what came too late
            if not isinstance(failure, Exception):
                raise
            return self._as_asked(header, writers)
        if carried.header is not None:
            self._header = carried.header
            return self._as_asked(carried.header, writers)
        return await self._decide(writers, carried.unknown)

    async def abort(self, reason: str | None = None, *, force: bool = False) -> TransactionHeader:
        """Abort; with `force` even a prepared transaction. Raises `InvalidTransactionState` if it is committed."""
        if self._header and self._header.already_committed:
            return self._header
        body = {"reason": reason, "force": force or None}
        header = self._keep(await self._post("abort", body, settled_by=(InvalidTransactionState,)))
        self._out_of_hand()
        self._discard()
        return header

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            await self._abort_after(error)
            return
        try:
            await self.commit()
        except MetatxnError as failure:
            if failure.definite and self._failure is None:  # otherwise it may be committed, or is already aborted
                await self._abort_after(failure)
            raise

    def leave_open(self) -> None:
        """Do not abort the transaction when the client is closed: another program will end it."""
        self._out_of_hand()

    # -- for producers, table writers and consumers ------------------------------------------------------------

    def joined_by(self, sender: Sender) -> None:
        """`sender` is about to send inside the transaction. Raises `InvalidTransactionState` if nothing can be sent any
        more."""
        self.check_takes_operations()
        self._senders[sender] = None

    def used_by(self, writer: str | None) -> None:
        """`writer` is about to write or acknowledge something inside the transaction."""
        if writer is not None:
            self._used.add(writer)

    def acknowledges(self, topic: str, subscription: str, message_id: str, delivery: int) -> None:
        """This delivery of a message is about to be acknowledged inside the transaction. Raises `TransactionConflict`
        if another one was: the broker takes the second acknowledgement for a retry of the first one, but the program
        has done its work twice."""
        if self._acknowledged.setdefault((topic, subscription, message_id), delivery) != delivery:
            raise TransactionConflict(
                f"message {message_id} was delivered twice and is acknowledged twice in transaction {self._id}",
                action="Abort, and do the work in a new transaction. A longer ack timeout makes this rare.",
                txn_id=self._id,
            )

    def failed(self, failure: BaseException) -> None:
        """Something that belongs to the transaction was not done, so it can no longer be committed."""
        self._failure = self._failure or failure

    def check_takes_operations(self) -> None:
        """Something is about to be done inside. Raises `InvalidTransactionState` if it was begun for a version that is
        already committed."""
        if self._header and self._header.already_committed:
            raise InvalidTransactionState(
                f"version {self._header.version} of this key is already committed",
                action="Check `already_committed` before sending.",
                txn_id=self._id,
            )
        if self._tells_first_use:
            self._tells_first_use = False
            self._connection.opened(self._id)

    # -- inside ------------------------------------------------------------------------------------------------

    def _out_of_hand(self) -> None:
        """From now on it may be committed, or somebody else is going to end it. So closing the client does not end it,
        and what is still sent inside may be too late."""
        self._tells_first_use = False
        self._connection.ended(self._id)

    def _are_all_under_way(self, entries: Set[EntryName]) -> bool:
        """Whether these entries are all that is left to do in the transaction."""
        ours: set[EntryName] = set()
        for sender in self._senders:
            under_way = sender.under_way(self._id)
            if under_way is None:
                return False
            ours |= under_way
        return self._failure is None and ours == entries

    def _check_complete(self) -> None:
        if self._failure is not None:
            raise InvalidTransactionState(
                f"transaction {self._id} failed and must be aborted: {self._failure}",
                action="Begin a new transaction and do the work again.",
                txn_id=self._id,
            ) from self._failure

    def _discard(self) -> None:
        for sender in self._senders:
            sender.discard(self._id)

    def _keep(self, answer: Answer) -> TransactionHeader:
        self._header = parsed(TransactionHeader, answer)
        return self._header

    async def _post(
        self,
        verb: str,
        body: dict[str, Any],
        *,
        idempotent: bool = True,
        settled_by: tuple[type[MetatxnError], ...] = (),
    ) -> Answer:
        call = post(path_of("txns", self._id, verb), body, idempotent=idempotent, settled_by=settled_by)
        return await self._connection.coordinator(call)

    async def _decide(self, writers: list[str] | None, unknown: MetatxnError | None) -> TransactionHeader:
        """Commit. `unknown` is the error of an earlier attempt that may have had an effect."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._connection.request_timeout_s
        self._out_of_hand()  # from now on it may be committed
        while True:
            try:
                header = self._keep(await self._post("commit", {"writers": writers}, idempotent=False))
                return self._as_asked(header, writers)
            except (ExpiredTransaction, InvalidTransactionState):
                raise
            except MetatxnError as error:
                if error.definite:
                    if unknown is None:
                        raise
                    # Only this attempt was refused. The one without an answer may still arrive.
                    unknown.add_note(f"then: {error.detail}")
                    raise unknown from error
                unknown = error
            header = await self._reread(unknown)
            if header.state == "COMMITTED":
                return self._as_asked(header, writers)
            if header.state == "ABORTED":
                raise _aborted(header) from unknown
            if now() >= deadline:
                raise unknown
            await asyncio.sleep(REREAD_PAUSE_S)

    def _as_asked(self, header: TransactionHeader, writers: list[str] | None) -> TransactionHeader:
        """The header of a committed transaction. Raises `InvalidTransactionState` if other writers count.

        The decision deletes the list of writers that others have remembered. So for a commit without a list it is only
        known that the writers remembered here must be among those that count. Where none were, the caller expects that
        all of its own count: those that it knows to have failed are left out by a list.
        """
        ours = (self._remembered or self._used) if writers is None else set(writers)
        if writers is not None:
            void = header.writers is None or set(header.writers) != ours
        else:
            void = header.writers is not None and not ours <= set(header.writers)
        if void:
            raise _committed_otherwise(header, ours)
        return header

    async def _reread(self, unknown: MetatxnError) -> TransactionHeader:
        try:
            return await self.refresh()
        except MetatxnError as error:
            unknown.add_note(f"the header could not be read: {error}")
            raise unknown from error

    async def _committed_anyway(self, carried: CarriedCommit, failure: BaseException) -> TransactionHeader:
        """The header of the transaction if it is committed, although something failed after its commit had departed:
        that came too late. Otherwise it is aborted, and this raises `failure`; or it raises `OutcomeUnknown`, or
        `failure` if that is no error, and the next commit only reads the header."""
        if carried.header is not None:
            self._header = carried.header
            return carried.header
        assert carried.unknown is not None
        try:
            await self.abort(reason=_reason(failure))
        except InvalidTransactionState:
            self._doubt = carried.unknown  # until the header has told
        except MetatxnError as error:
            self._doubt = OutcomeUnknown(f"{carried.unknown.detail}; and it could not be aborted: {error.detail}")
        else:
            self.failed(failure)
            raise failure
        try:
            header = await self._reread(self._doubt)
            if header.state == "COMMITTED":
                self._doubt = None
                return header
            raise self._doubt
        except MetatxnError as unknown:
            if isinstance(failure, Exception):
                raise unknown from failure
            raise failure from unknown

    async def _told(self, doubt: MetatxnError, writers: list[str] | None) -> TransactionHeader:
        """The header, if it says that the transaction is committed. While it is open, nothing is tried, because
        something of the transaction may be missing."""
        header = await self._reread(doubt)
        if header.state == "ABORTED":
            raise _aborted(header) from doubt
        if header.state != "COMMITTED":
            raise doubt
        self._discard()
        return self._as_asked(header, writers)

    async def _abort_after(self, failure: BaseException) -> None:
        """The caller gets the failure. If the abort fails too, the timeout will abort the transaction; until then
        no one may commit what is incomplete."""
        self.failed(failure)
        try:
            await self.abort(reason=_reason(failure))
        except MetatxnError as error:
            failure.add_note(f"aborting transaction {self._id} failed too: {error}")
            self._discard()


class inside:  # noqa: N801  a statement, as those of contextlib
    """An error that is raised in this block means that something of `txn` was not done."""

    __slots__ = ("_txn",)

    def __init__(self, txn: AsyncTransaction | None) -> None:
        self._txn = txn

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._txn is not None:
            self._txn.failed(error)


def _reason(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {failure}"[:1024]


def _aborted(header: TransactionHeader) -> MetatxnError:
    detail = f"transaction {header.txn_id} was ABORTED at {header.finalized_ms}"
    if header.expired_by is not None:
        return ExpiredTransaction(f"{detail} by {header.expired_by}", txn_id=header.txn_id)
    return InvalidTransactionState(detail, txn_id=header.txn_id)


def _committed_otherwise(header: TransactionHeader, asked: Iterable[str]) -> MetatxnError:
    counted = "all" if header.writers is None else f"{len(header.writers)} named"
    void = sorted(set(asked) - set(asked if header.writers is None else header.writers))
    ours = f", without {void[0]!r} and {len(void) - 1} more of these" if void else ""
    detail = f"transaction {header.txn_id} was COMMITTED at {header.finalized_ms} with other writers"
    return InvalidTransactionState(
        f"{detail} ({counted} count{ours})",
        action="Find out which program committed it: the entries of your writers may be void.",
        txn_id=header.txn_id,
    )
