"""Goal: the spans of a job lead from its batch through its tasks to their requests, in one trace for each batch, and a
job whose spans nobody takes runs as usual.

Method: the readers and writers are asked as Spark's driver and tasks ask them, without a Spark; a receiver takes what
they send. `test_tracing.py` has a Spark.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import get_current_span

import metatxn
from metatxn.transport import tracing
from metatxn.transport.api import Request
from metatxn.transport.tracing import _with_context, inherited_trace
from spark_connector import spans, stream_writer
from spark_connector.batch_transaction import batch_transaction
from spark_connector.options import read_options, write_options
from spark_connector.reader import BatchReader, dataframe_schema
from spark_connector.spans import trace_of_micro_batch
from spark_connector.stream_writer import MicroBatch, StreamWriter
from spark_connector.writer import BatchWriter
from tests.servers import START_TIMEOUT_S
from tests.service.test_tracing import PARENT, TRACE, TRACEPARENT, Spans, attributes, collector
from tests.spark_connector.conftest import TopicFactory
from tests.spark_connector.helpers import column

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """That of a job, from which it learns anew where to send spans."""
    monkeypatch.setattr(stream_writer, "_driver", lambda: "driver")
    for name in ("TRACEPARENT", "TRACESTATE"):
        monkeypatch.delenv(name, raising=False)
    _forget()
    yield monkeypatch
    _forget()


def _forget() -> None:
    spans._sender_of.cache_clear()
    inherited_trace.cache_clear()


@pytest.fixture
def received(environment: pytest.MonkeyPatch) -> Iterator[Spans]:
    with collector() as (url, taken):
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield taken


def rows(*numbers: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"id": list(numbers)}, schema=SCHEMA)


def fails() -> Iterator[pa.RecordBatch]:
    yield from rows(1)
    raise RuntimeError("the input is gone")


def micro_batch(environment: pytest.MonkeyPatch, url: str, name: str, number: int) -> StreamWriter:
    environment.setattr(MicroBatch, "of_this_task", lambda: MicroBatch(name, f"run of {name}", number))
    return StreamWriter(write_options({"url": url, "topic": name, "txnappid": name}, "streaming"), SCHEMA)


def by_name(received: Spans) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for service, span in received:
        assert service == "metatxn-spark"
        found.setdefault(span.name, []).append(span)
    return found


def job_spans(received: Spans, parent: bytes = b"") -> dict[str, list[Span]]:
    """Those that are not of requests. They have one trace, and the same parent, or none."""
    found = {name: spans for name, spans in by_name(received).items() if name.startswith("spark ")}
    every = [span for named in found.values() for span in named]
    assert {span.parent_span_id for span in every} == {parent}
    assert len({span.trace_id for _, span in received}) == 1, "the requests belong to it, too"
    return found


def test_a_micro_batch_is_one_trace(
    environment: pytest.MonkeyPatch, received: Spans, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    name = topic()
    writer = micro_batch(environment, url, name, 17)
    written = [writer.write(rows(1, 2)), writer.write(rows(3))]
    writer.commit(written, 17)
    found = job_spans(received)
    assert {each: len(spans) for each, spans in found.items()} == {"spark write": 2, "spark commit": 1}
    described = [attributes(span) for span in found["spark write"]]
    assert {each["metatxn.txn_id"] for each in described} == {written[0].txn_id}
    assert [each["metatxn.rows"] for each in described] == [2, 1]
    expected = trace_of_micro_batch(name, f"run of {name}", 17)
    assert {span.trace_id for span in found["spark commit"]} == {expected.to_bytes(16)}
    assert column(client, name) == [1, 2, 3]


def test_each_micro_batch_has_a_trace_of_its_own(
    environment: pytest.MonkeyPatch, received: Spans, url: str, topic: TopicFactory
) -> None:
    name = topic()
    for number in range(2):
        writer = micro_batch(environment, url, name, number)
        writer.commit([writer.write(rows(number))], number)
    assert len({span.trace_id for span in by_name(received)["spark write"]}) == 2


def test_an_attempt_that_fails_and_the_abort_are_in_the_trace(
    environment: pytest.MonkeyPatch, received: Spans, url: str, topic: TopicFactory
) -> None:
    """Without the text of the error, which may contain data."""
    writer = micro_batch(environment, url, topic(), 3)
    written = writer.write(rows(1))
    with pytest.raises(RuntimeError, match="the input is gone"):
        writer.write(fails())
    writer.abort([written, None], 3)
    found = job_spans(received)
    _, failed = found["spark write"]
    assert (failed.status.code, failed.status.message) == (Status.STATUS_CODE_ERROR, "RuntimeError")
    assert attributes(failed)["error.type"] == "RuntimeError" and len(found["spark abort"]) == 1
    assert not any("the input is gone" in str(span) for _, span in received)


@pytest.mark.parametrize("committed", [True, False])
def test_a_batch_write_is_one_trace(
    received: Spans, url: str, client: metatxn.Client, topic: TopicFactory, committed: bool
) -> None:
    name = topic()
    options = write_options({"url": url, "topic": name}, "batch")
    writer = pickle.loads(pickle.dumps(BatchWriter(options, SCHEMA)))
    written = writer.write(rows(7))
    writer.commit([written]) if committed else writer.abort([written])
    last = "spark commit" if committed else "spark abort"
    assert job_spans(received).keys() == {"spark begin", "spark write", last}
    assert column(client, name) == ([7] if committed else [])


def test_a_block_of_batch_transaction_is_in_the_trace_of_its_micro_batch(
    environment: pytest.MonkeyPatch, received: Spans, url: str, topic: TopicFactory
) -> None:
    environment.setattr(sys.modules["spark_connector.batch_transaction"], "_run_id", lambda: "a run")
    name = topic()
    with batch_transaction(url, name, 5):
        pass
    assert job_spans(received).keys() == {"spark begin", "spark commit"}


def test_a_read_says_what_it_reads(received: Spans, url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    name = topic(segments=1)
    writer = BatchWriter(write_options({"url": url, "topic": name}, "batch"), SCHEMA)
    writer.commit([writer.write(rows(1, 2))])
    options = read_options({"url": url, "subscribe": name}, "batch")
    reader = BatchReader(options, dataframe_schema(options))
    (partition,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(partition)) == 2
    (read,) = by_name(received)["spark read"]
    segment = client.topic(name).segments[0].segment
    assert attributes(read)["metatxn.segment"] == segment and attributes(read)["metatxn.end"] != ""


def test_the_trace_of_the_environment_is_continued(
    environment: pytest.MonkeyPatch, received: Spans, url: str, topic: TopicFactory
) -> None:
    environment.setenv("TRACEPARENT", TRACEPARENT)
    writer = micro_batch(environment, url, topic(), 0)
    writer.commit([writer.write(rows(1))], 0)
    found = job_spans(received, PARENT.to_bytes(8))
    assert {span.trace_id for span in found["spark write"]} == {TRACE.to_bytes(16)}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-1"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
    ],
)
def test_a_job_runs_whatever_the_settings_of_its_spans_are(
    environment: pytest.MonkeyPatch,
    received: Spans,
    url: str,
    client: metatxn.Client,
    topic: TopicFactory,
    variable: str,
    value: str,
) -> None:
    environment.setenv(variable, value)
    name = topic()
    writer = micro_batch(environment, url, name, 0)
    writer.commit([writer.write(rows(1))], 0)
    assert received == [] and column(client, name) == [1]


def test_a_propagator_that_is_not_installed_fails_no_request(tmp_path: Path, url: str) -> None:
    """It is looked up when OpenTelemetry is imported."""
    program = f"""
