"""Goal: what a schema is, its clients know; here every one is kept as it is, and equal ones have one version.

Method: a small client of the protocol over loopback; other brokers and late requests by faults of the store.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metastore.check import StoreCheck
from metastore.errors import OutcomeUnknown
from metastore.txn import paths
from metastore.txn.records.processes import Incarnation
from metatxn_gateways.pulsar import topic_schemas
from metatxn_gateways.pulsar.codes import PulsarCode
from metatxn_gateways.pulsar.commands import MessageMetadata
from metatxn_gateways.pulsar.topic_schemas import MAX_SCHEMA_BYTES, version_bytes
from tests.gateways.pulsar.client import PulsarClient, checked, entry
from tests.gateways.pulsar.conftest import PulsarGateway
from tests.gateways.pulsar.secured import TOPIC, refusal
from tests.participants.segment.faulty_store import Fault, puts

JSON, AVRO, KEY_VALUE, AUTO_CONSUME = 2, 4, 15, 21
SCHEMAS = paths.pulsar_schemas(TOPIC)


def schema(content: bytes, kind: int = AVRO, name: str = "payment", **properties: str) -> dict[str, Any]:
    pairs = [{"key": key, "value": value} for key, value in properties.items()]
    return {"name": name, "schema_data": content, "type": kind, "properties": pairs}


async def named(client: PulsarClient, segment: str, wanted: dict[str, Any], number: int = 1) -> int:
    """The version of the schema of a new producer."""
    return int.from_bytes((await client.producer(segment, number, schema=wanted)).schema_version)


async def got(client: PulsarClient, topic: str, version: int | None = None) -> Any:
    wanted = {} if version is None else {"schema_version": version_bytes(version)}
    return await client.ask("get_schema", topic=topic, **wanted)


async def stored(gateway: PulsarGateway) -> int:
    return len((await gateway.world.store.scan(SCHEMAS)).records)


async def assert_lawful(gateway: PulsarGateway) -> None:
    assert [finding async for finding in StoreCheck(gateway.world.store.inner).findings()] == []


async def test_equal_schemas_have_one_version_and_others_the_next(gateway: PulsarGateway) -> None:
    low, high = await gateway.create("t", 2)
    async with gateway.client() as client, gateway.client() as other:
        assert await named(client, low, schema(b"{}", one="1", two="2")) == 0
        assert await named(other, high, schema(b"{}", name="Payment", two="2", one="1")) == 0, "whatever its name is"
        assert await named(client, low, schema(b"{} ", one="1", two="2"), 2) == 1
        assert await named(client, high, schema(b"{}", JSON, one="1", two="2"), 3) == 2
        assert await named(client, high, schema(b"{}", one="1"), 4) == 3
        assert await named(other, high, schema(b"{}", one="1", two="2"), 5) == 0
        answer = await client.producer(low, 6)
        assert not answer.schema_version, "without a schema there is no version"
        again = await client.ask("get_or_create_schema", topic=low, schema=schema(b"{}", JSON, one="1", two="2"))
        assert again.schema_version == version_bytes(2)
        bytes_only = await client.ask("get_or_create_schema", topic=low, schema=schema(b"", 0))
        assert bytes_only.schema_version == b""
    assert await stored(gateway) == 4
    await assert_lawful(gateway)


async def test_a_schema_is_given_back_as_it_came_and_lives_through_a_crash(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    content = bytes(range(256))
    async with gateway.client() as client:
        assert await named(client, segment, schema(content, KEY_VALUE, encoding="inline")) == 0
        assert await named(client, segment, schema(b"", 1, "")) == 1
    await gateway.crash()
    async with gateway.client() as client:
        for topic in (segment, f"topic://{TOPIC}", "t"):
            found = await got(client, topic, 0)
            assert found.schema_version == version_bytes(0)
            assert (found.schema.type, found.schema.name, found.schema.schema_data) == (KEY_VALUE, "payment", content)
            assert [(each.key, each.value) for each in found.schema.properties] == [("encoding", "inline")]
        latest = await got(client, segment)
        assert latest.schema_version == version_bytes(1) and latest.schema.HasField("name")
        assert await named(client, segment, schema(content, KEY_VALUE, encoding="inline")) == 0


async def test_a_message_keeps_its_version_whichever_it_is(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    sent = [_versioned(number, version) for number, version in enumerate((version_bytes(0), b"else", b""))]
    async with gateway.client() as client:
        await named(client, segment, schema(b"{}"))
        for sequence, content in enumerate(sent):
            client.produce(content, sequence)
        await client.receipts(len(sent))
    await gateway.crash()
    async with gateway.client() as client:
        await client.reader(segment)
        await client.subscribe(segment, 2)
        for _ in range(2 * len(sent)):
            _, content = await client.next("message")
            assert bytes(content) in sent


def _versioned(number: int, version: bytes) -> bytes:
    """An entry whose metadata have the field 16, a version, which nobody here looks at."""
    plain = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1).SerializeToString()
    metadata = MessageMetadata.FromString(plain + b"\x82\x01" + bytes([len(version)]) + version)
    assert version in metadata.SerializeToString()
    return checked(metadata, b"value")


async def test_what_is_not_there_is_not_found(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    await gateway.process.create("plain")
    async with gateway.client() as client:
        for topic in (segment, "topic://public/default/missing", "plain"):
            assert await refusal(got(client, topic)) == PulsarCode.TOPIC_NOT_FOUND
        await named(client, segment, schema(b"{}"))
        assert await refusal(got(client, segment, 1)) == PulsarCode.TOPIC_NOT_FOUND
        assert await refusal(got(client, segment, (1 << 64) - 1)) == PulsarCode.TOPIC_NOT_FOUND
        no_version = client.ask("get_schema", topic=segment, schema_version=b"0")
        assert await refusal(no_version) == PulsarCode.TOPIC_NOT_FOUND
        assert await refusal(got(client, "other://a/b/c")) == PulsarCode.INVALID_TOPIC_NAME
        create = client.ask("get_or_create_schema", topic="topic://public/default/missing", schema=schema(b"{}"))
        assert await refusal(create) == PulsarCode.TOPIC_NOT_FOUND
        plain = client.ask("get_or_create_schema", topic="plain", schema=schema(b"{}"))
        assert await refusal(plain) == PulsarCode.NOT_ALLOWED


@pytest.mark.parametrize(
    "wanted",
    [
        schema(b"{}", AUTO_CONSUME),
        schema(b"{}", 23),
        schema(b"{}", -1),
        schema(b"x" * MAX_SCHEMA_BYTES),
        schema(b"", name="x" * MAX_SCHEMA_BYTES),
        schema(b"", key="\x01" * (MAX_SCHEMA_BYTES // 6)),
    ],
    ids=[
        "auto consume",
        "a later type",
        "no type",
        "large",
        "with a large name",
        "with a property that is large as JSON",
    ],
)
async def test_what_cannot_be_kept_is_refused(gateway: PulsarGateway, wanted: dict[str, Any]) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        assert await refusal(client.producer(segment, schema=wanted)) == PulsarCode.INCOMPATIBLE_SCHEMA
        create = client.ask("get_or_create_schema", topic=segment, schema=wanted)
        assert await refusal(create) == PulsarCode.INCOMPATIBLE_SCHEMA
        client.send("ping")
        await client.next("pong")
    assert await stored(gateway) == 0


async def test_a_topic_has_a_bounded_number_of_versions_and_bytes(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = await gateway.create("t")
    (other,) = await gateway.create("other")
    monkeypatch.setattr(topic_schemas, "MAX_VERSIONS", 2)
    monkeypatch.setattr(topic_schemas, "MAX_SCHEMAS_BYTES", 500)
    async with gateway.client() as client:
        for number in range(2):
            assert await named(client, segment, schema(bytes([number]))) == number
        assert await refusal(client.producer(segment, schema=schema(b"2"))) == PulsarCode.INCOMPATIBLE_SCHEMA
        assert await named(client, segment, schema(bytes([1]))) == 1, "a version that is there may be used"
        assert await named(client, other, schema(b"x" * 400)) == 0
        assert await refusal(client.producer(other, schema=schema(b"y" * 400))) == PulsarCode.INCOMPATIBLE_SCHEMA


async def test_what_a_consumer_reads_with_is_not_kept(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        for number, wanted in enumerate((schema(b"{}"), schema(b"", AUTO_CONSUME), schema(b"{}", 99))):
            await client.subscribe(segment, number, schema=wanted)
    assert await stored(gateway) == 0


async def test_two_schemas_at_once_have_two_versions_and_two_equal_ones_have_one(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client, gateway.client() as other:
        for late, first in ((b"a", b"b"), (b"c", b"c")):
            held = gateway.world.store.fault(Fault(puts(SCHEMAS), hold_before=True))
            waiting = asyncio.ensure_future(named(client, segment, schema(late), 1))
            await held.reached.wait()
            version = await named(other, segment, schema(first), 2)
            held.go.set()
            assert await waiting == version + (late != first)
    assert await stored(gateway) == 3
    await assert_lawful(gateway)


async def test_a_version_without_an_answer_is_found_when_the_request_comes_again(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    gateway.world.store.fault(Fault(puts(SCHEMAS), after=OutcomeUnknown()))
    async with gateway.client() as client:
        wanted = schema(b"{}")
        assert await refusal(client.producer(segment, schema=wanted)) == PulsarCode.SERVICE_NOT_READY
        assert await named(client, segment, wanted) == 0
    assert await stored(gateway) == 1


async def test_schemas_go_with_their_topic(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        for number in range(3):
            await named(client, segment, schema(bytes([number])))
        assert (await gateway.http.delete("/v1/topics/t")).status_code == 204
        assert await stored(gateway) == 0
        assert await refusal(got(client, "t", 0)) == PulsarCode.TOPIC_NOT_FOUND
        (again,) = await gateway.create("t")
        assert await named(client, again, schema(b"new")) == 0
        assert (await got(client, again)).schema.schema_data == b"new"
    await assert_lawful(gateway)


async def test_a_topic_is_not_forgotten_while_a_schema_of_it_is_left(gateway: PulsarGateway) -> None:
    await gateway.create("t")
    store, forgetting = gateway.world.store, gateway.process.layout.forgetting
    assert (await gateway.http.delete("/v1/topics/t")).status_code == 204
    left = paths.pulsar_schema(TOPIC, 0)
    await store.apply(store.batch().put(left, b'{"type":1,"data":"","created_ms":1}'))
    await forgetting.forget_due(10**15)
    assert await store.get(paths.topic(TOPIC)) is not None
    await store.apply(store.batch().delete(left))
    await forgetting.forget_due(10**15)
    assert await store.get(paths.topic(TOPIC)) is None


async def test_a_schema_that_is_late_is_not_left_behind_its_topic(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    held = gateway.world.store.fault(Fault(puts(SCHEMAS), hold_before=True))
    async with gateway.client() as client:
        create = client.ask("get_or_create_schema", topic=segment, schema=schema(b"{}"))
        late = asyncio.ensure_future(refusal(create))
        await held.reached.wait()
        assert (await gateway.http.delete("/v1/topics/t")).status_code == 204
        held.go.set()
        assert await late == PulsarCode.TOPIC_NOT_FOUND
    assert await stored(gateway) == 0
    await assert_lawful(gateway)


async def test_a_deletion_that_is_slow_spares_the_schemas_of_a_topic_that_was_created_again(
    gateway: PulsarGateway,
) -> None:
    (segment,) = await gateway.create("t")
    world = gateway.world
    async with gateway.client() as client:
        await named(client, segment, schema(b"{}"))
        held = world.store.fault(
            Fault(lambda batch: any(key.startswith(SCHEMAS) for key in batch.deletes), hold_before=True)
        )
        slow = asyncio.ensure_future(gateway.http.delete("/v1/topics/t"))
        await held.reached.wait()
        assert (await gateway.http.delete("/v1/topics/t")).status_code == 204, "it is finished by another request"
        (again,) = await gateway.create("t")
        await named(client, again, schema(b"{}"))
        held.go.set()
        assert (await slow).status_code in (204, 503)
        assert (await got(client, again, 0)).schema.schema_data == b"{}"
    await assert_lawful(gateway)


async def test_after_a_recovery_no_version_is_given_out_again(gateway: PulsarGateway) -> None:
    """Messages of a version that the store has lost may be there."""
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        assert await named(client, segment, schema(b"a")) == 0
        found = await gateway.world.store.get(paths.INCARNATION)
        recovered = Incarnation(id="b", begun_ms=1, recovered_ms=10**12)
        batch = gateway.world.store.batch()
        if found is not None:
            batch.replace(found, recovered.encode())
        else:
            batch.create(paths.INCARNATION, recovered.encode())
        await gateway.world.store.apply(batch)
        assert await named(client, segment, schema(b"a")) == 0
        assert await named(client, segment, schema(b"b")) == 10**12
        assert await named(client, segment, schema(b"c")) == 10**12 + 1
        assert (await got(client, segment)).schema.schema_data == b"c"


async def test_others_see_the_values_as_before(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await named(client, segment, schema(b"{}", JSON))
        client.produce(entry(b'{"a":1}'), 0)
        await client.receipts(1)
    (shown,) = await gateway.browse("t")
    assert shown["value_base64"] == "eyJhIjoxfQ=="
