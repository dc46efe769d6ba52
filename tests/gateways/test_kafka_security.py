"""Goal: a client of Kafka's may do what its token allows, and nothing without one.

Method: requests given to the listener's handler, and librdkafka over loopback with TLS.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.hazmat.primitives.asymmetric import ed25519

from metatxn.service.exposure import Exposure, InvalidExposure, open_exposure
from metatxn.wire.ids import TxnId
from metatxn_gateways.kafka.codes import KafkaCode
from metatxn_gateways.kafka.requests import OFFERED
from metatxn_gateways.kafka.service import KafkaListener
from metatxn_gateways.listener import MAX_BYTES_BEFORE, NotAuthenticated
from tests.certificates import Authority, Certificate
from tests.gateways.asking import Asking, Holder, framed, made, read_answer
from tests.gateways.conftest import PATIENCE_S, Gateway, start_gateway
from tests.service.security import TokenFile, public_pem, signed

Handler = Callable[[memoryview], Awaitable[Any]]


class Secured:
    """A broker that asks for tokens, over TLS."""

    def __init__(self, directory: Path, key: ed25519.Ed25519PrivateKey, certificate: Certificate) -> None:
        self.tokens = TokenFile(directory)
        self.key = key
        self.public_key = directory / "jwt.pem"
        self.public_key.write_bytes(public_pem(key))
        self.exposure = open_exposure(
            token_file=self.tokens.path,
            jwt_public_key=self.public_key,
            tls_cert=certificate.cert,
            tls_key=certificate.key,
        )

    def signed(self, name: str, exp: float, **topics: list[str]) -> str:
        return signed(self.key, "EdDSA", sub=name, exp=exp, metatxn={"topics": topics})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def secured(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Secured:
    monkeypatch.setattr("metatxn.service.security.watched_file.LOOK_EVERY_S", 0.0)
    return Secured(tmp_path, ed25519.Ed25519PrivateKey.generate(), authority.sign("broker"))


@pytest.fixture
async def gateway(tmp_path: Path, secured: Secured) -> AsyncIterator[Gateway]:
    async with start_gateway(tmp_path, secured.exposure) as gateway:
        yield gateway


async def ask(handler: Handler, api_key: int, version: int, entity: Any) -> Any:
    return read_answer(api_key, version, b"".join(await handler(framed(api_key, version, entity))))


async def show(handler: Handler, shown: bytes, mechanism: str = "PLAIN") -> Any:
    assert not (await ask(handler, 17, 1, made(17, 1, "SaslHandshakeRequest", mechanism=mechanism))).error_code
    return await ask(handler, 36, 2, made(36, 2, "SaslAuthenticateRequest", auth_bytes=shown))


def plain(token: str) -> bytes:
    return b"\0anybody\0" + token.encode()


async def caller(gateway: Gateway, token: str) -> Asking:
    """On one connection."""
    handler = gateway.listener._connect()
    assert (await show(handler, plain(token))).error_code == KafkaCode.NONE
    return Asking(lambda *request: ask(handler, *request))


# -- who -----------------------------------------------------------------------------------------------------------


async def test_no_request_but_those_of_sasl_is_answered_without_a_token(gateway: Gateway) -> None:
    for api_key, versions in OFFERED.items():
        head = struct.pack(">hhih", api_key, versions[-1], 1, -1)
        if api_key == 18:
            assert await gateway.listener._connect()(memoryview(bytearray(struct.pack(">hhih", 18, 0, 1, -1))))
        elif api_key not in (17, 36):
            with pytest.raises(NotAuthenticated):
                await gateway.listener._connect()(memoryview(bytearray(head + b"\0")))


@pytest.mark.parametrize(
    ("mechanism", "shown", "says"),
    [
        ("PLAIN", b"\0u\0mtx_no", "not known here"),
        ("PLAIN", b"\0u\0" + "ü".encode(), "form"),
        ("PLAIN", b"u\0p", "PLAIN needs"),
        ("PLAIN", b"\0u\0", "PLAIN needs"),
        ("OAUTHBEARER", b"n,,\1auth=Bearer a.b.c\1\1", "not a signed token"),
        ("OAUTHBEARER", b"n,,\1auth=Basic a\1\1", "OAUTHBEARER needs"),
        ("OAUTHBEARER", b"n,,\1\1", "OAUTHBEARER needs"),
        ("OAUTHBEARER", b"", "OAUTHBEARER needs"),
    ],
)
async def test_a_token_that_is_none_is_refused(gateway: Gateway, mechanism: str, shown: bytes, says: str) -> None:
    handler = gateway.listener._connect()
    with structlog.testing.capture_logs() as logs:
        answer = await show(handler, shown, mechanism)
    assert answer.error_code == KafkaCode.SASL_AUTHENTICATION_FAILED and says in answer.error_message
    assert [each["event"] for each in logs] == ["connection refused"] and "mtx_" not in repr(logs)
    with pytest.raises(NotAuthenticated):
        await Asking(lambda *request: ask(handler, *request)).metadata("t")


async def test_a_mechanism_that_is_not_offered_is_named_with_those_that_are(gateway: Gateway) -> None:
    handler = gateway.listener._connect()
    answer = await ask(handler, 17, 1, made(17, 1, "SaslHandshakeRequest", mechanism="GSSAPI"))
    assert answer.error_code == KafkaCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ("PLAIN", "OAUTHBEARER")
    answer = await ask(handler, 36, 2, made(36, 2, "SaslAuthenticateRequest", auth_bytes=b""))
    assert answer.error_code == KafkaCode.ILLEGAL_SASL_STATE


async def test_both_mechanisms_take_both_kinds_of_tokens(gateway: Gateway, secured: Secured) -> None:
    expires_s = int(time.time()) + 600
    jwt, listed = secured.signed("ada", expires_s), secured.tokens.add("ben")
    for token in (jwt, listed):
        for mechanism, shown in (
            ("PLAIN", plain(token)),
            ("OAUTHBEARER", b"n,,\1auth=Bearer %s\1host=h\1\1" % token.encode()),
        ):
            before_ms = gateway.broker.clock()
            answer = await show(gateway.listener._connect(), shown, mechanism)
            assert answer.error_code == KafkaCode.NONE
            at_ms = expires_s * 1000 - answer.session_lifetime // timedelta(milliseconds=1)
            assert before_ms < at_ms < gateway.broker.clock() if token is jwt else not answer.session_lifetime


async def test_a_token_that_is_not_valid_any_more_ends_its_connection(gateway: Gateway, secured: Secured) -> None:
    listed = await caller(gateway, secured.tokens.add("ada", admin=True))
    by_jwt = await caller(gateway, secured.signed("ben", time.time() + 600))
    for each in (listed, by_jwt):
        await each.metadata("t")
    secured.tokens.remove("ada")
    secured.public_key.write_bytes(public_pem(ed25519.Ed25519PrivateKey.generate()))
    for each, why in ((listed, "revoked"), (by_jwt, "not signed with a key of this service")):
        with pytest.raises(NotAuthenticated, match=why):
            await each.metadata("t")


async def test_the_next_token_is_one_of_the_same_principal(gateway: Gateway, secured: Secured) -> None:
    first, second, other = (secured.signed(name, time.time() + 60 + n) for n, name in enumerate(("ada", "ada", "ben")))
    handler = gateway.listener._connect()
    for token in (first, second):
        assert (await show(handler, plain(token))).error_code == KafkaCode.NONE
    assert (await show(handler, plain(other))).error_code == KafkaCode.SASL_AUTHENTICATION_FAILED
    with pytest.raises(NotAuthenticated):
        await Asking(lambda *request: ask(handler, *request)).metadata("t")


async def test_who_shows_no_token_may_send_little_and_not_wait(
    gateway: Gateway, secured: Secured, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, (host, port) = ssl.create_default_context(cafile=authority.ca), gateway.servers.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(struct.pack(">i", MAX_BYTES_BEFORE + 1))
    assert await reader.read() == b""
    writer.close()
    monkeypatch.setattr("metatxn_gateways.kafka.sasl.AUTHENTICATED_WITHIN_S", 0.01)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    assert await reader.read() == b""
    writer.close()


def test_other_machines_need_a_token(secured: Secured) -> None:
    service: Any = None
    with pytest.raises(InvalidExposure):
        KafkaListener(service, service=service, host="0.0.0.0", exposure=Exposure())
    KafkaListener(service, service=service, host="0.0.0.0", exposure=secured.exposure)


# -- what ----------------------------------------------------------------------------------------------------------

LACKS = KafkaCode.TOPIC_AUTHORIZATION_FAILED


async def test_each_request_asks_for_its_right(gateway: Gateway, secured: Secured) -> None:
    await gateway.create("t")
    given = {"produce": "produce", "consume": "consume", "admin": "admin", "nothing": None}
    ask_as = {
        name: await caller(gateway, secured.tokens.add(name, topics={"public/default/t": right} if right else {}))
        for name, right in given.items()
    }
    codes = {name: await codes_of(each, name) for name, each in ask_as.items()}
    needed = {
        "produce": ("produce", "produce in a transaction", "add partitions"),
        "consume": ("fetch", "list offsets", "commit offsets", "commit offsets in", "fetch offset", "join"),
        "admin": ("create", "delete"),
    }
    for right, calls in needed.items():
        for call in calls:
            refused = KafkaCode.GROUP_AUTHORIZATION_FAILED if call == "join" else LACKS
            for name in given:
                assert (codes[name][call] == refused) is (name != right), (name, call, codes[name][call])
    assert {name: each["metadata"] for name, each in codes.items()} == dict.fromkeys(given, 0) | {"nothing": LACKS}


async def codes_of(asking: Asking, name: str) -> dict[str, int]:
    holder = Holder(name)
    assert await asking.init(holder) == await asking.add_offsets(holder, name) == KafkaCode.NONE
    (told,) = (await asking.metadata("t")).topics
    return {
        "metadata": int(told.error_code),
        "produce": (await asking.produce("t", 0, b"a"))[0],
        "add partitions": await asking.add_partitions(holder, ("t", 0)),
        "produce in a transaction": (await asking.produce("t", 0, b"a", holder=holder, sequence=0))[0],
        "fetch": (await asking.fetch("t", 0, 0))[0],
        "list offsets": await asking.list_offset("t", 0, -2),
        "commit offsets": await asking.commit_offsets(name, {("t", 0): 0}),
        "commit offsets in": await asking.commit_offsets_in(holder, name, {("t", 0): 0}),
        "fetch offset": (await asking.fetch_offset(name, "t", 0, stable=False))[0],
        "join": int((await asking.join(f"{name} joins", metadata=subscribed("t"))).error_code),
        "create": await asking.create_topic("t"),
        "delete": await asking.delete_topic("t") if name != "admin" else 0,
    }


async def test_only_what_may_be_seen_is_listed(gateway: Gateway, secured: Secured) -> None:
    for topic in ("t", "u"):
        await gateway.create(topic)
    asking = await caller(gateway, secured.tokens.add("ada", topics={"public/default/u": "consume"}))
    assert [each.name for each in (await asking.all_metadata()).topics] == ["u"]
    boss = await caller(gateway, secured.tokens.add("boss", admin=True))
    assert await boss.commit_offsets("g", {("t", 0): 0, ("u", 0): 0}) == KafkaCode.NONE
    assert [each.name for each in (await boss.all_offsets("g")).topics] == ["t", "u"]
    assert [each.name for each in (await asking.all_offsets("g")).topics] == ["u"]


async def test_a_transaction_belongs_to_its_principal(gateway: Gateway, secured: Secured) -> None:
    """Two of them may use one transactional id: they do not meet."""
    await gateway.create("t")
    rights = {"public/default/*": "produce,consume"}
    ada, ben = [await caller(gateway, secured.tokens.add(name, topics=rights)) for name in ("ada", "ben")]
    holder, other = Holder("x"), Holder("x")
    assert await ada.init(holder) == await ben.init(other) == KafkaCode.NONE
    assert await ada.add_partitions(holder, ("t", 0)) == await ben.add_partitions(other, ("t", 0)) == KafkaCode.NONE
    assert (await ada.produce("t", 0, b"a", holder=holder, sequence=0))[0] == KafkaCode.NONE
    for code in (
        (await ben.produce("t", 0, b"b", holder=holder, sequence=1))[0],
        await ben.add_partitions(holder, ("t", 0)),
        await ben.end(holder, commit=True),
    ):
        assert code == KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await ben.init(holder) == KafkaCode.PRODUCER_FENCED
    held = await gateway.transactions.keys.get("kafka:x", "ada")
    assert held.txn_id is not None
    assert (await gateway.transactions.get(TxnId.parse(held.txn_id)))["owner"] == "ada"
    assert await ada.end(holder, commit=True) == KafkaCode.NONE
    await gateway.crash()
    ben = await caller(gateway, secured.tokens.add("ben", topics=rights))
    assert await ben.end(holder, commit=True) == KafkaCode.PRODUCER_FENCED, "a process that knows nobody"


def subscribed(*topics: str) -> bytes:
    return struct.pack(">hi", 1, len(topics)) + b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)


async def test_a_group_is_for_those_who_may_consume_all_of_it(gateway: Gateway, secured: Secured) -> None:
    names = {"ada": ["t", "u"], "ben": ["t"]}
    rights = {name: {f"public/default/{topic}": "consume" for topic in topics} for name, topics in names.items()}
    ada, ben = [await caller(gateway, secured.tokens.add(name, topics=rights[name])) for name in names]
    assert not (await ada.join("g", metadata=subscribed("t", "u"), instance="i")).error_code
    refused = KafkaCode.GROUP_AUTHORIZATION_FAILED
    assert (await ben.join("g", metadata=subscribed("t"))).error_code == refused
    assert await ben.leave("g", "", instance="i") == refused
    assert (await ben.join("h", metadata=subscribed("u"))).error_code == refused
    assert (await ben.join("h", metadata=b"\0")).error_code == refused
    boss = await caller(gateway, secured.tokens.add("boss", admin=True))
    assert not (await boss.join("b", metadata=b"\0", instance="i")).error_code
    assert (await ben.join("b", metadata=subscribed("t"))).error_code == refused, "nobody can read what it is"
    assert not (await ben.join("h", metadata=subscribed("t"), instance="i")).error_code
    assert (await ada.join("h", metadata=subscribed("t"))).error_code == KafkaCode.MEMBER_ID_REQUIRED
    assert not (await ada.join("c", metadata=b"", instance="i", kind="connect")).error_code
    assert (await ben.join("c", metadata=b"", kind="connect")).error_code == refused
    assert (await ada.join("c", metadata=b"", kind="connect")).error_code == KafkaCode.MEMBER_ID_REQUIRED
    assert await ada.leave("g", "", instance="i") == KafkaCode.NONE


async def test_changes_are_in_the_audit_log_with_their_principal(
    gateway: Gateway, secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "metatxn.audit")
    asking = await caller(gateway, secured.tokens.add("ada", topics={"public/default/t": "admin"}))
    assert await asking.create_topic("t") == KafkaCode.NONE
    assert await asking.create_topic("u") == LACKS
    told: list[Any] = [each.msg for each in caplog.records if each.name == "metatxn.audit"]
    lines = [line for line in told if line["verb"] == "topic.create"]
    assert [(line["principal"], line["outcome"]) for line in lines] == [("ada", "allowed"), ("ada", "refused")]


# -- librdkafka ----------------------------------------------------------------------------------------------------


async def test_librdkafka_works_over_tls_with_both_mechanisms(
    gateway: Gateway, secured: Secured, authority: Authority
) -> None:
    jwt = secured.signed("ada", time.time() + 600, **{"public/default/t": ["produce", "consume", "admin"]})
    listed = secured.tokens.add("ben", topics={"public/default/t": "produce,consume"})
    common: dict[str, Any] = {
        "bootstrap.servers": gateway.servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.ca),
    }
    bearer = {
        **common,
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (jwt, time.time() + 600),
    }
    password = {**common, "sasl.mechanism": "PLAIN", "sasl.username": "token", "sasl.password": listed}

    def work() -> None:
        admin = AdminClient(bearer)
        admin.poll(0)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
        for number, settings in enumerate((bearer, password)):
            producer = Producer({**settings, "transactional.id": "x"})
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
            producer.produce("t", str(number), partition=0)
            producer.commit_transaction(PATIENCE_S)
        consumer = Consumer({**password, "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition("t", 0, 0)])
        assert [consumer.poll(PATIENCE_S).value() for _ in range(2)] == [b"0", b"1"]
        consumer.close()
        wrong = Producer({**password, "sasl.password": "mtx_wrong", "transactional.id": "x"})
        with pytest.raises(KafkaException):
            wrong.init_transactions(0.5)

    await asyncio.to_thread(work)
