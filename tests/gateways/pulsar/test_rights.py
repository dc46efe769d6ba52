"""Goal: what a client of Pulsar's has opened obeys the token of the moment, whatever the rights were before.

Method: a small client of the protocol over loopback, whose tokens are followed by others with more or fewer rights: in
chosen stories, and by chance against a model of who may do what.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from metatxn_gateways.pulsar import authentication
from metatxn_gateways.pulsar.codes import PulsarCode
from metatxn_gateways.pulsar.ordered import OrderedConsumers
from metatxn_gateways.pulsar.topic_schemas import TopicSchemas
from participants.broker.broker import Broker
from participants.segment.reading import SegmentReader
from participants.subscription.attached import AttachedConsumers
from participants.subscription.dispatch import Dispatch
from tests.gateways.pulsar.client import LATEST_ID, PATIENCE_S, PulsarClient, entry
from tests.gateways.pulsar.conftest import PulsarGateway, start_pulsar
from tests.gateways.pulsar.secured import TOPIC, Secured, refusal
from tests.gateways.pulsar.test_quotas import LARGE, LIMIT, LimitedPulsar, until
from tests.gateways.pulsar.test_token_refresh import REFRESHES, SOON_S, answer, challenged, connected
from tests.service.security import signed

JUST_EXPIRED_S = -1.0
"""A token that has expired for so short a time still counts, and another one is asked for."""


@pytest.fixture
async def gateway(tmp_path: Path, secured: Secured, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PulsarGateway]:
    """Its clock is that by which tokens are signed."""
    monkeypatch.setattr(authentication, "ASK_AGAIN_S", 0.01)
    async with start_pulsar(tmp_path, secured.exposure) as gateway:
        gateway.broker.clock = lambda: int(time.time() * 1000)
        yield gateway


async def settled(client: PulsarClient) -> None:
    """Everything that was sent is begun."""
    client.send("ping")
    await client.next("pong")


async def goes_on(client: PulsarClient, secured: Secured, *rights: str) -> None:
    """The client shows its next token."""
    await challenged(client)
    answer(client, secured.signed("ada", *rights))
    await settled(client)


async def published(gateway: PulsarGateway, secured: Secured, *contents: bytes) -> None:
    token = secured.signed("writer", "produce")
    async with gateway.client(tls=secured.tls, token=token) as writer:
        await writer.producer(f"segment://{TOPIC}/0000-ffff-0")
        for number, content in enumerate(contents):
            writer.produce(entry(content), number)
        await writer.receipts(len(contents))


class Held:
    """A method that waits at its beginning, or at its end, until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, *, behind: bool = False) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        method = getattr(kind, name)

        async def held(this: Any, *arguments: Any, **fields: Any) -> Any:
            found = await method(this, *arguments, **fields) if behind else None
            self.reached.set()
            await self.go.wait()
            return found if behind else await method(this, *arguments, **fields)

        monkeypatch.setattr(kind, name, held)


# -- what was opened before ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reader", "shared", "failover"])
async def test_what_was_permitted_before_is_not_delivered_to_one_that_has_lost_the_right(
    gateway: PulsarGateway, secured: Secured, kind: str
) -> None:
    (segment,) = await gateway.create("t")
    async with connected(gateway, secured, "produce", "consume") as client:
        if kind == "reader":
            await client.reader(segment, 7)
        else:
            await client.subscribe(segment, 7, kind=int(kind == "shared"))
        await published(gateway, secured, b"0")
        ((_, place, *_),) = await client.messages(1)
        await goes_on(client, secured, "produce")
        assert (await client.next("close_consumer")).consumer_id == 7
        await published(gateway, secured, b"1")
        client.send("flow", consumer_id=7, message_permits=10)
        await settled(client)
        assert client.waiting("message") == 0
        for asked in (
            client.ack(place, number=7),
            client.ask("get_last_message_id", consumer_id=7),
            client.ask("seek", consumer_id=7, message_id=LATEST_ID),
            client.subscribe(segment, 7),
        ):
            assert await refusal(asked) == PulsarCode.AUTHORIZATION
        await client.producer(segment)
        client.produce(entry(b"2"), 0)
        await client.receipts(1)
        await client.ask("close_consumer", consumer_id=7)
        assert await refusal(client.ack(place, number=7)) == PulsarCode.SERVICE_NOT_READY


