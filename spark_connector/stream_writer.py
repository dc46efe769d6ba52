"""The streaming sink: one transaction per (application id, batch id).

    task      connect(application id, session = run id)   the same epoch for every task of a run
    task      begin(key, epoch, version = batch id)       the same open transaction for every task of the batch
    task      send rows as a writer of its own            named inside write(): attempts never share a name
    driver    commit(writers = the winners')              one request, one apply in the metadata store

- For a batch that was already committed (the driver died before Spark recorded it), begin answers "already
  committed": its tasks consume their input and send nothing, and the commit does nothing.
- A task attempt that failed, lost a race or starts late is a writer the commit does not list: its rows are void.
- A new run of the same application id connects with a new session, which increments the epoch and aborts what its
  predecessor had open. A session that was taken over can never connect again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkFiles, TaskContext
from pyspark.sql.datasource import WriterCommitMessage

import metatxn
from spark_connector import checkpoint
from spark_connector.clients import ServiceAddress, client
from spark_connector.errors import one_line, taken_over
from spark_connector.input_acks import acknowledge_input
from spark_connector.keep_alive import KeepAlive
from spark_connector.messages import WrittenPart, winners
from spark_connector.options import WriteOptions
from spark_connector.spans import facts_of, job_span, trace_of_micro_batch
from spark_connector.spark_versions import StreamArrowWriter
from spark_connector.table_writes import Fitting, TableWrites, check_dataframe, drain, fitting_schema, new_writer

DRIVER = "spark.driver"
"""The property of a transaction that names the driver process whose tasks began it."""
CHECKED_FOR_S = 5.0
"""How long micro-batches do not look up their topics again. If a topic gets a column meanwhile, rows are written
without it, as by any producer that does not know it yet; the broker refuses everything else that does not fit."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The batch and the run that this task belongs to."""

    query_id: str
    run_id: str
    batch_id: int

    @classmethod
    def of_this_task(cls) -> MicroBatch:
        context = TaskContext.get()
        assert context is not None, "write() runs in a task"
        names = ("sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId")
        query_id, run_id, batch_id = (context.getLocalProperty(name) for name in names)
        if query_id is None or run_id is None or batch_id is None:
            # Without them two batches could share a transaction, so the query fails here.
            raise RuntimeError(
                f"this version of Spark does not give its streaming tasks {', '.join(names)}; use batch_transaction"
            )
        return cls(query_id, run_id, int(batch_id))


