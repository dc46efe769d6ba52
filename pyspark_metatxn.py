"""Spark looks for modules of this name and takes their `DefaultSource`: `.format("metatxn")` needs no registration."""

from spark_connector.datasource import MetatxnDataSource as DefaultSource

__all__ = ["DefaultSource"]
