"""The streaming sink: one transaction per (application id, batch id).

    task      connect(application id, session = run id)   the same epoch for every task of a run
    task      begin(key, epoch, version = batch id)       the same open transaction for every task of the batch
    task      send rows as a writer of its own            named inside write(): attempts never share a name
    driver    commit(writers = the winners')              one request, one apply in the metadata store

- A batch that was committed before (the driver died before Spark noted it) answers "already committed" at begin:
  its tasks take their input and send nothing, and the commit does nothing.
- A task attempt that failed, lost a race or starts late is a writer the commit does not list: its rows are void.
- A new run of the same application id connects with a new session, which bumps the epoch and aborts what its
  predecessor had open. A session that was taken over from can never connect again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

import metatxn
from spark_connector.clients import Service, client
from spark_connector.errors import one_line, taken_over
from spark_connector.input_acks import acknowledge_input
from spark_connector.keep_alive import KeepAlive
from spark_connector.messages import Written, winners
from spark_connector.options import WriteOptions
from spark_connector.table_writes import TableWrites, drain, new_writer


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Which batch of which run this task belongs to."""

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
            # Without them two batches could share a transaction, so this is the end of the query.
            raise RuntimeError(f"this Spark gives its streaming tasks no {', '.join(names)}; use batch_transaction")
        return cls(query_id, run_id, int(batch_id))


class StreamWriter(DataSourceStreamArrowWriter):
    """Spark pickles it into the tasks, and makes a new one for commit() and abort(): it carries no state."""

    def __init__(self, options: WriteOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]  # as in its base class
        with one_line():
            return self._write(iterator)

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        options, batch = self._options, MicroBatch.of_this_task()
        app_id = options.app_id or batch.query_id
        service = client(options.service)
        try:
            epoch = _epoch(os.getpid(), options.service, app_id, batch.run_id)
            transaction = service.begin(timeout_ms=options.timeout_ms, key=app_id, epoch=epoch, version=batch.batch_id)
        except metatxn.NotAllowed as error:
            raise taken_over(app_id, error) from error
        if transaction.already_committed:
            drain(batches)
            return Written(None, new_writer(), rows=0, epoch=epoch, already_committed=True)
        writes = TableWrites(service, transaction, options, self._schema)
        with KeepAlive(transaction, options.timeout_ms):
            writes.write_all(batches)
        return Written(transaction.id, writes.writer, writes.rows, epoch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with one_line():
            written = [message for message in messages if isinstance(message, Written)]
            assert len(written) == len(messages), "every task of a committed batch gives a message"
            txn_id = the_transaction(written, batchId)
            if txn_id is not None:
                transaction = self._attach(txn_id)
                self._acknowledge_input(transaction, batchId)
                # Unknown outcomes are resolved inside: this raises only when the batch is not committed, or when
                # nobody answers; then the restarted query begins the same version and learns what became of it.
                transaction.commit(writers=winners(written))

    def _acknowledge_input(self, transaction: metatxn.Transaction, batch_id: int) -> None:
        """Acknowledgements without a writer's name count whatever the commit lists."""
        options = self._options
        if options.ack_subscription is not None:
            assert options.checkpoint is not None, "the options were checked"
            service = client(options.service)
            acknowledge_input(service, transaction, options.ack_subscription, options.checkpoint, batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with one_line():
            written = [message for message in messages if isinstance(message, Written)]
            for txn_id in {message.txn_id for message in written if message.txn_id is not None}:
                try:
                    self._attach(txn_id).abort(reason=f"micro-batch {batchId} failed")
                except (metatxn.InvalidTransactionState, metatxn.TransactionNotFound):
                    # Spark also aborts after a commit() that raised, and that commit may have happened. It stays:
                    # the abort is a compare-and-set from OPEN, and the replay will find the batch committed.
                    continue

    def _attach(self, txn_id: str) -> metatxn.Transaction:
        return client(self._options.service).attach(txn_id)


def the_transaction(written: Sequence[Written], batch_id: int) -> str | None:
    """The one all tasks wrote in; None when the batch was committed earlier (or has no tasks).

    Raises `ExpiredTransaction` when they wrote in several: the first one timed out or was fenced under their hands,
    and a later task began the batch again. Committing any of them would lose rows.
    """
    if all(message.already_committed for message in written):
        return None
    transactions = {message.txn_id for message in written}
    if len(transactions) > 1:
        raise metatxn.ExpiredTransaction(
            f"the transaction of micro-batch {batch_id} ended before all of its tasks had written",
            action="Restart the query, it redoes the batch; give transactionTimeoutMs if batches take long.",
        )
    return transactions.pop()


@lru_cache(maxsize=1024)
def _epoch(_pid: int, service: Service, app_id: str, session: str) -> int:
    """Connecting again in the same session answers the same epoch, so remembering it only saves the request."""
    return client(service).connect_key(app_id, epoch=-1, session=session).epoch
