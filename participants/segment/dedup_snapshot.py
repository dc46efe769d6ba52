"""The dedup table in the store, so that it survives the ledgers it was made from, and children inherit it.

    /segment-state/<segment>/dedup/<name>/<chunk>   {"rows": [row, …]}      about CHUNK_BYTES each

    row    {"txn_id"?, "writer"?, "producer"?, "runs": [[sequence, length, messages, ledger, entry, ranges?], …]}
    run    `length` sequences from `sequence` on, in entries one after another from `ledger:entry` on, of so many
           messages each; `ranges` ([[lo, hi], …]) when they were inherited

A snapshot counts once the segment's record names it (`DedupSnapshot`); it is complete by then. It is written when an
opening has sealed the ledger of the owner before, and before a segment is sealed. Each has a name of its own, is
written once by one owner under that owner's check, and never changed. What no record names any more is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.keys import escape, prefix_end
from metastore.txn import paths
from metastore.txn.ids import TxnId
from metastore.txn.records import JsonRecord
from metastore.types import AtVersion
from participants.ledger.position import Position
from participants.records import DedupSnapshot, SegmentRecord
from participants.segment.dedup import DedupTable, HashRange, Remembered, Scope

CHUNK_BYTES = 256 << 10
_RUNS_PER_ROW = 1_000
_RUN_BYTES = 60
"""What a run takes in JSON, at most, unless it was inherited in many pieces."""
DELETED_PER_APPLY = 40

Run = tuple[int, int, int, int, int, tuple[HashRange, ...] | None]


class Row(JsonRecord):
    """Sequences of one scope."""

    txn_id: str | None = None
    writer: str | None = None
    producer: str | None = None
    runs: tuple[Run, ...]

    def scope(self) -> Scope:
        return Scope(TxnId.parse(self.txn_id) if self.txn_id else None, self.writer, self.producer)

    def sequences(self) -> Iterator[tuple[int, Remembered]]:
        for first, length, count, ledger, entry, ranges in self.runs:
            for step in range(length):
                yield first + step, Remembered(Position(ledger, entry + step), count, ranges)


class Chunk(JsonRecord):
    """`/segment-state/<segment>/dedup/<name>/<chunk>`."""

    rows: tuple[Row, ...]


class SnapshotMissing(Exception):
    """A part of the snapshot that the segment's record names is not in the store: it cannot be served without."""


def chunks_of(table: DedupTable) -> list[Chunk]:
    """The table as it is now: it changes while it is being written."""
    return list(_chunks(_rows(table)))


async def write_snapshot(
    store: MetadataStore, segment: str, ownership: AtVersion, name: str, chunks: Sequence[Chunk], through: int
) -> DedupSnapshot:
    """All of `chunks_of(table)`, durable when this returns; it counts once the record names it.

    `name` is used for these chunks only. Raises `CheckFailed` on `ownership`, store errors: then do it again, with the
    same chunks.
    """
    for number, chunk in enumerate(chunks):
        key, value = paths.dedup_chunk(segment, name, number), chunk.encode()
        try:
            await store.apply(store.batch().check(ownership).create(key, value))
        except CheckFailed as lost:
            if lost.check == ownership or lost.current is None or lost.current.value != value:
                raise
    return DedupSnapshot(name=name, chunks=len(chunks), through=through)


async def load_snapshot(
    store: MetadataStore, segment: str, snapshot: DedupSnapshot
) -> list[tuple[Scope, int, Remembered]]:
    """In the order in which they are to be restored. Raises `SnapshotMissing`, store errors."""
    found = []
    for number in range(snapshot.chunks):
        key = paths.dedup_chunk(segment, snapshot.name, number)
        record = await store.get(key)
        if record is None:
            raise SnapshotMissing(f"segment {segment} cannot tell retries: {key} is missing")
        for row in Chunk.decode(record.value).rows:
            scope = row.scope()
            found += [(scope, sequence, remembered) for sequence, remembered in row.sequences()]
    return found


async def inherit(store: MetadataStore, record: SegmentRecord, table: DedupTable) -> None:
    """What the parents of a segment remember of its range. Raises `SnapshotMissing`, store errors."""
    for parent in record.parents:
        stored = await store.get(paths.segment(parent))
        if stored is None:
            raise SnapshotMissing(f"the parent {parent} does not exist")
        parent_record = SegmentRecord.decode(stored.value)
        assert parent_record.state == "sealed" and parent_record.dedup is not None, "children come after the seal"
        for scope, sequence, remembered in await load_snapshot(store, parent, parent_record.dedup):
            inherited = remembered.within(record.range, parent_record.range)
            if inherited is not None:
                table.inherit(scope, sequence, inherited)


async def delete_stale(store: MetadataStore, segment: str, ownership: AtVersion, keep: DedupSnapshot | None) -> None:
    """Delete the chunks of every snapshot but the one that counts. Raises as `write_snapshot`."""
    kept = f"{paths.dedup_snapshots(segment)}{escape(keep.name)}/" if keep else None
    prefix = paths.dedup_snapshots(segment)
    found = await store.range(prefix, prefix_end(prefix), keys_only=True)
    stale = [record for record in found.records if kept is None or not record.key.startswith(kept)]
    for start in range(0, len(stale), DELETED_PER_APPLY):
        batch = store.batch().check(ownership)
        for record in stale[start : start + DELETED_PER_APPLY]:
            batch.remove(record)
        await store.apply(batch)


def _rows(table: Iterable[tuple[Scope, int, Remembered]]) -> Iterator[Row]:
    scope: Scope | None = None
    runs: list[Run] = []
    for of, sequence, remembered in table:
        if scope is not None and runs and (of != scope or len(runs) == _RUNS_PER_ROW):
            yield _row(scope, runs)
            runs = []
        scope = of
        if runs and (longer := _continued(runs[-1], sequence, remembered)) is not None:
            runs[-1] = longer
        else:
            position = remembered.position
            runs.append((sequence, 1, remembered.count, position.ledger, position.entry, remembered.inherited))
    if scope is not None:
        yield _row(scope, runs)


def _row(scope: Scope, runs: list[Run]) -> Row:
    txn_id = str(scope.txn_id) if scope.txn_id is not None else None
    return Row(txn_id=txn_id, writer=scope.writer, producer=scope.producer, runs=tuple(runs))


def _continued(run: Run, sequence: int, remembered: Remembered) -> Run | None:
    first, length, count, ledger, entry, ranges = run
    next_one = (first + length, Remembered(Position(ledger, entry + length), count, ranges))
    return (first, length + 1, count, ledger, entry, ranges) if next_one == (sequence, remembered) else None


def _chunks(rows: Iterable[Row]) -> Iterator[Chunk]:
    chunk: list[Row] = []
    size = 0
    for row in rows:
        if chunk and size >= CHUNK_BYTES:
            yield Chunk(rows=tuple(chunk))
            chunk, size = [], 0
        chunk.append(row)
        size += _RUN_BYTES * len(row.runs) + len(row.writer or "") + len(row.producer or "") + 100
    if chunk:
        yield Chunk(rows=tuple(chunk))
