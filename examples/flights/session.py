"""A Spark session on this machine only."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def local_session(name: str) -> SparkSession:
    # Spark starts its Python workers by name; without this it may find one that has no pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Java asks for the address of the machine's own name otherwise, which not every machine knows.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark
