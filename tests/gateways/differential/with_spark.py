"""Goal: a Spark job with Spark's own source and sink for Kafka works as docs/kafka.md says, also with a token over TLS.

Method: the program of the page, and a part of the program that `with_kafka` compares, against a broker in this process.
Run by `make kafka-test`, which brings a Spark with its connector for Kafka.
"""

from __future__ import annotations

from pathlib import Path

from examples.flights.processes import ROOT
from metatxn.service.exposure import open_exposure
from tests.certificates import Authority
from tests.documents import examples, outputs
from tests.gateways.conftest import Gateway, start_gateway
from tests.gateways.differential import spark
from tests.gateways.differential.spark_program import Access, printed_with_kafka
from tests.service.security import TokenFile

PARTS = ("streaming_sink", "batch_read")
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


async def test_the_program_on_the_page_prints_what_the_page_shows(gateway: Gateway, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kafka.md").read_text()
    program, printed = examples(page, "python")[1], outputs(page)[1]
    await gateway.create("orders", segments=2)
    assert await printed_with_kafka(tmp_path, "-c", program.replace("127.0.0.1:9092", gateway.servers)) == printed


async def test_it_needs_tokens_that_may_consume_or_produce(gateway: Gateway, tmp_path: Path) -> None:
    authority, tokens = Authority(tmp_path / "authority"), TokenFile(tmp_path)
    certificate = authority.sign("broker")
    exposure = open_exposure(token_file=tokens.path, tls_cert=certificate.cert, tls_key=certificate.key)
    secured = Access(
        client={
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "token",
            "sasl.password": tokens.add("admin", admin=True),
        },
        source=_access(authority, tokens.add("reader", topics={"public/default/spark-*": "consume"})),
        sink=_access(authority, tokens.add("writer", topics={"public/default/spark-*": "produce"})),
    )
    (tmp_path / "secured").mkdir()
    async with start_gateway(tmp_path / "secured", exposure) as other:
        told = await spark.journal_of(other.servers, secured, PARTS)
    assert told == await spark.journal_of(gateway.servers, parts=PARTS)


def _access(authority: Authority, token: str) -> dict[str, str]:
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority.ca),
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{LOGIN} username="token" password="{token}";',
    }
