"""What one backup has: the content of `backups/<id>/manifest`, which is written last and makes it complete.

    {"format": 1, "bytes": 812, "crc32": "<8 hex digits>"}     one line, about the next one
    {"id": "20261124T233000Z", "revision": 4711, …}

Everything that it names is an object of its own that never changes, with its size and CRC.
"""

from __future__ import annotations

import json
from typing import Any, Self

from metastore.txn.records.json_record import JsonRecord
from metatxn.wire.crc import crc32

FORMAT = 1


class BackupDamaged(Exception):
    """A part of a backup is not what was written. The backup must not be used."""


class BackupTooNew(Exception):
    """A later release has made the backup, in a format that this one does not know."""


class Chunk(JsonRecord):
    """The frames of the entries from `first` up to but not including `end`, byte for byte, one after another. `backup`
    is the one that has copied them; later ones use them, too."""

    first: int
    end: int
    bytes: int
    crc32: str
    backup: str = ""


class LedgerCopy(JsonRecord):
    """A ledger as far as it was copied. `entries` is how many it has, with those that were left out of its form.

    `settled` of them can never change any more: a later backup uses their chunks again. The entries from `judged_from`
    on may be of transactions that have begun after the revision of the backup (see `participants.backup.cut`).
    `hidden` is the generation of its index of hidden entries, with the CRC of its copy and the backup that made it.
    """

    storage: str
    segment: str
    ledger: int
    form: tuple[int, int] | None = None
    entries: int
    settled: int
    judged_from: int
    hidden: int | None = None
    hidden_crc32: str | None = None
    hidden_backup: str = ""
    chunks: tuple[Chunk, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks)


class RecordPage(JsonRecord):
    """An object with some of the records, in the order of their keys."""

    records: int
    bytes: int
    crc32: str


class Manifest(JsonRecord):
    """A backup: the records of the store at `revision`, and all ledgers that they name. `version` is the cluster
    version, and `release` the one that made the backup. `copied_bytes` of the ledgers were not in an earlier backup."""

    id: str
    incarnation: str
    revision: int
    version: int
    release: str
    begun_ms: int
    finished_ms: int
    copied_bytes: int
    pages: tuple[RecordPage, ...]
    ledgers: tuple[LedgerCopy, ...]

    @property
    def records(self) -> int:
        return sum(page.records for page in self.pages)

    @property
    def ledger_bytes(self) -> int:
        return sum(ledger.size_bytes for ledger in self.ledgers)

    @property
    def record_bytes(self) -> int:
        return sum(page.bytes for page in self.pages)

    def to_bytes(self) -> bytes:
        body = self.encode()
        return described(body) + body

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> Self:
        """The content of a manifest. Raises `BackupDamaged`, `BackupTooNew`."""
        head, _, body = content.partition(b"\n")
        try:
            known: Any = json.loads(head)
            if known["format"] != FORMAT:
                raise BackupTooNew(f"{where} has format {known['format']}, and this release knows {FORMAT}")
            if (known["bytes"], known["crc32"]) == (len(body), sum_of(body)):
                return cls.decode(body)
        except (ValueError, LookupError, TypeError) as error:
            raise BackupDamaged(f"{where} is damaged: {error}") from error
        raise BackupDamaged(f"{where} is damaged: it does not match its CRC")


def described(body: bytes) -> bytes:
    return json.dumps({"format": FORMAT, "bytes": len(body), "crc32": sum_of(body)}).encode() + b"\n"


def sum_of(content: bytes | memoryview) -> str:
    return f"{crc32(content):08x}"
