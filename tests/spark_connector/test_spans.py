"""Goal: the spans of a job lead from its batch through its tasks to their requests, in one trace for each batch, and a
job whose spans nobody takes runs as usual.

Method: the readers and writers are asked as Spark's driver and tasks ask them, without a Spark; a receiver takes what
they send. `test_tracing.py` has a Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

import metatxn
from metatxn.transport import tracing
from metatxn.transport.api import Request
from metatxn.transport.tracing import _with_context, inherited_trace
from spark_connector import span_sender, spans, stream_writer
from spark_connector.batch_transaction import batch_transaction
from spark_connector.messages import WrittenPart
from spark_connector.options import read_options, write_options
from spark_connector.reader import BatchReader, dataframe_schema
from spark_connector.spans import trace_of_micro_batch
from spark_connector.stream_writer import MicroBatch, StreamWriter
from spark_connector.writer import BatchWriter
from tests.service.test_tracing import PARENT, TRACE, TRACEPARENT, Spans, attributes, collector
from tests.spark_connector.conftest import TopicFactory
from tests.spark_connector.helpers import column

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """That of a job, from which it learns anew where to send spans."""
    monkeypatch.setattr(stream_writer, "_driver", lambda: "driver")
    for name in ("TRACEPARENT", "TRACESTATE", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)
    _forget()
    yield monkeypatch
    _forget()


def _forget() -> None:
    spans._sender.cache_clear()
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


def one_trace(found: dict[str, list[Span]], root: Span) -> None:
    """All are below the root, and end before it does."""
    others = [span for named in found.values() for span in named if span is not root]
    assert {span.trace_id for span in others} == {root.trace_id}
    assert {span.parent_span_id for span in others} == {root.span_id}
    assert min(span.start_time_unix_nano for span in others) >= root.start_time_unix_nano
    assert max(span.end_time_unix_nano for span in others) <= root.end_time_unix_nano


def test_a_micro_batch_is_one_trace(
    environment: pytest.MonkeyPatch, received: Spans, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    name = topic()
    writer = micro_batch(environment, url, name, 17)
    written = [writer.write(rows(1, 2)), writer.write(rows(3))]
    writer.commit(written, 17)
    found = by_name(received)
    (root,) = found["spark micro-batch 17"]
    assert root.parent_span_id == b"" and len(found["spark write"]) == 2 and len(found["spark commit"]) == 1
    one_trace(found, root)
    written_rows = [
        (attributes(span)["metatxn.txn_id"], attributes(span)["metatxn.rows"]) for span in found["spark write"]
    ]
    assert written_rows == [(written[0].txn_id, 2), (written[0].txn_id, 1)]
    expected = trace_of_micro_batch(f"run of {name}", 17)
    assert expected is not None and root.trace_id == expected.trace_id.to_bytes(16)
    assert column(client, name) == [1, 2, 3]


def test_each_micro_batch_has_a_trace_of_its_own(
    environment: pytest.MonkeyPatch, received: Spans, url: str, topic: TopicFactory
) -> None:
    name = topic()
    for number in range(2):
        writer = micro_batch(environment, url, name, number)
        writer.commit([writer.write(rows(number))], number)
    found = by_name(received)
    assert len({span.trace_id for span in found["spark write"]}) == 2


def test_an_attempt_that_fails_and_the_abort_are_in_the_trace(
    environment: pytest.MonkeyPatch, received: Spans, url: str, topic: TopicFactory
) -> None:
    writer = micro_batch(environment, url, topic(), 3)
    written = writer.write(rows(1))
    with pytest.raises(RuntimeError, match="the input is gone"):
        writer.write(fails())
    writer.abort([written, None], 3)
    found = by_name(received)
    (root,) = found["spark micro-batch 3"]
    one_trace(found, root)
    _, failed = found["spark write"]
    assert failed.status.code == Status.STATUS_CODE_ERROR and "the input is gone" in failed.status.message
    assert len(found["spark abort"]) == 1


@pytest.mark.parametrize("committed", [True, False])
def test_a_batch_write_is_one_trace(
    received: Spans, url: str, client: metatxn.Client, topic: TopicFactory, committed: bool
) -> None:
    name = topic()
    writer = BatchWriter(write_options({"url": url, "topic": name}, "batch"), SCHEMA)
    written = writer.write(rows(7))
    writer.commit([written]) if committed else writer.abort([written])
    found = by_name(received)
    (root,) = found["spark batch write"]
    last = "spark commit" if committed else "spark abort"
    assert found.keys() == {"spark batch write", "spark begin", "spark write", last}
    one_trace(found, root)
    assert column(client, name) == ([7] if committed else [])


def test_a_block_of_batch_transaction_is_the_trace_of_its_micro_batch(
    environment: pytest.MonkeyPatch, received: Spans, url: str, topic: TopicFactory
) -> None:
    environment.setattr(sys.modules["spark_connector.batch_transaction"], "_run_id", lambda: "a run")
    name = topic()
    with batch_transaction(url, name, 5):
        pass
    found = by_name(received)
    (root,) = found["spark micro-batch 5"]
    assert found.keys() == {root.name, "spark begin", "spark commit"}
    one_trace(found, root)


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
    found = by_name(received)
    (root,) = found["spark micro-batch 0"]
    assert (root.trace_id, root.parent_span_id) == (TRACE.to_bytes(16), PARENT.to_bytes(8))
    one_trace(found, root)


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
    assert [each.rpartition("-")[0] for each in sent] == [f"00-{read.trace_id.hex()}-{read.span_id.hex()}"]


def test_a_job_that_is_not_sampled_sends_nothing(
    environment: pytest.MonkeyPatch, received: Spans, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    environment.setenv("OTEL_TRACES_SAMPLER", "always_off")
    name = topic()
    writer = micro_batch(environment, url, name, 0)
    writer.commit([writer.write(rows(1))], 0)
    assert received == [] and column(client, name) == [1]


def test_a_receiver_that_is_slow_delays_a_job_once(
    environment: pytest.MonkeyPatch, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    waited_for: list[list[str]] = []

    def export(_: OTLPSpanExporter, ended: Sequence[ReadableSpan]) -> SpanExportResult:
        waited_for.append([span.name for span in ended])
        return SpanExportResult.FAILURE

    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    environment.setattr(span_sender, "SLOW_S", 0.0)  # whatever it takes is slow
    environment.setattr(OTLPSpanExporter, "export", export)
    name = topic()
    writer = micro_batch(environment, url, name, 0)
    writer.commit([writer.write(rows(1)), writer.write(rows(2))], 0)
    assert waited_for == [["spark write"]] and column(client, name) == [1, 2]


def test_nothing_is_traced_without_an_address(environment: pytest.MonkeyPatch, url: str, topic: TopicFactory) -> None:
    environment.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    writer = micro_batch(environment, url, topic(), 0)
    written = writer.write(rows(1))
    assert isinstance(written, WrittenPart) and written.trace is None
    writer.commit([written], 0)
