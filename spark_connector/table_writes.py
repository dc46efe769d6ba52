"""Sends the rows of one task attempt into a transaction, to one topic or to the topics a column names."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

import metatxn
from spark_connector import arrow_schema
from spark_connector.options import TOPIC_COLUMN, OptionError, WriteOptions
from spark_connector.topics import find_topic

ENTRY_BYTES = 8 * 1024 * 1024
"""A request costs both sides as much CPU as a MiB of rows, so entries of half this size would cost a tenth more. But an
entry is never divided among micro-batches."""
PIECE_BYTES = 1024 * 1024
"""Spark's batches have 10,000 rows, however large these are. This much of a batch is divided by topic at a time: its
rows are then still in the processor's cache when they are encoded, and entries become full."""


def new_writer() -> str:
    """The name of one task attempt. It is made inside `write()`, because Spark's own attempt numbers restart with the
    driver."""
    return uuid.uuid4().hex


Fitting = Callable[[str, pa.Schema], pa.Schema]
"""The schema in which rows of a schema are sent to a topic, as `fitting_schema` returns it."""


def check_dataframe(fitting: Fitting, options: WriteOptions, schema: pa.Schema) -> pa.Schema:
    """The schema in which tasks send the rows of a DataFrame; checked on the driver, before anything begins.

    Raises `OptionError`, `NotFound` or `SchemaMismatch`. If a column names the topics, they are only known row by row,
    so their schemas are checked before the first row of each is sent.
    """
    if options.topic is not None:
        _check_columns(options, schema)
        return fitting(options.topic, schema)
    if TOPIC_COLUMN not in schema.names or not pat.is_string(schema.field(TOPIC_COLUMN).type):
        raise OptionError(
            f"Missing option topic: give it, or give the DataFrame a string column named {TOPIC_COLUMN} "
            f"(its columns are {', '.join(schema.names)})."
        )
    _check_columns(options, without_topic_column(schema))
    return schema


def fitting_schema(client: metatxn.Client, topic: str, rows: pa.Schema) -> pa.Schema:
    """The schema in which to send rows: that of the topic with the columns that this write adds to it, or, if the topic
    has none yet, the one that its first write gives it."""
    columns = find_topic(client, topic).columns
    if columns is None:
        return rows
    arrow_schema.check_dataframe_fits(rows, topic, columns)
    return arrow_schema.with_added(columns, rows)


def without_topic_column(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.get_field_index(TOPIC_COLUMN))


def drain(batches: Iterable[pa.RecordBatch]) -> None:
    """Consume all input and send nothing. Otherwise stateful operators before this one would remain half done."""
    for _ in batches:
        pass


class TableWrites:
    """Writes the rows of a task. The rows count only if the commit lists this writer."""

    def __init__(
        self,
        client: metatxn.Client,
        transaction: metatxn.Transaction,
        options: WriteOptions,
        schema: pa.Schema,
        fitting: Fitting,
    ) -> None:
        """`schema` is the result of `check_dataframe`."""
        self.writer = new_writer()
        self.rows = 0
        self._client = client
        self._transaction = transaction
        self._options = options
        self._schema = schema
        self._fitting = fitting
        self._open: dict[str, _Open] = {}

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Returns when every row is durable. An exception, including one of the input, drops what was not sent yet."""
        with ExitStack() as writers:
            for batch in batches:
                for topic, rows in self._routed(batch):
                    (self._open.get(topic) or self._opened(topic, writers)).take(rows)
                    self.rows += rows.num_rows
            for each in self._open.values():
                each.hand_over()

    def _routed(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        for piece in pieces(batch):
            if self._options.topic is None:
                yield from _by_topic(piece)
            else:
                yield self._options.topic, piece

    def _opened(self, topic: str, writers: ExitStack) -> _Open:
        schema = self._schema
        if self._options.topic is None:
            schema = self._fitting(topic, without_topic_column(schema))
        writer = self._client.table_writer(
            topic,
            self._transaction,
            writer=self.writer,
            key_column=self._options.key_column,
            max_entry_bytes=ENTRY_BYTES,
            compression=self._options.compression,
        )
        self._open[topic] = _Open(writers.enter_context(writer), schema)
        return self._open[topic]


@dataclass(slots=True)
class _Open:
    """One topic, and its rows that have not been passed on yet."""

    writer: metatxn.TableWriter
    schema: pa.Schema
    taken: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0

    def take(self, rows: pa.RecordBatch) -> None:
        rows = arrow_schema.conform(rows, self.schema)
        if self.size + rows.nbytes > ENTRY_BYTES:
            self.hand_over()
        self.taken.append(rows)
        self.size += rows.nbytes

    def hand_over(self) -> None:
        if self.taken:
            self.writer.write(pa.Table.from_batches(self.taken))
        self.taken, self.size = [], 0


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of about `PIECE_BYTES` each and of similar size, so that no small one is left over; nothing is copied."""
    rows = -(-batch.num_rows // max(1, round(batch.nbytes / PIECE_BYTES))) or 1
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = batch.column(TOPIC_COLUMN)
    if topics.null_count:
        raise metatxn.InvalidArgument(
            f"column {TOPIC_COLUMN} is null in {topics.null_count} rows", action="Give every row its topic."
        )
    rows = batch.drop_columns([TOPIC_COLUMN])
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    for number, name in enumerate(names):
        here = pc.equal(encoded.indices, pa.scalar(number, pa.int32()))
        yield str(name), rows if len(names) == 1 else rows.filter(here)


def _check_columns(options: WriteOptions, rows: pa.Schema) -> None:
    if not rows.names:
        raise OptionError("The DataFrame has no columns to write.")
    key = options.key_column
    if key is None:
        return
    if key not in rows.names:
        raise OptionError(
            f"Option keyColumn={key!r} is not a column of the DataFrame; its columns are {', '.join(rows.names)}."
        )
    if pat.is_nested(rows.field(key).type):
        raise OptionError(f"Option keyColumn={key!r} has type {rows.field(key).type}; a key must be a single value.")
