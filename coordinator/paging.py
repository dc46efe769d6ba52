"""Page tokens that any coordinator understands, because nothing is remembered between two pages.

    base64url( <list> \n <position of the last row that was examined> )

The list's name is in the token, so that a token cannot be used for another list, where its position means nothing.
"""

from __future__ import annotations

import base64
import binascii
import re

from metatxn.wire.errors import invalid_field

MAX_LIMIT = 1_000
DEFAULT_LIMIT = 100

_TXN_ID = "[0-9a-f]{32}"
POSITIONS = {
    "open": rf"[0-9]{{20}}/{_TXN_ID}",
    "decided": rf"[0-9]{{20}}/{_TXN_ID}",
    "oldest": rf"[0-9]{{20}}/{_TXN_ID}",
    "newest": rf"{_TXN_ID}(,{_TXN_ID})*",
    "latest": rf"[0-9]{{20}}/{_TXN_ID}",
    "all": _TXN_ID,
    "segment": _TXN_ID,
    "ops": r"[^/]+",
    "keys": r"[^/]*&[^/]+",
    "records": r"(?s:.+)",
    "check": r"(?s:.+)",
    "tokens": r"[0-9]{1,9}",
}
"""The lists, and the form of a position in each of them."""


def make_token(listing: str, position: str) -> str:
    assert re.fullmatch(POSITIONS[listing.partition(" ")[0]], position), position
    return base64.urlsafe_b64encode(f"{listing}\n{position}".encode()).decode().rstrip("=")


def position_of(listing: str, token: str | None) -> str:
    """The position at which to continue; "" without a token. Raises INVALID_ARGUMENT for a token that `make_token` did
    not make."""
    if not token:
        return ""
    try:
        padded = token + "=" * (-len(token) % 4)
        name, _, position = base64.b64decode(padded, altchars=b"-_", validate=True).decode().partition("\n")
    except (binascii.Error, ValueError):
        raise invalid_field("page_token", "is not a token of this service") from None
    if name != listing:
        raise invalid_field("page_token", "belongs to another list: send it with the filters that it came from")
    if not re.fullmatch(POSITIONS[listing.partition(" ")[0]], position, re.ASCII):
        raise invalid_field("page_token", "is not a token of this service")
    return position
