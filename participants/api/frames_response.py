"""The answer to a read of a segment: frames, sent as the reader takes them.

What a slow reader costs is bounded by `ANSWER_BYTES` (or the one entry, when that is larger), the two objects that such
a read may cut in object storage, and the chunk that waits in the connection. Nothing is joined to one body, and nothing
is read ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from participants.api.models import FRAMES_MEDIA_TYPE

ANSWER_BYTES = 4 << 20
"""What one answer holds at most, however much was asked for, but at least one entry."""
CHUNK_BYTES = 1 << 20
"""What is given to the connection at once. It takes the next one when this one is on its way."""


class FramesResponse(Response):
    media_type = FRAMES_MEDIA_TYPE

    def __init__(self, frames: Sequence[memoryview], headers: Mapping[str, str]) -> None:
        self._frames = frames
        length = sum(map(len, frames))
        super().__init__(headers={**headers, "Content-Length": str(length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for chunk in _chunks(self._frames):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _chunks(frames: Sequence[memoryview]) -> Iterator[bytes | memoryview]:
    """Small frames together, large ones in pieces: what is copied is no more than a chunk."""
    small: list[memoryview] = []
    size = 0
    for frame in frames:
        if size + len(frame) > CHUNK_BYTES and small:
            yield b"".join(small)
            small, size = [], 0
        if pieces := len(frame) // CHUNK_BYTES:
            step = -(-len(frame) // pieces)  # pieces of one size, rather than a last one of a few bytes
            yield from (frame[start : start + step] for start in range(0, len(frame), step))
        else:
            small.append(frame)
            size += len(frame)
    if small:
        yield b"".join(small)
