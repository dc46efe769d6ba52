"""Goal: Pulsar's own V5 client, which knows nothing of us, works with our topics as its documentation says.

Method: the client in a process of its own, told step by step what to do (`Driver.java`), against a broker in this
process; and the program of docs/pulsar.md. Run by `make pulsar-test`, which brings the client and a compiler, and not
by `make test`, which has neither: that plays what was said here again (`test_conversation`).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from metatxn.service.exposure import open_exposure
from metatxn_gateways.pulsar import authentication
from metatxn_gateways.pulsar.commands import read_command
from metatxn_gateways.pulsar.lookups import _Watch
from metatxn_gateways.pulsar.producers import PulsarProducer
from tests.certificates import Authority
from tests.documents import outputs
from tests.gateways.pulsar.conftest import PulsarGateway, start_pulsar
from tests.gateways.pulsar.conversation import RecordingListener, keep, recorded
from tests.gateways.pulsar.secured import Secured
from tests.gateways.pulsar.v5 import JARS, PAGE, PATIENCE_S, PROGRAMS, V5
from tests.service.security import TokenFile


@pytest.mark.parametrize("program", PROGRAMS)
async def test_the_programs_of_the_documentation_print_what_it_says(
    gateway: PulsarGateway, classes: Path, program: str
) -> None:
    """What is said is recorded, for `test_conversation`, if METATXN_RECORD names a directory."""
    listener = await recorded(gateway, *PROGRAMS[program])
    process = await asyncio.create_subprocess_exec(
        *("java", "-cp", f"{classes}:{JARS}/*", program, listener.url), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert printed.decode() == dict(zip(PROGRAMS, outputs(PAGE.read_text()), strict=True))[program]
    keep(listener, program.lower())


async def test_messages_are_sent_in_every_way_and_read_by_all(gateway: PulsarGateway, classes: Path) -> None:
    await gateway.create("t", 2)
    async with V5.client(gateway.listener.url, classes) as v5:
        for way in ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY", "chunks"):
            await v5.done("producer", way, "t", way, *(["batches"] * (way != "chunks")))
            await v5.done("send many", way, "20", way * 30)
        await v5.done("reader", "r", "topic://public/default/t", "earliest")
        found = await v5.read("r", 120)
        ways = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY", "chunks")
        assert sorted(found) == sorted(f"key {n}={way * 30} {n}" for way in ways for n in range(20))
        assert await v5.do("read", "r", "300") == "nothing"
    shown = await gateway.browse("t")
    whole = [each for each in shown if "metatxn.unreadable" not in each["properties"]]
    assert len(whole) == 100 and {each["key"] for each in whole} == {f"key {n}" for n in range(20)}


async def test_a_transaction_goes_on_while_its_topic_is_split_and_merged(gateway: PulsarGateway, classes: Path) -> None:
    """The client commits no transaction of which a message has met a sealed segment, although it sends it again. So it
    is waited for until it knows the segments."""
    (segment,) = await gateway.create("t")
    async with V5.client(gateway.listener.url, classes) as v5:
        await v5.done("producer", "p", "t")
        await v5.done("reader", "r", "t", "earliest")
        for name, verb in (("lost", "abort"), ("kept", "commit")):
            await v5.done("begin", name)
            await v5.done("send many", "p", "20", f"{name} before", name)
            children = await gateway.split(segment)
            await knows_the_layout(v5)
            await v5.done("send many", "p", "20", f"{name} behind", name)
            (segment,) = await gateway.merge(children)
            await knows_the_layout(v5)
            await v5.done("send many", "p", "20", f"{name} at last", name)
            assert await v5.do("read", "r", "300") == "nothing"
            assert (await v5.do(verb, name)).lower().startswith(verb)
        found = await v5.read("r", 60)
        parts = ("before", "behind", "at last")
        assert sorted(found) == sorted(f"key {n}=kept {part} {n}" for part in parts for n in range(20))
        assert await v5.do("read", "r", "300") == "nothing"


async def knows_the_layout(v5: V5) -> None:
    """Send a message outside of transactions, which the client repeats until it knows of a segment that takes it, and
    read it. One whose segment goes while the client looks it up is given up."""
    while (answer := await v5.do("send", "p", "k", "here")).startswith("error"):
        assert "not found in active segments" in answer, answer
    assert await v5.read("r", 1) == ["k=here"]


async def test_a_transaction_that_meets_a_sealed_segment_is_aborted_by_its_client(
    gateway: PulsarGateway, classes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page says: here the client hears of the new layout after its message was refused."""
    tell, answer = _Watch._tell, PulsarProducer._answer
    changed, refused = asyncio.Event(), asyncio.Event()

    def told_later(watch: _Watch) -> None:
        if watch._shown is None or refused.is_set():
            tell(watch)
        else:
            asyncio.ensure_future(refused.wait()).add_done_callback(lambda _: tell(watch))
            changed.set()

    def answered(producer: PulsarProducer, sent: Any) -> bytes:
        if sent.appending.exception() is not None:
            refused.set()
        return answer(producer, sent)

    monkeypatch.setattr(_Watch, "_tell", told_later)
    monkeypatch.setattr(PulsarProducer, "_answer", answered)
    (segment,) = await gateway.create("t")
    async with V5.client(gateway.listener.url, classes) as v5:
        await v5.done("producer", "p", "t")
        await v5.done("reader", "r", "t", "earliest")
        await v5.done("begin", "x")
        await v5.done("send", "p", "k", "before", "x")
        await gateway.split(segment)
        await changed.wait()
        await v5.done("send", "p", "k", "behind", "x")
        assert refused.is_set()
        assert "failed operations" in await v5.told("commit", "x")
        await v5.done("begin", "again")
        await v5.done("send", "p", "k", "again", "again")
        assert await v5.do("commit", "again") == "COMMITTED"
        assert await v5.read("r", 1) == ["k=again"]


