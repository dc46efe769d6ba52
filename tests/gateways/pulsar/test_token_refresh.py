"""Goal: a connection outlives its token, as the same principal with the rights of the next one, and not beyond that.

Method: a small client of the protocol over loopback, with signed tokens that expire while it is connected.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from metatxn_gateways.pulsar import authentication
from metatxn_gateways.pulsar.authentication import REFRESH
from metatxn_gateways.pulsar.codes import PulsarCode
from tests.gateways.pulsar.client import PulsarClient, entry
from tests.gateways.pulsar.conftest import PulsarGateway, start_pulsar, values
from tests.gateways.pulsar.secured import Secured, refusal

REFRESHES = {"supports_auth_refresh": True}
SOON_S = 0.05


@pytest.fixture
async def gateway(tmp_path: Path, secured: Secured, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PulsarGateway]:
    """Its clock is that by which tokens are signed."""
    monkeypatch.setattr(authentication, "ASK_AGAIN_S", 0.01)
    async with start_pulsar(tmp_path, secured.exposure) as gateway:
        gateway.broker.clock = lambda: int(time.time() * 1000)
        yield gateway


def connected(gateway: PulsarGateway, secured: Secured, *rights: str, **fields: Any) -> Any:
    """A client whose token is about to expire."""
    token = secured.signed("ada", *rights, for_s=SOON_S)
    return gateway.client(tls=secured.tls, token=token, **{"feature_flags": REFRESHES, **fields})


async def challenged(client: PulsarClient) -> None:
    challenge = await client.next("auth_challenge")
    assert (challenge.challenge.auth_method_name, challenge.challenge.auth_data) == ("token", REFRESH)


def answer(client: PulsarClient, token: str | bytes, method: str = "token") -> None:
    shown = token if isinstance(token, bytes) else token.encode()
    client.send("auth_response", response={"auth_method_name": method, "auth_data": shown}, protocol_version=21)


async def test_a_connection_goes_on_with_the_next_token_and_its_rights(
    gateway: PulsarGateway, secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    (segment,) = await gateway.create("t")
    async with connected(gateway, secured, "produce") as client:
        await client.producer(segment)
        client.produce(entry(b"0"), 0)
        await challenged(client)
        client.produce(entry(b"1"), 1)
        answer(client, secured.signed("ada", "produce", "consume", for_s=SOON_S))
        client.produce(entry(b"2"), 2)
        await client.receipts(3)
        await client.reader(segment)
        assert await values(client, 3) == [b"0", b"1", b"2"]
        await challenged(client)
        answer(client, secured.signed("ada", "consume"))
        client.produce(entry(b"3"), 3)
        assert (await client.next("send_error")).error == PulsarCode.NOT_ALLOWED
        assert await refusal(client.producer(segment, 2)) == PulsarCode.AUTHORIZATION
    assert "connection closed" not in capsys.readouterr().out


async def test_a_listed_token_does_not_expire_and_may_follow_one_that_does(
    gateway: PulsarGateway, secured: Secured
) -> None:
    async with connected(gateway, secured) as client:
        await challenged(client)
        answer(client, secured.token("ada"))
        client.send("ping")
        await client.next("pong")
        assert client.waiting("auth_challenge") == 0


async def test_a_token_that_has_just_expired_is_taken_like_by_rest_and_asked_for_again(
    gateway: PulsarGateway, secured: Secured
) -> None:
    async with connected(gateway, secured) as client:
        for _ in range(3):
            await challenged(client)
            answer(client, secured.signed("ada", for_s=-1))
        await challenged(client)


async def test_a_client_that_does_not_answer_in_time_is_closed(
    gateway: PulsarGateway, secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(authentication, "ANSWERED_WITHIN_S", SOON_S)
    async with connected(gateway, secured) as client:
        await challenged(client)
        await client.until_closed()
    assert capsys.readouterr().out.count("connection closed: not authenticated") == 1


@pytest.mark.parametrize("kind", ["unknown", "of another principal", "of another method", "not text", "long expired"])
async def test_a_bad_answer_closes_the_connection(
    gateway: PulsarGateway, secured: Secured, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    good = secured.signed("ada")
    bad: dict[str, str | bytes] = {
        "unknown": good[:-1] + ("A" if good[-1] != "A" else "B") * 2,
        "of another principal": secured.signed("ben"),
        "not text": b"\xff",
        "long expired": secured.signed("ada", for_s=-3600),
    }
    async with connected(gateway, secured) as client:
        await challenged(client)
        answer(client, bad.get(kind, good), "basic" if kind == "of another method" else "token")
        assert (await client.next("error")).error == PulsarCode.AUTHENTICATION
        await client.until_closed()
    assert capsys.readouterr().out.count("connection closed") == 1


async def test_a_token_that_nobody_has_asked_for_closes_the_connection(
    gateway: PulsarGateway, secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    token = secured.signed("ada")
    async with gateway.client(tls=secured.tls, token=token, feature_flags=REFRESHES) as client:
        answer(client, token)
        await client.until_closed()
    assert capsys.readouterr().out.count("connection closed: malformed request") == 1


async def test_a_client_that_knows_no_challenge_is_not_asked(gateway: PulsarGateway, secured: Secured) -> None:
    async with connected(gateway, secured, feature_flags={}) as old, connected(gateway, secured) as new:
        await challenged(new)
        old.send("ping")
        await old.next("pong")
        assert old.waiting("auth_challenge") == 0
