"""The parts of a URL that a request needs."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple
from urllib.parse import urlsplit

from metatxn.transport.api import BadUrl

_PORTS = {"http": 80, "https": 443}
_VISIBLE = re.compile(r"[!-~]*")


class Origin(NamedTuple):
    """The place to connect to. `netloc` is what the `Host` header says."""

    scheme: str
    host: str
    port: int
    netloc: str

    @property
    def tls(self) -> bool:
        return self.scheme == "https"


def split_url(url: str) -> tuple[Origin, str]:
    """The origin, and the target of the request line. Raises `BadUrl`."""
    scheme, _, rest = url.partition("://")
    netloc, slash, path = rest.partition("/")
    if not slash or "?" in netloc or "#" in path:
        parts = urlsplit(url)
        netloc, path = parts.netloc, parts.path.removeprefix("/") + (f"?{parts.query}" if parts.query else "")
    if not _VISIBLE.fullmatch(path):
        raise BadUrl(f"{url!r} holds characters that have to be encoded")
    return origin(scheme, netloc), f"/{path}"


@functools.lru_cache(maxsize=1024)
def origin(scheme: str, netloc: str) -> Origin:
    """The origin of these parts. Raises `BadUrl`."""
    try:
        parts = urlsplit(f"{scheme}://{netloc}")
        scheme, host, port = parts.scheme, parts.hostname, parts.port
        usual = _PORTS[scheme]
        ascii_host = "" if host is None else host.encode("idna" if not host.isascii() else "ascii").decode()
    except (KeyError, ValueError) as error:  # UnicodeError is a ValueError
        raise BadUrl(f"{scheme}://{netloc} is not an HTTP URL with a host and a port") from error
    if not ascii_host or not _VISIBLE.fullmatch(ascii_host) or parts.path or parts.query:
        raise BadUrl(f"{scheme}://{netloc} is not an HTTP URL with a host and a port")
    shown = f"[{ascii_host}]" if ":" in ascii_host else ascii_host
    return Origin(scheme, ascii_host, port or usual, shown if port in (None, usual) else f"{shown}:{port}")
