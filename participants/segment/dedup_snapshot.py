"""The dedup table in the store, where it survives the ledgers from which it was built, and children inherit it.

    /segment-state/<segment>/dedup/<name>/<chunk>   {"rows": [row, …]}      about CHUNK_BYTES each

    row    {"txn_id"?, "writer"?, "producer"?, "segment"?, "runs": [run, …]}
    run    [sequence, length, messages, ledger, entry, ranges?]
           `length` sequences from `sequence` on, in consecutive entries from `ledger:entry` on, of `messages` messages
           each, whose keys hash into `ranges` ([[lo, hi], …]), or into the segment's whole range

`segment` is the segment that contains those entries, if they were inherited.

A snapshot counts once the segment's record names it (`DedupSnapshot`); by then it is complete. It is written when an
opening has sealed the ledger of the previous owner, and before a segment is sealed. Each one has its own name, is
written once, by one owner under that owner's check, and is never changed. Snapshots that no record names are deleted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.keys import escape, prefix_end
from metastore.slices import slices
from metastore.txn import paths
from metastore.txn.records.segments import DedupChunk, DedupRow, DedupRun, DedupSnapshot, SegmentRecord
from metastore.types import AtVersion, Batch
from metatxn.wire.broker import HashRange
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.segment.dedup import DedupTable, Remembered, Scope

CHUNK_BYTES = 256 << 10
_RUNS_PER_ROW = 1_000
_RUN_BYTES = 60
"""The most characters of a run in JSON, unless it was inherited in many pieces."""
DELETED_PER_APPLY = 40

RememberedSequence = tuple[Scope, int, Remembered]


class SnapshotMissing(Exception):
    """A part of the snapshot that the segment's record names is not in the store, and the segment cannot be served
    without it."""


def chunks_of(table: DedupTable) -> list[DedupChunk]:
    """A copy of the table as it is now, because it changes while it is being written."""
    return list(_chunks(_rows(table, table.own)))


async def write_snapshot(
    store: MetadataStore, segment: str, ownership: AtVersion, name: str, chunks: Sequence[DedupChunk], through: int
) -> DedupSnapshot:
    """Write all of `chunks_of(table)` durably. The snapshot counts once the record names it.

    `name` is used for these chunks only. After `CheckFailed` on `ownership` or an error of the store, the call can be
    repeated with the same chunks.
    """
    for number, chunk in enumerate(chunks):
        key, value = paths.dedup_chunk(segment, name, number), chunk.encode()
        try:
            await store.apply(store.batch().check(ownership).create(key, value))
        except CheckFailed as lost:
            if lost.check == ownership or lost.current is None or lost.current.value != value:
                raise
    return DedupSnapshot(name=name, chunks=len(chunks), through=through)


async def restore(
    store: MetadataStore, segment: str, record: SegmentRecord, snapshot: DedupSnapshot, table: DedupTable
) -> None:
    """Add what the segment remembered when its snapshot was taken. Raises `SnapshotMissing` and the store's errors."""
    _fill(table, [await _load(store, segment, record, snapshot)])


async def _load(
    store: MetadataStore, segment: str, record: SegmentRecord, snapshot: DedupSnapshot
) -> list[RememberedSequence]:
    found: list[RememberedSequence] = []
    for number in range(snapshot.chunks):
        key = paths.dedup_chunk(segment, snapshot.name, number)
        stored = await store.get(key)
        if stored is None:
            raise SnapshotMissing(f"segment {segment} cannot recognize retries: {key} is missing")
        for row in DedupChunk.decode(stored.value).rows:
            scope = _scope(row)
            found += [(scope, sequence, remembered) for sequence, remembered in _sequences(row, record.range)]
    return found


def _scope(row: DedupRow) -> Scope:
    return Scope(TxnId.parse(row.txn_id) if row.txn_id else None, row.writer, row.producer)


def _sequences(row: DedupRow, own: HashRange) -> Iterator[tuple[int, Remembered]]:
    """The sequences of a row, as a segment with the range `own` remembers them."""
    for first, length, count, ledger, entry, ranges in row.runs:
        for step in range(length):
            position = Position(ledger, entry + step)
            yield first + step, Remembered(position, count, (own,) if ranges is None else ranges, row.segment)


