"""Removing old backups, and the copies of ledgers that only they have used (DESIGN §13).

    1  read the manifests of the backups that stay: all that they name stays
    2  withdraw the manifests of the others, which do not count from then on
    3  delete their objects, those that no backup names, and what interrupted backups have left behind

A backup that is being taken will name objects of the one that was the latest when it began, and what it has copied
itself. Nobody else knows these yet, so both stay: a backup is removed only `GRACE_MS` after a later one was complete,
and the objects of an incomplete one that long after it began. No backup is completed that has taken longer (see
`taking.LONGEST_MS`). The hour between the two covers the difference of two clocks, and requests that arrive late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from participants.backup.manifest import BackupDamaged, BackupTooNew, Manifest
from participants.backup.place import BackupPlace, NoSuchBackup, names_of_ledgers

GRACE_MS = 24 * 3_600_000
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Prunable:
    """The backups that would be removed and those that stay, and the objects that would be deleted, with their
    sizes."""

    backups: list[str]
    kept: list[str]
    objects: dict[str, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(self.objects.values())


async def find_prunable(place: BackupPlace, keep: int, now_ms: int, grace_ms: int = GRACE_MS) -> Prunable:
    """Everything but the latest `keep` backups, at least one. Raises `NoSuchBackup` if there is no complete one,
    `BackupDamaged` or `BackupTooNew` if one that stays does not tell what it needs, and `StorageFailed`."""
    assert keep > 0, "the latest backup stays"
    ids = await place.ids()
    if not ids:
        raise NoSuchBackup("there is no backup here")
    removed = await _replaced_long_ago(place, ids, keep, now_ms - grace_ms)
    kept = [each for each in ids if each not in removed]
    needed = {name for each in kept for name in names_of_ledgers(await place.manifest(each))}
    own, copied = await place.objects()
    complete_or_over = {
        each for each in own.keys() | copied.keys() if each in ids or _begun_ms(each) < now_ms - grace_ms
    }
    objects: dict[str, int] = {}
    for each in sorted(complete_or_over):
        if each not in kept:
            objects |= own.get(each, {})
        objects |= {name: size for name, size in copied.get(each, {}).items() if name not in needed}
    return Prunable(sorted(removed), kept, objects)


async def prune(place: BackupPlace, prunable: Prunable, progress: Callable[[int, int], None]) -> None:
    """Raises `StorageFailed`; whatever is left then, the next prune finds."""
    for backup in prunable.backups:
        await place.withdraw(backup)
    names = list(prunable.objects)
    for done in range(0, len(names), _AT_ONCE):
        progress(done, len(names))
        await asyncio.gather(*(place.delete([name]) for name in names[done : done + _AT_ONCE]))


async def _replaced_long_ago(place: BackupPlace, ids: list[str], keep: int, cut_ms: int) -> set[str]:
    """Those that no backup which is being taken builds upon, since a later one was complete when it began."""
    newer = await _finished_ms(place, ids[-keep:])
    removed: set[str] = set()
    for each in reversed(ids[:-keep]):
        if any(finished_ms < cut_ms for finished_ms in newer):
            removed.add(each)
        newer += await _finished_ms(place, [each])
    return removed


async def _finished_ms(place: BackupPlace, backups: Iterable[str]) -> list[int]:
    found: list[Manifest] = []
    for each in backups:
        try:
            found.append(await place.manifest(each))
        except (BackupDamaged, BackupTooNew):
            continue  # nobody builds upon it either
    return [manifest.finished_ms for manifest in found]


def _begun_ms(backup: str) -> int:
    """The time in the name of a backup."""
    at = datetime.strptime(backup, "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)
