"""Goal: a client of Pulsar's may do what its token allows, and nothing without one.

Method: a small client of the protocol over loopback, with TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from metatxn.service.exposure import Exposure, InvalidExposure
from metatxn_gateways import listener
from metatxn_gateways.listener import MAX_BYTES_BEFORE
from metatxn_gateways.pulsar.codes import PulsarCode
from metatxn_gateways.pulsar.service import PulsarListener
from participants.broker.broker import Broker
from tests.gateways.pulsar.client import PulsarClient, entry
from tests.gateways.pulsar.conftest import PulsarGateway, start_pulsar, values
from tests.gateways.pulsar.secured import TOPIC, Secured, refusal


@pytest.fixture
async def gateway(tmp_path: Path, secured: Secured) -> AsyncIterator[PulsarGateway]:
    async with start_pulsar(tmp_path, secured.exposure) as gateway:
        yield gateway


# -- who -----------------------------------------------------------------------------------------------------------


async def test_nobody_comes_in_without_a_token(gateway: PulsarGateway, secured: Secured) -> None:
    await gateway.create("t")
    shown: tuple[dict[str, Any], ...] = (
        {},
        {"auth_method_name": "none"},
        {"auth_method_name": "basic", "auth_data": secured.token("ada").encode()},
        {"auth_method_name": "token", "auth_data": b"mtx_no"},
        {"auth_method_name": "token", "auth_data": b"\xff"},
        {"auth_method_name": "token", "auth_data": b"a.b.c"},
    )
    for fields in shown:
        client = await PulsarClient.opened(gateway.listener.url, secured.tls)
        client.send("connect", client_version="test", protocol_version=21, **fields)
        assert (await client.next("error")).error == PulsarCode.AUTHENTICATION
        await client.until_closed()
        await client.close()


async def test_a_command_before_the_handshake_and_a_large_one_close_the_connection(
    gateway: PulsarGateway, secured: Secured
) -> None:
    for first in (b"\0\0\0\2\x08\x12", bytes(MAX_BYTES_BEFORE + 1)):
        client = await PulsarClient.opened(gateway.listener.url, secured.tls)
        client.raw(first)
        await client.until_closed()
        assert not client.heard
        await client.close()


async def test_a_connection_shows_its_token_in_time(
    gateway: PulsarGateway, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metatxn_gateways.pulsar.authentication.AUTHENTICATED_WITHIN_S", 0.01)
    late = await PulsarClient.opened(gateway.listener.url, secured.tls)
    await late.until_closed()
    await late.close()
    async with gateway.client(tls=secured.tls, token=secured.token("ada")) as client:
        await asyncio.sleep(0.02)
        client.send("ping")
        await client.next("pong")
    assert listener.AUTHENTICATED_WITHIN_S == 30


async def test_both_kinds_of_tokens_are_taken_and_a_revoked_one_ends_its_connection(
    gateway: PulsarGateway, secured: Secured
) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client(tls=secured.tls, token=secured.signed("ben", "produce")) as client:
        assert (await client.ask("lookup", topic=segment)).broker_url_tls == gateway.listener.url
        await client.producer(segment)
    async with gateway.client(tls=secured.tls, token=secured.token("ada", "consume")) as client:
        assert gateway.listener.url.startswith("pulsar+ssl://")
        await client.reader(segment)
        secured.tokens.remove("ada")
        client.send("pong")
        await client.until_closed()


# -- what ----------------------------------------------------------------------------------------------------------


async def test_every_command_needs_its_right(gateway: PulsarGateway, secured: Secured) -> None:
    (segment,) = await gateway.create("t")
    topic = f"topic://{TOPIC}"
    about = {"topic": topic, "subscription": "s", "consumer_name": "c", "consumer_id": 9}
    async with gateway.client(tls=secured.tls, token=secured.token("none")) as client:
        for name in (segment, topic, "topic://public/default/missing"):
            assert await refusal(client.ask("lookup", topic=name)) == PulsarCode.AUTHORIZATION
        assert (await client.layout(topic)).error == PulsarCode.AUTHORIZATION
        assert await refusal(client.producer(segment)) == PulsarCode.AUTHORIZATION
        assert await refusal(client.ask("get_schema", topic=segment)) == PulsarCode.AUTHORIZATION
    async with gateway.client(tls=secured.tls, token=secured.token("writer", "produce")) as client:
        await client.layout(topic)
        await client.producer(segment)
        client.produce(entry(b"0"), 0)
        await client.receipts(1)
        await client.ask("get_or_create_schema", topic=segment, schema={"type": 1})
        await client.ask("get_schema", topic=segment)
        assert await refusal(client.reader(segment)) == PulsarCode.AUTHORIZATION
        assert await refusal(client.subscribe(segment)) == PulsarCode.AUTHORIZATION
        assert await refusal(client.ask("scalable_topic_subscribe", **about)) == PulsarCode.AUTHORIZATION
    async with gateway.client(tls=secured.tls, token=secured.token("reader", "consume")) as client:
        await client.subscribe(segment)
        assert await values(client, 1) == [b"0"]
        await client.ask("scalable_topic_subscribe", **about)
        await client.ask("get_schema", topic=topic)
        create = client.ask("get_or_create_schema", topic=segment, schema={"type": 2})
        assert await refusal(create) == PulsarCode.AUTHORIZATION
        assert await refusal(client.producer(segment)) == PulsarCode.AUTHORIZATION


async def test_a_right_that_was_taken_away_is_gone(gateway: PulsarGateway, secured: Secured) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client(tls=secured.tls, token=secured.token("ada", "produce", "consume")) as client:
        await client.producer(segment)
        client.produce(entry(b"0"), 0)
        (place,) = await client.receipts(1)
        await client.subscribe(segment)
        await client.messages(1)
        path = secured.tokens.path
        path.write_text(path.read_text().replace(TOPIC, "public/default/other"))
        client.produce(entry(b"1"), 1)
        assert (await client.next("send_error")).error == PulsarCode.NOT_ALLOWED
        assert await refusal(client.ack(place)) == PulsarCode.AUTHORIZATION


async def test_a_transaction_belongs_to_the_principal_that_began_it(gateway: PulsarGateway, secured: Secured) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client(tls=secured.tls, token=secured.token("ada", "produce", "consume")) as ada:
        await ada.producer(segment)
        ada.produce(entry(b"0"), 0)
        (place,) = await ada.receipts(1)
        txn = await ada.begin()
        async with gateway.client(tls=secured.tls, token=secured.token("ben", "produce", "consume")) as ben:
            await ben.producer(segment)
            await ben.subscribe(segment)
            await ben.messages(1)
            ben.produce(entry(b"1"), 1, **txn)
            assert (await ben.next("send_error")).error == PulsarCode.NOT_ALLOWED
            assert await refusal(ben.ack(place, txn=txn)) == PulsarCode.NOT_ALLOWED
            for commit in (True, False):
                assert await refusal(ben.end(txn, commit=commit)) == PulsarCode.NOT_ALLOWED
        ada.produce(entry(b"2"), 1, **txn)
        await ada.receipts(1)
        await ada.end(txn, commit=True)
        await ada.reader(segment, 5)
        assert await values(ada, 2) == [b"0", b"2"]


async def test_what_is_sent_behind_a_transaction_that_is_looked_up_stays_behind_it(
    gateway: PulsarGateway, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = await gateway.create("t")
    looking, look_on, header = asyncio.Event(), asyncio.Event(), Broker.header

    async def slow(broker: Broker, txn_id: Any) -> Any:
        looking.set()
        await look_on.wait()
        return await header(broker, txn_id)

    monkeypatch.setattr(Broker, "header", slow)
    async with gateway.client(tls=secured.tls, token=secured.token("ada", "produce", "consume")) as client:
        await client.producer(segment)
        txn = await client.begin()
        client.produce(entry(b"0"), 0, **txn)
        client.produce(entry(b"1"), 1)
        await looking.wait()
        await client.ask("lookup", topic=segment)
        look_on.set()
        first, second = await client.receipts(2)
        assert first < second


def test_without_authentication_only_this_machine_may_connect() -> None:
    with pytest.raises(InvalidExposure):
        PulsarListener(None, service=None, host="0.0.0.0")  # type: ignore[arg-type]
    with pytest.raises(InvalidExposure, match="--pulsar-advertise"):
        PulsarListener(None, service=None, advertise="nowhere")  # type: ignore[arg-type]
    PulsarListener(None, service=None, host="0.0.0.0", exposure=Exposure(allow_anonymous=True))  # type: ignore[arg-type]