async def inherit(store: MetadataStore, record: SegmentRecord, table: DedupTable) -> None:
    """Add what the parents of a segment remember of its range. Raises `SnapshotMissing` and the store's errors."""
    told: list[list[RememberedSequence]] = []
    for parent in record.parents:
        stored = await store.get(paths.segment(parent))
        if stored is None:
            raise SnapshotMissing(f"the parent {parent} does not exist")
        parent_record = SegmentRecord.decode(stored.value)
        assert parent_record.state == "sealed" and parent_record.dedup is not None, "children come after the seal"
        told.append([])
        for scope, sequence, remembered in await _load(store, parent, parent_record, parent_record.dedup):
            inherited = remembered.inherited(parent, record.range)
            if inherited is not None:
                told[-1].append((scope, sequence, inherited))
    _fill(table, told)


def _fill(table: DedupTable, snapshots: Sequence[Sequence[RememberedSequence]]) -> None:
    """Add the sequences in the order of the appends, because the oldest are forgotten first. Across two segments this
    order is unknown: then a lower sequence of a producer counts as older, and of two producers the one that was silent
    for longer in its segment. What a segment has inherited is older than everything that it appended itself."""
    silent: dict[Scope, int] = {}
    told: dict[Scope, dict[tuple[int, str] | None, list[tuple[int, Remembered]]]] = {}
    for number, snapshot in enumerate(snapshots):
        for scope, sequence, remembered in snapshot:
            source = (number, remembered.segment) if remembered.segment is not None else None
            told.setdefault(scope, {}).setdefault(source, []).append((sequence, remembered))
        for rank, scope in enumerate(reversed(dict.fromkeys(scope for scope, _, _ in snapshot))):
            silent[scope] = min(rank, silent.get(scope, rank))
    for scope in sorted(told, key=silent.__getitem__, reverse=True):
        own = told[scope].pop(None, [])
        for sequence, remembered in chain(heapq.merge(*told[scope].values(), key=itemgetter(0)), own):
            table.restore(scope, sequence, remembered)


async def delete_stale(store: MetadataStore, segment: str, ownership: AtVersion, keep: DedupSnapshot | None) -> None:
    """Delete the chunks of every snapshot except the one that counts. Raises as `write_snapshot`."""
    kept = f"{paths.dedup_snapshots(segment)}{escape(keep.name)}/" if keep else None
    prefix = paths.dedup_snapshots(segment)
    found = await store.range(prefix, prefix_end(prefix), keys_only=True)
    stale = [record for record in found.records if kept is None or not record.key.startswith(kept)]
    for some in slices(store, stale, DELETED_PER_APPLY, Batch.remove):
        batch = store.batch().check(ownership)
        for record in some:
            batch.remove(record)
        await store.apply(batch)


def _rows(table: Iterable[RememberedSequence], own: HashRange) -> Iterator[DedupRow]:
    for scope, told in groupby(table, itemgetter(0)):
        by_segment: dict[str | None, list[DedupRun]] = {}
        for _, sequence, remembered in told:
            runs = by_segment.setdefault(remembered.segment, [])
            run = _run(sequence, remembered, own)
            if runs and _goes_on(runs[-1], run):
                runs[-1] = (runs[-1][0], runs[-1][1] + 1, *runs[-1][2:])
            else:
                runs.append(run)
        for segment, runs in by_segment.items():
            for start in range(0, len(runs), _RUNS_PER_ROW):
                yield _row(scope, segment, runs[start : start + _RUNS_PER_ROW])


def _row(scope: Scope, segment: str | None, runs: Sequence[DedupRun]) -> DedupRow:
    txn_id = str(scope.txn_id) if scope.txn_id is not None else None
    return DedupRow(txn_id=txn_id, writer=scope.writer, producer=scope.producer, segment=segment, runs=tuple(runs))


def _run(sequence: int, remembered: Remembered, own: HashRange) -> DedupRun:
    position = remembered.position
    ranges = remembered.ranges if remembered.ranges != (own,) else None
    return (sequence, 1, remembered.count, position.ledger, position.entry, ranges)


def _goes_on(run: DedupRun, single: DedupRun) -> bool:
    first, length, count, ledger, entry, ranges = run
    return single == (first + length, 1, count, ledger, entry + length, ranges)


def _chunks(rows: Iterable[DedupRow]) -> Iterator[DedupChunk]:
    chunk: list[DedupRow] = []
    size = 0
    for row in rows:
        if chunk and size >= CHUNK_BYTES:
            yield DedupChunk(rows=tuple(chunk))
            chunk, size = [], 0
        chunk.append(row)
        names = (row.writer, row.producer, row.segment)
        size += _RUN_BYTES * len(row.runs) + sum(len(name or "") for name in names) + 100
    if chunk:
        yield DedupChunk(rows=tuple(chunk))
