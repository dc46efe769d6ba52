"""Goal: messages of Pulsar's own V5 client with schemas are read by those who know them and those who ask.

Method: as in `with_java`, with `SchemaDriver.java`, whose later payments have one field more.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from metastore.txn import paths
from tests.gateways.pulsar.conftest import PulsarGateway
from tests.gateways.pulsar.conversation import keep, recorded
from tests.gateways.pulsar.v5 import V5


def driver(gateway: PulsarGateway, classes: Path) -> AbstractAsyncContextManager[V5]:
    return V5.client(gateway.listener.url, classes, program="SchemaDriver")


async def versions(gateway: PulsarGateway, topic: str) -> int:
    return len((await gateway.world.store.scan(paths.pulsar_schemas(f"public/default/{topic}"))).records)


@pytest.mark.parametrize("kind", ["json", "avro"])
async def test_each_message_is_read_by_its_own_version_also_after_a_crash(
    gateway: PulsarGateway, classes: Path, kind: str
) -> None:
    """A reader of later payments sees no currency in earlier ones, one of earlier payments sees only what it knows, and
    one without a schema sees each as it was written."""
    await gateway.create("t", 2)
    async with driver(gateway, classes) as v5:
        for name in (kind, f"later {kind}"):
            await v5.done("producer", name, "t", name)
        await v5.done("send", kind, kind, "ada", "1")
        await v5.done("send", f"later {kind}", f"later {kind}", "ada", "2")
        await gateway.crash()
        await v5.done("send", kind, kind, "ada", "3")
    assert await versions(gateway, "t") == 2
    async with driver(gateway, classes) as v5:
        await v5.done("producer", "again", "t", f"later {kind}")
        await v5.done("send", "again", f"later {kind}", "ada", "4")
        assert await versions(gateway, "t") == 2
        for reader in (kind, f"later {kind}", "auto"):
            await v5.done("reader", reader, "t", reader)
        earlier = [f"who=ada amount={amount}" for amount in range(1, 5)]
        assert await v5.read(kind, 4) == earlier
        currencies = ("null", "EUR", "null", "EUR")
        later = [f"{text} currency={each}" for text, each in zip(earlier, currencies, strict=True)]
        assert await v5.read(f"later {kind}", 4) == later
        found = [set(text.split()) for text in await v5.read("auto", 4)]
        written = [text.removesuffix(" currency=null") for text in later]
        assert found == [{kind.upper(), *text.split()} for text in written]


async def test_a_consumer_of_anything_takes_every_schema(gateway: PulsarGateway, classes: Path) -> None:
    """Also values without a schema, and those of metatxn's own clients."""
    await gateway.create("t")
    kinds = ("json", "avro", "string", "int32", "bytes", "auto bytes of json")
    async with driver(gateway, classes) as v5:
        await v5.done("queue", "q", "t", "auto")
        for kind in kinds:
            await v5.done("producer", kind, "t", kind)
            await v5.done("send", kind, kind, "ada", "7")
        sent = await gateway.http.post("/v1/topics/t/messages", json={"messages": [{"value": {"who": "ada"}}]})
        assert sent.status_code == 200, sent.text
        found = [await v5.do("take", "q", "20000") for _ in range(len(kinds) + 1)]
    assert found == [
        "JSON amount=7 who=ada",
        "AVRO amount=7 who=ada",
        "STRING ada",
        "INT32 7",
        'BYTES {"who":"ada","amount":7}',
        "JSON amount=7 who=ada",
        'BYTES {"who":"ada"}',
    ]
    assert await versions(gateway, "t") == 4


async def test_a_schema_that_is_not_kept_fails_its_messages(gateway: PulsarGateway, classes: Path) -> None:
    await gateway.create("t")
    async with driver(gateway, classes) as v5:
        await v5.done("producer", "p", "t", "large")
        assert "a schema has at most 100000 bytes" in await v5.told("send", "p", "bytes", "ada", "1")
        await v5.done("producer", "p", "t", "json")
        await v5.done("send", "p", "json", "ada", "1")
    assert await versions(gateway, "t") == 1


async def test_what_is_said_of_schemas_is_recorded(gateway: PulsarGateway, classes: Path) -> None:
    """For `test_conversation`, if METATXN_RECORD names a directory."""
    listener = await recorded(gateway, "receipts")
    async with V5.client(listener.url, classes, program="SchemaDriver") as v5:
        for kind in ("avro", "later avro", "json"):
            await v5.done("producer", kind, "receipts", kind)
            await v5.done("send", kind, kind, "ada", "1")
        for reader in ("later avro", "auto"):
            await v5.done("reader", reader, "receipts", reader)
        assert len(await v5.read("auto", 3)) == 3
        assert (await v5.read("later avro", 1))[0] == "who=ada amount=1 currency=null"
    keep(listener, "receipts")
