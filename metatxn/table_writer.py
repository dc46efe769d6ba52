"""Writing Arrow tables: rows are routed by key, and sent as Arrow IPC streams of about one entry's size."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc

from metatxn.connection import Connection
from metatxn.delivery import Batching, OrderedDelivery
from metatxn.outgoing import check_compression
from metatxn.topics import Layout
from metatxn.transaction import AsyncTransaction, inside
from metatxn.wire.broker import hash_of_key
from metatxn.wire.errors import InvalidArgument, MetatxnError
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, PayloadKind
from metatxn.wire.record_batches import Codec
from metatxn.wire.rows import KEY_COLUMN

DEFAULT_ENTRY_BYTES = 1024 * 1024
MAX_ENTRY_BATCHES = 10_000
MAX_ROWS_BYTES = MAX_PAYLOAD_BYTES // 2
"""The most memory of rows that share an entry, because their description needs space too. A single row may use all of
the entry."""
SMALL_BATCH_BYTES = 64 * 1024
SMALL_COLUMN_BYTES = 1024
"""Batches that are smaller on average are combined: readers are faster with large ones, and the description of a batch
takes 100 bytes for each column. Other batches are not copied again."""


@dataclass(slots=True)
class Rows:
    """A piece of a batch that fits into one entry. `size` is its size in memory."""

    whole: ClassVar[bool] = False
    batch: pa.RecordBatch
    turn: int
    size: int
    number: int = 0


class ArrowFormat:
    kind = PayloadKind.ARROW

    def __init__(self, key_column: str | None, compression: Codec | None = None) -> None:
        self._key_column = key_column
        self._compression = compression

    def size(self, item: Rows) -> int:
        return item.size

    def keys(self, items: Iterable[Rows]) -> set[Hashable]:
        """Rows of one segment keep the order in which they were written."""
        return {None}

    def split(self, item: Rows, layout: Layout) -> Iterable[tuple[str, Rows]]:
        if self._key_column is None or len(layout.leaves) <= 1:
            return [(layout.any_segment(item.turn), item)]
        return self._by_key(item, self._key_column, layout)

    def _by_key(self, item: Rows, key_column: str, layout: Layout) -> Iterator[tuple[str, Rows]]:
        """Each distinct key is hashed once. A row without a key goes to the segment whose turn it is for this batch."""
        keys = item.batch.column(key_column).dictionary_encode()
        homes = [layout.segment_of(key_text(key)) for key in keys.dictionary.to_pylist()]
        segments = sorted({*homes, layout.any_segment(item.turn)} if keys.null_count else set(homes))
        number = {segment: index for index, segment in enumerate(segments)}
        unkeyed = number[layout.any_segment(item.turn)] if keys.null_count else -1
        home_of_key = [number[home] for home in homes]
        home_of_row = pa.array(
            [unkeyed if index is None else home_of_key[index] for index in keys.indices.to_pylist()], pa.int32()
        )
        for segment in segments:
            part = item.batch.filter(pc.equal(home_of_row, pa.scalar(number[segment], pa.int32())))
            if part.num_rows:
                yield segment, Rows(part, item.turn, max(1, part.nbytes))

    def encode(self, items: Sequence[Rows]) -> tuple[bytes, int]:
        batches = [item.batch for item in items]
        schema = batches[0].schema
        if self._key_column is not None:
            schema = schema.with_metadata({**(schema.metadata or {}), KEY_COLUMN: self._key_column.encode()})
        if sum(item.size for item in items) < len(items) * max(SMALL_BATCH_BYTES, len(schema) * SMALL_COLUMN_BYTES):
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        batches = [batch.replace_schema_metadata(schema.metadata) for batch in batches]
        if self._compression is not None:
            packed = pa.BufferOutputStream()
            _write_stream(packed, schema, batches, self._compression)
            return packed.getvalue().to_pybytes(), sum(batch.num_rows for batch in batches)
        # The size is determined first, because a growing buffer would be copied each time.
        counted = pa.MockOutputStream()
        _write_stream(counted, schema, batches)
        body = pa.allocate_buffer(counted.size())
        with pa.FixedSizeBufferWriter(body) as sink:
            _write_stream(sink, schema, batches)
        return body.to_pybytes(), sum(batch.num_rows for batch in batches)

    def done(self, items: Sequence[Rows], outcome: str | MetatxnError) -> None:
        """Nothing to do: the delivery keeps failures, and `close` raises them."""


def _write_stream(
    sink: pa.NativeFile, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: Codec | None = None
) -> None:
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        for batch in batches:
            stream.write_batch(batch)


def fitting(rows: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in order, in slices of at most `max_bytes`. A row that takes more is a slice of its own; the broker
    decides whether an entry can hold it. What slices share, such as a dictionary, does not become smaller by
    slicing."""
    middle = rows.num_rows // 2
    halves = [rows.slice(0, middle), rows.slice(middle)]
    if middle == 0 or rows.nbytes <= max_bytes or sum(half.nbytes for half in halves) > 1.5 * rows.nbytes:
        yield rows
        return
    for half in halves:
        yield from fitting(half, max_bytes)


