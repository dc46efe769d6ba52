"""Spark's workers do not look for garbage in what is loaded, nor clear the same memory again and again."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_connector.clients import ServiceAddress, client


def test_a_worker_that_has_used_the_client_looks_for_garbage_in_little(spark: SparkSession, url: str) -> None:
    def looked_at() -> float:
        client(ServiceAddress(url))
        return len(gc.get_objects()) / (gc.get_freeze_count() or 1)

    assert in_a_worker(spark, looked_at) < 0.1


def test_what_a_worker_loads_later_is_no_garbage_either(spark: SparkSession, url: str) -> None:
    def frozen_later() -> int:
        client(ServiceAddress(url))
        before = gc.get_freeze_count()
        import tabnanny

        client(ServiceAddress(url))
        assert tabnanny.__name__
        return gc.get_freeze_count() - before

    assert in_a_worker(spark, frozen_later) > 0


def test_a_worker_keeps_the_memory_of_arrow_batches(spark: SparkSession, url: str) -> None:
    def touched_anew() -> int:
        """Pages, in eight rounds after the first."""
        client(ServiceAddress(url))
        before = 0
        for number in range(9):
            batches = [bytes([1]) * (15 << 20) for _ in range(3)]
            del batches
            if number == 0:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    pages_of_a_round = 3 * (15 << 20) // resource.getpagesize()
    assert in_a_worker(spark, touched_anew) < pages_of_a_round


def test_the_driver_collects_garbage_as_its_user_wants(url: str) -> None:
    before = gc.get_freeze_count()
    client(ServiceAddress(url))
    assert gc.get_freeze_count() == before


def in_a_worker(spark: SparkSession, measure: Callable[[], float]) -> float:
    def measured(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"value": [float(measure())]})

    (row,) = spark.range(1, numPartitions=1).mapInArrow(measured, "value double").collect()
    return float(row.value)
