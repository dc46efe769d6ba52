"""Where backups are kept: an object store, or a directory.

    <prefix of the URL>/
        backups/<id>/manifest                     what the backup has; it counts once this is there
        backups/<id>/records.<n>                  the records of the store, in the order of their keys
        ledgers/<storage>/<escaped segment>/<ledger>[.<form>]/<first>-<end>-<crc>     frames, for all backups
        ledgers/<storage>/<escaped segment>/<ledger>[.<form>]/hidden.<generation>     an index of hidden entries

Each object is synced before one that names it is written: what a complete backup names survives a power failure.

No object changes, and an object with another content has another name. So several backups use the same ones, and two
that run at the same time do no harm to each other.
"""

from __future__ import annotations

from participants.backup.manifest import BackupDamaged, Chunk, LedgerCopy, Manifest, sum_of
from participants.ledger.bucket import Bucket
from participants.ledger.directories import segment_directory
from participants.ledger.storage import StorageFailed

_BACKUPS = "backups"
MANIFEST = "manifest"


class NoSuchBackup(Exception):
    """There is no complete backup with this name, or none at all."""


class BackupPlace:
    """The place of backups. Everything raises `StorageFailed` of the object store."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    # -- backups -------------------------------------------------------------------------------------------------

    async def ids(self) -> list[str]:
        """The complete backups, oldest first."""
        names = await self._bucket.sizes(_BACKUPS)
        return sorted(name.split("/")[1] for name in names if name.endswith(f"/{MANIFEST}"))

    async def manifest(self, backup: str | None = None) -> Manifest:
        """The manifest of the latest backup, or of this one. Raises `NoSuchBackup`, `BackupDamaged`, `BackupTooNew`."""
        if backup is None:
            ids = await self.ids()
            if not ids:
                raise NoSuchBackup("there is no backup here")
            backup = ids[-1]
        name = f"{_BACKUPS}/{backup}/{MANIFEST}"
        try:
            return Manifest.from_bytes(await self._bucket.get(name), name)
        except FileNotFoundError:
            raise NoSuchBackup(f"there is no backup {backup} here") from None

    async def complete(self, manifest: Manifest) -> None:
        """Make the backup count from now on. Raises `FileExistsError` if there is another one with this name.

        If the answer is lost, or the library has repeated the put, the manifest that is there is this one.
        """
        name, content = f"{_BACKUPS}/{manifest.id}/{MANIFEST}", manifest.to_bytes()
        try:
            await self._bucket.create(name, content)
        except (FileExistsError, StorageFailed):
            if not await self._is_there(name, content):
                raise
        await self._bucket.sync(name)

    async def _is_there(self, name: str, content: bytes) -> bool:
        try:
            return await self._bucket.get(name) == content
        except (FileNotFoundError, StorageFailed):
            return False

    # -- records -------------------------------------------------------------------------------------------------

    async def begin(self, backup: str, first_page: bytes) -> bool:
        """Put the first page of a new backup; False if another one with this name was begun."""
        name = f"{_BACKUPS}/{backup}/records.0"
        try:
            await self._bucket.create(name, first_page)
        except FileExistsError:
            return False
        await self._bucket.sync(name)
        return True

    async def put_page(self, backup: str, number: int, content: bytes) -> None:
        await self._put(f"{_BACKUPS}/{backup}/records.{number}", content)

    async def page(self, manifest: Manifest, number: int) -> bytes:
        """Raises `BackupDamaged`."""
        page = manifest.pages[number]
        return await self._checked(f"{_BACKUPS}/{manifest.id}/records.{number}", page.bytes, page.crc32)

    # -- ledgers -------------------------------------------------------------------------------------------------

    async def put_chunk(self, ledger: LedgerCopy, chunk: Chunk, content: memoryview) -> None:
        await self._put(_chunk_name(ledger, chunk), content)

    async def chunk(self, ledger: LedgerCopy, chunk: Chunk) -> bytes:
        """Raises `BackupDamaged`."""
        return await self._checked(_chunk_name(ledger, chunk), chunk.bytes, chunk.crc32)

    async def put_hidden(self, ledger: LedgerCopy, content: bytes) -> None:
        await self._put(_hidden_name(ledger), content)

    async def hidden(self, ledger: LedgerCopy) -> bytes:
        """Raises `BackupDamaged`."""
        return await self._checked(_hidden_name(ledger), None, ledger.hidden_crc32)

    async def _put(self, name: str, content: bytes | memoryview) -> None:
        await self._bucket.put(name, content)
        await self._bucket.sync(name)

    async def _checked(self, name: str, size: int | None, crc: str | None) -> bytes:
        try:
            content = await self._bucket.get(name)
        except FileNotFoundError:
            raise BackupDamaged(f"{name} is missing") from None
        if sum_of(content) != crc or size not in (None, len(content)):
            raise BackupDamaged(f"{name} is not what was written")
        return content


def _ledger_name(ledger: LedgerCopy) -> str:
    form = f".{ledger.form[0]}.{ledger.form[1]}" if ledger.form is not None else ""
    return f"ledgers/{ledger.storage}/{segment_directory(ledger.segment)}/{ledger.ledger}{form}"


def _chunk_name(ledger: LedgerCopy, chunk: Chunk) -> str:
    return f"{_ledger_name(ledger)}/{chunk.first}-{chunk.end}-{chunk.crc32}"


def _hidden_name(ledger: LedgerCopy) -> str:
    return f"{_ledger_name(ledger)}/hidden.{ledger.hidden}"
