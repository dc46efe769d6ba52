"""Proxies as the environment names them: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in either case."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from metatxn.transport.api import BadUrl, Headers
from metatxn.transport.urls import Origin, origin


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy. A request without TLS is given to it whole, with `headers`. With TLS it only passes bytes on."""

    origin: Origin
    headers: Headers


def proxy_for(there: Origin) -> Proxy | None:
    """The proxy for an origin, if any. Raises `BadUrl` if the environment names one that cannot be used."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib import request  # importing it takes 20 ms

    named = request.getproxies_environment()
    url = named.get(there.scheme) or named.get("all")
    if not url or request.proxy_bypass_environment(f"{there.host}:{there.port}"):  # type: ignore[attr-defined]
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        found = origin(parts.scheme, parts.netloc.rpartition("@")[2])
    except BadUrl as error:
        raise BadUrl(f"the proxy for {there.scheme}:// that the environment names: {error}") from None
    if not parts.username:
        return Proxy(found, Headers())
    secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(found, Headers({"Proxy-Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"}))
