"""An HTTP proxy in front of a server that speaks S3, with the faults that a real one has.

    slow       the answer takes a second: with one in a hundred, that is the slowest hundredth
    throttled  503 SlowDown, and nothing was done
    lost       done, and the connection ends before the answer
    refused    the connection ends before the request is done

What happens to a request is drawn by a seed from a deck of a hundred, so that each fault happens, and is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Self

SLOW_S = 1.0
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_THROTTLED = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_SLOW_DOWN),
    _SLOW_DOWN,
)


class FaultyS3:
    """`of_hundred` is how many of a hundred requests have each fault. Without any, everything passes."""

    def __init__(self, port: int, seed: int, **of_hundred: int) -> None:
        self._target = port
        self._random = Random(seed)
        self._deck = [fault for fault, times in of_hundred.items() for _ in range(times)]
        self._deck += ["passed"] * (100 - len(self._deck))
        self._left: list[str] = []
        self.made: Counter[str] = Counter()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._answer(await _request(reader), writer):
                pass
        writer.close()

    async def _answer(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        fault = self._drawn()
        self.made[fault] += 1
        if fault == "refused":
            return False
        if fault == "throttled":
            writer.write(_THROTTLED)
            return True
        answer = await self._forwarded(request)
        if fault == "lost":
            return False
        if fault == "slow":
            await asyncio.sleep(SLOW_S)
        writer.write(answer)
        await writer.drain()
        return False  # the answer says that the connection ends

    def _drawn(self) -> str:
        if not self._left:
            self._left = self._random.sample(self._deck, len(self._deck))
        return self._left.pop()

    async def _forwarded(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        head, _, body = request.partition(b"\r\n\r\n")
        writer.write(head + b"\r\nConnection: close\r\n\r\n" + body)
        answer = await reader.read()
        writer.close()
        return answer


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    return head + await reader.readexactly(int(fields.get(b"content-length", b"0")))
