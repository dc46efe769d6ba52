"""Several DataFrames in one transaction, exactly once per (application id, batch id), inside `foreachBatch`.

    def write(df, batch_id):
        with batch_transaction(url, "my-job", batch_id) as txn:
            df.write.format("metatxn").options(url=url, topic="orders", txnId=txn.id).mode("append").save()
            totals(df).write.format("metatxn").options(url=url, topic="totals", txnId=txn.id).mode("append").save()

Leaving the block commits, an exception aborts. If the batch was already committed (the driver died before Spark
recorded it), `txn.id` is `committed:<application id>:<batch id>`. Writes with this id consume their rows and send none,
so the block needs no `if`; use `txn.already_committed` if the rest of the block has side effects of its own.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark import SparkContext

import metatxn
from spark_connector.clients import ServiceAddress, client
from spark_connector.errors import one_line, taken_over
from spark_connector.input_acks import acknowledge_input
from spark_connector.keep_alive import KeepAlive
from spark_connector.options import (
    COMMITTED_PREFIX,
    MICRO_BATCH_TIMEOUT_MS,
    OptionError,
    application_id,
    timeout_ms_in_range,
)
from spark_connector.spans import job_span, trace_of_batch_write, trace_of_micro_batch

_PROCESS = uuid.uuid4().hex
"""A second driver process is another session, and takes over."""


@dataclass(frozen=True, slots=True)
class BatchTransaction:
    """`id` goes into the option `txnId`; `transaction` is the one of the client library, or None if the batch was
    already committed."""

    id: str
    already_committed: bool
    transaction: metatxn.Transaction | None


@contextmanager
def batch_transaction(
    url: str,
    app_id: str,
    batch_id: int,
    timeout_ms: int = MICRO_BATCH_TIMEOUT_MS,
    token: str | None = None,
    *,
    ca: str | None = None,
    listener: str | None = None,
    ack_subscription: str | None = None,
    checkpoint: str | None = None,
) -> Iterator[BatchTransaction]:
    """A transaction for one micro-batch; see the module's docstring. It is kept alive while the block runs.

    With `ack_subscription`, the same decision acknowledges what the batch has read of topics on that subscription;
    `checkpoint` is the query's checkpointLocation, where Spark records what the batch reads.

    Raises `OptionError` for a malformed argument, and `ExpiredTransaction` if another driver, or a newer run of this
    query, took over the application id.
    """
    _check(app_id, batch_id, timeout_ms)
    if (ack_subscription is None) != (checkpoint is None):
        raise OptionError(
            "ack_subscription and checkpoint need each other: Spark records in the checkpoint what a batch has read."
        )
    service = ServiceAddress(url, token or os.environ.get("METATXN_TOKEN"), ca, listener)
    trace_id = _trace_id(batch_id)
    with one_line(), _SESSIONS.enter(url, app_id) as session:
        with job_span("spark begin", trace_id):
            transaction = _begin(service, app_id, batch_id, session, timeout_ms)
        if transaction.already_committed:
            yield BatchTransaction(f"{COMMITTED_PREFIX}{app_id}:{batch_id}", True, None)
            return
        with KeepAlive(transaction, timeout_ms):
            try:
                yield BatchTransaction(transaction.id, False, transaction)
                if ack_subscription is not None and checkpoint is not None:
                    acknowledge_input(client(service), transaction, ack_subscription, checkpoint, batch_id)
            except BaseException:
                with job_span("spark abort", trace_id):
                    _abort(transaction)
                raise
            # The writers that count were remembered by the writes in the block.
            with job_span("spark commit", trace_id):
                transaction.commit()


def _begin(service: ServiceAddress, app_id: str, batch_id: int, session: str, timeout_ms: int) -> metatxn.Transaction:
    try:
        epoch = client(service).connect_key(app_id, epoch=-1, session=session).epoch
        return client(service).begin(timeout_ms=timeout_ms, key=app_id, epoch=epoch, version=batch_id)
    except metatxn.NotAllowed as error:
        raise taken_over(app_id, error) from error


def _abort(transaction: metatxn.Transaction) -> None:
    """Abort. The user must see the exception that ended the block, so a failure of the abort is not raised: the
    transaction then ends by its timeout, or when the batch begins again."""
    try:
        transaction.abort(reason="the block of batch_transaction failed")
    except metatxn.MetatxnError:
        return


class _Sessions:
    """Which session a block belongs to: the run of the streaming query that it is in, or else this process.

    A run that was stopped may leave its `foreachBatch` function running in this very process, and must not share a
    transaction with the next run. So every run is a session of its own, and a session that was taken over cannot
    connect again. Blocks of one run (or of no run) follow each other. If one begins while another is still open, the
    later one takes over in a new session, and the earlier one fails at its next step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[tuple[str, str, str]] = Counter()
        self._takeovers: Counter[tuple[str, str, str]] = Counter()

    @contextmanager
    def enter(self, url: str, app_id: str) -> Iterator[str]:
        block = (url, app_id, f"{_PROCESS}/{_run_id()}")
        with self._lock:
            if self._open[block]:
                self._takeovers[block] += 1
            self._open[block] += 1
            session = f"{block[-1]}/{self._takeovers[block]}"
        try:
            yield session
        finally:
            with self._lock:
                self._open[block] -= 1


_SESSIONS = _Sessions()


def _run_id() -> str:
    """The run of the streaming query whose `foreachBatch` called this; empty elsewhere (and over Spark Connect)."""
    context = SparkContext._active_spark_context
    if context is None or context.getLocalProperty("sql.streaming.queryId") is None:
        return ""
    return context.getLocalProperty("spark.jobGroup.id") or ""


def _trace_id(batch_id: int) -> int:
    """That of the micro-batch, if there is one: its tasks read in it."""
    run_id, context = _run_id(), SparkContext._active_spark_context
    if not run_id or context is None:
        return trace_of_batch_write()
    return trace_of_micro_batch(context.getLocalProperty("sql.streaming.queryId") or "", run_id, batch_id)


def _check(app_id: str, batch_id: int, timeout_ms: int) -> None:
    if isinstance(batch_id, bool) or not isinstance(batch_id, int) or not 0 <= batch_id < 2**53:
        raise OptionError(f"batch_id={batch_id!r} must be a number of at least 0, as foreachBatch passes it.")
    if not app_id:
        raise OptionError("app_id is empty; give the job a name that stays the same when it restarts.")
    for name, value, check in (
        ("app_id", app_id, application_id),
        ("timeout_ms", str(timeout_ms), timeout_ms_in_range),
    ):
        try:
            check(value)
        except ValueError as error:
            raise OptionError(f"{name}={value!r} {error}.") from None
