"""Backups for the command line, which opens the places and closes them again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from metastore.api import MetadataStore
from participants.backup import verifying
from participants.backup.copies import read_records
from participants.backup.manifest import BackupDamaged, BackupTooNew, Manifest
from participants.backup.place import BackupPlace, NoSuchBackup
from participants.backup.pruning import Prunable, find_prunable, prune
from participants.backup.restoring import BackupRestorer, is_begun
from participants.backup.taking import BackupTaker
from participants.ledger import storage_id
from participants.ledger.bucket import Bucket
from participants.ledger.local import LocalStorage
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.objects import LEDGERS
from participants.ledger.storage import LedgerStorage

_Progress = Callable[[int, int], None]


class Backups:
    """The backups below a URL. Raises `LedgerError` for a text that is not one, and `NoSuchBackup` for a directory that
    does not exist, unless it is opened `to_write`: then it is made."""

    def __init__(self, url: str, *, to_write: bool = False) -> None:
        if not to_write and _is_no_directory(url):
            raise NoSuchBackup(f"there is no directory {url}")
        self._place = BackupPlace(_bucket(url))

    async def take(
        self, store: MetadataStore, data_dirs: Sequence[Path], urls: Sequence[str], release: str, progress: _Progress
    ) -> dict[str, Any]:
        """Take a backup. Returns what it has, keyed by the names under which it is shown."""
        async with AsyncExitStack() as stack:
            storages = [
                *[await stack.enter_async_context(LocalStorage.open_to_read(path)) for path in data_dirs],
                *[await stack.enter_async_context(await ObjectStorage.open_to_read(_bucket(url))) for url in urls],
            ]
            taker = BackupTaker(store, storages, self._place, _now_ms, release, progress)
            return _shown(await taker.take())

    async def list(self) -> AsyncIterator[dict[str, Any]]:
        """The backups, oldest first; one that is damaged, or of a later release, has a member `problem`."""
        for backup in await self._place.ids():
            try:
                yield _shown(await self._place.manifest(backup))
            except NoSuchBackup:
                continue  # it was pruned meanwhile
            except (BackupDamaged, BackupTooNew) as error:
                yield {"backup": backup, "problem": str(error)}

    async def find_prunable(self, keep: int) -> Prunable:
        """What can be removed if the latest `keep` backups stay. Nothing is changed."""
        return await find_prunable(self._place, keep, _now_ms())

    async def prune(self, prunable: Prunable, progress: _Progress) -> None:
        await prune(self._place, prunable, progress)

    async def problems(self, backup: str | None, progress: _Progress) -> AsyncIterator[str]:
        """What is wrong with a backup, or with the latest one."""
        async for problem in verifying.problems_of(self._place, await self._place.manifest(backup), progress):
            yield problem

    async def restore(
        self,
        backup: str | None,
        store: MetadataStore,
        data_dirs: Sequence[Path],
        urls: Sequence[str],
        keep_open: bool,
        progress: _Progress,
    ) -> dict[str, Any]:
        """Restore a backup. Returns what was done, keyed by the names under which it is shown."""
        manifest = await self._place.manifest(backup)
        async with AsyncExitStack() as stack:
            storages = [
                *[await stack.enter_async_context(LocalStorage.open(path)) for path in data_dirs],
                *[await stack.enter_async_context(await ObjectStorage.open(_bucket(url))) for url in urls],
            ]
            restorer = BackupRestorer(store, storages, self._place, _now_ms, progress)
            done = await restorer.restore(manifest, keep_open=keep_open)
            return {
                "backup": manifest.id,
                "incarnation": done.incarnation,
                "records": done.records,
                "ledgers": done.ledgers,
                "newer entries left out": done.left_out,
                "transactions aborted": done.aborted,
                "transactions prepared": done.prepared,
            }

    async def is_begun(
        self, backup: str | None, store: MetadataStore | None, data_dirs: Sequence[Path], urls: Sequence[str]
    ) -> bool:
        """Whether `restore` would begin again what was interrupted. Nothing is changed or made. Raises as `restore`
        does, if that would be refused."""
        manifest = await self._place.manifest(backup)
        async with AsyncExitStack() as stack:
            made: list[LedgerStorage | None] = [LocalStorage.open_to_read(path) for path in data_dirs if _made(path)]
            made += [await _made_at(url) for url in urls]
            storages = [await stack.enter_async_context(each) for each in made if each is not None]
            return await is_begun(manifest, store, storages, _now_ms())

    async def check_restorable(
        self, backup: str | None, store: MetadataStore | None, data_dirs: Sequence[Path], urls: Sequence[str]
    ) -> None:
        """Raises what `restore` would before it restores anything. Nothing is changed or made. `store` is None if there
        is none yet."""
        await self.is_begun(backup, store, data_dirs, urls)
        async for _ in read_records(self._place, await self._place.manifest(backup)):
            pass  # the store would be opened, and so made, before it is known that they are whole

    async def trial(
        self,
        backup: str | None,
        store: MetadataStore | None,
        data_dirs: Sequence[Path],
        urls: Sequence[str],
        progress: _Progress,
    ) -> tuple[dict[str, Any], Sequence[str]]:
        """What `restore` would do, keyed by the names under which it is shown, and what is wrong with the backup. It is
        read completely, and nothing is changed. `store` is None if there is none yet. Raises as `restore` does, if that
        would be refused."""
        begun = await self.is_begun(backup, store, data_dirs, urls)
        manifest = await self._place.manifest(backup)
        wrong = [problem async for problem in verifying.problems_of(self._place, manifest, progress)]
        state = "new" if store is None else "interrupted" if begun else "empty"
        places = {"store": state, "storages": len(data_dirs) + len(urls)}
        return _shown(manifest) | places | {"problems": len(wrong)}, wrong


def _bucket(url: str) -> Bucket:
    return Bucket.open(url, patient=True)


def _made(data_dir: Path) -> bool:
    """Whether a storage is there, if only in part."""
    return (data_dir / storage_id.FILE_NAME).exists() or (data_dir / "ledgers").exists()


async def _made_at(url: str) -> ObjectStorage | None:
    """The storage, if any part of one is there."""
    if _is_no_directory(url):
        return None
    bucket = _bucket(url)
    try:
        await bucket.get(storage_id.FILE_NAME)
    except FileNotFoundError:
        if not await bucket.directories(LEDGERS):
            return None
    return await ObjectStorage.open_to_read(bucket)


def _is_no_directory(url: str) -> bool:
    """Whether `url` names a directory that `Bucket.open` would make."""
    parts = urlsplit(url)
    return parts.scheme == "file" and not Path(unquote(parts.path)).is_dir()


def _shown(manifest: Manifest) -> dict[str, Any]:
    return {
        "backup": manifest.id,
        "revision": manifest.revision,
        "finished_ms": manifest.finished_ms,
        "release": manifest.release,
        "records": manifest.records,
        "ledgers": len(manifest.ledgers),
        "bytes": manifest.ledger_bytes,
        "copied_bytes": manifest.copied_bytes,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
