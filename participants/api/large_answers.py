"""Large answers in JSON, sent as the reader takes them.

A reader that takes nothing keeps what it was to be given. Of that no more than `IN_MEMORY_BYTES` waits in memory: what
is larger, with a message that is large by itself, waits in a temporary file, as behind a proxy that buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any, BinaryIO

import structlog
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from metatxn.service.strict import StrictRoute

IN_MEMORY_BYTES = 6 << 20
"""More than any answer of several messages comes to."""
CHUNK_BYTES = 1 << 20
"""What is given to the connection at once, which makes a copy of it."""

log = structlog.get_logger()


class LargeAnswerRoute(StrictRoute):
    """For endpoints that answer with messages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_large(request: Request) -> Response:
            answer = await handle(request)
            return LargeAnswer(answer) if len(answer.body) > CHUNK_BYTES else answer

        return handle_large


class LargeAnswer(Response):
    """Takes the body of `answer` away from it."""

    def __init__(self, answer: Response) -> None:
        self.status_code = answer.status_code
        self.raw_headers = answer.raw_headers
        self.body, answer.body = answer.body, b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        content: BinaryIO = io.BytesIO(self.body)
        is_large = len(self.body) > IN_MEMORY_BYTES
        self.body = b""
        if is_large:
            content = await asyncio.to_thread(_moved_to_disk, content)
        with content:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while chunk := content.read(CHUNK_BYTES):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _moved_to_disk(content: BinaryIO) -> BinaryIO:
    """The same from its start, in a file; in memory still when there is no room for that."""
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(content, file, CHUNK_BYTES)
            file.seek(0)
            stack.pop_all()
    except OSError as error:
        log.warning("a large answer waits in memory, not in a temporary file", error=str(error))
        content.seek(0)
        return content
    content.close()
    return file
