"""Goal: the proofs that a multi carries hold when other clients write between its plan and its arrival; a group loses
its culprits and nobody else.

Method: another client acts just before the request arrives, so that what was believed is wrong by then.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metastore.backends import zookeeper_plan
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.backends.zookeeper_reads import ZooKeeperListing
from metastore.errors import CheckFailed, InvalidBatch
from metastore.types import Absent, Applied, AtVersion, EmptyRange, FirstVersion, IndexDefinition, Record
from tests.metastore.zookeeper.conftest import OpenStore, children
from tests.metastore.zookeeper.faults import before, inject, together
from tests.servers import ZooKeeperServer


async def pair(server: ZooKeeperServer, open_store: OpenStore) -> tuple[ZooKeeperStore, ZooKeeperStore]:
    """Two clients of one state."""
    one = await open_store(server)
    return one, await open_store(server, one._paths.root)


async def existing(store: ZooKeeperStore, key: str) -> Record:
    record = await store.get(key)
    assert record is not None
    return record


async def test_a_culprit_costs_one_more_request(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, sizes: list[int]
) -> None:
    store = await open_store(zookeeper_server, on_group=sizes.append)
    other = await open_store(zookeeper_server, store._paths.root)
    await other.apply(other.batch().put("/taken", b"").put("/k/0", b""))
    answers = await together(
        store, [store.batch().create("/taken" if number == 17 else f"/k/{number}", b"") for number in range(1, 51)]
    )
    assert [number for number, answer in enumerate(answers) if not isinstance(answer, Applied)] == [16]
    # Once with the culprit, once without it.
    assert sizes == [50, 49]


async def test_many_culprits_cost_two_more(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, sizes: list[int]
) -> None:
    store = await open_store(zookeeper_server, on_group=sizes.append)
    other = await open_store(zookeeper_server, store._paths.root)
    await together(other, [other.batch().put(f"/k/{number}", b"") for number in range(0, 50, 2)])
    await store.scan("/k/")
    await store.apply(store.batch().create("/k/x", b""))
    sizes.clear()
    answers = await together(store, [store.batch().create(f"/k/{number}", b"") for number in range(50)])
    assert [isinstance(answer, Applied) for answer in answers] == [number % 2 == 1 for number in range(50)]
    assert sizes == [50, 49, 25]


@pytest.mark.parametrize("way", ["replace", "remove", "check"])
async def test_a_record_that_was_deleted_and_created_again_is_another(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, way: str
) -> None:
    """Its data version is 0 again, as it was when it was read."""
    one, two = await pair(zookeeper_server, open_store)
    await one.apply(one.batch().put("/a", b"old"))
    stale = await existing(one, "/a")

    async def again() -> None:
        await two.apply(two.batch().delete("/a"))
        await two.apply(two.batch().put("/a", b"new"))

    batches = {
        "replace": one.batch().replace(stale, b"wrong"),
        "remove": one.batch().remove(stale),
        "check": one.batch().check(AtVersion("/a", stale.version)).put("/b", b""),
    }
    inject(one, before(again))
    with pytest.raises(CheckFailed) as failed:
        await one.apply(batches[way])
    assert failed.value.current == await existing(two, "/a")
    assert (await existing(two, "/a")).value == b"new"
    for batch in (*batches.values(), one.batch().check(AtVersion("/a", stale.version))):
        with pytest.raises(CheckFailed):
            await one.apply(batch)


async def test_a_guard_moved_by_a_neighbour_costs_a_try_and_nothing_else(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, sizes: list[int]
) -> None:
    one, two = await pair(zookeeper_server, open_store)
    one._commit._on_group = sizes.append
    await one.apply(one.batch().put("/d/a", b"1").put("/d/b", b""))
    record = await existing(one, "/d/a")

    async def neighbour() -> None:
        await two.apply(two.batch().delete("/d/b"))

    sizes.clear()
    inject(one, before(neighbour))
    await one.apply(one.batch().replace(record, b"2"))
    assert sizes == [1, 1]
    # A chain of writes to one record rests on what was written, without reading.
    for number in range(3, 6):
        await one.apply(one.batch().replace(await existing(one, "/d/a"), str(number).encode()))
    assert sizes == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("key", ["/r/1", "/r/x/y/1", "/r/"])
@pytest.mark.parametrize("was", ["never there", "emptied", "an empty directory below"])
async def test_a_record_that_appears_in_an_empty_range_is_noticed(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, was: str, key: str
) -> None:
    one, two = await pair(zookeeper_server, open_store)
    if was != "never there":
        gone = "/r/2" if was == "emptied" else "/r/x/z/2"
        await two.apply(two.batch().put(gone, b""))
        await two.apply(two.batch().delete(gone))

    async def appear() -> None:
        await two.apply(two.batch().put(key, b""))

    inject(one, before(appear))
    with pytest.raises(CheckFailed) as failed:
        await one.apply(one.batch().check(EmptyRange("/r/", "/r0")).put("/wrong", b""))
    assert failed.value.current == await existing(two, key)
    await one.apply(one.batch().check(EmptyRange("/q/", "/q0")).put("/q/1", b""))
    await one.apply(one.batch().check(EmptyRange("/r/z/", "/r/z0"), EmptyRange("/p/a/b/", "/p/a/b0")).put("/ok", b""))


@pytest.mark.parametrize(("start", "end"), [("/r/a", "/r/f"), ("/q", "/s"), ("", "\U0010ffff")])
async def test_a_record_that_appears_in_any_other_range_is_noticed_too(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, start: str, end: str
) -> None:
    one, two = await pair(zookeeper_server, open_store)

    async def appear() -> None:
        await two.apply(two.batch().put("/r/b", b""))

    inject(one, before(appear))
    with pytest.raises(CheckFailed) as failed:
        await one.apply(one.batch().check(EmptyRange(start, end)).put("/zz", b""))
    assert failed.value.current == await existing(two, "/r/b")


async def test_a_record_that_appears_in_one_range_while_another_one_is_read_is_noticed(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    """Their emptiness was seen at two revisions, which one look at the tip cannot prove."""
    one, two = await pair(zookeeper_server, open_store)
    one._commit._on_group = sizes.append
    read = one._snapshots.range

    async def interrupted(start: str, end: str, deadline: float, **options: Any) -> ZooKeeperListing:
        listing = await read(start, end, deadline, **options)
        monkeypatch.undo()
        await two.apply(two.batch().put("/r/b", b""))
        return listing

    monkeypatch.setattr(one._snapshots, "range", interrupted)
    checked = one.batch().check(EmptyRange("/r/a", "/r/f"), EmptyRange("/s/a", "/s/f"))
    with pytest.raises(CheckFailed) as failed:
        await one.apply(checked.put("/wrong", b""))
    assert failed.value.current == await existing(two, "/r/b")
    assert sizes == [], "it is not even sent"


async def test_a_record_that_was_written_again_is_not_deleted_as_one_that_was_not(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    one, two = await pair(zookeeper_server, open_store)
    await one.apply(one.batch().put("/a", b"1"))

    async def again() -> None:
        await two.apply(two.batch().put("/a", b"2"))

    inject(one, before(again))
    with pytest.raises(CheckFailed) as failed:
        await one.apply(one.batch().check(FirstVersion("/a")).delete("/a"))
    assert failed.value.current == await existing(two, "/a")


@pytest.mark.parametrize(("start", "end"), [("/r/", "/r0"), ("/r/a", "/r/z")])
async def test_a_range_delete_takes_what_appears_just_before_it(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, start: str, end: str
) -> None:
    one, two = await pair(zookeeper_server, open_store)
    await one.apply(one.batch().put("/r/a", b"").put("/r/c/d", b"").put("/s", b""))

    async def appear() -> None:
        await two.apply(two.batch().put("/r/b", b"").delete("/r/a"))

    inject(one, before(appear))
    await one.apply(one.batch().delete_range(start, end).put("/t", b""))
    assert [record.key for record in (await two.scan("/")).records] == ["/s", "/t"]


async def test_bare_writes_meet_what_is_there_when_they_arrive(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    one, two = await pair(zookeeper_server, open_store)
    await one.apply(one.batch().put("/there", b"1"))

    async def swap() -> None:
        await two.apply(two.batch().delete("/there").put("/absent", b"1").put("/gone", b"1"))

    start = await one.current_revision()
    async with two.watch("/", start + 1) as watch:
        inject(one, before(swap))
        applied = await one.apply(one.batch().put("/there", b"2").put("/absent", b"2").delete("/gone"))
        swapped, written = await anext(watch), await anext(watch)
    assert written.revision == applied.revision > swapped.revision
    records = {record.key: record for record in (await two.scan("/")).records}
    assert records == {
        "/there": Record("/there", b"2", applied.revision, True),
        "/absent": Record("/absent", b"2", applied.revision, False),
    }


async def test_a_directory_that_vanishes_or_appears_is_no_matter(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    one, two = await pair(zookeeper_server, open_store)
    await one.apply(one.batch().put("/d/e/1", b""))
    await one.apply(one.batch().delete("/d/e/1"))

    async def clean() -> None:
        directory = two._paths.directory("/d/e/")
        await two._janitor.remove_empty([directory])
        assert await children(two, two._paths.directory("/d/")) == []

    inject(one, before(clean))
    await one.apply(one.batch().create("/d/e/2", b""))

    async def make() -> None:
        await two.apply(two.batch().create("/new/dir/1", b""))

    inject(one, before(make))
    await one.apply(one.batch().create("/new/dir/2", b"").check(Absent("/new/dir/x/y")))
    keys = [record.key for record in (await two.scan("/")).records]
    assert keys == ["/d/e/2", "/new/dir/1", "/new/dir/2"]


async def test_a_directory_that_is_used_again_stays_and_keeps_no_other_one(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    """It was empty when it was looked at, and is not when its removal arrives."""
    one, two = await pair(zookeeper_server, open_store)
    await one.apply(one.batch().put("/used/1", b"").put("/empty/1", b""))
    await one.apply(one.batch().delete("/used/1").delete("/empty/1"))

    async def use() -> None:
        await two.apply(two.batch().put("/used/2", b""))

    inject(one, before(use))
    await one._janitor.remove_empty([one._paths.directory(directory) for directory in ("/used/", "/empty/")])
    assert await children(two, two._paths.directory("/empty/")) == []
    left = [path for path in await children(two, two._paths.records) if "used" in path or "empty" in path]
    assert [f"{two._paths.records}/{name}" for name in left] == [two._paths.directory("/used/")]
    assert [record.key for record in (await one.scan("/")).records] == ["/used/2"]


async def test_no_more_is_believed_than_memory_allows(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was forgotten is read again."""
    monkeypatch.setattr(zookeeper_plan, "_MAX_CACHED", 3)
    one, two = await pair(zookeeper_server, open_store)
    keys = [f"/{number}/k" for number in range(8)]
    for key in keys:
        await one.apply(one.batch().create(key, b"1"))
        assert len(one._beliefs.records) <= 3 and len(one._beliefs.directories) <= 3
    for key in keys:
        await one.apply(one.batch().replace(await existing(two, key), b"2"))
        await one.apply(one.batch().put(f"{key}/below", b""))
    found = {record.key: record.value for record in (await two.scan("/")).records}
    assert found == dict.fromkeys(keys, b"2") | {f"{key}/below": b"" for key in keys}


