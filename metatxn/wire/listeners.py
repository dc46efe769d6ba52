"""The addresses of a service: one for other services, and one for each listener that clients elsewhere use.

Behind Docker or Kubernetes a service is reached at another address from outside than from inside. Each service
announces all of its addresses, and answers a client with those of the listener that the client uses: the one that the
client names, or else the one whose address it has used (`Host`). A service that has no address of that name is shown
with its `url`. Among each other, services use only the `url`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from metatxn.wire.names import LISTENER_NAME

LISTENER_HEADER = "Metatxn-Listener"
_PORTS = {"http": 80, "https": 443}
_FORM = "Give URL, or NAME=URL for a listener, with a URL such as http://broker-1:8471"


@dataclass(frozen=True, slots=True)
class Listeners:
    """What one service announces: its `url`, if that is given, and the URL of each listener by name."""

    url: str | None = None
    named: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Iterable[str]) -> Listeners:
        """The listeners given as `URL` and `NAME=URL`. Raises `ValueError`, with what to give instead."""
        url: str | None = None
        named: dict[str, str] = {}
        for text in given:
            name, _, address = ("", "", text) if text.startswith(("http://", "https://")) else text.partition("=")
            if not _is_url(address) or not (address is text or re.fullmatch(LISTENER_NAME, name)):
                raise ValueError(f"{text!r} is not the address of a service. {_FORM}")
            if name in named or (not name and url is not None):
                raise ValueError(f"{text!r} is the second address of {f'listener {name}' if name else 'the service'}")
            if name:
                named[name] = address.rstrip("/")
            else:
                url = address.rstrip("/")
        return cls(url, named)

    def used_by(self, named: str | None, host: str) -> str | None:
        """The listener of a request that names this one and has this `Host`. None if it came in any other way."""
        if named is not None:
            return named
        return next((name for name, url in self.named.items() if _is_at(host, url)), None)


def address_for(listener: str | None, url: str, named: Mapping[str, str] | None) -> str:
    """Where a client of this listener reaches a service that has announced these."""
    return (named or {}).get(listener or "", url)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in _PORTS and bool(parts.hostname) and (parts.port or 1) > 0 and "@" not in parts.netloc
    except ValueError:
        return False


def _is_at(host: str, url: str) -> bool:
    """Whether `Host` says that the request was sent to this URL. A proxy may have taken TLS away, so the usual port is
    that of the URL."""
    try:
        sent, there = urlsplit(f"//{host}"), urlsplit(url)
        usual = _PORTS[there.scheme]
        return sent.hostname == there.hostname and (sent.port or usual) == (there.port or usual)
    except ValueError:
        return False
