"""Goal: a trace leads from a program's call through the services to the store, is sent where the operator wants it, and
costs nothing where nobody wants one.

Method: the example of docs/operations.md as its own process, beside `metatxn dev`; both send to a receiver here, which
decodes what arrives with OpenTelemetry's own messages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from email.message import Message as EmailMessage
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, get_current_span, use_span

from examples.flights.demo import running_dev
from metatxn.service import tracing
from metatxn.service.request_metrics import MeasuredRequest
from metatxn.service.spans import Tracing
from metatxn.service.tracing import set_up_tracing, trace_store_call, traced_request
from metatxn.transport import tracing as client_tracing
from metatxn.transport.api import Answer, Headers, Request
from metatxn.transport.tracing import send_traced
from tests.documents import examples
from tests.receiving import receiver
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
TRACE, PARENT = 0xABC << 100, 0xDEF << 40
TRACEPARENT = f"00-{TRACE:032x}-{PARENT:016x}-01"
SERVER, CLIENT = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT
Spans = list[tuple[str, Span]]
"""Each with the name of its service."""


@contextmanager
def collector() -> Iterator[tuple[str, Spans]]:
    """The URL of an OTLP receiver, and what it has received."""
    received: Spans = []

    def take(path: str, headers: EmailMessage, body: bytes) -> None:
        if headers["Content-Encoding"] or path != "/v1/traces":
            raise AssertionError(path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            (service,) = (a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
            received.extend((service, span) for scope in resource.scope_spans for span in scope.spans)

    with receiver(take) as url:
        yield url, received


def traced_dev(directory: Path, url: str, sampling: str) -> AbstractContextManager[str]:
    return running_dev(directory, None, options=("--trace-to", url, "--trace-sampling", sampling))


COMMITS = ("POST /v1/txns/{txn_id}/commit", "POST /v1/txns/{txn_id}/entries")
"""A commit departs with the entry, unless that has departed before."""


def test_a_trace_leads_from_the_program_to_the_store(tmp_path: Path) -> None:
    (program,) = examples((ROOT / "docs" / "operations.md").read_text(), "python")
    with collector() as (url, received), traced_dev(tmp_path, url, sampling="0") as coordinator:
        assert httpx.get(f"{coordinator}/v1/txns").is_success  # belongs to no trace, and is not sampled
        program = program.replace("http://localhost:4318", url).replace("http://127.0.0.1:8470", coordinator)
        subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
        started = {**os.environ, "TRACEPARENT": TRACEPARENT}
        command = [sys.executable, "-m", "metatxn", "topic", "show", "orders", "--url", coordinator]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=started)
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        (broker,) = (each["url"] for each in httpx.get(f"{coordinator}/v1/cluster").json()["brokers"])
        shown = "".join(httpx.get(f"{each}/metrics", headers=accept).text for each in (broker, coordinator))
        assert "trace_id" not in httpx.get(f"{coordinator}/metrics").text
    by_id = {span.span_id: (service, span) for service, span in received}
    (order,) = (span for _, span in received if span.name == "new order")
    (commit,) = (span for _, span in received if span.name in COMMITS)
    service, request = by_id[commit.parent_span_id]
    assert (service, request.name, request.kind, commit.kind) == ("orders-job", "POST", CLIENT, SERVER)
    assert attributes(request)["url.path"] == attributes(commit)["url.path"]
    assert attributes(commit)["http.response.status_code"] == 200
    applies = [span for _, span in received if span.name == "store apply" and span.parent_span_id == commit.span_id]
    assert applies and applies[-1].trace_id == commit.trace_id == order.trace_id
    assert commit.start_time_unix_nano <= applies[-1].start_time_unix_nano <= applies[-1].end_time_unix_nano
    published = {span.name for service, span in received if service == "metatxn-dev" and span.kind == SERVER}
    assert any(name.endswith("/entries") for name in published)
    assert "GET /v1/txns" not in published
    shown_by = {span.trace_id for _, span in received if span.name == "GET /v1/topics/{topic}"}
    assert shown_by == {order.trace_id, TRACE.to_bytes(16)}, "the command belongs to the trace of its environment"
    assert {span.parent_span_id in by_id for _, span in received if span.name.startswith("store ")} == {True}
    exemplars = dict(re.findall(r'(metatxn_\w+_seconds)_bucket\{.* # \{trace_id="(\w+)"\}', shown))
    measured = ("request", "store", "transaction_duration", "append", "fsync")
    assert exemplars.keys() == {f"metatxn_{each}_seconds" for each in measured}
    assert exemplars["metatxn_transaction_duration_seconds"] == commit.trace_id.hex()
    assert set(exemplars.values()) <= {span.trace_id.hex() for _, span in received}


def attributes(span: Span) -> dict[str, str | int]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_a_service_is_served_whose_receiver_is_away(tmp_path: Path) -> None:
    with traced_dev(tmp_path, f"http://127.0.0.1:{free_port()}", sampling="1") as coordinator:
        assert httpx.get(f"{coordinator}/v1/txns").is_success


def test_a_service_continues_the_trace_of_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the request, and no longer."""
    monkeypatch.setattr(tracing, "_tracing", Tracing(SimpleSpanProcessor(InMemorySpanExporter()), sampling=0))
    traced = traced_request({"method": "GET", "path": "/", "headers": [(b"traceparent", TRACEPARENT.encode())]})
    assert traced is not None
    within = get_current_span()
    assert within.get_span_context().trace_id == TRACE and within.get_span_context().span_id != PARENT
    assert trace_store_call("apply", 0.001, None) == f"{TRACE:032x}"
    traced.end({"method": "GET", "path": "/"}, MeasuredRequest(lambda: 0.0))
    assert not get_current_span().get_span_context().is_valid
    assert trace_store_call("apply", 0.001, None) is None


