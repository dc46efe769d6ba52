"""Goal: on a cluster, the requests of the executors belong to the trace that `spark.executorEnv.TRACEPARENT` names. If
the environment says where to send spans, each micro-batch is a trace, from Spark to the metadata store.

Method: a driver whose executor is a process of its own (`local-cluster`), and that has no trace itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import metatxn
from tests.service.test_tracing import TRACE, TRACEPARENT, Spans, attributes, collector, traced_dev
from tests.spark_connector.matrix.cluster import CONF, environment

SCHEMA = pa.schema([("id", pa.int64())])
JOB = f"""
import sys
from pyspark.sql import SparkSession
_, url, trace = sys.argv
builder = SparkSession.builder.master("local-cluster[1,1,1024]").config("spark.executorEnv.TRACEPARENT", trace)
with builder.config(map={CONF}).getOrCreate() as spark:
    spark.range(10).write.format("metatxn").mode("append").options(url=url, topic="t").save()
"""
STREAM = f"""
import sys
from pyspark.sql import SparkSession
_, url, receiver, checkpoint = sys.argv
builder = SparkSession.builder.master("local-cluster[1,1,1024]")
builder = builder.config("spark.executorEnv.OTEL_EXPORTER_OTLP_ENDPOINT", receiver)
with builder.config(map={CONF}).getOrCreate() as spark:
    read = spark.readStream.format("metatxn").options(url=url, subscribe="t").load()
    written = read.writeStream.format("metatxn").options(url=url, topic="u", checkpointLocation=checkpoint)
    written.trigger(availableNow=True).start().awaitTermination()
"""


def run(job: str, directory: Path, *arguments: str, **variables: str) -> None:
    command = [sys.executable, "-c", job, *arguments]
    started = environment(directory) | variables
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, env=started)
    assert done.returncode == 0, done.stderr[-5000:]


def test_the_executors_belong_to_the_trace_that_their_environment_names(tmp_path: Path) -> None:
    """The driver has begun and committed the transaction, in no trace."""
    with collector() as (receiver_url, received), traced_dev(tmp_path, receiver_url, sampling="0") as url:
        with metatxn.connect(url) as client:
            client.create_topic("t", segments=2)
        run(JOB, tmp_path, url, TRACEPARENT)
    assert {span.trace_id for _, span in received} == {TRACE.to_bytes(16)}
    names = {span.name for _, span in received}
    assert "POST /v1/segments/{segment}/entries" in names and "POST /v1/txns/{txn_id}/commit" not in names


def test_a_micro_batch_is_a_trace_from_spark_to_the_store(tmp_path: Path) -> None:
    with collector() as (receiver_url, received), traced_dev(tmp_path, receiver_url, sampling="0") as url:
        with metatxn.connect(url) as client:
            client.create_topic("t", schema=SCHEMA)
            client.create_topic("u", schema=SCHEMA)
            client.producer("t").send({"id": 1})
        checkpoint = str(tmp_path / "checkpoint")
        run(STREAM, tmp_path, url, receiver_url, checkpoint, OTEL_EXPORTER_OTLP_ENDPOINT=receiver_url)
    whole = {
        ("metatxn-spark", "spark read"),
        ("metatxn-dev", "GET /v1/segments/{segment}/entries"),
        ("metatxn-spark", "spark write"),
        ("metatxn-dev", "POST /v1/segments/{segment}/entries"),
        ("metatxn-spark", "spark commit"),
        ("metatxn-dev", "POST /v1/txns/{txn_id}/commit"),
        ("metatxn-dev", "store apply"),
    }
    traces: dict[bytes, Spans] = {}
    for service, span in received:
        traces.setdefault(span.trace_id, []).append((service, span))
    batch = next(each for each in traces.values() if whole <= {(service, span.name) for service, span in each})
    (written,) = (span for _, span in batch if span.name == "spark write")
    assert attributes(written)["metatxn.rows"] == 1 and "spark.task_attempt_id" in attributes(written)
    ids = {span.span_id for _, span in batch}
    assert {name for name, span in batch if span.parent_span_id not in ids} == {"metatxn-spark"}