async def test_a_client_lives_through_a_crash_of_its_broker(gateway: PulsarGateway, classes: Path) -> None:
    await gateway.create("t", 2)
    async with V5.client(gateway.listener.url, classes) as v5:
        await v5.done("producer", "p", "t", "name=mine")
        await v5.done("reader", "r", "t", "earliest")
        await v5.done("begin", "x")
        await v5.done("send many", "p", "10", "before", "x")
        await gateway.crash()
        await v5.done("send many", "p", "10", "behind", "x")
        assert await v5.do("commit", "x") == "COMMITTED"
        assert len(set(await v5.read("r", 20))) == 20
        await v5.done("reader from", "s", "t", "r")
        assert await v5.do("read", "s", "300") == "nothing"
        await v5.done("close producer", "p")
        await v5.done("producer", "again", "t", "name=mine")
        await v5.done("send many", "again", "10", "again")
        assert sorted(await v5.read("s", 10)) == sorted(f"key {n}=again {n}" for n in range(10))


async def test_what_is_refused_tells_why(gateway: PulsarGateway, classes: Path) -> None:
    await gateway.process.create("plain")
    async with V5.client(gateway.listener.url, classes) as v5:
        missing = await v5.do("producer", "p", "topic://public/default/none")
        assert "does not exist" in missing and "metatxn topic create" in missing
        await v5.done("producer", "p", "plain")
        assert "--format pulsar" in await v5.do("send", "p", "k", "v")


async def test_queue_consumers_share_and_give_back(gateway: PulsarGateway, classes: Path) -> None:
    (segment,) = await gateway.create("t")
    async with V5.client(gateway.listener.url, classes) as v5:
        await v5.done("producer", "p", "t", "batches")
        await v5.done("send many", "p", "10", "before")
        await v5.done("queue", "q", "t", "s")
        taken = await v5.take("take", "q", 10)
        assert sorted(taken) == [f"before {n}" for n in range(10)]
        for value in taken[:9]:
            await v5.done("acknowledge", "q", value)
        await v5.done("give back", "q", taken[9])
        assert await v5.take("take", "q", 1) == [taken[9]]
        await v5.done("acknowledge", "q", taken[9])
        await v5.done("queue", "other", "t", "s")
        await gateway.split(segment)
        await v5.done("send many", "p", "20", "behind")
        found = [await v5.do("take", name, "300") for name in ("q", "other") for _ in range(40)]
        values = [each.partition("=")[2] for each in found if each != "nothing"]
        assert sorted(values) == sorted(f"behind {n}" for n in range(20))
        await v5.done("close queue", "q")
        await v5.done("close queue", "other")
        await v5.done("queue", "again", "t", "s")
        assert sorted(await v5.take("take", "again", 20)) == sorted(values)
        assert await v5.do("take", "again", "300") == "nothing"


async def test_a_stream_consumer_reads_in_order_over_a_split_and_a_merge(gateway: PulsarGateway, classes: Path) -> None:
    (segment,) = await gateway.create("t")
    async with V5.client(gateway.listener.url, classes) as v5:
        await v5.done("producer", "p", "t")
        await v5.done("stream", "s", "t", "s")
        sent = []
        for part in ("before", "behind", "at last"):
            for number in range(5):
                await v5.done("send", "p", "k", f"{part} {number}")
                sent.append(f"{part} {number}")
            if part == "before":
                children = await gateway.split(segment)
            elif part == "behind":
                await gateway.merge(children)
        assert await v5.take("take in order", "s", 5) == sent[:5]
        assert await v5.do("take in order", "s", "300") == "nothing", "the children wait for the parent"
        for first in (0, 5, 10):
            await v5.done("acknowledge up to", "s", sent[first + 4])
            if first < 10:
                assert await v5.take("take in order", "s", 5) == sent[first + 5 : first + 10]


