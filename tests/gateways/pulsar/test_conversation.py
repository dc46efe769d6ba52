"""Goal: the gateway answers Pulsar's own client as it did when that was last there.

Method: the client's side of a recorded conversation is said again, byte for byte, and the answers are compared.
`METATXN_RECORD=DIRECTORY make pulsar-test` records the programs of docs/pulsar.md anew.
"""

from __future__ import annotations

from pathlib import Path

from metastore.txn import paths
from tests.gateways.pulsar.conftest import PulsarGateway
from tests.gateways.pulsar.conversation import play, read
from tests.gateways.pulsar.test_consuming import backlog

RECORDED = Path(__file__).parent


async def test_payments_are_answered_as_before(gateway: PulsarGateway) -> None:
    await gateway.create("payments", 2)
    then, now = await play(gateway.listener.url, read(RECORDED / "payments.conversation"))
    assert now == then
    assert [each["key"] for each in await gateway.browse("payments")] == ["anna", "anna"]


async def test_billing_is_answered_as_before(gateway: PulsarGateway) -> None:
    for topic in ("orders", "invoices"):
        await gateway.create(topic, 2)
    then, now = await play(gateway.listener.url, read(RECORDED / "billing.conversation"))
    assert now == then
    assert len(await gateway.browse("invoices")) == 3
    assert await backlog(gateway, "billing", "orders") == 0


async def test_shipments_are_answered_as_before(gateway: PulsarGateway) -> None:
    await gateway.create("shipments", 2)
    then, now = await play(gateway.listener.url, read(RECORDED / "shipments.conversation"))
    assert now == then
    assert await backlog(gateway, "packing", "shipments") == 3


async def test_receipts_with_schemas_are_answered_as_before(gateway: PulsarGateway) -> None:
    await gateway.create("receipts", 2)
    then, now = await play(gateway.listener.url, read(RECORDED / "receipts.conversation"))
    assert now == then
    assert sum(answer.startswith("get_schema_response") for answer in now) > 0
    assert len((await gateway.world.store.scan(paths.pulsar_schemas("public/default/receipts"))).records) == 3
