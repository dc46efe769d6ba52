"""Traces of what a service does, with OpenTelemetry: a span for each request and one for each call of the metadata
store within it. They continue the trace of the client, which sends `traceparent` (W3C Trace Context).

Off unless `set_up_tracing` was called, and then a request that is not sampled costs 11 µs more. Spans are sent in the
background, in batches; a receiver that is slow or away loses spans, and delays nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.types import Scope

from metatxn.service.request_metrics import NO_ANSWER, MeasuredRequest

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

DEFAULT_SAMPLING = 0.01
EXPORT_TIMEOUT_S = 2
"""How long a batch of spans is tried to be sent, the last one included, for which the end of the process waits."""
_TRACES_PATH = "/v1/traces"
_CONTEXT = (b"traceparent", b"tracestate")
_SERVER_ERROR = 500
_tracer: Tracer | None = None


def set_up_tracing(service: str, url: str, sampling: float = DEFAULT_SAMPLING) -> Callable[[], None]:
    """Send spans of this process as OTLP over HTTP to `url`: of the traces that clients have sampled, and of the
    fraction `sampling` of the requests that belong to no trace yet. The result ends it, and sends what is left.

    Raises `ModuleNotFoundError` without `metatxn[tracing]`, and `ValueError` if `url` is none of HTTP.
    """
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    global _tracer
    resource = Resource.create({"service.name": f"metatxn-{service}", "service.version": version("metatxn")})
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(sampling)), resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(_traces_of(url), timeout=EXPORT_TIMEOUT_S)))
    trace.set_tracer_provider(provider)  # requests to other services find it there
    _tracer = provider.get_tracer("metatxn")

    def end() -> None:
        global _tracer
        _tracer = None
        provider.shutdown()

    return end


def _traces_of(url: str) -> str:
    """Where spans go, of a receiver: to a path of its own, unless the URL has one."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is not a URL like http://localhost:4318")
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{_TRACES_PATH}"


class TracedRequest:
    """The span of a request that is being answered. What happens in its task until `end` belongs to it."""

    def __init__(self, tracer: Tracer, scope: Scope) -> None:
        from opentelemetry import context, trace
        from opentelemetry.propagate import extract

        parent = extract({n.decode(): value.decode("latin-1") for n, value in scope["headers"] if n in _CONTEXT})
        self._span: Span = tracer.start_span(scope["method"], context=parent, kind=trace.SpanKind.SERVER)
        self._before = context.attach(trace.set_span_in_context(self._span, parent))

    def end(self, scope: Scope, request: MeasuredRequest) -> str | None:
        """The id of the trace, if it is sampled."""
        from opentelemetry import context
        from opentelemetry.trace import StatusCode

        context.detach(self._before)
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


def traced_request(scope: Scope) -> TracedRequest | None:
    """None if this process is not traced."""
    return TracedRequest(_tracer, scope) if _tracer is not None else None


def trace_store_call(operation: str, seconds: float, error: Exception | None) -> str | None:
    """A call of the store has ended. It gets a span if it is part of a request that is sampled, the id of whose trace
    is returned."""
    if _tracer is None:
        return None
    from opentelemetry.trace import SpanKind, StatusCode, get_current_span

    if not get_current_span().is_recording():
        return None
    ended = time.time_ns()
    span = _tracer.start_span(f"store {operation}", kind=SpanKind.CLIENT, start_time=ended - int(seconds * 1e9))
    span.set_attribute("db.operation.name", operation)
    if error is not None:
        span.set_status(StatusCode.ERROR, str(error))
        span.set_attribute("error.type", type(error).__name__)
    span.end(ended)
    return _trace_id(span)


def _trace_id(span: Span) -> str | None:
    found = span.get_span_context()
    return f"{found.trace_id:032x}" if found.trace_flags.sampled else None
