"""Transaction keys: one connection and one open transaction per (owner, key) (DESIGN §5.15, transaction-key PIP).

    connect   epoch += 1 │ the unprepared predecessor → ABORTED by fencing │ a prepared one stays and is returned
    begin     the unprepared predecessor → ABORTED by fencing │ new header OPEN │ the key holds it
    commit    (in `decisions`) the key must still hold it │ last_version moves │ the key holds nothing
    delete    whatever it holds → ABORTED by fencing │ a tombstone keeps epoch and last_version
    forget    (in `key_sweep`) it holds nothing, and has not been used for long │ no record

Each line is one apply, and each writes the key's record at the version it read, so they happen one after another.
Epochs never repeat, not even after a key was deleted or forgotten (DESIGN §5.26). The first one is 0 in a store that
has forgotten nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from coordinator import answers
from coordinator.answers import Members
from coordinator.decisions import Decisions, aborted
from coordinator.doubt import ACTION_AFTER_BEGIN, Doubt
from coordinator.settling import Overtaken
from metastore.txn import paths
from metastore.txn import store as txn_records
from metastore.txn.forgetting import beginning
from metastore.txn.id_blocks import IdBlocks
from metastore.txn.key_records import KeyRecord, read_key
from metastore.txn.records.transactions import Header, TransactionKey
from metastore.txn.states import ExpiredBy, TxnState
from metastore.txn.store import TransactionRecords, finalize, read_transaction
from metastore.types import Absent, Batch, Revision
from metatxn.wire import errors
from metatxn.wire.coordinator import (
    BeginRequest,
    ConnectAnswer,
    ConnectRequest,
    DeletedTransactionKey,
    TransactionKeyInfo,
)
from metatxn.wire.ids import TxnId

FENCED_SESSIONS_KEPT = 64

log = structlog.get_logger()


class Begun(NamedTuple):
    """The answer to a begin. `created` is false if it found the same transaction open, or its version already
    committed."""

    txn: Members
    created: bool

    @property
    def txn_id(self) -> TxnId:
        """Its id. Raises `KeyError` for a version that was committed before."""
        txn_id: TxnId = self.txn["txn_id"]
        return txn_id


class StoredWithBegin(Protocol):
    """The intents of segments, which the apply that begins a transaction stores, too (DESIGN §5.1)."""

    def add_to(self, batch: Batch, txn_id: TxnId) -> None:
        """Add the intents to an apply."""

    def stored(self, txn_id: TxnId) -> None:
        """The transaction has begun, with the intents. This is not called if that is not known."""


@dataclass(frozen=True, slots=True)
class Follows:
    """Begin only after this transaction, the last one of the key; None if there was none since the connect. So a late
    copy of a begin never ends or replaces a transaction that came after it (DESIGN §5.22)."""

    txn_id: TxnId | None
    intents: StoredWithBegin | None = None


class TransactionKeys:
    """The transaction keys of one store."""

    def __init__(self, decisions: Decisions, ids: IdBlocks) -> None:
        self._decisions = decisions
        self._store = decisions.store
        self._ids = ids

    # -- connect -------------------------------------------------------------------------------------------------

    async def connect(self, key: str, request: ConnectRequest) -> ConnectAnswer:
        """Become the one connection of `key`.

        Raises NOT_ALLOWED for a stale epoch or a session that was taken over, and OUTCOME_UNKNOWN.
        """
        fenced: TransactionRecords | None = None
        with Doubt("Connect again, with -1 or with the current epoch of the key.", transaction_key=key) as doubt:
            patience = self._decisions.settling.patience()
            while await patience.lasts():
                held = await read_key(self._store, request.owner, key)
                holder = await self._held_transaction(held.value)
                same = _same_session(held, request)
                # What the key held may have been decided since the key was read. That wrote the key, so the write below
                # is refused, and both are read again.
                if same and (holder or same.txn_id is None):
                    return _connected(same, fenced, holder)
                # After a lost reply, the newer epoch may have been made by this very request: see `Doubt`.
                _refuse_fenced_session(held, request)
                if request.epoch != -1:
                    _live_at(held, request.epoch)
                first = await beginning(self._store) if held.value is None else None
                bumped = self._bumped(held, request, holder, first.number if first else 0)
                unprepared = holder if holder and not holder.prepared_record else None
                fenced = unprepared or fenced
                batch = held.write(self._store.batch(), bumped)
                if first is not None:
                    batch.check(first.check)
                try:
                    await self._apply(batch, unprepared, f"epoch {bumped.epoch} of its transaction key took over")
                except Overtaken as overtaken:
                    # The epoch of a write whose reply was lost was given to no one: taking over from it costs one more.
                    doubt.note(overtaken)
                    fenced = await self._fenced_after_all(fenced) if doubt.lost else None
                    continue
                log.info("transaction key taken over", transaction_key=key, owner=request.owner, epoch=bumped.epoch)
                return _connected(bumped, fenced, holder)
            raise patience.over(f"transaction key {key!r}")

    async def fence(self, key: str, epoch: int, owner: str | None = None) -> ConnectAnswer:
        """End the connection that has this epoch: like `connect`, but no process is connected afterwards. It is an
        administrator's operation, for keys of all owners.

        Raises NOT_FOUND for a key that is not in use, NOT_ALLOWED if its epoch is another one, and OUTCOME_UNKNOWN.
        """
        await self.get(key, owner)
        return await self.connect(key, ConnectRequest(epoch=epoch, owner=owner))

    async def _fenced_after_all(self, predecessor: TransactionRecords | None) -> TransactionRecords | None:
        """`predecessor` if it is fenced now, by the write whose reply was lost or by another one; it may also be
        committed."""
        records = predecessor and await read_transaction(self._store, predecessor.txn_id)
        return records if records and records.header.expired_by is ExpiredBy.FENCING else None

    def _bumped(
        self, held: KeyRecord, request: ConnectRequest, holder: TransactionRecords | None, first: int
    ) -> TransactionKey:
        """The record after this connection: it still holds a prepared transaction, but no other one. A key that the
        store does not know has the epoch `first`."""
        old = held.value
        fenced = (old.fenced_sessions if old else None) or ()
        if old and old.session and old.session != request.session:
            fenced = (*fenced, old.session)[-FENCED_SESSIONS_KEPT:]
        return TransactionKey(
            epoch=old.epoch + 1 if old else first,
            updated_ms=self._decisions.clock(),
            txn_id=str(holder.txn_id) if holder and holder.prepared_record else None,
            last_version=old.last_version if old else None,
            session=request.session,
            fenced_sessions=fenced or None,
        )

    # -- begin ---------------------------------------------------------------------------------------------------

    async def begin(self, request: BeginRequest, key: str, epoch: int, follows: Follows | None = None) -> Begun:
        """Begin under a key: at most one transaction of a key is open, and a committed version never runs again.

        `epoch` is the one that connect has returned: a caller that does not know it must not work under the key. With
        `follows` no open transaction is aborted: it is returned.

        Raises NOT_ALLOWED for an epoch that is not the key's, or if another transaction than that of `follows` came
        last; TXN_CONFLICT while a prepared transaction of the key waits for its decision; and OUTCOME_UNKNOWN.
        """
        txn_id: TxnId | None = None
        header: Header | None = None
        intents = follows and follows.intents
        presumed = self._presumed(request, key, epoch, follows)
        with Doubt(_action_after_begin(request), transaction_key=key) as doubt:
            patience = self._decisions.settling.patience()
            while await patience.lasts():
                if doubt.lost and txn_id and header:
                    if landed := await self._begun_as(txn_id, header):
                        self._decisions.metrics.created.inc()
                        if intents:
                            intents.stored(txn_id)
                        return Begun(answers.members_as_read(landed), created=True)
                    txn_id = None  # it may have begun, ended and been collected meanwhile: an id never begins twice
                doubt.settle()
                held = presumed or await read_key(self._store, request.owner, key)
                presumed = None
                live = _live_at(held, epoch)
                if _already_committed(held, request):
                    return Begun(_committed_before(held, request), created=False)
                predecessor = await self._held_transaction(held.value)
                joins = follows is not None and predecessor is not None and not predecessor.prepared_record
                if predecessor and (joins or _is_same(predecessor, request, epoch)):
                    return Begun(answers.members_as_read(predecessor), created=False)
                if predecessor and predecessor.prepared_record:
                    raise _prepared_predecessor(predecessor, key)
                if follows:
                    _refuse_other_last(live, follows, key)
                txn_id = txn_id or await self._id_besides(predecessor)
                doubt.about(txn_id=str(txn_id))
                header = self._new_header(request, epoch)
                batch = txn_records.begin(self._store.batch(), txn_id, header)
                guards = len(batch.checks)
                if intents:
                    intents.add_to(batch, txn_id)
                announced = batch.checks[guards:]
                update: dict[str, object] = {"txn_id": str(txn_id), "updated_ms": header.created_ms}
                if follows:
                    update |= {"last_txn_id": str(txn_id), "ended_by_holder": None}
                held.write(batch, live.model_copy(update=update))
                try:
                    revision = await self._apply(batch, predecessor, f"transaction {txn_id} of the same key began")
                except Overtaken as overtaken:
                    doubt.note(overtaken)
                    if overtaken.check == Absent(paths.header(txn_id)):
                        self._ids.in_use([txn_id])
                        txn_id = None
                    if overtaken.check in announced:
                        intents = None
                    continue
                self._decisions.metrics.created.inc()
                if intents:
                    intents.stored(txn_id)
                log.debug("transaction begun", txn_id=str(txn_id), transaction_key=key, epoch=epoch)
                return Begun(answers.members(txn_id, header, revision), created=True)
            raise patience.over(f"transaction key {key!r}")

    def _presumed(self, request: BeginRequest, key: str, epoch: int, follows: Follows | None) -> KeyRecord | None:
        """The key as its holder has left it here, if a transaction can begin as long as that is so."""
        presumed = self._decisions.presumed.take(request.owner, key)
        live = presumed.live if presumed is not None else None
        if live is None or follows is None or live.epoch != epoch or live.txn_id is not None:
            return None
        return presumed if live.last_txn_id == follows.txn_id and request.version is None else None

    async def _begun_as(self, txn_id: TxnId, header: Header) -> TransactionRecords | None:
        """The transaction, if it began with this header; it may have been decided since."""
        records = await read_transaction(self._store, txn_id)
        return records if records and records.header.as_begun == header else None

    async def _id_besides(self, predecessor: TransactionRecords | None) -> TxnId:
        """A new id. The predecessor can have the same id only where ids are given out again; a batch could not name
        both then."""
        txn_id = await self._ids.next()
        if predecessor is None or txn_id != predecessor.txn_id:
            return txn_id
        self._ids.in_use([txn_id])
        return await self._ids.next()

    def _new_header(self, request: BeginRequest, epoch: int) -> Header:
        now_ms = self._decisions.clock()
        return Header(
            state=TxnState.OPEN,
            timeout_ms=now_ms + request.timeout_ms,
            created_ms=now_ms,
            owner=request.owner,
            key=request.transaction_key,
            epoch=epoch,
            version=request.version,
            properties=request.properties,
        )

    async def ended(self, records: TransactionRecords) -> bool:
        """Let the holder of the key know what happened to this transaction, no matter who decided it. False if the key
        was written meanwhile: read again. Raises the store's errors."""
        header = records.header
        assert header.key is not None, "a key holds what was begun under it"
        held = await read_key(self._store, header.owner, header.key)
        live = held.live
        if live is None or live.txn_id is not None or live.ended_by_holder or live.last_txn_id != str(records.txn_id):
            return True
        batch = held.write(self._store.batch(), live.model_copy(update={"ended_by_holder": True}))
        try:
            await self._decisions.settling.apply(batch)
        except Overtaken:
            return False
        return True

    # -- delete and read -----------------------------------------------------------------------------------------

    async def delete(self, key: str, owner: str | None = None) -> DeletedTransactionKey:
        """Abort what the key holds, prepared or not (this is an administrator's operation), and leave a tombstone.

        Deleting it again succeeds and changes nothing. Raises NOT_FOUND if the key was never used, and OUTCOME_UNKNOWN.
        """
        with Doubt("Delete the key again; a repeated delete does no harm.", transaction_key=key) as doubt:
            patience = self._decisions.settling.patience()
            while await patience.lasts():
                held = await read_key(self._store, owner, key)
                old = held.value
                if old is None:
                    raise _unknown_key(key)
                if old.deleted:
                    return _deleted(held, old, None)
                holder = await self._held_transaction(old)
                tombstone = self._tombstone(old)
                batch = held.write(self._store.batch(), tombstone)
                try:
                    await self._apply(batch, holder, "its transaction key was deleted")
                except Overtaken as overtaken:
                    doubt.note(overtaken)
                    continue
                log.info("transaction key deleted", transaction_key=key, owner=owner, epoch=old.epoch)
                return _deleted(held, tombstone, holder)
            raise patience.over(f"transaction key {key!r}")

    def _tombstone(self, old: TransactionKey) -> TransactionKey:
        return TransactionKey(
            epoch=old.epoch,
            updated_ms=self._decisions.clock(),
            last_version=old.last_version,
            fenced_sessions=old.fenced_sessions,
            deleted=True,
        )

    async def get(self, key: str, owner: str | None = None) -> TransactionKeyInfo:
        """The state of a key. Raises NOT_FOUND if the key was never used, or is deleted."""
        held = await read_key(self._store, owner, key)
        if held.live is None:
            raise _unknown_key(key)
        return describe_key(held, held.live)

    # -- shared --------------------------------------------------------------------------------------------------

    async def _held_transaction(self, held: TransactionKey | None) -> TransactionRecords | None:
        """The open transaction that a key holds. It is checked by the key's version, because every decision of the
        transaction also writes the key."""
        if held is None or held.txn_id is None:
            return None
        records = await read_transaction(self._store, TxnId.parse(held.txn_id))
        return None if records is None or records.header.state.final else records

    async def _apply(self, batch: Batch, fenced: TransactionRecords | None, reason: str) -> Revision:
        """Apply `batch`, and abort `fenced` in the same apply."""
        if fenced is None:
            return (await self._decisions.settling.apply(batch)).revision
        final = aborted(fenced.header_to_decide, self._decisions.clock(), reason, expired_by=ExpiredBy.FENCING)
        finalize(batch, [fenced], final)
        return (await self._decisions.apply(batch, ([fenced], final))).revision


