"""Goal: a later backup copies only what is new, a damaged one is found out, and one of a later release is left alone.

Method: as in `test_cut`. Single objects of the place are changed.
"""

from __future__ import annotations

import os
from itertools import count, repeat
from pathlib import Path

import pytest
from obstore.store import MemoryStore as MemoryObjects

from metastore.errors import StoreTooNew, StoreWentBack
from metastore.txn import paths
from metastore.txn.records.groups import GroupRecord
from metastore.txn.records.processes import Incarnation, VersionRecord
from metastore.versions import SPEAKS
from participants.backup.manifest import BackupDamaged, BackupTooNew, Manifest
from participants.backup.place import MANIFEST, BackupPlace, NoSuchBackup
from participants.backup.taking import NotCovered
from participants.ledger.bucket import Bucket
from participants.ledger.disk import Disk
from participants.ledger.local_ledger import LocalSealedLedger
from participants.ledger.object_ledger import ObjectSealedLedger
from participants.ledger.storage import LedgerCorrupt, SealedLedger, StorageFailed
from tests.participants.backup.cases import BackupCase
from tests.participants.devices import on_local_files, on_objects
from tests.participants.segment.test_hidden import rolled
from tests.participants.segment.world import committed, materialized, publish


async def names(case: BackupCase, below: str = "") -> list[str]:
    return [name for name in await case.place._bucket.sizes("") if name.startswith(below)]


async def replace(case: BackupCase, name: str, content: bytes) -> None:
    await case.place._bucket.put(name, content)


