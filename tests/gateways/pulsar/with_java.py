"""Goal: Pulsar's own V5 client, which knows nothing of us, works with our topics as its documentation says.

Method: the client in a process of its own, told step by step what to do (`Driver.java`), against a broker in this
process; and the program of docs/pulsar.md. Run by `make pulsar-test`, which brings the client and a compiler, and not
by `make test`, which has neither: that plays what was said here again (`test_conversation`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from metatxn.service.exposure import open_exposure
from tests.certificates import Authority
from tests.documents import examples, outputs
from tests.gateways.conftest import Serving
from tests.gateways.pulsar import conversation
from tests.gateways.pulsar.conftest import PulsarGateway, start_pulsar
from tests.gateways.pulsar.conversation import RecordingListener
from tests.service.security import TokenFile

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
JARS = ROOT / "build" / "pulsar"
PAGE = ROOT / "docs" / "pulsar.md"
PATIENCE_S = 60
PROGRAMS = {"Payments": ("payments",), "Billing": ("orders", "invoices")}
"""The programs of the page, with the topics that each of them needs."""


class V5:
    """The client, as it is told what to do."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def client(cls, url: str, classes: Path, *secrets: str) -> AsyncIterator[V5]:
        """`secrets` are a token, and with TLS the file of the authority to trust."""
        process = await asyncio.create_subprocess_exec(
            *("java", "-cp", f"{classes}:{JARS}/*", "Driver", url, *secrets),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield cls(process)
            assert process.stdin is not None
            process.stdin.close()
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def do(self, *words: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\t".join(words).encode() + b"\n")
        async with asyncio.timeout(PATIENCE_S):
            while (line := await self._process.stdout.readline()).decode()[:1] != "\t":
                assert line, "the client has ended"
        return line.decode()[1:-1]

    async def done(self, *words: str) -> None:
        answer = await self.do(*words)
        assert not answer.startswith("error"), answer

    async def read(self, reader: str, count: int) -> list[str]:
        return [await self.do("read", reader, "20000") for _ in range(count)]

    async def take(self, verb: str, consumer: str, count: int) -> list[str]:
        """The values of the next messages."""
        return [(await self.do(verb, consumer, "20000")).partition("=")[2] for _ in range(count)]


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled programs."""
    directory = tmp_path_factory.mktemp("classes")
    sources = [HERE / "Driver.java"]
    for name, program in zip(PROGRAMS, examples(PAGE.read_text(), "java"), strict=True):
        sources.append(directory / f"{name}.java")
        sources[-1].write_text(program)
    assert os.spawnlp(os.P_WAIT, "javac", "javac", "-cp", f"{JARS}/*", "-d", str(directory), *map(str, sources)) == 0
    return directory


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


async def recorded(gateway: PulsarGateway, *topics: str) -> RecordingListener:
    """A listener that remembers what is said, with these topics."""
    for topic in topics:
        await gateway.create(topic, 2)
    await gateway.listener.stop()
    gateway.listener = listener = RecordingListener(
        gateway.world.store, service=Serving(gateway.broker), port=gateway.port
    )
    await listener.start()
    return listener


def keep(listener: RecordingListener, name: str) -> None:
    if directory := os.environ.get("METATXN_RECORD"):
        conversation.write(Path(directory) / f"{name}.conversation", listener.said)


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
    (segment,) = await gateway.create("t")
    async with V5.client(gateway.listener.url, classes) as v5:
        await v5.done("producer", "p", "t")
        await v5.done("reader", "r", "t", "earliest")
        for name, verb in (("lost", "abort"), ("kept", "commit")):
            await v5.done("begin", name)
            await v5.done("send many", "p", "20", f"{name} before", name)
            children = await gateway.split(segment)
            await v5.done("send many", "p", "20", f"{name} behind", name)
            (segment,) = await gateway.merge(children)
            await v5.done("send many", "p", "20", f"{name} at last", name)
            assert await v5.do("read", "r", "300") == "nothing"
            assert (await v5.do(verb, name)).lower().startswith(verb)
        found = await v5.read("r", 60)
        parts = ("before", "behind", "at last")
        assert sorted(found) == sorted(f"key {n}=kept {part} {n}" for part in parts for n in range(20))
        assert await v5.do("read", "r", "300") == "nothing"


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


async def shown(gateway: PulsarGateway, topic: str, name: str) -> Any:
    """The progress of a subscription on its only segment."""
    (segment,) = (await gateway.http.get(f"/v1/topics/{topic}/subscriptions/{name}")).json()["segments"]
    return segment