# -- rules -------------------------------------------------------------------------------------------------------


def _same_session(held: KeyRecord, request: ConnectRequest) -> TransactionKey | None:
    """The key's record if this very session already holds it: a repeated takeover gets the same epoch."""
    live = held.live
    if live and request.epoch == -1 and request.session is not None and live.session == request.session:
        return live
    return None


def _refuse_fenced_session(held: KeyRecord, request: ConnectRequest) -> None:
    current = held.value
    if current and request.session is not None and request.session in (current.fenced_sessions or ()):
        raise answers.not_allowed(
            f"session {request.session!r} was taken over; a newer connection holds transaction key {held.key!r}",
            action="Stop this process; a newer one does its work.",
            transaction_key=held.key,
        )


def _live_at(held: KeyRecord, epoch: int) -> TransactionKey:
    """The key's record, which is at this epoch. Raises NOT_ALLOWED for any other epoch, and for a key that is not in
    use."""
    live = held.live
    if live is None or live.epoch != epoch:
        now = f"its epoch is {live.epoch}" if live else "no process is connected"
        raise answers.not_allowed(
            f"epoch {epoch} of transaction key {held.key!r} is not current: {now}",
            transaction_key=held.key,
            current_epoch=live.epoch if live else None,
        )
    return live


def _action_after_begin(request: BeginRequest) -> str:
    if request.version is not None:
        return "Begin again with the same version, which finds the transaction if it was begun."
    return ACTION_AFTER_BEGIN


