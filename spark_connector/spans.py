"""The spans of a Spark job, if OpenTelemetry's own environment variable says where to send them
(`OTEL_EXPORTER_OTLP_ENDPOINT`, of the driver and of the executors).

    spark read              a range of a segment, in a task
    spark write             a task attempt
    └── POST                each of its requests, which the services continue
    spark commit            on the driver

Several processes take part in a batch, and none of them has a span that contains the others. So the spans of a batch
have the same trace and no parent, unless the environment names one. The id of a micro-batch's trace follows from its
query, run and number, which all of its processes know. That of a batch write travels with its writer.

Spans never fail a job: with settings that OpenTelemetry refuses there are none. If nobody wants any, this costs a look
into the environment in each process, and imports nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from pyspark import TaskContext

from spark_connector.messages import WrittenPart

if TYPE_CHECKING:
    from spark_connector.span_sender import SpanSender

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_WITHOUT = "The Spark job is not traced: %s"
Attributes = Mapping[str, str | int]
Note = Callable[[Attributes], None]
"""Adds attributes to a span."""
T = TypeVar("T")
_setting_up = threading.Lock()
log = logging.getLogger("metatxn.spark")


def trace_of_micro_batch(query_id: str, run_id: str, batch_id: int) -> int:
    """The id of its trace: the same one for every process of a run."""
    return int.from_bytes(hashlib.sha256(f"{query_id}/{run_id}/{batch_id}".encode()).digest()[:16])


def trace_of_this_task() -> int | None:
    """That of the micro-batch of this task, if it has one."""
    context = TaskContext.get()
    if context is None:
        return None
    names = ("sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId")
    query_id, run_id, batch_id = (context.getLocalProperty(name) for name in names)
    return trace_of_micro_batch(query_id, run_id, int(batch_id)) if query_id and run_id and batch_id else None


def trace_of_batch_write() -> int:
    """That of a new one."""
    return int.from_bytes(os.urandom(16))


@contextmanager
def job_span(name: str, trace_id: int | None, attributes: Attributes | None = None) -> Iterator[Note]:
    """A span of this job. The requests within it belong to it."""
    sender = _sender()
    if sender is None:
        yield lambda _more: None
        return
    with sender.span(name, trace_id, {**(attributes or {}), **_task()}) as started:
        yield started.set_attributes


@contextmanager
def read_span(trace_id: int | None, attributes: Attributes) -> Iterator[Callable[[Callable[[], T]], T]]:
    """A span to which only belongs what is called by the result, in whatever thread: Spark does other things between
    the batches of rows that it asks for, and may end this anywhere."""
    sender = _sender()
    if sender is None:
        yield lambda work: work()
        return
    with sender.detached_span("spark read", trace_id, {**attributes, **_task()}) as call:
        yield call


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


def _sender() -> SpanSender | None:
    with _setting_up:
        return _sender_of(os.getpid())


@lru_cache(maxsize=1)
def _sender_of(_pid: int) -> SpanSender | None:
    """None if nobody wants spans, or if there can be none. A forked child does not share a sender with its parent, so
    the key is the process id."""
    if not any(os.environ.get(name) for name in _ENDPOINTS) or _switched_off():
        return None
    try:
        from spark_connector.span_sender import SpanSender

        return SpanSender.create()
    except ImportError as missing:
        log.warning(_WITHOUT, f"{missing}. Install metatxn[tracing] in the driver and in the executors.")
    except Exception as error:  # noqa: BLE001
        # OpenTelemetry raises whatever comes to it when a variable of its environment is wrong.
        log.warning(_WITHOUT, repr(error))
    return None


def _switched_off() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return True
    protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        log.warning(_WITHOUT, f"it sends spans as http/protobuf, and the environment asks for {protocol}.")
        return True
    return False
