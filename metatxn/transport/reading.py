"""The answers that come over one connection, one after the other."""

from __future__ import annotations

import httptools

_RECEIVED_AT_ONCE_BYTES = 32 * 1024
_LONGEST_AHEAD_BYTES = 64 * 1024 * 1024
"""Above this size an answer gets memory as it arrives, whatever length it announces."""


class AnswerReader:
    """The answer as it is known so far. What is received is put into `room`, and then counted with `received`; after
    `complete`, `forget` makes room for the next answer.

    A long body is received into the memory in which it stays: nothing copies it, and the parser does not see it.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._buffer = memoryview(bytearray(_RECEIVED_AT_ONCE_BYTES))
        self.forget()

    def forget(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False
        self.reusable = False
        """Whether the connection can carry another request."""
        self._started = False
        self._body_end: int | None = None
        """The length of the body, when its rest is received into it."""
        self._filled = 0

    @property
    def room(self) -> memoryview:
        if self._body_end is None:
            return self._buffer
        return memoryview(self.body)[self._filled :]

    def received(self, count: int) -> None:
        """This many bytes of `room` were received. Raises `ValueError` if they are not HTTP/1.1."""
        if self._body_end is None:
            self._parse(self._buffer[:count])
            return
        self._filled += count
        if self._filled == self._body_end:
            self._body_end = None
            self._parser = httptools.HttpResponseParser(self)  # the last one waits for the body
            self.complete = True

    def _parse(self, data: memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self.complete:
                raise ValueError(f"the answer is not HTTP/1.1: {error or type(error).__name__}") from error
        if self._started and not self.complete:
            self._reserve()

    def _reserve(self) -> None:
        """Reserve memory: the rest of a body whose length is known is received into it."""
        length = self.headers.get("content-length", "")
        if "transfer-encoding" in self.headers or not length.isdigit() or int(length) > _LONGEST_AHEAD_BYTES:
            return
        begun, self.body = self.body, bytearray(int(length))
        self._filled, self._body_end = len(begun), len(self.body)
        self.body[: self._filled] = begun
        self.reusable = self._parser.should_keep_alive()

    def connection_ended(self) -> None:
        """An answer that has no length is whole when the service ends the connection (RFC 9112, 6.3)."""
        if self._started and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self.complete = True

    # -- called by the parser ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("more than one answer")
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        known, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[known] = f"{self.headers[known]}, {text}" if known in self.headers else text

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._started = self.status >= 200  # what comes before is about the way, and the answer follows

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        if self._started:
            self.reusable = self._parser.should_keep_alive()
            self.complete = True
