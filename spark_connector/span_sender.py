"""Sends the spans of a process of Spark to a receiver that speaks OTLP over HTTP, as OpenTelemetry's environment
variables say. See `spans`, which imports this only where spans are wanted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Self

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, StatusCode, use_span

from metatxn.transport.tracing import inherited_trace, tracing_with

EXPORT_TIMEOUT_S = 2.0
FLUSH_S = 0.1
"""How long the end of a span waits for the receiver."""
PAUSE_S = 60.0
"""How long none waits again for a receiver that was slower."""
_trace_id: ContextVar[int | None] = ContextVar("metatxn_trace_of_job", default=None)


class JobIds(RandomIdGenerator):
    """Random ids, but spans of one job have the same trace."""

    def generate_trace_id(self) -> int:
        return _trace_id.get() or super().generate_trace_id()


class SpanSender:
    def __init__(self, provider: TracerProvider, environment: Mapping[str, str]) -> None:
        """`environment` has the headers that continue the trace of the process that started this one, if there is
        one. The provider has `JobIds`."""
        self._provider = provider
        self._tracer = provider.get_tracer("metatxn")
        self._environment = extract(environment, Context())
        self._waits_from_s = 0.0
        self._flushing: threading.Thread | None = None

    @classmethod
    def create(cls) -> Self:
        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({} if named else {"service.name": "metatxn-spark"})
        provider = TracerProvider(resource=resource, id_generator=JobIds())
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=EXPORT_TIMEOUT_S)))
        return cls(provider, inherited_trace())

    @contextmanager
    def span(self, name: str, trace_id: int | None, attributes: Mapping[str, str | int]) -> Iterator[Span]:
        """A span of a trace, or below that of the environment, if there is one."""
        started = self._start(name, trace_id, attributes)
        with _ending(started, self._flush), self._within(started):
            yield started

    @contextmanager
    def detached_span(
        self, name: str, trace_id: int | None, attributes: Mapping[str, str | int]
    ) -> Iterator[Callable[[Callable[[], Any]], Any]]:
        """A span to which what the result calls belongs, in any thread, and nothing else."""
        started = self._start(name, trace_id, attributes)

        def call(work: Callable[[], Any]) -> Any:
            with self._within(started):
                return work()

        with _ending(started, self._flush):
            yield lambda work: copy_context().run(call, work)

    @contextmanager
    def _within(self, span: Span) -> Iterator[None]:
        with use_span(span, record_exception=False, set_status_on_exception=False), tracing_with(self._tracer):
            yield

    def _start(self, name: str, trace_id: int | None, attributes: Mapping[str, str | int]) -> Span:
        before = _trace_id.set(trace_id)
        try:
            return self._tracer.start_span(name, self._environment, attributes=attributes)
        finally:
            _trace_id.reset(before)

    def _flush(self) -> None:
        """Send what has ended, because Spark may kill this process at any time. If the receiver is slow, spans are sent
        in the background for a while, and may be lost.

        In a thread, for two reasons: an export may take much longer than its timeout; and this may be called in the
        middle of one, by the garbage collector.
        """
        if time.monotonic() < self._waits_from_s or (self._flushing is not None and self._flushing.is_alive()):
            return
        self._flushing = threading.Thread(target=self._provider.force_flush, name="metatxn-spans", daemon=True)
        self._flushing.start()
        self._flushing.join(FLUSH_S)
        if self._flushing.is_alive():
            self._waits_from_s = time.monotonic() + PAUSE_S


@contextmanager
def _ending(span: Span, flush: Callable[[], None]) -> Iterator[None]:
    """End a span, and say which kind of error has ended it: its text may contain data."""
    try:
        yield
    except Exception as error:
        span.set_status(StatusCode.ERROR, type(error).__name__)
        span.set_attribute("error.type", type(error).__name__)
        raise
    finally:
        span.end()
        flush()
