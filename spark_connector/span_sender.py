"""Sends the spans of a process of Spark to a receiver that speaks OTLP over HTTP, as OpenTelemetry's environment
variables say. See `spans`, which imports this only where spans are wanted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context, attach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, get_current_span, set_span_in_context

from metatxn.transport.tracing import inherited_trace
from spark_connector.messages import JobTrace
from spark_connector.worker_memory import in_worker

EXPORT_TIMEOUT_S = 2.0
SLOW_S = 0.5
"""A receiver that takes longer is slow, or away."""
PAUSE_S = 60.0
"""How long nothing waits for such a receiver again."""
_ending: ContextVar[JobTrace | None] = ContextVar("metatxn_ending_trace", default=None)


class ChosenIds(RandomIdGenerator):
    """Random ids, except for a span at a root, which others have referred to before it ends."""

    def generate_trace_id(self) -> int:
        ending = _ending.get()
        return ending.trace_id if ending is not None else super().generate_trace_id()

    def generate_span_id(self) -> int:
        ending = _ending.get()
        return ending.span_id if ending is not None else super().generate_span_id()


class SpanSender:
    def __init__(self, provider: TracerProvider, environment: Mapping[str, str]) -> None:
        """`environment` has the headers that continue the trace of the process that started this one, if there is
        one. The provider has `ChosenIds`."""
        self._provider = provider
        self._tracer = provider.get_tracer("metatxn")
        self._environment = extract(environment)
        self.environment_trace_id = get_current_span(self._environment).get_span_context().trace_id
        """0 if there is none."""
        self._waits_from_s = 0.0

    @classmethod
    def create(cls) -> Self:
        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "metatxn-spark")})
        provider = TracerProvider(resource=resource, id_generator=ChosenIds())
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=EXPORT_TIMEOUT_S)))
        sender = cls(provider, inherited_trace())
        if in_worker():  # a driver's own program may set up OpenTelemetry itself
            trace.set_tracer_provider(provider)
            attach(sender._environment)
        return sender

    @contextmanager
    def span(self, name: str, within: JobTrace | None, attributes: Mapping[str, str | int]) -> Iterator[Span]:
        """A span of a trace, or else of that of the environment, if there is one."""
        context = self._environment if within is None else self._below_root_of(within)
        try:
            with self._tracer.start_as_current_span(name, context, attributes=attributes) as started:
                yield started
        finally:
            self._flush()

    def _below_root_of(self, within: JobTrace) -> Context:
        """Its root may not have ended yet; what is below it is sampled if the root will be."""
        decided = self._provider.sampler.should_sample(self._environment, within.trace_id, within.name).decision
        flags = TraceFlags(TraceFlags.SAMPLED if decided == Decision.RECORD_AND_SAMPLE else TraceFlags.DEFAULT)
        root = SpanContext(within.trace_id, within.span_id, is_remote=True, trace_flags=flags)
        return set_span_in_context(NonRecordingSpan(root), self._environment)

    def end(self, ending: JobTrace) -> None:
        """Send the span at the root of a trace, which began when the trace did and ends now."""
        before = _ending.set(ending)
        try:
            self._tracer.start_span(ending.name, self._environment, start_time=ending.begun_ns).end()
        finally:
            _ending.reset(before)
        self._flush()

    def _flush(self) -> None:
        """Send what has ended, because Spark may kill this process at any time. If the receiver is slow, spans are sent
        in the background for a while, and may be lost."""
        now = time.monotonic()
        if now >= self._waits_from_s:
            self._provider.force_flush()
            if time.monotonic() - now > SLOW_S:
                self._waits_from_s = time.monotonic() + PAUSE_S
