"""One connection to a service, which carries one request at a time.

usable ──send──▶ waiting ──a whole answer──▶ usable again, unless one of the two ends says otherwise
                    └──lost, time is over, cancelled, nonsense──▶ closed
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from metatxn.transport.api import Answer, NoAnswer, Request
from metatxn.transport.reading import AnswerReader

_ONE_BUFFER_BYTES = 64 * 1024
"""Up to this size a copy costs less than a second buffer."""


class HttpConnection(asyncio.BufferedProtocol):
    """A connection. `on_lost` is called once, when nothing can be sent any more."""

    def __init__(self, on_lost: Callable[[HttpConnection], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._reader = AnswerReader()
        self._answered: asyncio.Future[None] | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        return self._transport is not None and self._answered is None and not self._transport.is_closing()

    async def send(self, request: Request, head: bytes) -> Answer:
        """Write the request at once, and wait for its answer. Raises `NoAnswer`; then, and when it is cancelled, the
        connection can no longer be used: the answer may still come."""
        assert self.usable and self._transport is not None
        loop, transport, reader = asyncio.get_running_loop(), self._transport, self._reader
        answered = self._answered = loop.create_future()
        end = min(request.end, loop.time() + request.answer_s)
        timer = loop.call_at(end, self.fail, "no answer in time")
        try:
            if request.body and len(request.body) > _ONE_BUFFER_BYTES:
                transport.writelines([head, request.body])
            else:
                transport.write(head + request.body if request.body else head)
            await answered
        except BaseException:
            self.abort()
            raise
        finally:
            timer.cancel()
            self._answered = None
        answer = Answer(request.method, request.url, reader.status, reader.headers, reader.body)
        if not reader.reusable or transport.get_write_buffer_size():
            self.abort()
        reader.forget()
        return answer

    def fail(self, why: str, cause: BaseException | None = None) -> None:
        """Give up the connection, and the request that waits for its answer if there is one."""
        if self._answered is not None and not self._answered.done():
            error = NoAnswer(why)
            error.__cause__ = cause
            self._answered.set_exception(error)
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- called by the event loop ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is one without being of the class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.room

    def buffer_updated(self, nbytes: int) -> None:
        if self._answered is None or self._answered.done():
            self.abort()  # nothing was asked
            return
        try:
            self._reader.received(nbytes)
        except ValueError as error:
            self.fail(str(error), error)
            return
        if self._reader.complete:
            self._answered.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answered is not None and not self._answered.done() and error is None:
            self._reader.connection_ended()
            if self._reader.complete:
                self._answered.set_result(None)
        self.fail(f"the connection was lost: {error}" if error else "the connection ended without an answer", error)
        self._on_lost(self)
        if not self.lost.done():
            self.lost.set_result(None)
