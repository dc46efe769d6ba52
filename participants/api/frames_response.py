"""The answer to a read of a segment: frames, sent as the reader takes them.

What a slow reader costs is bounded by `ANSWER_BYTES`, the two objects that such a read may cut in object storage, and
the chunk that waits in the connection. Frames go out of the buffer that they were read into: next to nothing is copied,
and nothing is read ahead.

A single entry may be larger than `ANSWER_BYTES`. It is read and checked as a whole, before anything is answered, and
let go; then it is read again, chunk by chunk, each compared by its CRC with what had been checked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

import structlog
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from metastore.errors import MetastoreError
from metatxn.wire import errors
from metatxn.wire.broker import FRAMES_MEDIA_TYPE
from metatxn.wire.crc import crc32
from metatxn.wire.frames import RawFrame
from participants.ledger.storage import LedgerCorrupt, LedgerError

log = structlog.get_logger()

ANSWER_BYTES = (4 << 20) + (64 << 10)
"""What one answer holds at most, however much was asked for, but at least one entry. Entries of 1 MiB are the largest
that the client makes of messages: four of them fit, with what frames them."""
CHUNK_BYTES = 1 << 20
"""What is given to the connection at once, and TLS makes a copy of. The next one follows when it is on its way."""
SMALL_BYTES = 64 << 10
"""What is cheaper to copy into one chunk than to send by itself."""


class FramesResponse(Response):
    media_type = FRAMES_MEDIA_TYPE

    def __init__(self, frames: Sequence[RawFrame], headers: Mapping[str, str]) -> None:
        self._runs = list(_runs(frames))
        length = sum(map(len, self._runs))
        super().__init__(headers={**headers, "Content-Length": str(length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for chunk in _chunks(self._runs):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class LargeEntryResponse(Response):
    """One frame above `ANSWER_BYTES`; `read_part` reads bytes of it again, from one offset in it up to another."""

    media_type = FRAMES_MEDIA_TYPE

    def __init__(
        self, frame: RawFrame, read_part: Callable[[int, int], Awaitable[memoryview]], headers: Mapping[str, str]
    ) -> None:
        self._read_part = read_part
        self._sums = [crc32(chunk) for chunk in _pieces(frame.data, CHUNK_BYTES)]
        self._length = len(frame.data)
        self._position = frame.position
        super().__init__(headers={**headers, "Content-Length": str(self._length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for number in range(len(self._sums)):
            try:
                chunk = await self._chunk(number)
            except (LedgerError, MetastoreError, errors.MetatxnError) as error:
                log.warning("answer cut off", entry=str(self._position), reason=str(error))
                return  # an answer that is left unfinished ends the connection
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunk(self, number: int) -> memoryview:
        start = number * CHUNK_BYTES
        chunk = await self._read_part(start, min(start + CHUNK_BYTES, self._length))
        if crc32(chunk) != self._sums[number]:
            raise LedgerCorrupt(f"entry {self._position} was whole a moment ago, and is damaged now")
        return chunk


def _runs(frames: Sequence[RawFrame]) -> Iterator[memoryview]:
    """Frames that lie next to each other, in one view."""
    if not frames:
        return
    first = last = frames[0]
    for frame in frames[1:]:
        if frame.buffer is not last.buffer or frame.start != last.end:
            yield first.buffer[first.start : last.end]
            first = frame
        last = frame
    yield first.buffer[first.start : last.end]


def _chunks(runs: Iterable[memoryview]) -> Iterator[bytes | memoryview]:
    """Small runs together, large ones in pieces."""
    small: list[memoryview] = []
    size = 0
    for run in runs:
        large = len(run) > SMALL_BYTES
        if small and (large or size + len(run) > CHUNK_BYTES):
            yield b"".join(small)
            small, size = [], 0
        if large:
            count = -(-len(run) // CHUNK_BYTES)
            yield from _pieces(run, -(-len(run) // count))  # of one size, rather than a last one of a few bytes
        else:
            small.append(run)
            size += len(run)
    if small:
        yield b"".join(small)


def _pieces(view: memoryview, size: int) -> Iterator[memoryview]:
    return (view[start : start + size] for start in range(0, len(view), size))
