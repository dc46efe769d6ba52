"""Goal: `apply` is all or nothing, under each kind of check, and tells the loser what it needs.

Method: small batches, one rule per test; whatever must not have happened is looked for afterwards.
"""

from __future__ import annotations

import asyncio

import pytest

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, InvalidBatch, StoreClosed
from metastore.types import Absent, Applied, AtVersion, Check, EmptyRange, FirstVersion, Record
from tests.metastore.factories import Backend


async def put(store: MetadataStore, key: str, value: bytes = b"") -> Record:
    """Put one record and read it back."""
    await store.apply(store.batch().put(key, value))
    return await existing(store, key)


async def existing(store: MetadataStore, key: str) -> Record:
    record = await store.get(key)
    assert record is not None
    return record


async def test_a_record_carries_the_revision_that_wrote_it(store: MetadataStore) -> None:
    applied = await store.apply(store.batch().put("/a", b"1").put("/b", b"2"))
    assert await store.get("/a") == Record("/a", b"1", applied.revision, True)
    assert await store.get("/b") == Record("/b", b"2", applied.revision, True)


async def test_a_later_apply_has_a_later_revision(store: MetadataStore) -> None:
    revisions = [(await store.apply(store.batch().put("/a", b""))).revision for _ in range(5)]
    assert revisions == sorted(set(revisions))
    assert (await existing(store, "/a")).version == revisions[-1]


async def test_first_ends_with_the_second_write(store: MetadataStore) -> None:
    assert (await put(store, "/a")).first
    assert not (await put(store, "/a")).first
    assert not (await put(store, "/a")).first


async def test_a_recreated_record_is_first_again_and_has_a_new_version(store: MetadataStore) -> None:
    """Scenario 102: what was deleted is absent, and its version never comes back."""
    await put(store, "/a")
    before = await put(store, "/a")
    await store.apply(store.batch().delete("/a"))
    assert await store.get("/a") is None
    after = await put(store, "/a")
    assert after.first
    assert after.version > before.version
    with pytest.raises(CheckFailed):
        await store.apply(store.batch().replace(before, b"stale"))


async def test_checks_that_hold(store: MetadataStore) -> None:
    record = await put(store, "/a")
    holding: list[Check] = [
        Absent("/b"),
        AtVersion("/a", record.version),
        FirstVersion("/a"),
        EmptyRange("/b", "/c"),
        EmptyRange("/", "/a"),
    ]
    for check in holding:
        await store.apply(store.batch().check(check).put("/seen", str(check).encode()))
        assert (await existing(store, "/seen")).value == str(check).encode()


async def test_checks_that_fail_name_themselves_and_the_record_they_met(store: MetadataStore) -> None:
    once = await put(store, "/once", b"1")
    await put(store, "/twice")
    twice = await put(store, "/twice", b"2")
    failing: list[tuple[Check, Record | None]] = [
        (Absent("/once"), once),
        (AtVersion("/once", once.version - 1), once),
        (AtVersion("/once", twice.version), once),
        (AtVersion("/none", once.version), None),
        (FirstVersion("/twice"), twice),
        (FirstVersion("/none"), None),
        (EmptyRange("/o", "/u"), once),
        (EmptyRange("/once", "/once0"), once),
        (EmptyRange("/p", "/u"), twice),
    ]
    for check, current in failing:
        before = await store.current_revision()
        with pytest.raises(CheckFailed) as failed:
            await store.apply(store.batch().check(check).put("/seen", b"").delete("/once"))
        assert failed.value.check == check
        assert failed.value.current == current
        assert failed.value.revision >= before
        assert failed.value.definite and not failed.value.retriable
        assert await store.get("/seen") is None
        assert await store.get("/once") == once


async def test_a_record_may_be_deleted_if_nobody_has_written_it_since_it_was_created(store: MetadataStore) -> None:
    for key in ("/once", "/twice", "/twice"):
        await put(store, key)
    await store.apply(store.batch().check(FirstVersion("/once")).delete("/once"))
    assert await store.get("/once") is None
    for key in ("/twice", "/once"):
        with pytest.raises(CheckFailed):
            await store.apply(store.batch().check(FirstVersion(key)).delete(key))
    assert await store.get("/twice") is not None


async def test_the_first_failed_check_in_the_order_of_the_batch_is_named(store: MetadataStore) -> None:
    record = await put(store, "/a", b"1")
    other = await put(store, "/b", b"2")
    checks: list[Check] = [AtVersion("/a", record.version), Absent("/b"), Absent("/a"), FirstVersion("/none")]
    with pytest.raises(CheckFailed) as failed:
        await store.apply(store.batch().check(*checks))
    assert failed.value.check == Absent("/b")
    assert failed.value.current == other


