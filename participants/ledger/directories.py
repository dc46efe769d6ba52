"""The names of the directories of segments, in every storage."""

from __future__ import annotations

import hashlib

from metastore import keys

_NAME_BYTES = 200  # file systems allow 255


def segment_directory(segment: str) -> str:
    """A directory name for any segment name. No two segments share one.

    A name that is too long for a file system is cut, and its hash is appended. The result is longer than any name that
    is not cut, so it differs from all of those.
    """
    escaped = keys.escape(segment)
    if len(escaped) <= _NAME_BYTES:
        return escaped
    return f"{escaped[: _NAME_BYTES - 50]}~{hashlib.sha256(segment.encode()).hexdigest()}"


def segment_of(directory: str) -> str | None:
    """The segment whose directory this is, or None if its name was cut."""
    return keys.unescape(directory) if len(directory) <= _NAME_BYTES else None