async def test_what_a_stream_consumer_says_is_recorded(gateway: PulsarGateway, classes: Path) -> None:
    """For `test_conversation`, if METATXN_RECORD names a directory."""
    listener = await recorded(gateway, "shipments")
    async with V5.client(listener.url, classes) as v5:
        await v5.done("producer", "p", "shipments", "batches")
        await v5.done("send many", "p", "6", "x")
        await v5.done("stream", "s", "shipments", "packing")
        values = await v5.take("take in order", "s", 6)
        for verb, last in (("commit", 2), ("abort", 3)):
            await v5.done("begin", verb)
            await v5.done("acknowledge up to", "s", values[last], verb)
            await v5.done(verb, verb)
        assert len(await v5.take("take in order", "s", 1)) == 1
        await v5.done("close stream", "s")
        await v5.done("close producer", "p")
    keep(listener, "shipments")


async def test_stream_consumers_share_the_segments(gateway: PulsarGateway, classes: Path) -> None:
    await gateway.create("t", 4)
    async with V5.client(gateway.listener.url, classes) as one, V5.client(gateway.listener.url, classes) as two:
        await one.done("producer", "p", "t")
        await one.done("send many", "p", "40", "x")
        await one.done("stream", "s", "t", "s")
        assert len(set(await one.take("take in order", "s", 40))) == 40
        await two.done("stream", "s", "t", "s")
        assert await two.take("take in order", "s", 1), "what was not acknowledged of its segments"
        await one.done("close stream", "s")
        found = {await two.do("take in order", "s", "1000") for _ in range(60)}
        assert len(found - {"nothing"}) in (39, 40)
        await two.done("stream", "third", "t", "s")
        await two.done("close stream", "third")
        await two.done("close stream", "s")
        await one.done("stream", "s", "t", "s")
        assert len(set(await one.take("take in order", "s", 40))) == 40, "it has all segments again"


async def test_transactions_consume_and_produce_over_a_split_and_a_crash(gateway: PulsarGateway, classes: Path) -> None:
    """Every input becomes one output, and an aborted transaction leaves none."""
    (segment,) = await gateway.create("in")
    await gateway.create("out", 2)
    async with V5.client(gateway.listener.url, classes) as v5:
        await v5.done("producer", "in", "in", "batches")
        await v5.done("producer", "out", "out")
        await v5.done("reader", "r", "out", "earliest")
        await v5.done("queue", "q", "in", "s")
        expected: list[str] = []
        for number, verb in enumerate(("commit", "abort", "commit", "commit", "commit")):
            if number in (0, 2, 3):
                await v5.done("send many", "in", "10", f"x{number}")
                expected += [f"x{number} {n}" for n in range(10)]
            txn = f"txn {number}"
            await v5.done("begin", txn)
            values = await v5.take("take", "q", 10)
            for value in values[:5]:
                await v5.done("send", "out", "", value, txn)
                await v5.done("acknowledge", "q", value, txn)
            if number == 2:
                await gateway.split(segment)
            for value in values[5:]:
                await v5.done("send", "out", "", value, txn)
                await v5.done("acknowledge", "q", value, txn)
            assert (await v5.do(verb, txn)).lower().startswith(verb)
            if number == 0:
                await v5.done("send many", "in", "10", "x1")
                expected += [f"x1 {n}" for n in range(10)]
        assert await v5.do("take", "q", "500") == "nothing"
        await gateway.crash()
        found = [(await v5.do("read", "r", "20000")).partition("=")[2] for _ in expected]
        assert sorted(found) == sorted(expected) and len(set(found)) == len(found)
        assert await v5.do("read", "r", "500") == "nothing"
        assert await v5.do("take", "q", "1000") == "nothing"


async def test_a_stream_consumer_acknowledges_in_transactions(gateway: PulsarGateway, classes: Path) -> None:
    (segment,) = await gateway.create("t")
    async with V5.client(gateway.listener.url, classes) as v5:
        await v5.done("producer", "p", "t", "batches")
        await v5.done("send many", "p", "10", "x")
        await v5.done("stream", "s", "t", "s")
        values = await v5.take("take in order", "s", 10)
        for verb in ("abort", "commit"):
            await v5.done("begin", verb)
            await v5.done("acknowledge up to", "s", values[4], verb)
            assert (await v5.do(verb, verb)).lower().startswith(verb)
            if verb == "abort":
                assert await v5.take("take in order", "s", 5) == values[:5]
        children = await gateway.split(segment)
        await v5.done("send many", "p", "10", "y")
        await v5.done("acknowledge up to", "s", values[9])
        assert len(set(await v5.take("take in order", "s", 10))) == 10 and children


