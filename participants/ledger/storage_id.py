"""`storage.json` contains the id that a storage keeps forever, wherever it is moved.

    {"format": 1, "storage_id": "<32 hex digits>", "crc32": "<8 hex digits>"}

The checksum is that of the id's text: a storage that accepted a damaged id would not serve any of its segments, and
would record an id for new ones that is lost when the file is read again. Files of earlier versions have no checksum.
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
    """The content of a file with a new id."""
    storage_id = uuid.uuid4().hex
    return (json.dumps({"format": _FORMAT, "storage_id": storage_id, "crc32": _sum(storage_id)}) + "\n").encode()


def parse(where: str, content: bytes) -> str:
    """The id in the file. Raises `StorageRefused`."""
    try:
        described: Any = json.loads(content)
    except (ValueError, RecursionError) as error:  # a RecursionError is for [[[[…
        raise StorageRefused(f"{where} is damaged; restore it from a backup") from error
    found = described.get("format") if isinstance(described, dict) else None
    if isinstance(found, int) and found > _FORMAT:
        raise StorageRefused(f"{where} has format {found}, and this release knows {_FORMAT}: start a later release")
    if found != _FORMAT:
        raise StorageRefused(f"{where} is not of format {_FORMAT}: it is damaged; restore it from a backup")
    storage_id = described.get("storage_id")
    if not isinstance(storage_id, str) or not re.fullmatch(r"[0-9a-f]{32}", storage_id):
        raise StorageRefused(f"{where} contains no storage id")
    if described.get("crc32", _sum(storage_id)) != _sum(storage_id):
        raise StorageRefused(
            f"{where} is damaged: the storage id does not match its checksum; restore it from a backup"
        )
    return storage_id


def _sum(storage_id: str) -> str:
    return f"{crc32(storage_id.encode()):08x}"


def lost(where: str) -> StorageRefused:
    """The error for a missing file. A new id would orphan the existing ledgers, because every segment in them names the
    old one."""
    return StorageRefused(f"{where} is missing, although there are ledgers; restore it from a backup")
