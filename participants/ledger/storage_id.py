"""`storage.json`: the name that a storage keeps for ever, wherever it is moved to."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from participants.ledger.storage import StorageRefused

FILE_NAME = "storage.json"
_FORMAT = 1


def describe_new() -> bytes:
    """`{"format": 1, "storage_id": "<32 hex digits>"}`, with an id that no storage has."""
    return (json.dumps({"format": _FORMAT, "storage_id": uuid.uuid4().hex}) + "\n").encode()


def parse(where: str, content: bytes) -> str:
    """The id. Raises `StorageRefused`."""
    try:
        described: Any = json.loads(content)
    except (ValueError, RecursionError) as error:  # the latter: [[[[…
        raise StorageRefused(f"{where} is damaged; restore it from a backup") from error
    if not isinstance(described, dict) or described.get("format") != _FORMAT:
        raise StorageRefused(f"{where} is not of format {_FORMAT}")
    storage_id = described.get("storage_id")
    if not isinstance(storage_id, str) or not re.fullmatch(r"[0-9a-f]{32}", storage_id):
        raise StorageRefused(f"{where} names no storage id")
    return storage_id


def lost(where: str) -> StorageRefused:
    """A new id would orphan the ledgers that are there: every segment in them names the old one."""
    return StorageRefused(f"{where} is missing although there are ledgers; restore it from a backup")
