"""The answers that come over one connection, one after the other."""

from __future__ import annotations

import httptools


class AnswerReader:
    """The answer as it is known so far. `feed` it with what was received; after `complete`, `forget` makes room for the
    next."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self.forget()

    def forget(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.complete = False
        self.reusable = False
        """The connection can carry another request."""
        self._started = False
        self._chunks.clear()

    def feed(self, data: bytes) -> None:
        """Raises `ValueError` if it is not HTTP/1.1."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self.complete:
                raise ValueError(f"the answer is not HTTP/1.1: {error or type(error).__name__}") from error

    def connection_ended(self) -> None:
        """An answer that has no length is whole when the service ends the connection (RFC 9112, 6.3)."""
        if self._started and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._end()

    def _end(self) -> None:
        self.body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
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
        self._chunks.append(data)

    def on_message_complete(self) -> None:
        if self._started:
            self.reusable = self._parser.should_keep_alive()
            self._end()