async def test_checks_see_the_state_before_the_batch(store: MetadataStore) -> None:
    record = await put(store, "/a")
    batch = store.batch().check(Absent("/b"), EmptyRange("/b", "/c"), AtVersion("/a", record.version))
    await store.apply(batch.put("/b", b"").put("/a", b"new"))
    assert (await existing(store, "/a")).value == b"new"


async def test_a_failed_batch_leaves_nothing(store: MetadataStore) -> None:
    kept = await put(store, "/kept")
    ranged = await put(store, "/range/1")
    batch = store.batch().check(Absent("/kept")).put("/new", b"").delete("/kept").delete_range("/range/", "/range0")
    with pytest.raises(CheckFailed):
        await store.apply(batch)
    snapshot = await store.get_many(["/kept", "/range/1", "/new"])
    assert snapshot.records == {"/kept": kept, "/range/1": ranged, "/new": None}


async def test_a_key_that_has_to_be_absent_may_be_deleted(store: MetadataStore) -> None:
    """Deleting nothing changes nothing. Whether the key is there is not known before, known, and known otherwise."""
    batch = store.batch().check(Absent("/gone")).delete("/gone").put("/seen", b"")
    await store.apply(batch)
    await store.apply(store.batch().put("/gone", b"back"))
    for _ in range(2):
        with pytest.raises(CheckFailed):
            await store.apply(batch)
    await store.apply(store.batch().delete("/gone"))
    await store.apply(batch)
    assert [record.key for record in (await store.scan("/")).records] == ["/seen"]


async def test_an_empty_batch_succeeds_and_changes_nothing(store: MetadataStore) -> None:
    record = await put(store, "/a")
    assert (await store.apply(store.batch())).revision >= record.version
    assert (await store.apply(store.batch().check(FirstVersion("/a")))).revision >= record.version
    assert await store.get("/a") == record


async def test_deleting_what_is_not_there_succeeds(store: MetadataStore) -> None:
    record = await put(store, "/a")
    applied = await store.apply(store.batch().delete("/none").delete_range("/x", "/y"))
    assert applied.revision >= record.version
    assert await store.get("/a") == record


async def test_a_range_delete_takes_its_start_and_leaves_its_end(store: MetadataStore) -> None:
    batch = store.batch()
    for key in ("/a", "/b", "/b/1", "/b/2", "/c"):
        batch.put(key, b"")
    await store.apply(batch)
    await store.apply(store.batch().delete_range("/b", "/c").put("/d", b""))
    assert [record.key for record in (await store.scan("/")).records] == ["/a", "/c", "/d"]


async def test_several_range_deletes_and_a_delete_inside_one(store: MetadataStore) -> None:
    batch = store.batch()
    for key in ("/a/1", "/a/2", "/b/1", "/c/1"):
        batch.put(key, b"")
    await store.apply(batch)
    await store.apply(store.batch().delete_range("/a/", "/a0").delete_range("/c/", "/c0").delete("/a/1"))
    assert [record.key for record in (await store.scan("/")).records] == ["/b/1"]


RANGES_THAT_OVERLAP = {
    "the same": [("/b/", "/b0"), ("/b/", "/b0")],
    "the same, no directory": [("/b", "/b/2"), ("/b", "/b/2")],
    "one inside the other": [("/b/", "/b0"), ("/b/c/", "/b/c0")],
    "one around the other": [("/b/c/", "/b/c0"), ("/b/", "/b0")],
    "one after the other": [("/a", "/b/1"), ("/b", "/b/2")],
    "a directory and a part of it": [("/b/2", "/c"), ("/b/", "/b0")],
    "one from the first key on": [("/b", "/b0"), ("", "/b/2")],
    "three in a chain": [("/b/2", "/d"), ("/a", "/b/1"), ("/b", "/b/3")],
    "one that is empty": [("/b/3", "/b/1"), ("/b/", "/b0")],
}


@pytest.mark.parametrize("ranges", RANGES_THAT_OVERLAP.values(), ids=RANGES_THAT_OVERLAP)
async def test_range_deletes_that_overlap(store: MetadataStore, ranges: list[tuple[str, str]]) -> None:
    """What two ranges hold is deleted once. A store that deletes key by key would fail at the second time."""
    keys = ["/a", "/b", "/b/1", "/b/2", "/b/c/1", "/b/c/2", "/c"]
    batch = store.batch()
    for key in keys:
        batch.put(key, b"")
    await store.apply(batch)
    batch = store.batch()
    for start, end in ranges:
        batch.delete_range(start, end)
    await store.apply(batch)
    kept = [key for key in keys if not any(start <= key < end for start, end in ranges)]
    assert [record.key for record in (await store.scan("/")).records] == kept


