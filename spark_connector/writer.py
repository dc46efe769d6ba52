"""The batch writer: `df.write.format("metatxn").mode("append")` and `INSERT INTO`.

Without `txnId` the write is a transaction of its own, begun on the driver and committed with the list of task attempts
that won. With `txnId` it is a part of a transaction that another program ends: the winners are remembered with its
header, so that the commit need not list them. The existence of such a list is recorded before any task sends a row:
from then on attempts are void unless their job has listed them, whatever happens to the job, to its driver, and to the
requests of its `abort()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

import metatxn
from spark_connector.clients import client
from spark_connector.errors import one_line
from spark_connector.keep_alive import KeepAlive
from spark_connector.messages import WrittenPart, winners
from spark_connector.options import WriteOptions
from spark_connector.spans import facts_of, job_span, trace_of_batch_write
from spark_connector.table_writes import TableWrites, drain, fitting_schema, new_writer

NOBODY = "nobody of a Spark job"
"""A writer that never sends anything. Once it is remembered, only writers that are remembered count."""


class BatchWriter(DataSourceArrowWriter):
    """Created on the driver when the job starts; the same object, pickled, writes in the tasks and commits."""

    _trace_id: int | None = None
    """A driver with an earlier release does not send one."""

    def __init__(self, options: WriteOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._own = options.txn_id is None
        self._trace_id = trace_of_batch_write()
        with job_span("spark begin", self._trace_id):
            self._txn_id = options.txn_id or self._begin()
            if not self._own and not options.already_committed:
                self._attach().remember_writers([NOBODY])

    def _begin(self) -> str:
        return client(self._options.service).begin(timeout_ms=self._options.timeout_ms).id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:  # type: ignore[override]  # as in its base class
        with one_line(), job_span("spark write", self._trace_id) as note:
            written = self._write(iterator)
            note(facts_of(written))
            return written

    def _write(self, batches: Iterator[pa.RecordBatch]) -> WrittenPart:
        options = self._options
        if options.already_committed:
            drain(batches)
            return WrittenPart(None, new_writer(), rows=0, already_committed=True)
        transaction = self._attach()
        service = client(options.service)
        writes = TableWrites(service, transaction, options, self._schema, partial(fitting_schema, service))
        with ExitStack() as kept_alive:
            if self._own:
                kept_alive.enter_context(KeepAlive(transaction, options.timeout_ms))
            writes.write_all(batches)
        return WrittenPart(transaction.id, writes.writer, writes.rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.already_committed:
            return
        with one_line(), job_span("spark commit", self._trace_id):
            written = [message for message in messages if isinstance(message, WrittenPart)]
            assert len(written) == len(messages), "every task of a committed job returns a message"
            if self._own:
                self._attach().commit(writers=winners(written))
            elif counting := winners(written):
                self._attach().remember_writers(counting)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the job. The owner of the transaction may still commit what else is in it; nothing of this job counts
        there."""
        if not self._own:
            return
        with one_line(), job_span("spark abort", self._trace_id):
            try:
                self._attach().abort(reason="the Spark job failed")
            except (metatxn.InvalidTransactionState, metatxn.ExpiredTransaction):
                # It is already decided. Spark calls abort() also after a commit() whose answer was lost, and such a
                # commit stays.
                return

    def _attach(self) -> metatxn.Transaction:
        return client(self._options.service).attach(self._txn_id)