async def test_what_it_holds_returns_to_others(gateway: PulsarGateway, secured: Secured) -> None:
    (segment,) = await gateway.create("t")
    await published(gateway, secured, b"0")
    async with (
        connected(gateway, secured, "consume") as client,
        gateway.client(tls=secured.tls, token=secured.signed("ben", "consume")) as other,
    ):
        await client.subscribe(segment)
        await client.messages(1)
        await other.subscribe(segment)
        await goes_on(client, secured)
        assert [each.value for each in await other.messages(1)] == [b"0"]


async def test_who_may_consume_no_more_by_the_file_is_told_with_the_next_message(
    gateway: PulsarGateway, secured: Secured
) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client(tls=secured.tls, token=secured.token("ada", "consume")) as client:
        await client.reader(segment, 1)
        await client.subscribe(segment, 2)
        path = secured.tokens.path
        path.write_text(path.read_text().replace(TOPIC, "public/default/other"))
        await published(gateway, secured, b"0")
        assert {(await client.next("close_consumer")).consumer_id for _ in range(2)} == {1, 2}
        assert client.waiting("message") == 0


@pytest.mark.parametrize(("kind", "name"), [(SegmentReader, "read_committed"), (Dispatch, "deliver")])
async def test_what_is_read_meanwhile_is_not_sent(
    gateway: PulsarGateway, secured: Secured, monkeypatch: pytest.MonkeyPatch, kind: type, name: str
) -> None:
    (segment,) = await gateway.create("t")
    await published(gateway, secured, b"0")
    held = Held(monkeypatch, kind, name, behind=True)
    async with gateway.client(tls=secured.tls, token=secured.token("ada", "consume")) as client:
        await (client.reader(segment) if kind is SegmentReader else client.subscribe(segment))
        await held.reached.wait()
        path = secured.tokens.path
        path.write_text(path.read_text().replace(TOPIC, "public/default/other"))
        held.go.set()
        await client.next("close_consumer")
        assert client.waiting("message") == 0


async def test_a_token_that_was_revoked_ends_its_connection_with_the_next_message(
    gateway: PulsarGateway, secured: Secured
) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client(tls=secured.tls, token=secured.token("ada", "consume")) as client:
        await client.reader(segment)
        secured.tokens.remove("ada")
        await published(gateway, secured, b"0")
        await client.until_closed()
        assert client.waiting("message") == 0


async def test_who_may_see_a_topic_no_more_is_told_and_learns_nothing_more_of_it(
    gateway: PulsarGateway, secured: Secured
) -> None:
    (segment,) = await gateway.create("t")
    async with connected(gateway, secured, "produce") as client:
        await client.layout(f"topic://{TOPIC}", 5)
        await goes_on(client, secured)
        told = await client.next("scalable_topic_update")
        assert (told.session_id, told.error) == (5, PulsarCode.AUTHORIZATION)
        await gateway.split(segment)
        await settled(client)
        assert client.waiting("scalable_topic_update") == 0


async def test_a_layout_is_not_told_to_one_that_may_not_see_it_by_the_file(
    gateway: PulsarGateway, secured: Secured
) -> None:
    (segment,) = await gateway.create("t")
    token = secured.token("ada", "consume")
    async with (
        gateway.client(tls=secured.tls, token=token) as client,
        gateway.client(tls=secured.tls, token=secured.signed("ben", "consume")) as other,
    ):
        await client.layout(f"topic://{TOPIC}", 5)
        await other.layout(f"topic://{TOPIC}", 5)
        path = secured.tokens.path
        path.write_text(path.read_text().replace(TOPIC, "public/default/other"))
        await gateway.split(segment)
        await other.next("scalable_topic_update")
        await settled(client)
        assert (await client.next("scalable_topic_update")).error == PulsarCode.AUTHORIZATION


