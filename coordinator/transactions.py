"""The operations on a transaction: begin, read, keep alive, remember writers, prepare, commit, abort.

    (absent) ──begin──▶ OPEN ──commit──▶ COMMITTED        prepare, keep-alive and add-writers need OPEN and unprepared;
                          └────abort───▶ ABORTED          commit and abort end a prepared transaction too

Every operation reads the records, and answers if they already contain the result. Otherwise it applies one checked
batch; a batch that was overtaken is built again from the current records. Whatever is kept between two requests is only
presumed (`presumed`), so any coordinator can answer any request (DESIGN §5.17). The clock only determines numbers in
the records; the checks decide which request wins.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import TypeVar

import structlog

from coordinator import answers
from coordinator.answers import Members
from coordinator.capacity import refuse_large_list, refuse_large_properties
from coordinator.decisions import DecidedTransactions, Decisions, KeyMovedOn, aborted
from coordinator.doubt import ACTION_AFTER_BEGIN, Doubt, outcome_unknown
from coordinator.ends import Abort, Commit, End
from coordinator.metrics import CoordinatorMetrics
from coordinator.ownership import owned, require_owner
from coordinator.presumed import Presumed
from coordinator.settling import MakeBatch, Overtaken, Settling, Unanswered
from coordinator.transaction_keys import Begun, Follows, TransactionKeys
from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import MetastoreError, OutcomeUnknown
from metastore.txn import paths
from metastore.txn import store as txn_records
from metastore.txn.id_blocks import BLOCK_SIZE, IdBlocks
from metastore.txn.key_records import KeyRecord
from metastore.txn.records.transactions import Header, Prepared
from metastore.txn.states import ExpiredBy, TxnState
from metastore.txn.store import TransactionRecords, read_plain, read_transaction
from metastore.types import Absent, Batch, Revision
from metatxn.service.security.principal import ANYONE, Principal
from metatxn.wire import errors
from metatxn.wire.coordinator import MAX_TIMEOUT_MS, MAX_WRITERS, BeginRequest
from metatxn.wire.errors import invalid_field
from metatxn.wire.ids import TxnId

PREPARED_TIMEOUT_MS = MAX_TIMEOUT_MS
"""How long a prepared transaction waits for its decision unless prepare gives another time: a day."""

MAX_WRITERS_BYTES = 400 << 10
"""The names of all writers together, as JSON: they must fit into one record, together with the rest of the header."""

_CONNECT_FIRST = (
    "Connect (POST /v1/transaction-keys/{key}/connect), which takes over the key, and send the epoch that it returns."
)

log = structlog.get_logger()

Failure = errors.MetatxnError | MetastoreError
Answer = TypeVar("Answer")


async def answered(call: Awaitable[Answer]) -> Answer | Failure:
    """The answer, or the error instead of raising it: of many requests, each fails separately."""
    try:
        return await call
    except (errors.MetatxnError, MetastoreError) as error:
        return error


class Transactions:
    """The transactions of one store, as one coordinator serves them.

    `coordinator_id` is the high part of the ids begun here, until `serve_as` sets another one. Processes may share one
    (see `IdBlocks`).

    Every operation is restricted to the transactions that its `caller` may begin, see and end: its own and those
    without an owner, or all for an administrator. Anything that belongs to another owner is refused with NOT_ALLOWED,
    before it has any effect.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        coordinator_id: int = 0,
        *,
        metrics: CoordinatorMetrics | None = None,
        settling: Settling | None = None,
        id_block_size: int = BLOCK_SIZE,
    ) -> None:
        self.store = store
        self.clock = clock
        self.metrics = metrics or CoordinatorMetrics()
        self._settling = settling or Settling(store, clock)
        self._ids = IdBlocks(store, coordinator_id, id_block_size)
        self._decisions = Decisions(store, clock, self._settling, self.metrics)
        self.keys = TransactionKeys(self._decisions, self._ids)
        self._presumed = Presumed()

    def serve_as(self, coordinator_id: int) -> None:
        """Set the high part of the ids that begin from now on."""
        self._ids.serve_as(coordinator_id)

    # -- begin and read ------------------------------------------------------------------------------------------

    async def begin(
        self, request: BeginRequest | None = None, *, caller: Principal = ANYONE, follows: Follows | None = None
    ) -> Begun:
        """Begin a transaction; under a transaction key as `TransactionKeys.begin` describes.

        Raises INVALID_ARGUMENT for a key without its `epoch`, for `epoch` or `version` without a key, and for
        `properties` that are too large (see `capacity`); NOT_ALLOWED for another `owner` than the caller; and
        OUTCOME_UNKNOWN with an id that may have been begun (its timeout ends it).
        """
        request = owned(request or BeginRequest(), caller)
        refuse_half_a_key(request)
        refuse_large_properties(request, self.store)
        if request.transaction_key is not None and request.epoch is not None:
            return await self.keys.begin(request, request.transaction_key, request.epoch, follows)
        header = self._header(request)

        async def under_a_new_id() -> Batch:
            return txn_records.begin(self.store.batch(), await self._ids.next(), header)

        try:
            (txn_id,), revision = await self._create(under_a_new_id)
        except Unanswered as lost:
            (unknown,) = _perhaps_begun(lost)
            raise unknown from lost
        self._presumed.begun([txn_id], header, revision)
        self.metrics.created.inc()
        log.debug("transaction begun", txn_id=str(txn_id), deadline_ms=header.timeout_ms)
        return Begun(answers.members(txn_id, header, revision), created=True)

    async def begin_together(
        self, requests: Sequence[BeginRequest], *, caller: Principal = ANYONE
    ) -> Sequence[Members | Begun | Failure]:
        """Begin transactions in one apply, each as `begin` would: without a key, and owned by the caller.

        Raises the store's errors, and `InvalidBatch` for more than fits into one apply: nothing was begun then.
        """
        groups = [list(alike) for _, alike in groupby(requests, vars)]
        headers = [self._header(owned(alike[0], caller)) for alike in groups]

        def alike(txn_ids: Iterable[TxnId]) -> Iterator[tuple[list[TxnId], Header]]:
            left = iter(txn_ids)
            return ((list(islice(left, len(group))), header) for group, header in zip(groups, headers, strict=True))

        async def under_new_ids() -> Batch:
            batch = self.store.batch()
            for txn_ids, header in alike(await self._ids.take(len(requests))):
                txn_records.begin_alike(batch, txn_ids, header)
            return batch

        try:
            begun, revision = await self._create(under_new_ids)
        except Unanswered as lost:
            return list(_perhaps_begun(lost))
        for txn_ids, header in alike(begun):
            self._presumed.begun(txn_ids, header, revision)
        self.metrics.created.inc(len(begun))
        log.debug("transactions begun", txn_ids=begun)
        return [
            answer for txn_ids, header in alike(begun) for answer in answers.members_alike(txn_ids, header, revision)
        ]

    async def _create(self, make: MakeBatch) -> tuple[list[TxnId], Revision]:
        """The ids of the transactions that began in the batch that took effect. Raises the errors of
        `Settling.create`."""
        batch, applied = await self._settling.create(make, lambda batch: self._ids.in_use(_begun_in(batch)))
        return _begun_in(batch), applied.revision

    def _header(self, request: BeginRequest) -> Header:
        now_ms = self.clock()
        return Header(
            state=TxnState.OPEN,
            timeout_ms=now_ms + request.timeout_ms,
            created_ms=now_ms,
            owner=request.owner,
            properties=request.properties,
        )

    async def get(self, txn_id: TxnId, *, caller: Principal = ANYONE) -> Members:
        """Read a transaction. Raises TXN_NOT_FOUND."""
        try:
            records = await self._decisions.read(txn_id)
        except errors.TransactionNotFound:
            raise await self._not_found(txn_id) from None
        require_owner(records, caller)
        return answers.members_as_read(records)

    async def _not_found(self, txn_id: TxnId) -> errors.MetatxnError:
        """The error for a transaction without a header. Ids come in blocks, so one below the next block of its
        coordinator id may have been begun; others were not. Raises the store's errors."""
        counter = await self._decisions.store.get(paths.id_sequence(txn_id.coordinator))
        given_out = counter is not None and txn_id.sequence < int(counter.value)
        return answers.collected_or_never_begun(txn_id) if given_out else answers.never_begun(txn_id)

    # -- ends ----------------------------------------------------------------------------------------------------

    async def commit(
        self, txn_id: TxnId, writers: Iterable[str] | None = None, *, caller: Principal = ANYONE
    ) -> Members:
        """Commit (DESIGN §5.11, §5.12). `writers` are those that count. None: the remembered ones, or all if none are
        remembered.

        Raises INVALID_ARGUMENT for too many writers (without any effect), EXPIRED_TRANSACTION, INVALID_TXN_STATE if it
        was aborted or committed with another list, NOT_ALLOWED if its key has moved on, and OUTCOME_UNKNOWN.
        """
        wanted = Commit(txn_id, None if writers is None else writer_set(writers, "writers"))
        return await self.end(wanted, caller=caller)

    async def abort(
        self, txn_id: TxnId, reason: str | None = None, *, force: bool = False, caller: Principal = ANYONE
    ) -> Members:
        """Abort. A transaction that timed out or was fenced is already aborted, so aborting it succeeds.

        `force` is for administrators, and only changes who may abort a prepared transaction; while authentication is
        off, everyone may. Raises INVALID_TXN_STATE if it was committed, OUTCOME_UNKNOWN, and NOT_ALLOWED for a
        transaction of another owner, for `force` without the right admin, and for an administrator without `force`.
        """
        return await self.end(Abort(txn_id, reason, force), caller=caller)

    async def end(
        self,
        end: End,
        *,
        caller: Principal = ANYONE,
        known: TransactionRecords | None = None,
        key: KeyRecord | None = None,
        lost: Overtaken | OutcomeUnknown | None = None,
    ) -> Members:
        """End a transaction: `commit` or `abort`.

        `known` is the transaction as it was read after this request arrived, or as it is presumed, to save the first
        read, and `key` its key as it was read with it; `lost` is the result of an attempt to end it together with
        others, after which it is read.
        """
        end.refuse(caller)
        presumed = self._presumed.take(end.txn_id, caller)
        known = known or (None if lost else presumed)
        was_prepared_when_key_moved_on: bool | None = None
        with Doubt(txn_id=str(end.txn_id)) as doubt:
            if isinstance(lost, OutcomeUnknown):
                raise lost
            if lost:
                doubt.note(lost)
            patience = self._settling.patience()
            while await patience.lasts():
                records, held = (known, key) if known else (await self._decisions.read(end.txn_id), None)
                known = None
                require_owner(records, caller)
                doubt.settle()
                if records.header.state.final:
                    answer = self._answer_again(end, records)
                    if end.as_holder and not await self.keys.ended(records):
                        continue
                    return answer
                if was_prepared_when_key_moved_on == bool(records.prepared_record):
                    # A takeover of the key ends its transaction in the same apply, and this was read later. Unless
                    # it is prepared: if it was prepared only since then, it must be ended as such.
                    raise _key_lost(records)
                try:
                    final = end.final(records, self.clock(), caller)
                    return await self._decisions.decide(records, final, as_holder=end.as_holder, key=held)
                except Overtaken as overtaken:
                    doubt.note(overtaken)
                except KeyMovedOn:
                    was_prepared_when_key_moved_on = bool(records.prepared_record)
            raise patience.over(f"transaction {end.txn_id}")

    async def presume_or_read(
        self, txn_ids: Iterable[TxnId], *, caller: Principal = ANYONE
    ) -> dict[TxnId, TransactionRecords]:
        """What `end` and `end_together` may know of transactions that are about to be ended, for those that exist:
        presumed where they began here, and read by their headers alone elsewhere. Raises the store's errors."""
        found = {txn_id: self._presumed.take(txn_id, caller) for txn_id in txn_ids}
        read = await read_plain(self.store, [txn_id for txn_id, records in found.items() if records is None])
        return {txn_id: records for txn_id, records in (found | read).items() if records is not None}

    async def end_together(
        self, ends: Sequence[tuple[End, TransactionRecords]], *, caller: Principal = ANYONE
    ) -> Sequence[Members | Failure]:
        """End transactions in one apply, each as `end` would: open ones without a key, that belong to the caller.

        The records may be presumed (`presume_or_read`). If one of them is not as it was read, the apply has no
        effect, and each is ended separately. Raises the store's errors, and `InvalidBatch` for more than fits into one
        apply, which then has no effect.
        """
        self._presumed.forget(*(records.txn_id for _, records in ends))
        now_ms = self.clock()
        decided: list[DecidedTransactions] = []
        for _, some in groupby(ends, lambda wanted: (wanted[0].wish, wanted[1].decided_alike)):
            alike = list(some)
            end, records = alike[0]
            decided.append(([records for _, records in alike], end.final(records, now_ms, caller)))
        try:
            return await self._decisions.decide_together(decided)
        except (Overtaken, OutcomeUnknown) as lost:
            return await asyncio.gather(*(answered(self.end(end, caller=caller, lost=lost)) for end, _ in ends))

    def _answer_again(self, end: End, records: TransactionRecords) -> Members:
        try:
            return end.again(records)
        except errors.MetatxnError:
            self.metrics.refused()
            raise

    async def expire(self, txn_id: TxnId, max_clock_skew_ms: int) -> bool:
        """Abort a transaction whose deadline in force is past by more than the clock skew (DESIGN §5.16).

        Returns False if there is nothing to do: it is decided or collected, or its deadline was moved. This includes
        changes while this runs, because the checks cover the records that hold the deadline.
        """
        self._presumed.forget(txn_id)
        records = await read_transaction(self.store, txn_id)
        now_ms = self.clock()
        if records is None or records.header.state.final or records.deadline_ms + max_clock_skew_ms > now_ms:
            return False
        try:
            await self._decisions.decide(records, _timed_out(records, now_ms))
        except Overtaken:
            return False
        return True

    async def expire_together(self, due: Sequence[TransactionRecords]) -> None:
        """Abort transactions in one apply, each as `expire` would: open ones without a key that are due.

        The records may be presumed (`read_plain`). Raises `Overtaken` if one of them is not as it was read,
        the store's errors, and `InvalidBatch` for more than fits into one apply.
        """
        self._presumed.forget(*(records.txn_id for records in due))
        now_ms = self.clock()
        await self._decisions.decide_together([([records], _timed_out(records, now_ms)) for records in due])

    # -- while it is open ----------------------------------------------------------------------------------------

    async def keep_alive(self, txn_id: TxnId, timeout_ms: int, *, caller: Principal = ANYONE) -> Members:
        """Move the deadline to `timeout_ms` from now.

        Raises EXPIRED_TRANSACTION or INVALID_TXN_STATE if it is decided, and TXN_CONFLICT if it is prepared.
        """

        def change(records: TransactionRecords, batch: Batch) -> Members:
            now_ms = self.clock()
            deadline_ms = now_ms + timeout_ms
            records.keep_alive(batch, deadline_ms, now_ms)
            return answers.members_as_read(records, deadline_ms=deadline_ms)

        return await self._change(txn_id, change, caller)

    async def add_writers(self, txn_id: TxnId, add: Iterable[str], *, caller: Principal = ANYONE) -> Members:
        """Remember writers that count; a commit without a list of its own uses them. Raises the errors of
        `keep_alive`."""
        added = writer_set(add, "add")

        def change(records: TransactionRecords, batch: Batch) -> Members:
            known = records.remembered_writers or ()
            if not set(added) <= set(known):
                writers = writer_set((*known, *added), "add")
                refuse_large_list(writers, "add", records, self.store)
                records.remember_writers(batch, writers)
            return answers.members_as_read(records)

        return await self._change(txn_id, change, caller)

    async def prepare(
        self, txn_id: TxnId, prepared_timeout_ms: int | None = None, *, caller: Principal = ANYONE
    ) -> Members:
        """The first phase of an external two-phase commit: only a decision may follow, and a longer deadline is in
        force.

        Preparing it again succeeds and changes nothing. Raises EXPIRED_TRANSACTION or INVALID_TXN_STATE if it is
        decided.
        """
        timeout_ms = PREPARED_TIMEOUT_MS if prepared_timeout_ms is None else prepared_timeout_ms

        def change(records: TransactionRecords, batch: Batch) -> Members:
            now_ms = self.clock()
            records.prepare(batch, Prepared(prepared_ms=now_ms, deadline_ms=now_ms + timeout_ms))
            return answers.members_as_read(records, deadline_ms=now_ms + timeout_ms, prepared=True)

        return await self._change(txn_id, change, caller, when_prepared=answers.members_as_read)

    async def _change(
        self,
        txn_id: TxnId,
        change: Callable[[TransactionRecords, Batch], Members],
        caller: Principal,
        *,
        when_prepared: Callable[[TransactionRecords], Members] | None = None,
    ) -> Members:
        """Change side records. `change` fills a batch for those of an open transaction, and returns the answer for when
        the batch is applied; it leaves the batch empty if there is nothing to change.

        What is read after a lost reply never settles the doubt: the change may have taken effect and been counted, and
        then have been deleted with the decision, or overwritten.
        """
        self._presumed.forget(txn_id)
        with Doubt(txn_id=str(txn_id)) as doubt:
            patience = self._settling.patience()
            while await patience.lasts():
                records = await self._decisions.read(txn_id)
                require_owner(records, caller)
                if records.header.state.final:
                    raise answers.already_decided(txn_id, records.header)
                if records.prepared_record:
                    if when_prepared:
                        return when_prepared(records)
                    raise answers.is_prepared(txn_id)
                batch = self.store.batch()
                answer = change(records, batch)
                if batch.empty:
                    return answer
                try:
                    await self._settling.apply(batch)
                except Overtaken as overtaken:
                    doubt.note(overtaken)
                    continue
                return answer
            raise patience.over(f"transaction {txn_id}")