async def test_a_late_header_decision_loses_alone(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, sizes: list[int]
) -> None:
    """The shape of the hot path: many guarded operations of transactions, one of which is decided meanwhile."""
    index = IndexDefinition("by", "/op/", lambda key, value: [key.replace("/", "-")])
    one = await open_store(zookeeper_server, indexes=(index,), on_group=sizes.append)
    two = await open_store(zookeeper_server, one._paths.root)
    await one.apply(one.batch().put("/owner/s", b"me"))
    owner = await existing(one, "/owner/s")
    await together(one, [one.batch().create(f"/txn/{number}", b"OPEN") for number in range(20)])
    decided = await existing(two, "/txn/7")

    async def decide() -> None:
        await two.apply(two.batch().check(FirstVersion("/txn/7")).replace(decided, b"COMMITTED"))

    sizes.clear()
    inject(one, before(decide))
    answers = await together(
        one,
        [
            one.batch()
            .check(FirstVersion(f"/txn/{number}"), AtVersion("/owner/s", owner.version), Absent(f"/prepared/{number}"))
            .create(f"/op/{number}/1", b"")
            for number in range(20)
        ],
    )
    assert [number for number, answer in enumerate(answers) if not isinstance(answer, Applied)] == [7]
    failed = answers[7]
    assert isinstance(failed, CheckFailed)
    assert failed.check == FirstVersion("/txn/7") and failed.current == await existing(two, "/txn/7")
    assert sizes == [20, 19]
    assert len(await one.query_index("by")) == 19


