"""Goal: on a cluster, the requests of the executors belong to the trace that `spark.executorEnv.TRACEPARENT` names.

Method: a driver whose executor is a process of its own (`local-cluster`), and that has no trace itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import metatxn
from tests.service.test_tracing import TRACE, TRACEPARENT, collector, traced_dev
from tests.spark_connector.matrix.cluster import CONF, environment

JOB = f"""
import sys
from pyspark.sql import SparkSession
_, url, trace = sys.argv
builder = SparkSession.builder.master("local-cluster[1,1,1024]").config("spark.executorEnv.TRACEPARENT", trace)
with builder.config(map={CONF}).getOrCreate() as spark:
    spark.range(10).write.format("metatxn").mode("append").options(url=url, topic="t").save()
"""


def test_the_executors_belong_to_the_trace_that_their_environment_names(tmp_path: Path) -> None:
    """The driver has begun and committed the transaction, in no trace."""
    with collector() as (receiver_url, received), traced_dev(tmp_path, receiver_url, sampling="0") as url:
        with metatxn.connect(url) as client:
            client.create_topic("t", segments=2)
        command = [sys.executable, "-c", JOB, url, TRACEPARENT]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment(tmp_path))
        assert done.returncode == 0, done.stderr[-5000:]
    assert {span.trace_id for _, span in received} == {TRACE.to_bytes(16)}
    names = {span.name for _, span in received}
    assert "POST /v1/segments/{segment}/entries" in names and "POST /v1/txns/{txn_id}/commit" not in names
