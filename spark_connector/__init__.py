"""The Spark connector: `.format("metatxn")` reads and writes topics in transactions."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_connector.batch_transaction import BatchTransaction, batch_transaction
from spark_connector.datasource import MetatxnDataSource
from spark_connector.options import OptionError

__all__ = ["BatchTransaction", "MetatxnDataSource", "OptionError", "batch_transaction", "register"]


def register(spark: SparkSession) -> None:
    """Register the format. Needed only where Spark cannot find it by itself: it searches for importable modules named
    `pyspark_…`."""
    spark.dataSource.register(MetatxnDataSource)
