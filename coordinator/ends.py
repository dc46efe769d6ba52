"""The two ends of a transaction: what it becomes, and how a repeated request is answered if it is already decided."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from coordinator import answers
from coordinator.answers import Members
from coordinator.decisions import aborted, committed
from coordinator.ownership import require_force
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import TransactionRecords
from metatxn.service.security.principal import Principal
from metatxn.wire.ids import TxnId

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit. `writers` are those that count, as a `writer_set`. None: the remembered ones, or all if none are
    remembered.

    `as_holder`, of either end: the caller holds the transaction's key, whose record remembers that.
    """

    txn_id: TxnId
    writers: tuple[str, ...] | None = None
    as_holder: bool = False

    @property
    def wish(self) -> object:
        """A value that is equal for ends that turn equal headers into equal ones."""
        return Commit, self.writers

    def refuse(self, caller: Principal) -> None:
        """Raises NOT_ALLOWED, whatever the records contain."""

    def final(self, records: TransactionRecords, now_ms: int, caller: Principal) -> Header:
        """What the open transaction becomes. Raises NOT_ALLOWED."""
        counted = records.remembered_writers if self.writers is None else self.writers
        return committed(records.header_to_decide, now_ms, counted, caller.name)

    def again(self, records: TransactionRecords) -> Members:
        """The answer for a transaction that is already final (DESIGN §5.11). Raises INVALID_TXN_STATE,
        EXPIRED_TRANSACTION."""
        header = records.header
        if header.state is not TxnState.COMMITTED:
            raise answers.already_decided(self.txn_id, header)
        if self.writers is not None and self.writers != header.writers:
            raise answers.other_writers(self.txn_id, header)
        return answers.members_as_read(records)


@dataclass(frozen=True, slots=True)
class Abort:
    """An abort. `force` is for administrators, and only changes who may abort a prepared transaction."""

    txn_id: TxnId
    reason: str | None = None
    force: bool = False
    as_holder: bool = False

    @property
    def wish(self) -> object:
        return Abort, self.reason

    def refuse(self, caller: Principal) -> None:
        if self.force:
            caller.require_admin()

    def final(self, records: TransactionRecords, now_ms: int, caller: Principal) -> Header:
        if self.force:
            log.info("abort by force", txn_id=str(self.txn_id), reason=self.reason, by=caller.name)
        else:
            require_force(records, caller)
        return aborted(records.header_to_decide, now_ms, self.reason, caller.name)

    def again(self, records: TransactionRecords) -> Members:
        if records.header.state is not TxnState.ABORTED:
            raise answers.already_decided(self.txn_id, records.header)
        return answers.members_as_read(records)


End = Commit | Abort
