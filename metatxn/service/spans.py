"""The spans of a service: one for each request, and one for each call of the metadata store within it.

They continue the trace of the client, which sends `traceparent` (W3C Trace Context).

Most requests belong to no trace and are not sampled, so that is drawn first: OpenTelemetry's own way to it, over a span
that records nothing, takes several times as long. Spans are sent in the background, in batches; a receiver that is slow
or away loses spans, and delays nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from importlib.metadata import version
from typing import Self
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode, Tracer, set_span_in_context
from starlette.types import Scope

from metatxn.service.request_metrics import NO_ANSWER, MeasuredRequest

EXPORT_TIMEOUT_S = 2
"""How long sending a batch of spans is tried; also the last one, for which the end of the process waits."""
_TRACES_PATH = "/v1/traces"
_CONTEXT = (b"traceparent", b"tracestate")
_SERVER_ERROR = 500
_sampled: ContextVar[bool] = ContextVar("metatxn_sampled", default=False)
"""Whether the request that is being answered is sampled."""
_UNSAMPLED = set_span_in_context(NonRecordingSpan(SpanContext(1, 1, is_remote=False)))
"""The header by which the services that are asked within it do not sample either."""


class UnsampledRequest:
    """A request that belongs to no trace, and begins none."""

    def __init__(self) -> None:
        self._before = attach(_UNSAMPLED)

    def end(self, scope: Scope, request: MeasuredRequest) -> None:
        detach(self._before)


class TracedRequest:
    """The span of a request that is being answered. What happens in its task until `end` belongs to it."""

    def __init__(self, tracer: Tracer, scope: Scope, parent: Context | None) -> None:
        self._span: Span = tracer.start_span(scope["method"], context=parent, kind=SpanKind.SERVER)
        self._before = attach(set_span_in_context(self._span, parent))
        self._outside = _sampled.set(self._span.is_recording())

    def end(self, scope: Scope, request: MeasuredRequest) -> str | None:
        """The id of the trace, if it is sampled."""
        _sampled.reset(self._outside)
        detach(self._before)
        span = self._span
        if span.is_recording():
            span.set_attribute("http.request.method", scope["method"])
            span.set_attribute("url.path", (scope.get("raw_path") or scope["path"].encode()).decode("latin-1"))
            if request.route is not None:
                span.update_name(f"{scope['method']} {request.route.path}")
                span.set_attribute("http.route", request.route.path)
            if request.status != NO_ANSWER:
                span.set_attribute("http.response.status_code", request.status)
            if request.status >= _SERVER_ERROR:
                span.set_status(StatusCode.ERROR)
        span.end()
        return _trace_id(span)


class Tracing:
    """How a process is traced. One tracer does what the trace of a request demands, and one samples whatever it begins:
    both hand their spans to the processor."""

    def __init__(
        self,
        processor: SpanProcessor,
        sampling: float,
        resource: Resource | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.provider = TracerProvider(ParentBased(TraceIdRatioBased(sampling)), resource)
        begins = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        for provider in (self.provider, begins):
            provider.add_span_processor(processor)
        self._sampling, self._draw = sampling, draw
        self._follows, self._begins = self.provider.get_tracer("metatxn"), begins.get_tracer("metatxn")

    @classmethod
    def to(cls, service: str, url: str, sampling: float) -> Self:
        """Spans go to `url`, and requests of this process to others belong to its traces. Raises `ValueError`."""
        resource = Resource.create({"service.name": f"metatxn-{service}", "service.version": version("metatxn")})
        exporter = OTLPSpanExporter(_traces_of(url), timeout=EXPORT_TIMEOUT_S)
        tracing = cls(BatchSpanProcessor(exporter), sampling, resource)
        trace.set_tracer_provider(tracing.provider)
        return tracing

    def request(self, scope: Scope) -> TracedRequest | UnsampledRequest:
        sent = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _CONTEXT}
        if sent:
            return TracedRequest(self._follows, scope, extract(sent))
        if self._draw() < self._sampling:
            return TracedRequest(self._begins, scope, None)
        return UnsampledRequest()

    def store_call(self, operation: str, seconds: float, error: Exception | None) -> str | None:
        """The id of the trace of a call that has ended, if it is sampled."""
        if not _sampled.get():
            return None
        ended = time.time_ns()
        began = ended - int(seconds * 1e9)
        span = self._follows.start_span(f"store {operation}", kind=SpanKind.CLIENT, start_time=began)
        span.set_attribute("db.operation.name", operation)
        if error is not None:
            span.set_status(StatusCode.ERROR, str(error))
            span.set_attribute("error.type", type(error).__name__)
        span.end(ended)
        return _trace_id(span)

    def sampled_trace(self) -> str | None:
        """The id of the trace of the present request, if it is sampled."""
        return _trace_id(trace.get_current_span()) if _sampled.get() else None

    def shut_down(self) -> None:
        self.provider.shutdown()


def _traces_of(url: str) -> str:
    """The URL of a receiver to which spans go: a path of its own, unless the URL has one. Raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is not a URL like http://localhost:4318")
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{_TRACES_PATH}"


def _trace_id(span: Span) -> str | None:
    found = span.get_span_context()
    return f"{found.trace_id:032x}" if found.trace_flags.sampled else None