class StreamWriter(StreamArrowWriter):
    """Spark creates one for every micro-batch and pickles it into the tasks, and another one for commit() and abort(),
    so it has no state."""

    def __init__(self, options: WriteOptions, columns: pa.Schema) -> None:
        """`columns` are those of the DataFrame."""
        self._options = options
        self._columns = columns
        self._properties = {DRIVER: _driver()}

    @cached_property
    def _schema(self) -> pa.Schema:
        with one_line():
            return check_dataframe(_lately(self._options.service), self._options, self._columns)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the writer, which checks the DataFrame on the driver before the tasks begin. The one that commits need
        not."""
        assert self._schema is not None, "the DataFrame is checked"
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:  # type: ignore[override]  # as in its base class
        batch = MicroBatch.of_this_task()
        trace_id = trace_of_micro_batch(batch.query_id, batch.run_id, batch.batch_id)
        with one_line(), job_span("spark write", trace_id) as note:
            written = self._write(batch, iterator)
            note(facts_of(written))
            return replace(written, trace_id=trace_id)

    def _write(self, batch: MicroBatch, batches: Iterator[pa.RecordBatch]) -> WrittenPart:
        options = self._options
        app_id = options.app_id or batch.query_id
        service = client(options.service)
        try:
            epoch = _epoch(os.getpid(), options.service, app_id, batch.run_id)
            transaction = service.begin(
                timeout_ms=options.timeout_ms,
                key=app_id,
                epoch=epoch,
                version=batch.batch_id,
                properties=self._properties,
            )
        except metatxn.NotAllowed as error:
            raise taken_over(app_id, error) from error
        if transaction.already_committed:
            drain(batches)
            return WrittenPart(None, new_writer(), rows=0, epoch=epoch, already_committed=True)
        writes = TableWrites(service, transaction, options, self._schema, _lately(options.service))
        with KeepAlive(transaction, options.timeout_ms):
            try:
                writes.write_all(batches)
            except metatxn.MetatxnError:
                _fitting.cache_clear()  # the next attempt asks again
                raise
        return WrittenPart(transaction.id, writes.writer, writes.rows, epoch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with one_line():
            written = [message for message in messages if isinstance(message, WrittenPart)]
            assert len(written) == len(messages), "every task of a committed batch returns a message"
            txn_id = the_transaction(written, batchId)
            if txn_id is None:
                return
            with job_span("spark commit", written[0].trace_id):
                transaction = self._attach(txn_id)
                self._acknowledge_input(transaction, batchId)
                # Unknown outcomes are resolved inside: this raises only if the batch is not committed, or if
                # no service answers; then the restarted query begins the same version and learns the outcome.
                transaction.commit(writers=winners(written))

    def _acknowledge_input(self, transaction: metatxn.Transaction, batch_id: int) -> None:
        """Acknowledge the input. Acknowledgements without a writer's name count, whatever writers the commit lists."""
        options = self._options
        if options.ack_subscription is not None:
            assert options.checkpoint is not None, "the options were checked"
            service = client(options.service)
            acknowledge_input(service, transaction, options.ack_subscription, options.checkpoint, batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort a batch, which ends its run. So the run is taken over, though not by another run: this aborts
        what it has open, in the same apply, and a task of the run that is only just starting cannot begin the batch
        again.

        Spark also aborts after a commit() that raised, although that commit may have succeeded. It then remains
        committed.
        """
        written = [message for message in messages if isinstance(message, WrittenPart)]
        with one_line(), job_span("spark abort", written[0].trace_id if written else None):
            for app_id, epoch in self._open(written, batchId):
                try:
                    client(self._options.service).connect_key(app_id, epoch=epoch)
                except metatxn.NotAllowed:
                    continue  # a newer run has taken over, and aborted it

    def _open(self, written: Sequence[WrittenPart], batch_id: int) -> set[tuple[str, int]]:
        """The application id and the epoch of what tasks of this run have open, as far as the driver can know: from
        tasks that have written, or from the transaction that the application id holds, if a task of this driver began
        it for this batch."""
        told = {message.txn_id for message in written if message.txn_id is not None}
        headers = [self._attach(txn_id).refresh() for txn_id in sorted(told | self._held())]
        return {
            (each.transaction_key, each.epoch)
            for each in headers
            if each.state == "OPEN" and (each.version, each.properties) == (batch_id, self._properties)
            if each.transaction_key is not None and each.epoch is not None
        }

    def _held(self) -> set[str]:
        """The one transaction that the application id holds, if there is one and the driver knows the application
        id."""
        app_id = self._app_id()
        if app_id is None:
            return set()
        try:
            held = client(self._options.service).key(app_id).txn_id
        except metatxn.NotFound:
            return set()  # no task has connected yet
        return set() if held is None else {held}

    def _app_id(self) -> str | None:
        """The application id, as far as the driver knows it: Spark gives only tasks the id of their query."""
        options = self._options
        if options.app_id is not None or options.checkpoint is None:
            return options.app_id
        return checkpoint.query_id(options.checkpoint)

    def _attach(self, txn_id: str) -> metatxn.Transaction:
        return client(self._options.service).attach(txn_id)


def the_transaction(written: Sequence[WrittenPart], batch_id: int) -> str | None:
    """The one transaction in which all tasks wrote, or None if the batch was committed earlier (or has no tasks).

    Raises `ExpiredTransaction` if they wrote in several: the first one timed out or was fenced while they wrote, and a
    later task began the batch again. Committing any of them would lose rows.
    """
    if all(message.already_committed for message in written):
        return None
    transactions = {message.txn_id for message in written}
    if len(transactions) > 1:
        raise metatxn.ExpiredTransaction(
            f"the transaction of micro-batch {batch_id} ended before all of its tasks had written",
            action="Restart the query, which repeats the batch. Increase transactionTimeoutMs if batches take long.",
        )
    return transactions.pop()


def _lately(service: ServiceAddress) -> Fitting:
    return partial(_fitting, os.getpid(), int(time.monotonic() / CHECKED_FOR_S), service)


@lru_cache(maxsize=1024)
def _fitting(_pid: int, _period: int, service: ServiceAddress, topic: str, rows: pa.Schema) -> pa.Schema:
    return fitting_schema(client(service), topic, rows)


@lru_cache(maxsize=1024)
def _epoch(_pid: int, service: ServiceAddress, app_id: str, session: str) -> int:
    """The epoch of a run. Connecting again in the same session returns the same one, so caching it only saves the
    request."""
    return client(service).connect_key(app_id, epoch=-1, session=session).epoch


def _driver() -> str:
    """A name of the driver: the same in all of its Python processes, and different for any other driver. The processes
    that create writers and those that commit have nothing in common but the directory of the application's files."""
    return Path(SparkFiles.getRootDirectory()).name