async def test_a_consumer_that_reads_in_order_asks_again_once_it_has_lost_the_right(
    gateway: PulsarGateway, secured: Secured
) -> None:
    await gateway.create("t")
    about = {"topic": f"topic://{TOPIC}", "subscription": "s", "consumer_name": "c", "consumer_id": 9}
    async with connected(gateway, secured, "consume") as client:
        await client.ask("scalable_topic_subscribe", **about)
        await challenged(client)
        answer(client, secured.signed("ada", "produce"))
        await client.until_closed()
    async with gateway.client(tls=secured.tls, token=secured.signed("ada", "produce")) as client:
        assert await refusal(client.ask("scalable_topic_subscribe", **about)) == PulsarCode.AUTHORIZATION


# -- what is done at the moment of the change -------------------------------------------------------------------------

_ABOUT = {"topic": f"topic://{TOPIC}", "subscription": "s", "consumer_name": "c", "consumer_id": 9}
_UNDER_WAY: dict[str, tuple[type, str, Callable[[PulsarClient, str], Awaitable[Any]]]] = {
    "lookup": (Broker, "in_layout", lambda client, segment: client.ask("lookup", topic=segment)),
    "producer": (Broker, "in_layout", lambda client, segment: client.producer(segment)),
    "reader": (Broker, "in_layout", lambda client, segment: client.reader(segment)),
    "subscriber": (AttachedConsumers, "attach", lambda client, segment: client.subscribe(segment, kind=0)),
    "schema": (TopicSchemas, "get", lambda client, segment: client.ask("get_schema", topic=segment)),
    "membership": (
        OrderedConsumers,
        "join",
        lambda client, _: client.ask("scalable_topic_subscribe", **_ABOUT),
    ),
}


