"""Numbers and ids as people say them, on the command line and in the console."""

from __future__ import annotations

import re

MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""The units of durations."""
_LENGTH = re.compile(r"([0-9]{1,12})(ms|[smhd])", re.ASCII)


def duration(ms: int) -> str:
    """A duration in its two largest units, as people say it: `3d 4h`, `15m 2s`, `8s`."""
    seconds = ms // 1000
    parts = {"d": seconds // 86_400, "h": seconds // 3_600 % 24, "m": seconds // 60 % 60, "s": seconds % 60}
    said = [f"{count}{unit}" for unit, count in parts.items() if count][:2]
    return " ".join(said) or "0s"


def parsed_duration(text: str) -> int:
    """The time in a duration such as `500ms`, `90s`, `15m`, `1h` or `2d`. Raises `ValueError` for any other text."""
    if (found := _LENGTH.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 90s, 15m, 1h or 2d")
    return int(found[1]) * MILLISECONDS[found[2]]


def short_id(txn_id: str) -> str:
    """A transaction id without its leading zeros, as commands accept it."""
    return txn_id.lstrip("0") or "0"


def size_text(size_bytes: int) -> str:
    """A size as people say it: `17 B`, `4.2 KiB`, `1.0 GiB`."""
    units = ["KiB", "MiB", "GiB", "TiB", "PiB"]
    if size_bytes < 1024:
        return f"{size_bytes} B"
    number = size_bytes / 1024
    while number >= 1024 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{number:.1f} {units[0]}"


def count_text(number: float) -> str:
    """A number of things as people say it: `4.2`, `9,999`, `12.3k`, `4.2M`."""
    if number < 10_000:
        return f"{number:,.0f}" if number == int(number) or number >= 100 else f"{number:.1f}"
    units = "kMGT"
    power = next((power for power, _ in enumerate(units, 1) if number < 1_000 ** (power + 1)), len(units))
    return f"{number / 1_000**power:.1f}{units[power - 1]}"
