"""The spans of a Spark job, if OpenTelemetry's own environment variable says where to send them
(`OTEL_EXPORTER_OTLP_ENDPOINT`, of the driver and of the executors).

    spark micro-batch 17        from the first of its tasks to the answer of the commit
    ├── spark read              a range of a segment, in a task
    ├── spark write             a task attempt
    │   └── POST                each of its requests, which the services continue
    └── spark commit

Several processes take part in a batch, and each of them has to name the same trace before the span at its root ends. So
the ids of a micro-batch follow from its run and its number. Those of a batch write travel with its writer; a write in
`foreachBatch` is one, too.

If nobody wants spans, this costs one look into the environment for each process, and imports nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark import TaskContext

from spark_connector.messages import JobTrace, WrittenPart

if TYPE_CHECKING:
    from spark_connector.span_sender import SpanSender

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
Attributes = Mapping[str, str | int]
Note = Callable[[Attributes], None]
"""Adds attributes to a span."""


def trace_of_micro_batch(run_id: str, batch_id: int) -> JobTrace | None:
    """The same one for every process of a run; None if it is not traced."""
    ids = hashlib.sha256(f"{run_id}/{batch_id}".encode()).digest()
    return _trace(f"spark micro-batch {batch_id}", ids)


def trace_of_this_task() -> JobTrace | None:
    """That of the micro-batch of this task, if it has one and is traced."""
    context = TaskContext.get()
    if context is None:
        return None
    run_id, batch_id = (context.getLocalProperty(name) for name in ("spark.jobGroup.id", "streaming.sql.batchId"))
    return trace_of_micro_batch(run_id, int(batch_id)) if run_id and batch_id else None


def trace_of_batch_write() -> JobTrace | None:
    """A new one; None if it is not traced."""
    return _trace("spark batch write", os.urandom(24))


def _trace(name: str, ids: bytes) -> JobTrace | None:
    sender = _sender(os.getpid())
    if sender is None:
        return None
    trace_id = sender.environment_trace_id or int.from_bytes(ids[:16])
    return JobTrace(name, trace_id, int.from_bytes(ids[16:24]), time.time_ns())


@contextmanager
def job_span(name: str, trace: JobTrace | None, attributes: Attributes) -> Iterator[Note]:
    """A span of this job. The requests within it belong to it. An exception that ends it is noted and raised."""
    sender = _sender(os.getpid())
    if sender is None:
        yield lambda _more: None
        return
    with sender.span(name, trace, {**attributes, **_task()}) as started:
        yield started.set_attributes


@contextmanager
def last_span(name: str, trace: JobTrace | None) -> Iterator[None]:
    """The last span of a trace: its root ends, too."""
    with ending(trace), job_span(name, trace, {}):
        yield


@contextmanager
def ending(trace: JobTrace | None) -> Iterator[None]:
    """The span at the root of a trace ends with this block."""
    try:
        yield
    finally:
        sender = _sender(os.getpid())
        if sender is not None and trace is not None:
            sender.end(trace)


def facts_of(written: WrittenPart) -> Attributes:
    return {"metatxn.txn_id": written.txn_id or "", "metatxn.rows": written.rows}


def _task() -> Attributes:
    context = TaskContext.get()
    if context is None:
        return {}
    return {
        "spark.stage_id": context.stageId(),
        "spark.partition_id": context.partitionId(),
        "spark.task_attempt_id": context.taskAttemptId(),
    }


@lru_cache(maxsize=1)
def _sender(_pid: int) -> SpanSender | None:
    """None if nobody wants spans, or if OpenTelemetry is not installed. A forked child does not share a sender with its
    parent, so the key is the process id."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        from spark_connector.span_sender import SpanSender
    except ImportError:
        return None
    return SpanSender.create()