async def test_a_conflict_fails_the_transaction(gateway: PulsarGateway, classes: Path) -> None:
    await gateway.create("t")
    async with V5.client(gateway.listener.url, classes) as v5, V5.client(gateway.listener.url, classes) as other:
        await v5.done("producer", "p", "t")
        await v5.done("send", "p", "", "x")
        await v5.done("queue", "q", "t", "s")
        assert await v5.take("take", "q", 1) == ["x"]
        await v5.done("begin", "first")
        await v5.done("acknowledge", "q", "x", "first")
        while not (await shown(gateway, "t", "s"))["pending_acks"]:
            await asyncio.sleep(0)
        await v5.done("close queue", "q")
        await other.done("queue", "q", "t", "s")
        assert await other.do("take", "q", "300") == "nothing", "it is acknowledged in an open transaction"
        await v5.done("abort", "first")
        assert await other.take("take", "q", 1) == ["x"]
        await other.done("begin", "second")
        await other.done("acknowledge", "q", "x", "second")
        assert await other.do("commit", "second") == "COMMITTED"
        await v5.done("queue", "q", "t", "s")
        assert await v5.do("take", "q", "300") == "nothing"


async def test_a_token_says_over_tls_what_a_client_may_do(tmp_path: Path, classes: Path) -> None:
    """The client asks for the name that the address has, not for the address."""
    authority = Authority(tmp_path / "authority")
    tokens, certificate = TokenFile(tmp_path), authority.sign("broker", host="localhost")
    exposure = open_exposure(token_file=tokens.path, tls_cert=certificate.cert, tls_key=certificate.key)
    async with start_pulsar(tmp_path, exposure) as gateway:
        await gateway.create("t", 2)
        token = tokens.add("ada", topics={"public/default/t": "produce, consume"})
        async with V5.client(gateway.listener.url, classes, token, str(authority.ca)) as v5:
            await v5.done("producer", "p", "t")
            await v5.done("stream", "s", "t", "s")
            await v5.done("begin", "x")
            await v5.done("send", "p", "k", "v", "x")
            assert await v5.do("commit", "x") == "COMMITTED"
            assert await v5.take("take in order", "s", 1) == ["v"]
            assert "AuthorizationException" in await v5.do("producer", "p", "other")


async def test_a_client_goes_on_with_its_next_tokens(
    tmp_path: Path, classes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the connections that it has, until it shows a token that is not good."""
    monkeypatch.setattr(authentication, "ASK_AGAIN_S", 0.05)
    secured = Secured(tmp_path, Authority(tmp_path / "authority"), host="localhost")
    shown = tmp_path / "token"
    shown.write_text(secured.signed("ada", "produce", "consume", for_s=0))
    async with start_pulsar(tmp_path, secured.exposure) as gateway:
        await gateway.create("t")
        gateway.broker.clock = lambda: int(time.time() * 1000)
        listener = await recorded(gateway, exposure=secured.exposure)
        said = AsNamed(listener)
        async with V5.client(listener.url, classes, f"file:{shown}", str(secured.authority.ca)) as v5:
            await v5.done("producer", "p", "t")
            await v5.done("stream", "s", "t", "s")
            await v5.done("begin", "x")
            await v5.done("send", "p", "k", "before", "x")
            connections = said.count("connect")
            for _ in range(3):
                await said.another("auth_response")
                shown.write_text(secured.signed("ada", "produce", "consume", for_s=0.2))
            await v5.done("send", "p", "k", "behind", "x")
            assert await v5.do("commit", "x") == "COMMITTED"
            assert await v5.take("take in order", "s", 2) == ["before", "behind"]
            assert said.count("connect") == connections
            shown.write_text("not a token")
            await said.another("connect")
            shown.write_text(secured.signed("ada", "produce", "consume"))
            await v5.done("send", "p", "k", "again")
            assert "again" in await v5.take("take in order", "s", 3)


class AsNamed:
    """What a listener has heard and said, by the names of the commands."""

    def __init__(self, listener: RecordingListener) -> None:
        self._listener = listener

    def count(self, name: str) -> int:
        return sum(read_command(memoryview(each.frame))[0] == name for each in self._listener.said)

    async def another(self, name: str) -> None:
        before = self.count(name)
        async with asyncio.timeout(PATIENCE_S):
            while self.count(name) == before:
                await asyncio.sleep(0.01)


async def shown(gateway: PulsarGateway, topic: str, name: str) -> Any:
    """The progress of a subscription on its only segment."""
    (segment,) = (await gateway.http.get(f"/v1/topics/{topic}/subscriptions/{name}")).json()["segments"]
    return segment
