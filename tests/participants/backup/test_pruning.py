"""Goal: a prune frees what only removed backups have used, and nothing that another one needs: whatever runs beside it,
and wherever it is interrupted.

Method: as in `test_cut`, with grace times that are as long as a test; each backup that is left is verified as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from random import Random

import pytest
from obstore.store import MemoryStore as MemoryObjects

from metastore.errors import StoreUnavailable
from metatxn.wire.position import Position
from participants.backup.manifest import BackupDamaged, Manifest
from participants.backup.place import BackupPlace, NoSuchBackup, names_in
from participants.backup.pruning import GRACE_MS, Prunable, find_prunable, prune
from participants.backup.taking import LONGEST_MS, BackupOvertaken, BackupTaker
from participants.ledger.bucket import Bucket
from participants.ledger.storage import StorageFailed
from participants.segment.trimming import trim
from tests.extent import usually
from tests.participants.backup import cases
from tests.participants.backup.cases import BackupCase
from tests.participants.devices import only
from tests.participants.segment.test_hidden import rolled, tended
from tests.participants.segment.test_rewriting import mostly_hidden
from tests.participants.segment.world import committed, publish

HOUR_MS = 3_600_000
device = only("local", "Where the ledgers lie makes no difference to their copies.")


def later(case: BackupCase, ms: int) -> None:
    case.world._time_ms = count(case.world.now_ms() + ms)


def test_no_backup_may_take_as_long_as_a_prune_waits() -> None:
    assert GRACE_MS - LONGEST_MS >= HOUR_MS


async def pruned(case: BackupCase, keep: int, *, after_ms: int = GRACE_MS + 1) -> Prunable:
    """`after_ms` from now. The clock of the case stays."""
    found = await find_prunable(case.place, keep, case.world.now_ms() + after_ms)
    await prune(case.place, found, lambda done, total: None)
    return found


async def whole(case: BackupCase) -> list[str]:
    """The backups, each of which was verified."""
    ids = await case.place.ids()
    for each in ids:
        assert await case.problems(await case.place.manifest(each)) == [], each
    return ids


async def names(case: BackupCase) -> list[str]:
    return list(await case.place._bucket.sizes(""))


async def test_what_only_older_backups_have_used_goes(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    first = await case.take()
    await rolled(segment)
    await publish(segment, "b")
    second = await case.take()
    await publish(segment, "c")
    third = await case.take()
    found = await pruned(case, 1)
    assert (found.backups, found.kept) == ([first.id, second.id], [third.id])
    assert found.size_bytes == sum(found.objects.values()) > 0
    assert await whole(case) == [third.id]
    needed = {name for name in names_in(third) if name.startswith("ledgers/")}
    ledgers = {name for name in await names(case) if name.startswith("ledgers/")}
    assert ledgers == needed and not any(
        first.id in name or second.id in name for name in set(await names(case)) - needed
    )
    assert any(f".{first.id}" in name or f".{second.id}" in name for name in needed), "it builds upon earlier ones"
    await case.restore(third)
    assert await committed(await case.served()) == ["a", "b", "c"]


async def test_an_index_of_hidden_entries_goes_with_the_backups_that_have_it(case: BackupCase) -> None:
    await case.lawful()
    case.node, segment = await mostly_hidden(case.world)
    await tended(segment)
    first = await case.take()
    await publish(segment, "d")
    second = await case.take()
    index = [name for name in await names(case) if "/hidden." in name]
    assert len(index) == 1 and index[0].endswith(f".{first.id}"), "the second one uses it, too"
    assert (await pruned(case, 1)).backups == [first.id]
    assert index[0] in await names(case) and await whole(case) == [second.id]
    await trim(segment, case.world.store, case.node.storage, Position(2, 0))
    third = await case.take()
    assert (await pruned(case, 1)).backups == [second.id]
    assert index[0] not in await names(case) and await whole(case) == [third.id]


async def test_as_many_stay_as_are_wanted(case: BackupCase) -> None:
    segment = await case.begin()
    taken = []
    for payload in "abcd":
        await publish(segment, payload)
        taken.append((await case.take()).id)
    assert (await pruned(case, 5)).backups == []
    assert (await pruned(case, 3)).backups == taken[:1]
    assert await whole(case) == taken[1:]
    assert (await pruned(case, 3)).objects == {}, "nothing is left to do"


async def test_a_backup_stays_until_a_later_one_is_complete_for_a_day(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    first, second = await case.take(), await case.take()
    later(case, GRACE_MS - HOUR_MS)
    await case.take()
    assert (await pruned(case, 1, after_ms=0)).backups == []
    assert (await pruned(case, 1, after_ms=2 * HOUR_MS)).backups == [first.id]
    assert second.id in await whole(case)


async def test_nothing_is_removed_where_no_backup_is_complete(case: BackupCase) -> None:
    with pytest.raises(NoSuchBackup):
        await pruned(case, 1)


async def test_backups_that_were_completed_last_stay(case: BackupCase) -> None:
    """Although they were begun before another one: they have the newer records."""
    segment = await case.begin()
    await publish(segment, "a")
    early: list[str] = []

    async def meanwhile() -> None:
        early.append((await case.take()).id)
        later(case, HOUR_MS)

    long = await case.take(before=meanwhile)
    assert [long.id, *early] == await case.place.ids()
    assert (await pruned(case, 1)).backups == []
    last = await case.take()
    assert (await pruned(case, 2)).backups == early
    assert (await pruned(case, 1)).backups == [long.id]
    assert await whole(case) == [last.id]


async def test_what_a_failed_backup_has_copied_is_deleted(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")

    async def fails() -> None:
        raise StoreUnavailable("the store is away")

    with pytest.raises(StoreUnavailable):
        await case.take(after=fails)
    (left,) = await names(case)
    assert left.endswith("/begun")


async def test_what_an_interrupted_backup_leaves_goes_after_a_day(
    case: BackupCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    await case.take()
    before = await names(case)

    async def dies(*_: object) -> None:
        raise StorageFailed("it is away")

    await publish(segment, "b")
    with monkeypatch.context() as patched:
        patched.setattr(BackupPlace, "complete", dies)
        with pytest.raises(StorageFailed):
            await case.take()
    left = sorted(set(await names(case)) - set(before))
    assert any(name.startswith("ledgers/") for name in left)
    assert (await pruned(case, 1, after_ms=GRACE_MS - HOUR_MS)).objects == {}
    assert sorted((await pruned(case, 1)).objects) == left
    assert await names(case) == before and len(await whole(case)) == 1


async def test_what_is_not_of_a_backup_is_left_alone(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    await case.take()
    strange = ["backups/notes/manifest.txt", "ledgers/x/y/1/0-1-00000000", "ledgers/x/notes.txt", "readme", "backups"]
    strange += ["backups/20261399T000000000Z/manifest", "ledgers/x/y/1/0-1-00000000.20260230T000000000Z", "manifest"]
    for name in strange:
        await case.place._bucket.put(name, b"")
    await pruned(case, 1)
    assert set(strange) <= set(await names(case))


async def test_a_copy_of_a_backup_is_none(case: BackupCase) -> None:
    """Whatever its name is: what it would need is that of the backup that was copied."""
    segment = await case.begin()
    await publish(segment, "a")
    first, second = await case.take(), await case.take()
    manifest = await case.place._bucket.get(f"backups/{first.id}/manifest")
    await case.place._bucket.put("backups/before-upgrade/manifest", manifest)
    assert await whole(case) == [first.id, second.id]
    assert (await pruned(case, 1)).backups == [first.id]
    await case.place._bucket.put("backups/20991231T000000000Z/manifest", manifest)
    with pytest.raises(BackupDamaged, match=f"is that of backup {first.id}"):
        await pruned(case, 1)


@pytest.mark.parametrize("kind", ["ledgers/", "backups/"])
async def test_nothing_is_removed_where_a_backup_that_stays_lacks_an_object(case: BackupCase, kind: str) -> None:
    """The others may be whole."""
    segment = await case.begin()
    await publish(segment, "a")
    await case.take()
    await publish(segment, "b")
    last = await case.take()
    lost = next(name for name in names_in(last) if name.startswith(kind))
    await case.place._bucket.delete([lost])
    before = await names(case)
    with pytest.raises(BackupDamaged, match=f"backup {last.id} lacks {lost}"):
        await pruned(case, 1)
    assert await names(case) == before


async def test_two_prunes_at_the_same_time_do_the_work_of_one(
    case: BackupCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    taken = [(await case.take()).id for _ in range(3)]
    listed = await case.place.ids()
    await pruned(case, 2)

    async def before_the_other(_: BackupPlace) -> list[str]:
        return listed

    monkeypatch.setattr(BackupPlace, "ids", before_the_other)
    await pruned(case, 1)
    monkeypatch.undo()
    assert await whole(case) == taken[2:]


async def test_a_damaged_backup_that_stays_refuses_the_prune_and_one_that_goes_does_not(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    taken = [(await case.take()).id for _ in range(4)]
    await case.place._bucket.put(f"backups/{taken[0]}/manifest", b"damaged")
    await case.place._bucket.put(f"backups/{taken[2]}/manifest", b"damaged")
    before = await names(case)
    with pytest.raises(BackupDamaged):
        await pruned(case, 2)
    assert await names(case) == before
    assert (await pruned(case, 1)).backups == taken[:3]
    assert await whole(case) == taken[3:]


async def test_a_backup_that_took_too_long_is_not_completed(case: BackupCase) -> None:
    """What it built upon, and what it has copied, may be gone by then."""
    segment = await case.begin()
    await publish(segment, "a")
    await case.take()
    await publish(segment, "b")

    async def a_day_passes() -> None:
        later(case, LONGEST_MS + 1)

    with pytest.raises(BackupOvertaken, match="longer than 23 hours"):
        await case.take(after=a_day_passes)
    assert len(await whole(case)) == 1


async def test_the_first_backup_may_take_as_long_as_it_wants(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")

    async def a_day_passes() -> None:
        later(case, LONGEST_MS + 1)
        with pytest.raises(NoSuchBackup):
            await pruned(case, 1)

    assert [(await case.take(after=a_day_passes)).id] == await whole(case)


async def test_a_backup_is_withdrawn_if_its_manifest_comes_too_late(
    case: BackupCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    first = await case.take()
    complete = BackupPlace.complete

    async def slow(place: BackupPlace, manifest: Manifest) -> None:
        later(case, LONGEST_MS + 1)
        await complete(place, manifest)

    monkeypatch.setattr(BackupPlace, "complete", slow)
    with pytest.raises(BackupOvertaken):
        await case.take()
    assert await case.place.ids() == [first.id]


@pytest.mark.parametrize("copies_again", [False, True])
async def test_what_is_pruned_beside_a_backup_is_not_missing_in_it(case: BackupCase, copies_again: bool) -> None:
    """It builds upon the latest one, which is not the latest any more when the prune runs; and it copies what an
    interrupted backup had copied, too."""
    segment = await case.begin()
    await publish(segment, "a")
    await rolled(segment)
    old = await case.take()
    if copies_again:
        await case.place._bucket.delete([f"backups/{old.id}/manifest"])
        later(case, GRACE_MS)

    async def meanwhile() -> None:
        await case.take()
        await pruned(case, 1, after_ms=LONGEST_MS)

    taken = await case.take(after=meanwhile)
    assert taken.id in await whole(case)
    case.restored._time_ms = count(case.world.now_ms())
    await case.restore(taken)
    assert await committed(await case.served()) == ["a"]


class Interrupted(Bucket):
    """Dies before a change, or after it; or goes on."""

    def __init__(self, store: MemoryObjects) -> None:
        super().__init__(store)
        self.left: int | None = None

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise StorageFailed("it is away")
            await super().delete([name])


@pytest.mark.parametrize("after", range(12))
async def test_a_prune_that_is_interrupted_damages_no_backup(case: BackupCase, after: int) -> None:
    bucket = Interrupted(MemoryObjects())
    case.place = BackupPlace(bucket)
    segment = await case.begin()
    for payload in "abc":
        await publish(segment, payload)
        await rolled(segment)
        taken = await case.take()
    bucket.left = after
    try:
        await pruned(case, 1)
    except StorageFailed:
        pass
    else:
        assert after >= 8, "each step is interrupted once"
    assert taken.id in await whole(case)
    bucket.left = None
    await pruned(case, 1)
    assert await whole(case) == [taken.id]
    expected = {*names_in(taken), *(name for name in await names(case) if f"/{taken.id}/" in name)}
    assert set(await names(case)) == expected


@pytest.mark.parametrize("seed", usually(range(6), range(60)))
async def test_whatever_is_taken_and_pruned_what_is_left_is_whole(
    case: BackupCase, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backups that overlap, are interrupted, or take long; and prunes at any time."""
    random, numbers = Random(seed), count()
    grace_ms, longest_ms = 10_000, 9_000
    monkeypatch.setattr(cases, "BackupTaker", partial(BackupTaker, longest_ms=longest_ms))
    segment = await case.begin()
    whole_once: set[str] = set()
    taken_too_long: list[int] = []

    async def take(depth: int = 0) -> None:
        async def meanwhile() -> None:
            for _ in range(random.randrange(3)):
                await step(depth + 1)

        try:
            whole_once.add((await case.take(after=meanwhile)).id)
        except BackupOvertaken:
            taken_too_long.append(depth)

    async def step(depth: int = 0) -> None:
        later(case, random.choice((10, 1_000, 5_000, 8_000)))
        match random.choice(("publish", "roll", "prune", "take" if depth < 3 else "prune")):
            case "publish":
                await publish(segment, str(next(numbers)))
            case "roll":
                await rolled(segment)
            case "take":
                await take(depth)
            case "prune":
                try:
                    found = await find_prunable(case.place, random.randint(1, 3), case.world.now_ms(), grace_ms)
                except NoSuchBackup:
                    return
                await prune(case.place, found, lambda done, total: None)

    await publish(segment, str(next(numbers)))
    for _ in range(25):
        await step()
        assert set(await whole(case)) <= whole_once
