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

import pytest

from tests.documents import examples, outputs
from tests.gateways.conftest import Serving
from tests.gateways.pulsar import conversation
from tests.gateways.pulsar.conftest import PulsarGateway
from tests.gateways.pulsar.conversation import RecordingListener

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
JARS = ROOT / "build" / "pulsar"
PAGE = ROOT / "docs" / "pulsar.md"
PATIENCE_S = 60


class V5:
    """The client, as it is told what to do."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def client(cls, url: str, classes: Path) -> AsyncIterator[V5]:
        process = await asyncio.create_subprocess_exec(
            *("java", "-cp", f"{classes}:{JARS}/*", "Driver", url),
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


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled programs."""
    directory = tmp_path_factory.mktemp("classes")
    (program,) = examples(PAGE.read_text(), "java")
    (directory / "Payments.java").write_text(program)
    sources = [str(HERE / "Driver.java"), str(directory / "Payments.java")]
    assert os.spawnlp(os.P_WAIT, "javac", "javac", "-cp", f"{JARS}/*", "-d", str(directory), *sources) == 0
    return directory


async def test_the_program_of_the_documentation_prints_what_it_says(gateway: PulsarGateway, classes: Path) -> None:
    """What is said is recorded, for `test_conversation`, if METATXN_RECORD names a file."""
    await gateway.create("payments", 2)
    await gateway.listener.stop()
    gateway.listener = listener = RecordingListener(
        gateway.world.store, service=Serving(gateway.broker), port=gateway.port
    )
    await listener.start()
    process = await asyncio.create_subprocess_exec(
        *("java", "-cp", f"{classes}:{JARS}/*", "Payments", listener.url), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    (expected,) = outputs(PAGE.read_text())
    assert printed.decode() == expected
    if name := os.environ.get("METATXN_RECORD"):
        conversation.write(Path(name), listener.said)


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
