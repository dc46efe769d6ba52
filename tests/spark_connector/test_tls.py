"""Goal: Spark writes and reads where services want TLS and a token, and says what is wrong where it may not.

Method: a `metatxn dev` of its own with both.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import metatxn
from spark_connector import batch_transaction
from tests.certificates import Authority
from tests.metatxn.dev_server import DevServer
from tests.service.security import TokenFile


def test_with_the_authority_and_the_token(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    server, tokens = authority.sign("server"), TokenFile(tmp_path)
    token = tokens.add("spark", admin=True)
    flags = ["--tls-cert", str(server.cert), "--tls-key", str(server.key), "--token-file", str(tokens.path)]
    with DevServer(tmp_path / "data", *flags) as dev:
        url, ca = dev.coordinator_url, str(authority.ca)
        assert url.startswith("https://")
        with metatxn.connect(url, token=token, ca=ca) as client:
            client.create_topic("t", segments=2)
        known = {"url": url, "ca": ca, "token": token}
        spark.range(10).write.format("metatxn").options(topic="t", **known).mode("append").save()
        with batch_transaction(url, "app", 0, token=token, ca=ca) as txn:
            rows = spark.range(10, 20)
            rows.write.format("metatxn").options(topic="t", txnId=txn.id, **known).mode("append").save()
        back = spark.read.format("metatxn").options(subscribe="t", **known).load()
        assert sorted(row["id"] for row in back.collect()) == list(range(20))
        for shown, problem in (({"token": token}, "is not trusted"), ({"ca": ca}, "UNAUTHENTICATED")):
            with pytest.raises(PySparkException, match=problem):
                spark.read.format("metatxn").options(url=url, subscribe="t", **shown).load()
