"""Pulsar's V5 client in a process of its own, which is told step by step what to do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.documents import examples

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
    async def client(cls, url: str, classes: Path, *secrets: str, program: str = "Driver") -> AsyncIterator[V5]:
        """`secrets` are a token, or `file:` with the file that has it now, and with TLS the file of the authority to
        trust."""
        process = await asyncio.create_subprocess_exec(
            *("java", "-cp", f"{classes}:{JARS}/*", program, url, *secrets),
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

    async def told(self, *words: str) -> str:
        """The answer to a request that is refused."""
        answer = await self.do(*words)
        assert answer.startswith("error"), answer
        return answer

    async def take(self, verb: str, consumer: str, count: int) -> list[str]:
        """The values of the next messages."""
        return [(await self.do(verb, consumer, "20000")).partition("=")[2] for _ in range(count)]


def compiled(directory: Path) -> Path:
    """The directory, with the compiled programs."""
    sources = [HERE / "Driver.java", HERE / "SchemaDriver.java"]
    for name, program in zip(PROGRAMS, examples(PAGE.read_text(), "java"), strict=True):
        sources.append(directory / f"{name}.java")
        sources[-1].write_text(program)
    assert os.spawnlp(os.P_WAIT, "javac", "javac", "-cp", f"{JARS}/*", "-d", str(directory), *map(str, sources)) == 0
    return directory
