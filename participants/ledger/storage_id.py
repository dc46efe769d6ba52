"""`storage.json`: the name that a storage keeps for ever, wherever it is moved to.

    {"format": 1, "storage_id": "<32 hex digits>", "crc32": "<8 hex digits>"}

The sum is that of the id's text: a storage that took a damaged id for its own would leave all its segments unserved,
and call new ones by a name that is gone with the next reading. Files of earlier versions have none.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from metatxn.wire.crc import crc32
from participants.ledger.storage import StorageRefused

FILE_NAME = "storage.json"
_FORMAT = 1


def describe_new() -> bytes:
    """With an id that no storage has."""
    storage_id = uuid.uuid4().hex
    return (json.dumps({"format": _FORMAT, "storage_id": storage_id, "crc32": _sum(storage_id)}) + "\n").encode()


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
    if described.get("crc32", _sum(storage_id)) != _sum(storage_id):
        raise StorageRefused(f"{where} is damaged: the storage id does not match its sum; restore it from a backup")
    return storage_id


def _sum(storage_id: str) -> str:
    return f"{crc32(storage_id.encode()):08x}"


def lost(where: str) -> StorageRefused:
    """A new id would orphan the ledgers that are there: every segment in them names the old one."""
    return StorageRefused(f"{where} is missing although there are ledgers; restore it from a backup")
