"""Spans of requests, for programs that use OpenTelemetry.

A program that sets up OpenTelemetry before it connects finds its requests in its traces, and the services that are
traced continue them: `traceparent` (W3C Trace Context) goes with every request. All others pay for one look into a
dictionary, because nothing of OpenTelemetry is imported here.

A program that does not set it up, such as a command or a task of Spark, belongs to the trace that `TRACEPARENT` and
`TRACESTATE` name in its environment, which is where OpenTelemetry's specification passes a trace to another process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from metatxn.transport.api import Answer, Headers, Request

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Sending = Callable[[Request], Awaitable[Answer]]
_HTTP_ERROR = 400
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_tracer: ContextVar[Tracer | None] = ContextVar("metatxn_tracer", default=None)
_TRACESTATE = re.compile(r"[ -~]{1,512}")


async def send_traced(send: Sending, request: Request) -> Answer:
    """`send(request)`, within a span if the program is traced."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        inherited = inherited_trace()
        return await send(replace(request, headers=Headers(request.headers | inherited)) if inherited else request)
    tracer = _tracer.get() or trace.get_tracer("metatxn")
    with tracer.start_as_current_span(request.method, kind=trace.SpanKind.CLIENT) as span:
        if span.is_recording():
            _describe(span, request)
        answer = await send(_with_context(request))
        if span.is_recording():
            span.set_attribute("http.response.status_code", answer.status)
            if answer.status >= _HTTP_ERROR:
                span.set_status(trace.StatusCode.ERROR)
        return answer


@contextmanager
def tracing_with(tracer: Tracer) -> Iterator[None]:
    """Requests within this block have spans of `tracer`, whatever the program has set up."""
    before = _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.reset(before)


@cache
def inherited_trace() -> dict[str, str]:
    """The headers that continue the trace of the process that started this one; none if there is no valid one."""
    parent, state = os.environ.get("TRACEPARENT", ""), os.environ.get("TRACESTATE", "")
    if not _TRACEPARENT.fullmatch(parent):
        return {}
    return {"traceparent": parent} | ({"tracestate": state} if state and _TRACESTATE.fullmatch(state) else {})


def _describe(span: Span, request: Request) -> None:
    url = urlsplit(request.url)
    span.set_attribute("http.request.method", request.method)
    span.set_attribute("server.address", url.hostname or "")
    span.set_attribute("server.port", url.port or (443 if url.scheme == "https" else 80))
    span.set_attribute("url.path", url.path)


def _with_context(request: Request) -> Request:
    headers = Headers(request.headers | inherited_trace())
    try:
        from opentelemetry.propagate import inject
    except (ImportError, ValueError):  # OTEL_PROPAGATORS names one that is not installed
        return replace(request, headers=headers)
    inject(headers)  # replaces it in a program that is in a trace of its own
    return replace(request, headers=headers)
