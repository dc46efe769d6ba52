"""Where backups are kept: an object store, or a directory.

    <prefix of the URL>/
        backups/<id>/begun                        the name of the backup is taken
        backups/<id>/records.<n>                  the records of the store, in the order of their keys
        backups/<id>/manifest                     what the backup has; it counts once this is there
        ledgers/<storage>/<escaped segment>/<ledger>[.<form>]/<first>-<end>-<crc>.<id>       frames that it has copied
        ledgers/<storage>/<escaped segment>/<ledger>[.<form>]/hidden.<generation>.<id>       an index of hidden entries

Each object is synced before one that names it is written: what a complete backup names survives a power failure.

No object changes, later backups use the objects of earlier ones, and no name is ever used twice. So two backups that
run at the same time do no harm to each other, and what was pruned does not come back under its old name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from participants.backup.manifest import BackupDamaged, Chunk, LedgerCopy, Manifest, sum_of
from participants.ledger.bucket import Bucket
from participants.ledger.directories import segment_directory
from participants.ledger.storage import StorageFailed

_BACKUPS = "backups"
_LEDGERS = "ledgers"
MANIFEST = "manifest"
_BEGUN = "begun"
_DELETED_AT_ONCE = 32
_ID = re.compile(r"\d{8}T\d{9}Z", re.ASCII)


class NoSuchBackup(Exception):
    """There is no complete backup with this name, or none at all."""


class BackupPlace:
    """The place of backups. Everything raises `StorageFailed` of the object store."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    # -- backups -------------------------------------------------------------------------------------------------

    async def ids(self) -> list[str]:
        """The complete backups, oldest first."""
        names = [name.split("/") for name in await self._bucket.sizes(_BACKUPS)]
        return sorted(name[1] for name in names if name[2:] == [MANIFEST] and begun_ms(name[1]) is not None)

    async def manifest(self, backup: str | None = None) -> Manifest:
        """The manifest of the latest backup, or of this one. Raises `NoSuchBackup`, `BackupDamaged`, `BackupTooNew`."""
        if backup is None:
            ids = await self.ids()
            if not ids:
                raise NoSuchBackup("there is no backup here")
            backup = ids[-1]
        name = f"{_BACKUPS}/{backup}/{MANIFEST}"
        try:
            found = Manifest.from_bytes(await self._bucket.get(name), name)
        except FileNotFoundError:
            raise NoSuchBackup(f"there is no backup {backup} here") from None
        if found.id != backup:
            raise BackupDamaged(f"{name} is that of backup {found.id}")
        return found

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

    async def begin(self, backup: str) -> bool:
        """Take the name of a new backup; False if another one with this name was begun."""
        name = f"{_BACKUPS}/{backup}/{_BEGUN}"
        try:
            await self._bucket.create(name, b"")
        except FileExistsError:
            return False
        await self._bucket.sync(name)
        return True

    # -- pruning -------------------------------------------------------------------------------------------------

    async def objects(self) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
        """The objects of each backup that was begun, and those that each has copied of ledgers; with their sizes."""
        own: dict[str, dict[str, int]] = {}
        for name, size in (await self._bucket.sizes(_BACKUPS)).items():
            backup = name.removeprefix(f"{_BACKUPS}/").partition("/")[0]
            if begun_ms(backup) is not None:
                own.setdefault(backup, {})[name] = size
        copied: dict[str, dict[str, int]] = {}
        for name, size in (await self._bucket.sizes(_LEDGERS)).items():
            backup = name.rpartition(".")[2]
            if begun_ms(backup) is not None:
                copied.setdefault(backup, {})[name] = size
        return own, copied

    async def withdraw(self, backup: str) -> None:
        """The backup does not count any more, also after a power failure."""
        await self._bucket.delete([f"{_BACKUPS}/{backup}/{MANIFEST}"])
        await self._bucket.sync(f"{_BACKUPS}/{backup}")

    async def delete(
        self, names: Sequence[str], progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        for done in range(0, len(names), _DELETED_AT_ONCE):
            progress(done, len(names))
            some = names[done : done + _DELETED_AT_ONCE]
            await asyncio.gather(*(self._bucket.delete([name]) for name in some))

    # -- records -------------------------------------------------------------------------------------------------

    async def put_page(self, backup: str, number: int, content: bytes) -> str:
        """Returns the name of the object."""
        return await self._put(_page_name(backup, number), content)

    async def page(self, manifest: Manifest, number: int) -> bytes:
        """Raises `BackupDamaged`."""
        page = manifest.pages[number]
        return await self._checked(_page_name(manifest.id, number), page.bytes, page.crc32)

    # -- ledgers -------------------------------------------------------------------------------------------------

    async def put_chunk(self, ledger: LedgerCopy, chunk: Chunk, content: memoryview) -> str:
        """Returns the name of the object."""
        return await self._put(_chunk_name(ledger, chunk), content)

    async def chunk(self, ledger: LedgerCopy, chunk: Chunk) -> bytes:
        """Raises `BackupDamaged`."""
        return await self._checked(_chunk_name(ledger, chunk), chunk.bytes, chunk.crc32)

    async def put_hidden(self, ledger: LedgerCopy, content: bytes) -> str:
        """Returns the name of the object."""
        return await self._put(_hidden_name(ledger), content)

    async def hidden(self, ledger: LedgerCopy) -> bytes:
        """Raises `BackupDamaged`."""
        return await self._checked(_hidden_name(ledger), None, ledger.hidden_crc32)

    async def _put(self, name: str, content: bytes | memoryview) -> str:
        await self._bucket.put(name, content)
        await self._bucket.sync(name)
        return name

    async def _checked(self, name: str, size: int | None, crc: str | None) -> bytes:
        try:
            content = await self._bucket.get(name)
        except FileNotFoundError:
            raise BackupDamaged(f"{name} is missing") from None
        if sum_of(content) != crc or size not in (None, len(content)):
            raise BackupDamaged(f"{name} is not what was written")
        return content


def begun_ms(backup: str) -> int | None:
    """The time in the name of a backup; None if this is no such name."""
    try:
        at = datetime.strptime(backup, "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC) if _ID.fullmatch(backup) else None
    except ValueError:
        return None
    return round(at.timestamp() * 1000) if at is not None else None


def names_in(manifest: Manifest) -> Iterator[str]:
    """The objects that a backup has besides its manifest."""
    yield from (_page_name(manifest.id, number) for number in range(len(manifest.pages)))
    for ledger in manifest.ledgers:
        yield from (_chunk_name(ledger, chunk) for chunk in ledger.chunks)
        if ledger.hidden:
            yield _hidden_name(ledger)


def names_a_backup(name: str) -> bool:
    """Whether the name of an object tells whose it is. Copies from before 2026-11-28 do not; none of them is pruned."""
    return name.startswith(f"{_BACKUPS}/") or begun_ms(name.rpartition(".")[2]) is not None


def _page_name(backup: str, number: int) -> str:
    return f"{_BACKUPS}/{backup}/records.{number}"


def _ledger_name(ledger: LedgerCopy) -> str:
    form = f".{ledger.form[0]}.{ledger.form[1]}" if ledger.form is not None else ""
    return f"{_LEDGERS}/{ledger.storage}/{segment_directory(ledger.segment)}/{ledger.ledger}{form}"


def _chunk_name(ledger: LedgerCopy, chunk: Chunk) -> str:
    return f"{_ledger_name(ledger)}/{chunk.first}-{chunk.end}-{chunk.crc32}{_of(chunk.backup)}"


def _hidden_name(ledger: LedgerCopy) -> str:
    return f"{_ledger_name(ledger)}/hidden.{ledger.hidden}{_of(ledger.hidden_backup)}"


def _of(backup: str) -> str:
    """The end of the name of a copy; empty for one from before 2026-11-28."""
    return f".{backup}" if backup else ""
