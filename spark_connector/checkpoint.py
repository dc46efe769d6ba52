"""What Spark records in a query's checkpoint, on a local disk or in a file system that Arrow knows by its URI."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.fs as pafs


def read(checkpoint: str, name: str) -> str:
    """The text of one of the checkpoint's files. Raises `OSError`, whose message contains the whole path."""
    path = f"{checkpoint.rstrip('/')}/{name}"
    try:
        if "://" not in path and not path.startswith("file:"):
            return Path(path).read_text()
        system, inside = pafs.FileSystem.from_uri(path.replace("s3a://", "s3://", 1))
        with system.open_input_stream(inside) as stream:
            return stream.read().decode()
    except (OSError, ValueError) as error:
        raise OSError(f"{path}: {error}") from error


def query_id(checkpoint: str) -> str | None:
    """The id of the query that has this checkpoint, or None if it cannot be read."""
    try:
        said = json.loads(read(checkpoint, "metadata"))
    except (OSError, ValueError):
        return None
    return str(said["id"]) if isinstance(said, dict) and "id" in said else None