def key_text(key: Any) -> str:
    """The text of a key that is hashed: the same for a message's key and a table's."""
    return key if isinstance(key, str) else str(key)


class AsyncTableWriter:
    """A writer of rows of one topic, inside one transaction or without one. Nothing is guaranteed before `flush` or
    `close` returns: rows outside a transaction may be read before that, entry by entry.

    Rows of one segment keep the order in which they were written. Each is written once, whatever is retried, and none
    follow after a failure. Leaving its `async with` closes the writer; an exception drops what was not sent.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        txn: AsyncTransaction | str | None = None,
        writer: str | None = None,
        key_column: str | None = None,
        max_entry_bytes: int = DEFAULT_ENTRY_BYTES,
        compression: Codec | None = None,
    ) -> None:
        check_compression(compression)
        if not 0 < max_entry_bytes <= MAX_PAYLOAD_BYTES:
            raise InvalidArgument(
                f"max_entry_bytes: must be between 1 and {MAX_PAYLOAD_BYTES}", field="max_entry_bytes"
            )
        if txn is None and writer is not None:
            raise InvalidArgument(
                "writer: requires a transaction, whose commit says which writers count", field="writer"
            )
        self.topic = topic
        self.rows = 0
        self.bytes = 0
        self._txn_id = txn.id if isinstance(txn, AsyncTransaction) else txn
        self._key_column = key_column
        self._max_entry_bytes = min(max_entry_bytes, MAX_ROWS_BYTES)
        # Writers begin with different segments; otherwise the small writes of many would all go to one segment.
        self._turn = hash_of_key(writer) if writer is not None else 0
        self._sent_in_turn = 0
        self._schema: pa.Schema | None = None
        # An entry waits until it is half full or flushed; while one is in flight, the next one becomes larger.
        self._due_bytes = max(1, self._max_entry_bytes // 2)
        batching = Batching(self._max_entry_bytes, MAX_ENTRY_BATCHES, linger_s=math.inf, due_bytes=self._due_bytes)
        form = ArrowFormat(key_column, compression)
        self._delivery = OrderedDelivery(connection, topic, form, batching, writer=writer, failure_is_final=True)
        # A named writer counts only if the commit lists it, so its failure alone does not fail the transaction.
        self._inside = txn if isinstance(txn, AsyncTransaction) else None
        self._writer = writer
        self._dooms = self._inside if writer is None else None
        if self._dooms is not None:
            self._dooms.joined_by(self._delivery)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r})"

    async def write(self, data: pa.RecordBatch | pa.Table) -> None:
        """Queue rows, waiting while 32 MiB are pending. Raises the first failure so far, and `InvalidArgument` for a
        missing key column or for columns other than those of the first call."""
        self._check(data.schema)
        if self._inside is not None:
            self._inside.used_by(self._writer)
        with inside(self._dooms):
            for batch in data.to_batches() if isinstance(data, pa.Table) else [data]:
                for piece in self._pieces(batch):
                    size = max(1, piece.nbytes)
                    await self._delivery.put(Rows(piece, self._turn, size), self._txn_id)
                    self._took(size)
                    self.rows += piece.num_rows
                    self.bytes += piece.nbytes

    def _took(self, size: int) -> None:
        """Rows without a key go to one segment until they fill an entry, then to the next one."""
        self._sent_in_turn += size
        if self._sent_in_turn >= self._due_bytes:
            self._turn, self._sent_in_turn = self._turn + 1, 0

    def _check(self, schema: pa.Schema) -> None:
        if self._key_column is not None and schema.get_field_index(self._key_column) < 0:
            raise InvalidArgument(f"key_column: there is no column {self._key_column!r}", field="key_column")
        if self._schema is not None and not self._schema.equals(schema):
            raise InvalidArgument("the columns differ from those of the first rows", action="Use one writer for each.")
        self._schema = schema

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Slices of about one entry's size, by the average size of the rows; slices that larger rows make too large are
        halved. Nothing is copied."""
        step = max(1, batch.num_rows * self._max_entry_bytes // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield from fitting(batch.slice(start, step), self._max_entry_bytes)

    async def flush(self) -> None:
        """Wait until all rows written so far are durable. Raises the first failure: then the rows are not complete."""
        await self._delivery.flush(self._txn_id)

    async def close(self) -> None:
        """Send the remaining rows and wait for all of them. Raises the first failure: then the rows are not
        complete."""
        await self._delivery.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self._delivery.drop()
        else:
            await self.close()
