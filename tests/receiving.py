"""A server in this process that takes what is posted to it, such as a collector of traces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Take = Callable[[str, Message, bytes], None]
"""Called with the path, the headers and the body of each request, from any thread."""


@contextmanager
def receiver(take: Take) -> Iterator[str]:
    """Its URL. Every POST is answered with 200."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            take(self.path, self.headers, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