async def test_what_an_unsampled_request_asks_for_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = InMemorySpanExporter()
    drawn = iter((0.99, 1.0))
    traces = Tracing(SimpleSpanProcessor(spans), sampling=1, draw=drawn.__next__)
    monkeypatch.setattr(tracing, "_tracing", traces)
    scope = {"method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    for sampled in (True, False):
        traced = traced_request(scope)
        assert traced is not None
        with traces.provider.get_tracer("test").start_as_current_span("asks"):
            assert (trace_store_call("apply", 0.001, None) is not None) == sampled
        assert (traced.end(scope, MeasuredRequest(lambda: 0.0)) is not None) == sampled
        assert len(spans.get_finished_spans()) == 3, "the request, what it asks for, and the call of the store"


async def test_a_request_takes_the_trace_of_its_caller_along() -> None:
    """Whatever its headers are used for besides: they may be those of every request of a client."""
    sent: list[Request] = []

    async def send(request: Request) -> Answer:
        sent.append(request)
        return Answer("GET", request.url, 200)

    common = Headers({"Authorization": "Bearer x"})
    caller = NonRecordingSpan(SpanContext(TRACE, PARENT, is_remote=False, trace_flags=TraceFlags(1)))
    with use_span(caller):
        await send_traced(send, Request("GET", "http://localhost/", common, None, 1, 1, 1))
    assert sent[0].headers == {**common, "traceparent": TRACEPARENT} and "traceparent" not in common


async def test_opentelemetry_that_is_not_set_up_loses_no_trace_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program may have imported it for other purposes."""
    sent: list[Request] = []

    async def send(request: Request) -> Answer:
        sent.append(request)
        return Answer("GET", request.url, 200)

    monkeypatch.setenv("TRACEPARENT", TRACEPARENT)
    client_tracing.inherited_trace.cache_clear()
    await send_traced(send, Request("GET", "http://localhost/", Headers(), None, 1, 1, 1))
    client_tracing.inherited_trace.cache_clear()
    assert sent[0].headers == {"traceparent": TRACEPARENT}


@pytest.mark.parametrize(
    ("parent", "state", "sent"),
    [
        (TRACEPARENT, None, {"traceparent": TRACEPARENT}),
        (TRACEPARENT, "rojo=1,congo=2", {"traceparent": TRACEPARENT, "tracestate": "rojo=1,congo=2"}),
        (TRACEPARENT, "rojo=1\r\nX-Evil: 1", {"traceparent": TRACEPARENT}),
        (f"{TRACEPARENT}\r\nX-Evil: 1", None, {}),
        ("", "rojo=1", {}),
        (None, None, {}),
    ],
)
async def test_a_process_without_opentelemetry_takes_the_trace_of_its_environment_along(
    monkeypatch: pytest.MonkeyPatch, parent: str | None, state: str | None, sent: dict[str, str]
) -> None:
    for name, value in (("TRACEPARENT", parent), ("TRACESTATE", state)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    seen: list[Headers] = []

    async def send(request: Request) -> Answer:
        seen.append(request.headers)
        return Answer("GET", request.url, 200)

    common = Headers({"Authorization": "Bearer x"})
    client_tracing.inherited_trace.cache_clear()
    await send_traced(send, Request("GET", "http://localhost/", common, None, 1, 1, 1))
    client_tracing.inherited_trace.cache_clear()
    assert seen == [{**common, **sent}] and common.keys() == {"Authorization"}
    assert "Bearer" not in repr(seen), "headers are not shown"


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://localhost", "http://", ""])
def test_only_urls_of_http_are_taken(url: str) -> None:
    with pytest.raises(ValueError, match="is not a URL like"):
        set_up_tracing("dev", url)
