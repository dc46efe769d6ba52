"""What the directories of segments are called, in every storage."""

from __future__ import annotations

import hashlib

from metastore import keys

_NAME_BYTES = 200  # file systems take 255


def segment_directory(segment: str) -> str:
    """A directory name for any segment name, no two alike.

    A name too long for a file system is cut and gets its hash. The result is longer than any name that is not cut,
    so it can meet none of those.
    """
    escaped = keys.escape(segment)
    if len(escaped) <= _NAME_BYTES:
        return escaped
    return f"{escaped[: _NAME_BYTES - 50]}~{hashlib.sha256(segment.encode()).hexdigest()}"


def segment_of(directory: str) -> str | None:
    """The segment whose directory this is; None when its name was cut."""
    return keys.unescape(directory) if len(directory) <= _NAME_BYTES else None
