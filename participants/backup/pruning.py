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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from participants.backup.manifest import BackupDamaged, BackupTooNew
from participants.backup.place import BackupPlace, NoSuchBackup, begun_ms, names_a_backup, names_in

GRACE_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Prunable:
    """The backups that would be removed and those that stay, and the objects that would be deleted, with their sizes.
    They stay prunable: nobody can come to need one of these objects."""

    backups: list[str]
    kept: list[str]
    objects: dict[str, int]

    @property
    def size_bytes(self) -> int:
        return sum(self.objects.values())


async def find_prunable(place: BackupPlace, keep: int, now_ms: int, grace_ms: int = GRACE_MS) -> Prunable:
    """Everything but the `keep` backups that were completed last, at least one. Raises `NoSuchBackup` if there is no
    complete one, `BackupDamaged` or `BackupTooNew` if it cannot be told what one that stays needs, or that is not
    there, and `StorageFailed`."""
    assert keep > 0, "the latest backup stays"
    ids = await place.ids()
    if not ids:
        raise NoSuchBackup("there is no backup here")
    cut_ms = now_ms - grace_ms
    removed = await _replaced_long_ago(place, ids, keep, cut_ms)
    kept = [each for each in ids if each not in removed]
    needed: dict[str, str] = {}
    for each in kept:
        try:
            needed |= dict.fromkeys(names_in(await place.manifest(each)), each)
        except NoSuchBackup:
            continue  # another prune has removed it
    own, copied = await place.objects()
    _check_all_there(needed, [*own.values(), *copied.values()])
    complete = set(ids)
    objects: dict[str, int] = {}
    for each in sorted(own.keys() | copied.keys()):
        if each in complete or (begun_ms(each) or 0) < cut_ms:
            if each in removed or each not in complete:
                objects |= own.get(each, {})
            objects |= {name: size for name, size in copied.get(each, {}).items() if name not in needed}
    return Prunable(sorted(removed), kept, objects)


async def prune(place: BackupPlace, prunable: Prunable, progress: Callable[[int, int], None]) -> None:
    """Raises `StorageFailed`; whatever is left then, the next prune finds."""
    for backup in prunable.backups:
        await place.withdraw(backup)
    await place.delete(list(prunable.objects), progress)


async def _replaced_long_ago(place: BackupPlace, ids: list[str], keep: int, cut_ms: int) -> set[str]:
    """Those of the older backups upon which none builds that is being taken: a later one was complete when that
    began."""
    finished = {each: await _finished_ms(place, each) for each in ids}
    latest = set(sorted(ids, key=lambda each: finished[each] or begun_ms(each) or 0)[-keep:])
    removed: set[str] = set()
    replaced = False
    for each in reversed(ids):
        if replaced and each not in latest:
            removed.add(each)
        finished_ms = finished[each]
        replaced = replaced or (finished_ms is not None and finished_ms < cut_ms)
    return removed


async def _finished_ms(place: BackupPlace, backup: str) -> int | None:
    """None if the backup does not say that; then none builds upon it, either."""
    try:
        return (await place.manifest(backup)).finished_ms
    except (BackupDamaged, BackupTooNew, NoSuchBackup):
        return None


def _check_all_there(needed: Mapping[str, str], listed: Iterable[Mapping[str, int]]) -> None:
    """Raises `BackupDamaged` for a backup that lacks an object: another one, which is whole, may be about to be
    removed."""
    there = {name for names in listed for name in names}
    for name, backup in needed.items():
        if name not in there and names_a_backup(name):
            raise BackupDamaged(f"backup {backup} lacks {name}")
