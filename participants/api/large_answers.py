"""Large JSON answers, which are sent as fast as the reader accepts them.

An answer that is not accepted must be kept. At most `IN_MEMORY_BYTES` of it are kept in memory: a larger answer, such
as one with a very large message, is kept in a temporary file, as by a proxy that buffers.
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
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from metatxn.service.strict import StrictRoute

IN_MEMORY_BYTES = 6 << 20
"""Larger than any answer that contains several messages."""
CHUNK_BYTES = 1 << 20
"""The most bytes that are passed to the connection at once, which copies them."""

log = structlog.get_logger()


class LargeAnswerRoute(StrictRoute):
    """A route for endpoints that return messages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_large(request: Request) -> Response:
            answer = await handle(request)
            return LargeAnswer(answer) if len(answer.body) > CHUNK_BYTES else answer

        return handle_large


def messages_response(model: BaseModel) -> Response:
    """The answer of an endpoint that returns messages, in which null members stay."""
    answer = Response(model.model_dump_json(), media_type="application/json")
    return LargeAnswer(answer) if len(answer.body) > CHUNK_BYTES else answer


class LargeAnswer(Response):
    """Takes over the body of `answer`."""

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
    """Move the content to a file, positioned at its start. If there is no space for the file, it stays in memory."""
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
