"""Places in a segment, `ledger:entry`: the position up to which it was read. Entry -1 is the position before the first
entry of a ledger."""

from __future__ import annotations

import re

_PLACE = re.compile(r"(?:0|[1-9][0-9]{0,18}):(?:-1|0|[1-9][0-9]{0,18})", re.ASCII)


def is_place(text: str) -> bool:
    return _PLACE.fullmatch(text) is not None


def before(position: str) -> str:
    """The place from which reading begins with the entry at `position`."""
    ledger, entry = order(position)
    return f"{ledger}:{entry - 1}"


def order(place: str) -> tuple[int, int]:
    """The sort key of places in one segment."""
    ledger, entry = place.split(":")
    return int(ledger), int(entry)