def _already_committed(held: KeyRecord, request: BeginRequest) -> bool:
    last = held.value.last_version if held.value else None
    return request.version is not None and last is not None and request.version <= last


def _refuse_other_last(live: TransactionKey, follows: Follows, key: str) -> None:
    last = None if live.last_txn_id is None else TxnId.parse(live.last_txn_id)
    if last != follows.txn_id:
        raise answers.not_allowed(
            f"the last transaction of key {key!r} is {last}, not {follows.txn_id}", transaction_key=key
        )


def _is_same(predecessor: TransactionRecords, request: BeginRequest, epoch: int) -> bool:
    header = predecessor.header
    return request.version is not None and header.version == request.version and header.epoch == epoch


def _committed_before(held: KeyRecord, request: BeginRequest) -> Members:
    assert held.value is not None, "it knows its last version"
    owner = {} if held.owner is None else {"owner": held.owner}
    key = {"transaction_key": held.key, "epoch": held.value.epoch, "version": request.version}
    return {"state": "COMMITTED", **owner, **key, "already_committed": True}


def _prepared_predecessor(predecessor: TransactionRecords, key: str) -> errors.MetatxnError:
    return errors.TransactionConflict(
        f"transaction {predecessor.txn_id} of key {key!r} is prepared and must be ended first",
        action="Commit or abort the prepared transaction, then begin again.",
        transaction_key=key,
        prepared_txn_id=str(predecessor.txn_id),
    )