async def test_a_later_backup_copies_what_is_new(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a" * 1_000)
    await publish(segment, "b" * 1_000)
    first = await case.take()
    await rolled(segment)
    await publish(segment, "c" * 1_000)
    second = await case.take()
    assert first.copied_bytes == first.ledger_bytes > 2_000
    assert second.ledger_bytes > 3_000 > 2_300 > second.copied_bytes
    assert await case.place.ids() == [first.id, second.id]
    assert await case.problems(first) == await case.problems(second) == []
    third = await case.take()
    assert third.copied_bytes < 1_200, "at most the end of the open ledger"
    await case.restore(second)
    assert await committed(await case.served()) == ["a" * 1_000, "b" * 1_000, "c" * 1_000]


async def test_a_ledger_that_was_sealed_since_is_not_judged_any_more(case: BackupCase) -> None:
    """Its transactions may be collected by then, and their headers gone."""
    world, segment = case.world, await case.begin()
    done = await world.begin()

    async def meanwhile() -> None:
        await publish(segment, "a", done)

    (copy,) = (await case.take(after=meanwhile)).ledgers
    assert (copy.judged_from, copy.entries) == (0, 1)
    await world.commit(done)
    await materialized(segment, done)
    await world.collect(done)
    await rolled(segment)
    for _ in range(2):
        manifest = await case.take()
        assert manifest.ledgers[0].judged_from == 1
    await case.restore(manifest)
    assert await committed(await case.served()) == ["a"]


@on_local_files
async def test_what_a_crash_may_take_away_is_copied_again(case: BackupCase) -> None:
    """The last entries do not say of themselves that they are durable: others may come into their place."""
    segment = await case.begin()
    await publish(segment, "a")
    first = await case.take()
    (copy,) = first.ledgers
    assert (copy.entries, copy.settled) == (1, 0)
    await publish(segment, "b")
    (copy,) = (await case.take()).ledgers
    assert (copy.entries, copy.settled) == (2, 1)
    assert [(chunk.first, chunk.end) for chunk in copy.chunks] == [(0, 1), (1, 2)]
    path = case.node.storage._files.path(segment.id, 1)  # type: ignore[attr-defined]
    path.write_bytes(path.read_bytes()[: copy.chunks[0].bytes])
    case.node = await case.world.crash()
    await publish(await case.node.open(), "c")
    manifest = await case.take()
    assert await case.problems(manifest) == []
    await case.restore(manifest)
    assert await committed(await case.served()) == ["a", "c"]


@on_local_files
async def test_a_group_that_is_being_written_is_not_copied(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    path = case.node.storage._files.path(segment.id, 1)  # type: ignore[attr-defined]
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    manifest = await case.take()
    assert await case.problems(manifest) == [] and manifest.ledger_bytes == len(whole)
    path.write_bytes(whole)


@on_local_files
async def test_damage_to_an_open_ledger_is_no_shorter_backup(case: BackupCase) -> None:
    segment = await case.begin()
    for payload in "abc":
        await publish(segment, payload)
    path = case.node.storage._files.path(segment.id, 1)  # type: ignore[attr-defined]
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(LedgerCorrupt, match="this is not a torn tail"):
        await case.take()
    path.write_bytes(whole)


@on_local_files
async def test_the_end_of_an_open_ledger_that_was_read_wrongly_is_read_again(
    case: BackupCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = await case.begin()
    for payload in "abc":
        await publish(segment, payload)
    read, last = Disk.read, case.node.storage._files.path(segment.id, 1).stat().st_size - 1  # type: ignore[attr-defined]

    def wrong_from_the_start(self: Disk, fd: int, wanted: int, offset: int) -> bytes:
        content = bytearray(read(self, fd, wanted, offset))
        if offset == 0 and wanted > last + 1 == len(content):
            content[last] ^= 1
        return bytes(content)

    monkeypatch.setattr(Disk, "read", wrong_from_the_start)
    manifest = await case.take()
    monkeypatch.undo()
    assert [copy.entries for copy in manifest.ledgers] == [3]
    await case.restore(manifest)
    assert await committed(await case.served()) == ["a", "b", "c"]


@on_objects
async def test_a_ledger_of_another_owner_ends_at_its_fence(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    await case.node.storage.seal(segment.id, 1)
    manifest = await case.take()
    assert [copy.entries for copy in manifest.ledgers] == [1]


async def test_a_storage_that_is_not_named_is_no_backup(case: BackupCase) -> None:
    await case.begin()
    storage, case.node.storage = case.node.storage, await case.restored.new_device("other").open()
    with pytest.raises(NotCovered, match=storage.storage_id):
        await case.take()
    await case.node.storage.close()
    case.node.storage = storage
    assert await case.place.ids() == []


@pytest.mark.parametrize("kind", ["ledgers/", "backups/"])
async def test_every_byte_that_is_damaged_is_found(case: BackupCase, kind: str) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    manifest = await case.take()
    for name in await names(case, kind):
        if name.endswith("/begun"):
            continue  # which says nothing about what is in the backup
        content = await case.place._bucket.get(name)
        for at in range(0, len(content), max(1, len(content) // 5)):
            await replace(case, name, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            assert await found(case, manifest), (name, at)
        await case.place._bucket.delete([name])
        assert await found(case, manifest), name
        await replace(case, name, content)
        assert not await found(case, manifest)


async def found(case: BackupCase, manifest: Manifest) -> bool:
    try:
        return bool(await case.problems(await case.place.manifest(manifest.id)))
    except (BackupDamaged, BackupTooNew, NoSuchBackup):
        return True


async def test_a_backup_of_a_later_release_is_left_alone(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    manifest = await case.take()
    name = f"backups/{manifest.id}/manifest"
    content = await case.place._bucket.get(name)
    await replace(case, name, content.replace(b'{"format": 1', b'{"format": 2', 1))
    with pytest.raises(BackupTooNew, match="has format 2, and this release knows 1"):
        await case.place.manifest()
    with pytest.raises(BackupTooNew):
        await case.take()
    newer = manifest.model_copy(update={"version": SPEAKS + 1})
    with pytest.raises(StoreTooNew):
        await case.restore(newer)
    assert await case.restored.store.inner.get(paths.INCARNATION) is None


async def test_a_store_of_a_later_release_is_not_backed_up(case: BackupCase) -> None:
    await case.begin()
    store = case.world.store.inner
    await store.apply(store.batch().put(paths.VERSION, VersionRecord(version=SPEAKS + 1).encode()))
    with pytest.raises(StoreTooNew):
        await case.take()


@pytest.mark.parametrize("why", [{"recovering": True}, {"went_back": "it was at revision 9"}, None])
async def test_a_store_that_nobody_may_serve_is_not_backed_up(case: BackupCase, why: dict[str, object] | None) -> None:
    await case.begin()
    store = case.world.store.inner
    if why is None:
        await store.apply(store.batch().delete(paths.INCARNATION))
    else:
        record = Incarnation.model_validate({"id": "a" * 32, "begun_ms": 1, **why})
        await store.apply(store.batch().put(paths.INCARNATION, record.encode()))
    with pytest.raises(StoreWentBack):
        await case.take()
    assert await case.place.ids() == []


class LosingReplies(Bucket):
    """Of the put that creates the manifest: it is there, and the library repeats the put, or gives up."""

    repeated = False

    async def create(self, name: str, content: bytes) -> None:
        await super().create(name, content)
        if not name.endswith(MANIFEST):
            return
        if self.repeated:
            await super().create(name, content)
        raise StorageFailed("the connection was lost")


@pytest.mark.parametrize("repeated", [False, True])
async def test_a_backup_counts_although_the_answer_to_its_last_write_was_lost(case: BackupCase, repeated: bool) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    bucket = LosingReplies(MemoryObjects())
    bucket.repeated = repeated
    case.place = BackupPlace(bucket)
    manifest = await case.take()
    assert await case.place.ids() == [manifest.id]


async def test_two_backups_of_one_name_are_an_error(case: BackupCase) -> None:
    await case.begin()
    manifest = await case.take()
    with pytest.raises(FileExistsError):
        await case.place.complete(manifest.model_copy(update={"revision": manifest.revision + 1}))
    assert await case.place.manifest() == manifest


async def test_backups_that_begin_in_the_same_millisecond_have_two_names(case: BackupCase) -> None:
    """Otherwise the pages of the second one would take the places of those of the first one."""
    await case.begin()
    case.world._time_ms = repeat(7)  # type: ignore[assignment]
    first = await case.take()
    store = case.world.store.inner
    await store.apply(store.batch().put(paths.group("g"), GroupRecord(generation=3, updated_ms=1).encode()))
    second = await case.take()
    assert [first.id, second.id] == await case.place.ids() == ["19700101T000000007Z", "19700101T000000008Z"]
    assert [await case.problems(each) for each in (first, second)] == [[], []]


async def test_a_place_without_a_backup_says_so() -> None:
    place = BackupPlace(Bucket.open("memory:///"))
    with pytest.raises(NoSuchBackup, match="there is no backup here"):
        await place.manifest()
    with pytest.raises(NoSuchBackup, match="there is no backup 7 here"):
        await place.manifest("7")


async def test_what_was_damaged_on_its_way_is_read_again(case: BackupCase, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    read = ObjectSealedLedger.raw_bytes if case.node.storage.exclusive is False else LocalSealedLedger.raw_bytes
    times = count()

    async def flipped(ledger: SealedLedger, first: int, last: int) -> memoryview:
        content = bytearray(await read(ledger, first, last))  # type: ignore[arg-type]
        if next(times) < damaged:
            content[-1] ^= 1
        return memoryview(content)

    for kind in (LocalSealedLedger, ObjectSealedLedger):
        monkeypatch.setattr(kind, "raw_bytes", flipped)
    damaged = 2
    assert await case.problems(await case.take()) == []
    damaged = 1_000
    await publish(segment, "b")
    with pytest.raises(LedgerCorrupt, match="is damaged between the entries"):
        await case.take()
    assert len(await case.place.ids()) == 1


async def test_in_a_directory_all_that_a_backup_names_is_synced_before_it_counts(
    case: BackupCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()

    def fsync(fd: int) -> None:
        name = os.path.relpath(Path(f"/proc/self/fd/{fd}").readlink(), root)
        synced.add(name)
        if name.endswith("/manifest"):
            assert {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} <= synced

    root = tmp_path / "new" / "backups"
    segment = await case.begin()
    await publish(segment, "a")
    case.place = BackupPlace(Bucket.open(f"file://{root}"))
    monkeypatch.setattr("participants.ledger.bucket.os.fsync", fsync)
    manifest = await case.take()
    assert f"backups/{manifest.id}/manifest" in synced
    directories = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}
    assert directories | {".", ".."} <= synced
    assert await case.problems(manifest) == []
