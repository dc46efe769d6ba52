"""When the certificate of a service expires."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

WITHIN_S = 3.0


def expires_at(url: str, ca: str | None) -> float | None:
    """When the certificate at `url` expires, in seconds since 1970; None if that cannot be determined now."""
    place = urlsplit(url)
    try:
        context = ssl.create_default_context(cafile=ca)
        with (
            socket.create_connection((place.hostname or "", place.port or 443), WITHIN_S) as connected,
            context.wrap_socket(connected, server_hostname=place.hostname) as secured,
        ):
            ends = (secured.getpeercert() or {}).get("notAfter")
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        return None
    return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else None