async def test_a_range_delete_removes_nothing_that_its_own_checks_left(store: MetadataStore) -> None:
    """A store with directories deletes those of the range, so its checks must not make new ones there."""
    await store.apply(store.batch().put("/a/1", b"").put("/b", b""))
    batch = store.batch().check(Absent("/a/b/c/1")).delete("/a/d/1").delete_range("/a/", "/a0").put("/c", b"")
    await store.apply(batch)
    assert [record.key for record in (await store.scan("/")).records] == ["/b", "/c"]


async def test_a_range_delete_meets_nothing_that_the_checks_of_a_neighbour_left(store: MetadataStore) -> None:
    """The same of two applies that travel together: the first is on its way, and the others leave after it."""
    await store.apply(store.batch().put("/a/1", b"").put("/b", b""))
    first = store.batch().put("/b", b"")
    checking = store.batch().check(Absent("/a/b/c/1")).put("/c", b"")
    deleting = store.batch().delete_range("/a/", "/a0")
    await asyncio.gather(*map(store.apply, (first, checking, deleting)))
    assert [record.key for record in (await store.scan("/")).records] == ["/b", "/c"]


async def test_neighbours_look_at_one_record_for_different_checks(backend: Backend) -> None:
    """Both travel together from a client that knows nothing yet. What one has to read of the record for its proof must
    not replace what the other has read of it."""
    one, two = await backend.open(), await backend.open()
    record = await put(one, "/a")
    checking = two.batch().check(AtVersion("/a", record.version)).put("/b", b"")
    deleting = two.batch().check(FirstVersion("/a")).delete_range("/a", "/a0")
    await asyncio.gather(two.apply(checking), two.apply(deleting))
    assert [record.key for record in (await one.scan("/")).records] == ["/b"]


async def test_an_empty_value_is_a_value(store: MetadataStore) -> None:
    assert (await put(store, "/a", b"")).value == b""
    assert (await put(store, "/a", bytes(range(256)))).value == bytes(range(256))


async def test_create_replace_and_remove_carry_their_check(store: MetadataStore) -> None:
    await store.apply(store.batch().create("/a", b"1"))
    with pytest.raises(CheckFailed):
        await store.apply(store.batch().create("/a", b"2"))
    first = await existing(store, "/a")
    await store.apply(store.batch().replace(first, b"2"))
    for stale in (store.batch().replace(first, b"3"), store.batch().remove(first)):
        with pytest.raises(CheckFailed) as failed:
            await store.apply(stale)
        assert failed.value.current is not None and failed.value.current.value == b"2"
    await store.apply(store.batch().remove(await existing(store, "/a")))
    assert await store.get("/a") is None


async def test_the_loser_can_go_on_without_reading_again(store: MetadataStore) -> None:
    stale = await put(store, "/a", b"1")
    await put(store, "/a", b"2")
    with pytest.raises(CheckFailed) as failed:
        await store.apply(store.batch().replace(stale, b"3"))
    assert failed.value.current is not None
    await store.apply(store.batch().replace(failed.value.current, b"3"))
    assert (await existing(store, "/a")).value == b"3"


@pytest.mark.parametrize("key", ["", "/\ud800"], ids=["empty", "lone-surrogate"])
async def test_a_key_that_cannot_be_stored_is_refused(store: MetadataStore, key: str) -> None:
    with pytest.raises(InvalidBatch) as refused:
        await store.apply(store.batch().put("/a", b"").put(key, b""))
    assert refused.value.definite and not refused.value.retriable
    assert await store.get("/a") is None


async def test_a_batch_that_is_too_large_is_refused(store: MetadataStore) -> None:
    with pytest.raises(InvalidBatch):
        await store.apply(store.batch().put("/a", b"").put("/b", bytes(store.max_batch_bytes + 1)))
    assert await store.get("/a") is None


async def test_every_client_sees_what_was_answered_to_any(backend: Backend) -> None:
    one, two = await backend.open(), await backend.open()
    for number in range(20):
        applied = await one.apply(one.batch().put("/a", str(number).encode()))
        assert (await existing(two, "/a")).value == str(number).encode()
        assert await two.current_revision() >= applied.revision


async def test_closing_finishes_what_was_called_before(store: MetadataStore) -> None:
    calls = [asyncio.ensure_future(store.apply(store.batch().create(f"/k/{number}", b""))) for number in range(10)]
    await asyncio.sleep(0)  # each is called now
    await store.close()
    assert all(isinstance(each.result(), Applied) for each in calls)


async def test_a_closed_store_refuses_every_call(store: MetadataStore) -> None:
    await store.apply(store.batch().put("/a", b""))
    await store.close()
    await store.close()
    for call in (
        lambda: store.apply(store.batch().put("/b", b"")),
        lambda: store.get("/a"),
        lambda: store.range("/", "0"),
        lambda: store.lease_ids("/seq", 1),
        lambda: store.ephemeral("/e", b"", 1000),
    ):
        with pytest.raises(StoreClosed):
            await call()
    with pytest.raises(StoreClosed):
        store.watch("/", 1)
