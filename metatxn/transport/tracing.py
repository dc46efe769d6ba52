"""Spans of requests, for programs that use OpenTelemetry.

A program that sets up OpenTelemetry before it connects finds its requests in its traces, and the services that are
traced continue them: `traceparent` (W3C Trace Context) goes with every request. All others pay for one look into a
dictionary, because nothing of OpenTelemetry is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from metatxn.transport.api import Answer, Headers, Request

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Sending = Callable[[Request], Awaitable[Answer]]
_HTTP_ERROR = 400


async def send_traced(send: Sending, request: Request) -> Answer:
    """`send(request)`, within a span if the program is traced."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return await send(request)
    tracer = trace.get_tracer("metatxn")
    with tracer.start_as_current_span(request.method, kind=trace.SpanKind.CLIENT) as span:
        if span.is_recording():
            _describe(span, request)
        answer = await send(_with_context(request))
        if span.is_recording():
            span.set_attribute("http.response.status_code", answer.status)
            if answer.status >= _HTTP_ERROR:
                span.set_status(trace.StatusCode.ERROR)
        return answer


def _describe(span: Span, request: Request) -> None:
    url = urlsplit(request.url)
    span.set_attribute("http.request.method", request.method)
    span.set_attribute("server.address", url.hostname or "")
    span.set_attribute("server.port", url.port or (443 if url.scheme == "https" else 80))
    span.set_attribute("url.path", url.path)


def _with_context(request: Request) -> Request:
    from opentelemetry.propagate import inject

    headers = Headers(request.headers)
    inject(headers)
    return replace(request, headers=headers)
