"""Spark searches for modules of this name and uses their `DefaultSource`, so `.format("metatxn")` needs no
registration."""

from spark_connector.datasource import MetatxnDataSource as DefaultSource

__all__ = ["DefaultSource"]
