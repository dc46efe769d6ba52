"""Spark and transactions over many streams: `.format("metatxn")`."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_connector.batch_transaction import BatchTransaction, batch_transaction
from spark_connector.datasource import MetatxnDataSource
from spark_connector.options import OptionError

__all__ = ["BatchTransaction", "MetatxnDataSource", "OptionError", "batch_transaction", "register"]


def register(spark: SparkSession) -> None:
    """Only where Spark cannot find the format by itself: it looks for importable modules named `pyspark_…`."""
    spark.dataSource.register(MetatxnDataSource)
