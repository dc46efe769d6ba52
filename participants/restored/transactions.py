"""The decisions of transactions after the store was restored from a backup.

The backup does not have the decisions that were made after it, and the streams have none. So the operator gives one
decision for all transactions whose decision is not known:

    header OPEN                       it was open at the time of the backup          decided as the operator says
    no header, in frames of now       it began after the backup                      the same; aborted, it gets outcomes
    no header, in frames of before    it was collected before the backup             as before: visible, or an outcome
    prepared                          an external coordinator decides it             left as it is

`abort` shows nothing that was not committed, and hides what was committed after the backup. `commit` keeps the latter,
and also shows what was written by transactions that had been aborted, or by writers that did not count.

**Now and before.** A header is collected some time after its decision, by default an hour. So everything of a collected
transaction was published before the latest decision that was collected (`GcHorizon.finalized_ms`), and everything of a
transaction that began after the backup was published at least that hour later. If nothing was ever collected, no header
can be missing for that reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from metastore.api import MetadataStore
from metastore.check import dump
from metastore.errors import CheckFailed
from metastore.txn import paths
from metastore.txn.operator_decisions import decide_for_operator
from metastore.txn.records.operations import Outcome
from metastore.txn.records.transactions import GcHorizon, Header
from metastore.txn.states import TxnState
from metastore.txn.store import TransactionRecords, read_transaction
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.ledger.chain import READ_BYTES
from participants.ledger.storage import SealedLedger

REASON = "the metadata store was restored from a backup"


class BackupTimeNeeded(Exception):
    """The store does not contain the time of the backup, so the operator must give it."""

    def __init__(self) -> None:
        super().__init__("the backup is of version 0.1, which did not record when headers were collected")


@dataclass(slots=True)
class FrameSurvey:
    """What the frames of one segment say about transactions: the time of the last write of each, and the end of the
    ledgers."""

    segment: str
    published_ms: dict[TxnId, int] = field(default_factory=dict)
    end: Position = field(default_factory=lambda: Position(0, -1))

    async def read(self, ledger: SealedLedger) -> None:
        """Read a ledger. Raises `LedgerCorrupt`, `StorageFailed`."""
        self.end = max(self.end, ledger.last)
        entry = 0
        while frames := await ledger.read(entry, READ_BYTES):
            for frame in frames:
                if (txn_id := frame.txn_id) is not None:
                    known = self.published_ms.get(txn_id, 0)
                    self.published_ms[txn_id] = max(known, frame.publish_ms)
            entry = frames[-1].position.entry + 1


class RestoredTransactions:
    def __init__(self, store: MetadataStore, now_ms: int, max_clock_skew_ms: int, backup_ms: int | None) -> None:
        """`backup_ms` is the time of the backup. It is only needed if the store does not contain until when headers
        were collected, because the collector was of version 0.1."""
        self._store = store
        self._now_ms = now_ms
        self._max_clock_skew_ms = max_clock_skew_ms
        self._backup_ms = backup_ms

    async def decide(self, decision: TxnState) -> tuple[int, int]:
        """Decide every open transaction as `decision`, except for prepared ones. Returns the numbers of both.

        After `CheckFailed` (another process writes meanwhile) or an error of the store the call can be repeated.
        """
        decided = prepared = 0
        async for records in self._open():
            if records.prepared_record is not None:
                prepared += 1
            else:
                await decide_for_operator(self._store, records, decision, self._now_ms, REASON)
                decided += 1
        return decided, prepared

    async def _open(self) -> AsyncIterator[TransactionRecords]:
        found = [entry async for entry in dump(self._store, paths.DEADLINE_INDEX)]
        for entry in found:
            records = await read_transaction(self._store, TxnId.parse(entry.key.rpartition("/")[2]))
            if records is not None and not records.header.state.final:
                yield records

    async def hide(self, found: FrameSurvey, decision: TxnState) -> int:
        """Write outcomes for transactions that are aborted, or will be by `decision`, and may have no operation on this
        segment that would lead to an outcome. Returns how many of these transactions have no header.

        Raises `BackupTimeNeeded`. After an error of the store the call can be repeated.
        """
        if not found.published_ms:
            return 0
        collected_ms = await self._collected_ms()
        hidden = 0
        for txn_id, header in (await self._headers(found.published_ms)).items():
            if header is None and found.published_ms[txn_id] <= collected_ms:
                continue
            if (header.state if header else decision) is TxnState.ABORTED:
                outcome = Outcome(highest=str(found.end), aborted=True)
                batch = self._store.batch().create(paths.outcome(found.segment, txn_id), outcome.encode())
                try:
                    await self._store.apply(batch)
                except CheckFailed:
                    continue  # it is already hidden
                hidden += header is None
        return hidden

    async def _collected_ms(self) -> int:
        """The time up to which everything that a transaction without a header has published was decided before the
        backup."""
        record = await self._store.get(paths.GC_HORIZON)
        if record is None:
            return -1
        finalized_ms = GcHorizon.decode(record.value).finalized_ms
        if finalized_ms is not None:
            return finalized_ms + self._max_clock_skew_ms
        if self._backup_ms is None:
            raise BackupTimeNeeded
        return self._backup_ms - self._max_clock_skew_ms

    async def _headers(self, txn_ids: Mapping[TxnId, int]) -> dict[TxnId, Header | None]:
        records = await self._store.get_each(map(paths.header, txn_ids))
        return {
            paths.txn_id_of_header(key): Header.decode(record.value) if record is not None else None
            for key, record in records.items()
        }
