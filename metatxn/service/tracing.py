"""Traces of what a service does, with OpenTelemetry. Off unless `set_up_tracing` was called, which alone imports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.types import Scope

if TYPE_CHECKING:
    from metatxn.service.spans import TracedRequest, Tracing, UnsampledRequest

DEFAULT_SAMPLING = 0.01
_tracing: Tracing | None = None


def set_up_tracing(service: str, url: str, sampling: float = DEFAULT_SAMPLING) -> Callable[[], None]:
    """Send spans of this process as OTLP over HTTP to `url`: of the traces that clients have sampled, and of the
    fraction `sampling` of the requests that belong to no trace yet. The result ends it, and sends what is left.

    Raises `ModuleNotFoundError` without `metatxn[tracing]`, and `ValueError` if `url` is not an HTTP URL.
    """
    global _tracing
    from metatxn.service.spans import Tracing

    set_up = _tracing = Tracing.to(service, url, sampling)

    def end() -> None:
        global _tracing
        _tracing = None
        set_up.shut_down()

    return end


def traced_request(scope: Scope) -> TracedRequest | UnsampledRequest | None:
    """The trace of a request, or None if this process is not traced."""
    return _tracing.request(scope) if _tracing is not None else None


def trace_store_call(operation: str, seconds: float, error: Exception | None) -> str | None:
    """A call of the store has ended. It gets a span if it is part of a request that is sampled, the id of whose trace
    is returned."""
    return _tracing.store_call(operation, seconds, error) if _tracing is not None else None


def exemplar() -> dict[str, str] | None:
    """What a histogram of `prometheus_client` takes as an exemplar: the trace of the request to which this belongs, if
    it is sampled."""
    trace_id = _tracing.sampled_trace() if _tracing is not None else None
    return None if trace_id is None else {"trace_id": trace_id}