async def test_a_request_stays_below_the_limit_of_the_server(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, sizes: list[int]
) -> None:
    store = await open_store(zookeeper_server, on_group=sizes.append)
    value = bytes(100_000)
    answers = await together(store, [store.batch().create(f"/k/{number}", value) for number in range(20)])
    assert all(isinstance(answer, Applied) for answer in answers)
    assert sum(sizes) == 20 and max(sizes) <= 3
    assert [len(record.value) for record in (await store.scan("/k/")).records] == [100_000] * 20
    largest = store.batch().put("/large", bytes(store.max_batch_bytes - 10))
    await store.apply(largest)
    many = store.batch()
    for number in range(12_000):
        many.put(f"/many/{number:05d}", b"")
    with pytest.raises(InvalidBatch):
        await store.apply(many)
    await store.apply(store.batch().put("/after", b""))


async def test_a_group_that_turns_out_too_large_for_a_request_is_divided(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, sizes: list[int]
) -> None:
    """Each key needs hundreds of directories, which count only once the request is made."""
    store = await open_store(zookeeper_server, on_group=sizes.append)
    keys = [f"/{number:02d}{'/d' * 300}" for number in range(20)]
    answers = await together(store, [store.batch().create(key, b"") for key in keys])
    assert all(isinstance(answer, Applied) for answer in answers)
    assert sum(sizes) == 20 and 1 < max(sizes) < 20
    assert [record.key for record in (await store.scan("/")).records] == keys


async def test_a_batch_that_turns_out_too_large_for_a_request_is_refused(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(zookeeper_server)
    deep = store.batch()
    for number in range(20):
        deep.put(f"/{number:02d}{'/d' * 300}", b"")
    with pytest.raises(InvalidBatch, match="that are allowed"):
        await store.apply(deep)
    await store.apply(store.batch().put("/after", b""))
    assert [record.key for record in (await store.scan("/")).records] == ["/after"]


async def test_two_clients_that_write_one_key_in_turn_lose_nothing(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    clients = await pair(zookeeper_server, open_store)

    async def add(store: ZooKeeperStore) -> None:
        done = 0
        while done < 25:
            record = await store.get("/counter")
            value = str(int(record.value) + 1 if record else 1).encode()
            batch = store.batch()
            try:
                await store.apply(batch.replace(record, value) if record else batch.create("/counter", value))
                done += 1
            except CheckFailed:
                continue

    await asyncio.gather(*(add(clients[number % 2]) for number in range(4)))
    assert (await existing(clients[0], "/counter")).value == b"100"