def _begun_in(batch: Batch) -> list[TxnId]:
    return [paths.txn_id_of_header(check.key) for check in batch.checks if isinstance(check, Absent)]


def _perhaps_begun(lost: Unanswered) -> Iterator[errors.MetatxnError]:
    """OUTCOME_UNKNOWN for each transaction that may have begun, in their order."""
    return (outcome_unknown(lost, ACTION_AFTER_BEGIN, txn_id=txn_id) for txn_id in _begun_in(lost.batch))


def refuse_half_a_key(request: BeginRequest) -> None:
    """Raises INVALID_ARGUMENT. If the epoch were optional, anyone who knows a key could fence its holder."""
    for field in ("epoch", "version"):
        if getattr(request, field) is not None and request.transaction_key is None:
            raise invalid_field(field, "requires a transaction_key")
    if request.transaction_key is not None and request.epoch is None:
        raise invalid_field("epoch", "a begin under a transaction key needs the key's epoch", action=_CONNECT_FIRST)


def writer_set(writers: Iterable[str], field: str) -> tuple[str, ...]:
    """The names sorted and without repetitions, so that equal sets are equal tuples. Raises INVALID_ARGUMENT if there
    are too many."""
    names = tuple(sorted(set(writers)))
    if len(names) > MAX_WRITERS:
        raise invalid_field(field, f"{len(names)} writers are more than the {MAX_WRITERS} that one list can contain")
    if len(json.dumps(names, ensure_ascii=False).encode()) > MAX_WRITERS_BYTES:
        raise invalid_field(field, f"the names of the writers together exceed {MAX_WRITERS_BYTES} bytes")
    return names


def _timed_out(records: TransactionRecords, now_ms: int) -> Header:
    kind = "prepared deadline" if records.prepared_record else "deadline"
    return aborted(
        records.header_to_decide, now_ms, f"{kind} {records.deadline_ms} passed", expired_by=ExpiredBy.TIMEOUT
    )


def _key_lost(records: TransactionRecords) -> errors.MetatxnError:
    return answers.not_allowed(
        f"transaction {records.txn_id} is no longer held by its transaction key at epoch {records.header.epoch}",
        txn_id=str(records.txn_id),
        transaction_key=records.header.key,
        epoch=records.header.epoch,
    )
