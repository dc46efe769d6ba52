"""Numbers and ids as people say them, on the command line and in the console."""

from __future__ import annotations


def duration(ms: int) -> str:
    """A duration in its two largest units, as people say it: `3d 4h`, `15m 2s`, `8s`."""
    seconds = ms // 1000
    parts = {"d": seconds // 86_400, "h": seconds // 3_600 % 24, "m": seconds // 60 % 60, "s": seconds % 60}
    said = [f"{count}{unit}" for unit, count in parts.items() if count][:2]
    return " ".join(said) or "0s"


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
