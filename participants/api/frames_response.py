"""The answer to a read of a segment: frames, which are sent as fast as the reader accepts them.

The memory for a slow reader is bounded by `ANSWER_BYTES`, the two objects that such a read may touch in object storage,
and the chunk that waits in the connection. Frames are sent from the buffer that they were read into, so almost nothing
is copied, and nothing is read ahead.

A single entry may be larger than `ANSWER_BYTES`. It is read and checked as a whole before anything is answered, and
then released. While it is sent it is read again, chunk by chunk, and the CRC of each chunk is compared with that of the
first read.
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
"""The most bytes in one answer, whatever was requested; but an answer contains at least one entry. Entries of 1 MiB are
the largest that the client makes of messages, so four of them fit, with their headers."""
CHUNK_BYTES = 1 << 20
"""The most bytes that are passed to the connection at once, of which TLS makes a copy. The next chunk follows when this
one was sent."""
SMALL_BYTES = 64 << 10
"""Up to this size, it is cheaper to copy bytes into a common chunk than to send them alone."""


class FramesResponse(Response):
    """Frames, after `head`."""

    def __init__(
        self,
        frames: Sequence[RawFrame],
        headers: Mapping[str, str],
        head: bytes = b"",
        media_type: str = FRAMES_MEDIA_TYPE,
    ) -> None:
        self.media_type = media_type
        self._runs = [memoryview(head), *_runs(frames)] if head else list(_runs(frames))
        length = sum(map(len, self._runs))
        super().__init__(headers={**headers, "Content-Length": str(length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for chunk in _chunks(self._runs):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class LargeEntryResponse(Response):
    """One frame larger than `ANSWER_BYTES`, after `head`. `read_part` reads its bytes from one offset up to another
    again."""

    def __init__(
        self,
        frame: RawFrame,
        read_part: Callable[[int, int], Awaitable[memoryview]],
        headers: Mapping[str, str],
        head: bytes = b"",
        media_type: str = FRAMES_MEDIA_TYPE,
    ) -> None:
        self.media_type = media_type
        self._head = head
        self._read_part = read_part
        self._sums = [crc32(chunk) for chunk in _pieces(frame.data, CHUNK_BYTES)]
        self._length = len(frame.data)
        self._position = frame.position
        super().__init__(headers={**headers, "Content-Length": str(len(head) + self._length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._head:
            await send({"type": "http.response.body", "body": self._head, "more_body": True})
        for number in range(len(self._sums)):
            try:
                chunk = await self._chunk(number)
            except (LedgerError, MetastoreError, errors.MetatxnError) as error:
                log.warning("answer cut off", entry=str(self._position), reason=str(error))
                return  # an unfinished answer closes the connection
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunk(self, number: int) -> memoryview:
        start = number * CHUNK_BYTES
        chunk = await self._read_part(start, min(start + CHUNK_BYTES, self._length))
        if crc32(chunk) != self._sums[number]:
            raise LedgerCorrupt(f"entry {self._position} was intact when it was first read, and is now damaged")
        return chunk


def _runs(frames: Sequence[RawFrame]) -> Iterator[memoryview]:
    """Neighbouring frames, joined into one view."""
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
    """The chunks to send: small runs are combined, and large ones are divided."""
    small: list[memoryview] = []
    size = 0
    for run in runs:
        large = len(run) > SMALL_BYTES
        if small and (large or size + len(run) > CHUNK_BYTES):
            yield b"".join(small)
            small, size = [], 0
        if large:
            count = -(-len(run) // CHUNK_BYTES)
            yield from _pieces(run, -(-len(run) // count))  # of equal size, instead of a last one of a few bytes
        else:
            small.append(run)
            size += len(run)
    if small:
        yield b"".join(small)


def _pieces(view: memoryview, size: int) -> Iterator[memoryview]:
    return (view[start : start + size] for start in range(0, len(view), size))