import metatxn
import opentelemetry.trace
print(metatxn.connect({url!r}).cluster().coordinators[0].url)
"""
    started = {**os.environ, "OTEL_PROPAGATORS": "nonesuch"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=started)
    assert done.stdout == f"{url}\n", done.stderr


def test_the_requests_of_a_task_belong_to_its_span(
    environment: pytest.MonkeyPatch, received: Spans, url: str, topic: TopicFactory
) -> None:
    """Also those of other threads: pages are read ahead."""
    sent: list[str] = []

    def noted(request: Request) -> Request:
        continued = _with_context(request)
        sent.append(continued.headers.get("traceparent", ""))
        return continued

    environment.setattr(tracing, "_with_context", noted)
    name = topic(segments=1)
    writer = micro_batch(environment, url, name, 0)
    writer.commit([writer.write(rows(1))], 0)
    options = read_options({"url": url, "subscribe": name}, "batch")
    reader = BatchReader(options, dataframe_schema(options))
    (partition,) = reader.partitions()
    sent.clear()  # what was written before, and the plan
    assert len(list(reader.read(partition))) == 1
    (read,) = by_name(received)["spark read"]
    (request,) = (span for _, span in received if span.parent_span_id == read.span_id)
    assert [each.rpartition("-")[0] for each in sent] == [f"00-{read.trace_id.hex()}-{request.span_id.hex()}"]


def test_what_spark_does_between_two_batches_does_not_belong_to_a_read(
    received: Spans, url: str, topic: TopicFactory
) -> None:
    """It may also end the read anywhere, even in another thread."""
    name = topic(segments=1)
    writer = BatchWriter(write_options({"url": url, "topic": name}, "batch"), SCHEMA)
    writer.commit([writer.write(rows(1))])
    options = read_options({"url": url, "subscribe": name}, "batch")
    reader = BatchReader(options, dataframe_schema(options))
    reads = [reader.read(partition) for partition in reader.partitions() for _ in range(2)]
    assert [next(read).num_rows for read in reads] == [1, 1]
    assert not get_current_span().get_span_context().is_valid
    ending = threading.Thread(target=reads[0].close)  # type: ignore[attr-defined]
    ending.start()
    ending.join()
    assert next(reads[1], None) is None
    assert len(by_name(received)["spark read"]) == 2


def test_a_receiver_that_is_slow_delays_a_job_once(
    environment: pytest.MonkeyPatch, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    """And not for as long as it takes."""
    waited_for: list[list[str]] = []
    answers = threading.Event()

    def export(_: OTLPSpanExporter, ended: Sequence[ReadableSpan]) -> SpanExportResult:
        waited_for.append([span.name for span in ended])
        answers.wait(START_TIMEOUT_S)
        return SpanExportResult.FAILURE

    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    environment.setattr(OTLPSpanExporter, "export", export)
    name = topic()
    writer = micro_batch(environment, url, name, 0)
    writer.commit([writer.write(rows(1)), writer.write(rows(2))], 0)
    assert len(waited_for) == 1 and column(client, name) == [1, 2]
    answers.set()
    sender = spans._sender()
    assert sender is not None and sender._flushing is not None
    sender._flushing.join()


def test_nothing_is_traced_without_an_address(environment: pytest.MonkeyPatch, url: str, topic: TopicFactory) -> None:
    environment.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    writer = micro_batch(environment, url, topic(), 0)
    writer.commit([writer.write(rows(1))], 0)
    assert spans._sender() is None