@pytest.mark.parametrize("what", _UNDER_WAY)
async def test_what_is_under_way_when_the_right_is_lost_is_refused(
    gateway: PulsarGateway, secured: Secured, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    (segment,) = await gateway.create("t")
    kind, name, ask = _UNDER_WAY[what]
    async with gateway.client(tls=secured.tls, token=secured.token("ada", "produce", "consume")) as client:
        await client.ask("get_or_create_schema", topic=segment, schema={"type": 1})
        held = Held(monkeypatch, kind, name, behind=True)
        asked = asyncio.ensure_future(refusal(ask(client, segment)))
        await held.reached.wait()
        path = secured.tokens.path
        path.write_text(path.read_text().replace(TOPIC, "public/default/other"))
        held.go.set()
        assert await asked == PulsarCode.AUTHORIZATION
        await settled(client)
        assert client.waiting("close_consumer") == 0
        async with gateway.client(tls=secured.tls, token=secured.signed("ben", "consume")) as other:
            await other.subscribe(segment, kind=0)  # nobody is left who has the segment for itself


async def test_what_waits_for_a_quota_is_decided_by_the_rights_when_it_is_begun(
    gateway: PulsarGateway, secured: Secured
) -> None:
    (segment,) = await gateway.create("t")
    await gateway.listener.stop()
    limited = LimitedPulsar(gateway)
    async with limited.quotas.running():
        await limited.listener.start()
        token = secured.token("ada", "produce")
        async with PulsarClient.connected(limited.listener.url, tls=secured.tls, token=token) as client:
            await client.producer(segment)
            await limited.limit(bytes_in_per_second=LIMIT)
            for number in range(3):
                client.produce(entry(LARGE), number)
            await client.receipts(1)
            await until(lambda: bool(limited.waited))
            path = secured.tokens.path
            path.write_text(path.read_text().replace(TOPIC, "public/default/other"))
            while client.waiting("send_error") < 1:
                limited.now_s += 1
                await asyncio.sleep(0.01)
            assert (await client.next("send_error")).error == PulsarCode.NOT_ALLOWED
            assert client.waiting("send_receipt") == 0
        await limited.listener.stop()
    await gateway.listener.start()


async def test_a_client_that_cannot_show_another_token_is_closed_when_its_token_ends(
    gateway: PulsarGateway, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "ANSWERED_WITHIN_S", SOON_S)
    async with connected(gateway, secured, "consume", feature_flags={}) as client:
        await client.until_closed()
        assert client.waiting("auth_challenge") == 0


# -- by chance --------------------------------------------------------------------------------------------------------

TOPICS = ("a", "b", "c")
ADMIN = "admin"


class Play:
    """One client, what it has opened, and what it may do by its token."""

    def __init__(self, gateway: PulsarGateway, secured: Secured, dice: Random) -> None:
        self.gateway, self.secured, self.dice = gateway, secured, dice
        self.segments: dict[str, str] = {}
        self.rights: dict[str, set[str]] = {}
        self.admin = False
        self.producers: set[str] = set()
        self.watches: set[str] = set()
        self.consumers: dict[int, str] = {}
        self.barred: dict[int, str] = {}
        self.expected: defaultdict[int, list[bytes]] = defaultdict(list)
        self.got: defaultdict[int, list[bytes | None]] = defaultdict(list)
        self.number = 10

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def token(self) -> str:
        """The next token, whose rights are drawn."""
        self.admin = self.dice.random() < 0.1
        choices: tuple[set[str], ...] = (set(), {"produce"}, {"consume"}, {"produce", "consume"})
        self.rights = {topic: self.dice.choice(choices) for topic in TOPICS}
        topics = {f"public/default/{topic}": sorted(each) for topic, each in self.rights.items() if each}
        return signed(
            self.secured.key,
            "EdDSA",
            sub="ada",
            exp=time.time() + JUST_EXPIRED_S,
            metatxn={"admin": self.admin, "topics": topics},
        )

    def may(self, right: str | None, topic: str) -> bool:
        return self.admin or (bool(self.rights[topic]) if right is None else right in self.rights[topic])

    async def begin(self) -> None:
        for topic in TOPICS:
            (self.segments[topic],) = await self.gateway.create(topic)
        topics = {f"public/default/{topic}": ["produce"] for topic in TOPICS}
        token = signed(self.secured.key, "EdDSA", sub="ben", exp=time.time() + 600, metatxn={"topics": topics})
        self.writing = self.gateway.client(tls=self.secured.tls, token=token)
        self.writer = await self.writing.__aenter__()
        for number, topic in enumerate(TOPICS):
            await self.writer.producer(self.segments[topic], number)
        self.of_ben = await self.writer.begin()
        self.connecting = self.gateway.client(tls=self.secured.tls, token=self.token(), feature_flags=REFRESHES)
        self.client = await self.connecting.__aenter__()

    async def end(self) -> None:
        await self.connecting.__aexit__(None, None, None)
        await self.writing.__aexit__(None, None, None)

    async def allowed(self, asked: Awaitable[Any], allowed: bool, code: int = PulsarCode.AUTHORIZATION) -> bool:
        if allowed:
            await asked
        else:
            assert await refusal(asked) == code
        return allowed

    # -- what it does --------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        await challenged(self.client)
        answer(self.client, self.token())
        await settled(self.client)
        lost = {number for number, topic in self.consumers.items() if not self.may("consume", topic)}
        assert {(await self.client.next("close_consumer")).consumer_id for _ in lost} == lost
        self.barred |= {number: self.consumers.pop(number) for number in lost}
        blind = {topic for topic in self.watches if not self.may(None, topic)}
        told = [await self.client.next("scalable_topic_update") for _ in blind]
        assert {TOPICS[each.session_id] for each in told} == blind
        assert all(each.error == PulsarCode.AUTHORIZATION for each in told)
        self.watches -= blind
        assert self.client.waiting("close_consumer") == self.client.waiting("scalable_topic_update") == 0

    async def open_producer(self) -> None:
        topic = self.dice.choice(TOPICS)
        asked = self.client.producer(self.segments[topic], TOPICS.index(topic))
        if await self.allowed(asked, self.may("produce", topic)):
            self.producers.add(topic)

    async def send(self, **txn: int) -> None:
        if self.producers:
            topic = self.dice.choice(sorted(self.producers))
            self.client.produce(entry(b"mine"), self.next_number(), TOPICS.index(topic), **txn)
            if self.may("produce", topic) and (not txn or self.admin):
                await self.client.receipts(1)
                if not txn:
                    await self.arrived(topic, b"mine")
            else:
                assert (await self.client.next("send_error")).error == PulsarCode.NOT_ALLOWED

    async def send_in_a_transaction_of_another(self) -> None:
        if self.may("produce", "a"):
            await self.send(**self.of_ben)

    async def published(self) -> None:
        topic = self.dice.choice(TOPICS)
        content = b"%d" % self.next_number()
        self.writer.produce(entry(content), self.number, TOPICS.index(topic))
        await self.writer.receipts(1)
        await self.arrived(topic, content)

    async def arrived(self, topic: str, content: bytes) -> None:
        for number, each in self.consumers.items():
            if each == topic:
                self.expected[number].append(content)
        while sum(map(len, self.got.values())) < sum(map(len, self.expected.values())):
            for delivered in await self.client.messages(1):
                self.got[delivered.consumer].append(delivered.value)
        await settled(self.client)
        assert self.got == self.expected and self.client.waiting("message") == 0

    async def open_reader(self) -> None:
        topic, number = self.dice.choice(TOPICS), self.next_number()
        asked = self.client.reader(self.segments[topic], number, LATEST_ID)
        if await self.allowed(asked, self.may("consume", topic)):
            self.consumers[number] = topic

    async def subscribe(self) -> None:
        topic, number = self.dice.choice(TOPICS), self.next_number()
        kind = self.dice.choice((0, 1))
        asked = self.client.subscribe(self.segments[topic], number, f"s-{number}", kind, initial_position=0)
        if await self.allowed(asked, self.may("consume", topic)):
            self.consumers[number] = topic

    async def use_consumer(self) -> None:
        opened = sorted({*self.consumers, *self.barred})
        if opened:
            number = self.dice.choice(opened)
            may = self.may("consume", {**self.consumers, **self.barred}[number])
            code = PulsarCode.SERVICE_NOT_READY if number in self.barred and may else PulsarCode.AUTHORIZATION
            for asked in (
                self.client.ask("get_last_message_id", consumer_id=number),
                self.client.ask("ack", consumer_id=number, ack_type=0, message_ids=[]),
            ):
                await self.allowed(asked, number in self.consumers and may, code)

    async def close_consumer(self) -> None:
        if opened := sorted({*self.consumers, *self.barred}):
            number = self.dice.choice(opened)
            await self.client.ask("close_consumer", consumer_id=number)
            self.consumers.pop(number, None)
            self.barred.pop(number, None)

    async def watch(self) -> None:
        topic = self.dice.choice(TOPICS)
        update = await self.client.layout(f"topic://public/default/{topic}", TOPICS.index(topic))
        assert update.HasField("error") != self.may(None, topic)
        (self.watches.add if self.may(None, topic) else self.watches.discard)(topic)

    async def look_up(self) -> None:
        topic = self.dice.choice(TOPICS)
        await self.allowed(self.client.ask("lookup", topic=self.segments[topic]), self.may(None, topic))

    async def name_schema(self) -> None:
        topic = self.dice.choice(TOPICS)
        create = self.client.ask("get_or_create_schema", topic=self.segments[topic], schema={"type": 1})
        created = await self.allowed(create, self.may("produce", topic))
        if created or not self.may(None, topic):
            await self.allowed(self.client.ask("get_schema", topic=self.segments[topic]), self.may(None, topic))

    async def transact(self) -> None:
        mine = await self.client.begin()
        await self.client.end(mine, commit=self.dice.random() < 0.5)
        await self.allowed(self.client.end(self.of_ben, commit=True), self.admin, PulsarCode.NOT_ALLOWED)
        if self.admin:
            self.of_ben = await self.writer.begin()

    async def run(self, steps: int) -> None:
        others = (
            *(self.open_producer, self.send, self.send, self.send_in_a_transaction_of_another),
            *(self.published, self.published, self.published, self.open_reader, self.subscribe, self.use_consumer),
            *(self.close_consumer, self.watch, self.look_up, self.name_schema, self.transact),
        )
        for _ in range(steps):
            await (self.refresh if self.dice.random() < 0.2 else self.dice.choice(others))()


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_was_opened_obeys_the_token_of_the_moment(
    gateway: PulsarGateway, secured: Secured, seed: int
) -> None:
    play = Play(gateway, secured, Random(seed))
    await play.begin()
    try:
        async with asyncio.timeout(4 * PATIENCE_S):
            await play.run(60)
    finally:
        await play.end()