def _unknown_key(key: str) -> errors.MetatxnError:
    return errors.NotFound(f"transaction key {key!r} is not in use", transaction_key=key)


# -- answers -----------------------------------------------------------------------------------------------------


def _connected(
    current: TransactionKey, fenced: TransactionRecords | None, holder: TransactionRecords | None
) -> ConnectAnswer:
    return ConnectAnswer(
        epoch=current.epoch,
        aborted_txn_id=str(fenced.txn_id) if fenced else None,
        prepared_txn_id=str(holder.txn_id) if holder and holder.prepared_record else None,
        last_version=current.last_version,
    )


def _deleted(held: KeyRecord, value: TransactionKey, aborted_: TransactionRecords | None) -> DeletedTransactionKey:
    return DeletedTransactionKey(
        key=held.key,
        owner=held.owner,
        epoch=value.epoch,
        last_version=value.last_version,
        aborted_txn_id=str(aborted_.txn_id) if aborted_ else None,
    )


def describe_key(held: KeyRecord, value: TransactionKey) -> TransactionKeyInfo:
    return TransactionKeyInfo(
        key=held.key,
        owner=held.owner,
        epoch=value.epoch,
        txn_id=value.txn_id,
        last_version=value.last_version,
        updated_ms=value.updated_ms,
    )
