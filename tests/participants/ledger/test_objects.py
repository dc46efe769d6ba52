"""Goal: what was acknowledged is in the object store and stays readable, and anyone who was fenced off adds nothing.

Method: two storages on one object store, as two brokers have them. The former owner writes through a bucket whose puts
are held, lost or repeated; the new one seals. Break-ups in every order, and at random under fixed seeds. DESIGN §5.2.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from metastore.background import Backoff
from participants.ledger import object_ledger, storage_id
from participants.ledger.bucket import Bucket
from participants.ledger.form import Form
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.objects import (
    HEADER_BYTES,
    ObjectHeader,
    ObjectIndex,
    ObjectKind,
    index_name,
    ledger_prefix,
    object_name,
)
from participants.ledger.storage import (
    LedgerCorrupt,
    LedgerError,
    LedgerFenced,
    LedgerMissing,
    LedgerStopped,
    LedgerTooNew,
    OpenLedger,
    StorageFailed,
    StorageRefused,
)
from tests.participants.ledger.faulty_bucket import FaultyBucket, PutFault
from tests.participants.ledger.ledgers import SEGMENT, append, append_all, payloads
from tests.servers import S3Server


@pytest.fixture(autouse=True)
def _retries_without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metatxn.service.retry.backoff", lambda: Backoff(first_s=0.0))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def bucket(store: MemoryStore) -> FaultyBucket:
    return FaultyBucket(store)


@pytest.fixture
async def storage(bucket: FaultyBucket) -> AsyncIterator[ObjectStorage]:
    async with await ObjectStorage.open(bucket) as opened:
        yield opened


@pytest.fixture
async def other(store: MemoryStore, storage: ObjectStorage) -> AsyncIterator[ObjectStorage]:
    """The same storage in another broker."""
    async with await ObjectStorage.open(FaultyBucket(store)) as opened:
        assert opened.storage_id == storage.storage_id
        yield opened


async def refused(ledger: OpenLedger, payload: bytes = b"too late") -> type[BaseException]:
    """How an append of a former owner ends."""
    try:
        await append(ledger, payload).durable
    except LedgerError as error:
        return type(error)
    raise AssertionError("a former owner was told that its append is durable")


async def test_a_put_without_an_answer_counts_once(storage: ObjectStorage, bucket: FaultyBucket) -> None:
    """The name is taken, by ourselves: the token tells (DESIGN §5.2)."""
    ledger = await storage.create(SEGMENT, 1)
    bucket.fault(PutFault(lost_reply=True))
    bucket.fault(PutFault(lost_request=True))
    bucket.fault(PutFault(lost_request=True))
    await append_all(ledger, [b"a"])
    bucket.fault(PutFault(lost_request=True))
    bucket.fault(PutFault(lost_reply=True))
    await append_all(ledger, [b"b"])
    bucket.fault(PutFault(repeated=True))
    await append_all(ledger, [b"c"])
    assert await payloads(await ledger.seal()) == [b"a", b"b", b"c"]


async def test_a_creation_without_an_answer_is_ours(storage: ObjectStorage, bucket: FaultyBucket) -> None:
    bucket.fault(PutFault(lost_reply=True))
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    assert await payloads(await ledger.seal()) == [b"a"]


async def test_puts_that_land_in_another_order_are_told_in_order(storage: ObjectStorage, bucket: FaultyBucket) -> None:
    ledger = await storage.create(SEGMENT, 1)
    held = bucket.fault(PutFault(hold=True))
    begun = []
    for payload in (b"a", b"b", b"c"):
        bucket.puts.clear()
        begun.append(append(ledger, payload))
        while not bucket.puts:
            await asyncio.sleep(0)
    while len(await bucket.sizes("ledgers")) < 3:  # the start, b and c
        await asyncio.sleep(0)
    assert [one.durable.done() for one in begun] == [False, False, False]
    assert await payloads(ledger) == []
    held.go.set()
    await asyncio.gather(*(one.durable for one in begun))
    assert await payloads(ledger) == [b"a", b"b", b"c"]


async def test_a_former_owner_adds_nothing(storage: ObjectStorage, other: ObjectStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a", b"b"])
    sealed = await other.seal(SEGMENT, 1)
    assert await refused(ledger) is LedgerFenced
    with pytest.raises(LedgerStopped):
        append(ledger, b"later")
    assert await payloads(sealed) == await payloads(ledger) == [b"a", b"b"]
    assert await payloads(await other.seal(SEGMENT, 1)) == [b"a", b"b"]


async def test_a_put_that_comes_after_the_fence_is_refused_with_all_behind_it(
    storage: ObjectStorage, bucket: FaultyBucket, other: ObjectStorage
) -> None:
    """Those behind it have landed already: nobody was told, and nobody ever reads them."""
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    held = bucket.fault(PutFault(hold=True))
    begun = []
    for payload in (b"b", b"c", b"d"):
        begun.append(append(ledger, payload))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await held.reached.wait()
    while len(await bucket.sizes("ledgers")) < 4:
        await asyncio.sleep(0)
    sealed = await other.seal(SEGMENT, 1)
    held.go.set()
    ended = await asyncio.gather(*(one.durable for one in begun), return_exceptions=True)
    assert [type(each) for each in ended] == [LedgerFenced] * 3
    assert await payloads(sealed) == [b"a"]
    assert await payloads(await other.open_sealed(SEGMENT, 1, 1)) == [b"a"]


async def test_a_put_that_overtakes_the_fence_counts(
    storage: ObjectStorage, bucket: FaultyBucket, store: MemoryStore
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    fencing = FaultyBucket(store)
    async with await ObjectStorage.open(fencing) as other:
        held = fencing.fault(PutFault(hold=True))
        sealing = asyncio.create_task(other.seal(SEGMENT, 1))
        await held.reached.wait()
        await append_all(ledger, [b"b"])
        held.go.set()
        assert await payloads(await sealing) == [b"a", b"b"]
    assert await refused(ledger) is LedgerFenced


async def test_a_fence_without_an_answer_is_a_fence(storage: ObjectStorage, store: MemoryStore) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    fencing = FaultyBucket(store)
    async with await ObjectStorage.open(fencing) as other:
        fencing.fault(PutFault(lost_reply=True))
        assert await payloads(await other.seal(SEGMENT, 1)) == [b"a"]
    assert await refused(ledger) is LedgerFenced


async def test_two_recoveries_at_once_agree(storage: ObjectStorage, other: ObjectStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    for payload in (b"a", b"b", b"c"):
        await append_all(ledger, [payload])
    third = await ObjectStorage.open(FaultyBucket(other._bucket.store))  # type: ignore[attr-defined]
    sealed = await asyncio.gather(other.seal(SEGMENT, 1), third.seal(SEGMENT, 1), ledger.seal())
    assert [await payloads(each) for each in sealed] == [[b"a", b"b", b"c"]] * 3
    await third.close()


async def test_an_unknown_put_is_decided_by_the_seal(storage: ObjectStorage, bucket: FaultyBucket) -> None:
    """Every attempt failed, and one of them was done all the same: it is in the sealed ledger."""
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    for number in range(5):
        bucket.fault(PutFault(lost_request=number != 4, lost_reply=number == 4))
    begun = append(ledger, b"b")
    with pytest.raises(StorageFailed):
        await begun.durable
    assert isinstance(ledger.stopped, StorageFailed)
    assert await payloads(ledger) == [b"a"]
    assert await payloads(await ledger.seal()) == [b"a", b"b"]


async def test_a_put_that_never_arrived_is_not_in_the_sealed_ledger(
    storage: ObjectStorage, bucket: FaultyBucket, other: ObjectStorage
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    for _ in range(5):
        bucket.fault(PutFault(lost_request=True))
    with pytest.raises(StorageFailed):
        await append(ledger, b"b").durable
    assert await payloads(await ledger.seal()) == [b"a"]
    assert await payloads(await other.seal(SEGMENT, 1)) == [b"a"]


async def test_a_former_owner_that_wakes_up_after_the_ledger_was_deleted_is_still_fenced_off(
    storage: ObjectStorage, other: ObjectStorage, bucket: FaultyBucket
) -> None:
    """Trim, and recovery of an empty ledger, delete ledgers whose owner may be frozen. The fence stays."""
    used, empty = await storage.create(SEGMENT, 1), await storage.create(SEGMENT, 2)
    await append_all(used, [b"a"])
    for number in (1, 2):
        await other.seal(SEGMENT, number)
    unsealed = await storage.create(SEGMENT, 3)
    for number in (1, 2, 3, 3):
        await other.delete(SEGMENT, number)
    for ledger in (used, empty, unsealed):
        assert await refused(ledger) is LedgerFenced
    assert len(await bucket.sizes("ledgers")) == 3  # the fences
    await other.drop(SEGMENT)
    assert await bucket.sizes("ledgers") == {}


async def test_a_former_owner_whose_segment_is_dropped_while_it_looks_is_fenced_off(store: MemoryStore) -> None:
    """The name of its put was taken, and what has taken it is gone before its token is read."""

    class Dropping(FaultyBucket):
        async def get_range(self, name: str, start: int, end: int) -> bytes:
            await self.delete([name])
            return await super().get_range(name, start, end)

    async with await ObjectStorage.open(Dropping(store)) as storage:
        ledger = await storage.create(SEGMENT, 1)
        async with await ObjectStorage.open(FaultyBucket(store)) as other:
            await other.seal(SEGMENT, 1)
        assert await refused(ledger) is LedgerFenced


async def test_a_lost_index_is_read_from_the_objects(
    storage: ObjectStorage, other: ObjectStorage, store: MemoryStore
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    for payload in (b"a", b"bb", b"ccc"):
        await append_all(ledger, [payload, payload])
    await ledger.seal()
    wanted = [b"a", b"a", b"bb", b"bb", b"ccc", b"ccc"]
    name = index_name(SEGMENT, 1)
    stored = bytes(store.get(name).bytes())
    for damaged in (None, b"", stored[:-8], stored[:20] + b"\xff" + stored[21:]):
        store.delete(name)
        if damaged is not None:
            store.put(name, damaged)
        assert await payloads(await other.open_sealed(SEGMENT, 1, 6)) == wanted
        assert await payloads(await other.seal(SEGMENT, 1)) == wanted


async def test_a_ledger_whose_index_is_damaged_is_opened_in_its_form(
    storage: ObjectStorage, other: ObjectStorage, store: MemoryStore
) -> None:
    """Its objects may be gone by then, and it was sealed before it got one: nothing is fenced."""

    async def no_pace(_: int) -> None: ...

    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a", b"b", b"c"])
    form = Form(7, 1)
    await storage.write_form(SEGMENT, await ledger.seal(), form, [1], no_pace)
    store.put(index_name(SEGMENT, 1), b"damaged")
    store.delete(object_name(SEGMENT, 1, 1))
    found = await other.seal(SEGMENT, 1)
    assert (found.form, found.entries) == (form, 3)
    assert [bytes(frame.payload) for frame in await found.read(0, 1 << 20)] == [b"b"]


async def test_damage_is_never_served(store: MemoryStore) -> None:
    """One bit of any object, or its end, sealed or not: the ledger is refused, or it is what was written."""
    async with await ObjectStorage.open(FaultyBucket(store)) as storage:
        ledger = await storage.create(SEGMENT, 1)
        wanted = [b"one", b"two" * 10, b"three"]
        for payload in wanted:
            await append_all(ledger, [payload])
        await ledger.seal()
    whole = {meta["path"]: bytes(store.get(meta["path"]).bytes()) for chunk in store.list("ledgers") for meta in chunk}
    chance = random.Random(7)
    refusals = 0
    for _ in range(300):
        name = chance.choice(sorted(whole))
        damaged = bytearray(whole[name])
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        store.put(name, bytes(damaged))
        if chance.random() < 0.5:
            store.delete(index_name(SEGMENT, 1))
        async with await ObjectStorage.open(FaultyBucket(store)) as storage:
            try:
                assert await payloads(await storage.open_sealed(SEGMENT, 1, 3)) == wanted
            except LedgerCorrupt:
                refusals += 1
        for each, content in whole.items():
            store.put(each, content)
    assert 100 < refusals < 300


async def test_a_lost_object_is_no_end(storage: ObjectStorage, bucket: FaultyBucket, store: MemoryStore) -> None:
    """Objects behind it say that it had been durable. Nothing is fenced then: the object may be restored."""
    ledger = await storage.create(SEGMENT, 1)
    for number in range(8):
        await append_all(ledger, [b"%d" % number])
    name = object_name(SEGMENT, 1, 4)
    kept = bytes(store.get(name).bytes())
    store.delete(name)
    async with await ObjectStorage.open(FaultyBucket(store)) as other:
        with pytest.raises(LedgerCorrupt, match=r"0004 is missing: .* says that \d were durable"):
            await other.seal(SEGMENT, 1)
        store.put(name, kept)
        assert len(await payloads(await other.seal(SEGMENT, 1))) == 8
    for number, error in [(8, LedgerCorrupt), (4, LedgerCorrupt), (0, LedgerMissing)]:
        store.delete(object_name(SEGMENT, 1, number))
        async with await ObjectStorage.open(FaultyBucket(store)) as other:
            with pytest.raises(error):
                await payloads(await other.open_sealed(SEGMENT, 1, 8))


@pytest.mark.parametrize(
    ("change", "frames_of", "said"),
    [
        ({"kind": ObjectKind.START}, 2, "does not follow entry 0 of its ledger"),
        ({"token": bytes(16)}, 2, "does not follow entry 0 of its ledger"),
        ({"first": 2}, 3, "does not follow entry 0 of its ledger"),
        ({}, 3, "has 1:2 at the place of entry 1:1"),
        ({}, None, "holds no entry"),
    ],
)
async def test_an_object_that_does_not_belong_there_is_no_end(
    storage: ObjectStorage,
    other: ObjectStorage,
    store: MemoryStore,
    change: dict[str, Any],
    frames_of: int | None,
    said: str,
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    for payload in (b"a", b"b", b"c"):
        await append_all(ledger, [payload])
    name = object_name(SEGMENT, 1, 2)
    kept = bytes(store.get(name).bytes())
    source = bytes(store.get(object_name(SEGMENT, 1, frames_of)).bytes()) if frames_of is not None else b""
    header = replace(ObjectHeader.decode(kept, name), **change)
    store.put(name, header.encode() + source[HEADER_BYTES:])
    with pytest.raises(LedgerCorrupt, match=f"0002 {said}"):
        await other.seal(SEGMENT, 1)
    store.put(name, kept)
    assert await payloads(await other.seal(SEGMENT, 1)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("kind", ["memory", "file", "s3"])
async def test_a_range_ends_where_its_object_ends_in_every_store(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also where it begins there: a ledger that has lost its end is damaged, and not out of reach."""
    if kind == "s3":
        request.getfixturevalue("s3")
    bucket = Bucket.open({"memory": "memory:///", "file": f"file://{tmp_path}"}.get(kind, f"s3://{S3Server.BUCKET}/x"))
    await bucket.put("whole", b"abc")
    await bucket.put("empty", b"")
    for name, start, end, found in [("whole", 1, 9, b"bc"), ("whole", 3, 4, b""), ("whole", 9, 10, b"")]:
        assert await bucket.get_range(name, start, end) == found
    assert await bucket.get_range("empty", 0, 1) == b""
    with pytest.raises(FileNotFoundError):
        await bucket.get_range("missing", 0, 1)


async def test_a_range_that_a_store_fails_to_read_is_not_taken_for_the_end(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: Any, **more: Any) -> Any:
        raise obstore.exceptions.GenericError("the connection was lost")

    bucket = Bucket(store)
    await bucket.put("whole", b"abc")
    monkeypatch.setattr(obstore, "get_range_async", failing)
    with pytest.raises(StorageFailed, match="the connection was lost"):
        await bucket.get_range("whole", 1, 2)


@pytest.mark.parametrize("longer", [1, -1])
async def test_a_sealed_ledger_whose_last_object_has_another_size_is_refused(
    storage: ObjectStorage, other: ObjectStorage, store: MemoryStore, longer: int
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    await ledger.seal()
    name = object_name(SEGMENT, 1, 1)
    kept = bytes(store.get(name).bytes())
    store.put(name, (kept + b"x")[: len(kept) + longer])
    for call in (other.seal, other.look, partial(other.open_sealed, entries=1)):
        with pytest.raises(LedgerCorrupt, match=f"0001 does not have {len(kept)} bytes"):
            await call(SEGMENT, 1)
    store.put(name, kept)
    assert await payloads(await other.open_sealed(SEGMENT, 1, 1)) == [b"a"]


async def test_what_is_no_storage_is_not_opened_to_be_read(bucket: FaultyBucket) -> None:
    with pytest.raises(StorageRefused, match=r"there are no ledgers: there is no storage.json$"):
        await ObjectStorage.open_to_read(bucket)
    assert await bucket.sizes("") == {}


async def test_a_store_that_ignores_conditions_is_refused(store: MemoryStore) -> None:
    bucket = FaultyBucket(store)
    bucket.conditional = False
    with pytest.raises(StorageRefused, match="If-None-Match"):
        await ObjectStorage.open(bucket)


async def test_a_lost_storage_id_orphans_nothing(storage: ObjectStorage, store: MemoryStore) -> None:
    await storage.create(SEGMENT, 1)
    store.delete("storage.json")
    with pytest.raises(StorageRefused, match="restore it"):
        await ObjectStorage.open(FaultyBucket(store))


async def test_small_groups_are_read_together_and_within_bounds(storage: ObjectStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    for number in range(40):
        await append_all(ledger, [b"%02d" % number * 10, b"second"])
    wanted = [payload for number in range(40) for payload in (b"%02d" % number * 10, b"second")]
    for at_most in (1, 100, 1000, 1 << 20):
        first, *rest = await ledger.read(11, at_most)
        assert bytes(first.payload) == b"second"
        assert sum(len(frame.data) for frame in rest) <= at_most
    assert await payloads(ledger) == wanted
    assert 16 <= len(await ledger.read(0, 1 << 20)) <= 32


@pytest.mark.parametrize("seed", range(40))
async def test_at_any_moment_of_a_takeover_what_was_acknowledged_is_there_and_nothing_comes_later(seed: int) -> None:
    chance = random.Random(seed)
    store = MemoryStore()
    bucket = FaultyBucket(store)
    async with await ObjectStorage.open(bucket) as storage, await ObjectStorage.open(FaultyBucket(store)) as other:
        ledger = await storage.create(SEGMENT, 1)
        sent: list[bytes] = []
        acknowledged: list[bytes] = []
        held: list[PutFault] = []

        async def publish(payload: bytes) -> None:
            try:
                begun = append(ledger, payload)
                sent.append(payload)
                await begun.durable
                acknowledged.append(payload)
            except LedgerError:
                pass

        async def write() -> None:
            for number in range(30):
                if chance.random() < 0.5:
                    kind = chance.choice(["hold", "lost_request", "lost_reply", "repeated"])
                    fault = PutFault()
                    setattr(fault, kind, True)
                    held.append(bucket.fault(fault))
                publishing.append(asyncio.create_task(publish(b"%d" % number)))
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                if held and chance.random() < 0.6:
                    held.pop(chance.randrange(len(held))).go.set()

        publishing: list[asyncio.Task[None]] = []
        writing = asyncio.create_task(write())
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        at_takeover = list(acknowledged)
        sealed = await payloads(await other.seal(SEGMENT, 1))
        await writing
        for fault in held:
            fault.go.set()
        await asyncio.gather(*publishing)
        assert at_takeover == acknowledged[: len(at_takeover)]
        assert acknowledged == sealed[: len(acknowledged)]
        assert sealed == sent[: len(sealed)]
        assert await payloads(await other.seal(SEGMENT, 1)) == sealed
        assert ledger_prefix(SEGMENT, 1) in next(iter(await bucket.sizes("ledgers")))


def test_the_store_under_test_knows_conditions(store: MemoryStore) -> None:
    store.put("x", b"1", mode="create")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        store.put("x", b"2", mode="create")


def test_an_object_of_a_later_release_is_not_called_damaged() -> None:
    """Its CRC holds, and its kind is unknown (found by tests/fuzz); or its magic has another number."""
    whole = ObjectHeader(ObjectKind.FENCE, bytes(16)).encode()
    body = bytes([ObjectKind.FENCE + 1]) + whole[13:]
    with pytest.raises(LedgerTooNew, match="an object is of a later release: its kind 3"):
        ObjectHeader.decode(whole[:8] + zlib.crc32(body).to_bytes(4, "little") + body, "an object")
    with pytest.raises(LedgerTooNew, match="an object is of a later release: it begins with mtxnobj2"):
        ObjectHeader.decode(b"mtxnobj2" + whole[8:], "an object")
    with pytest.raises(LedgerCorrupt, match="is damaged"):
        ObjectHeader.decode(b"mtxnobj0" + whole[8:], "an object")


def test_an_index_that_holds_fewer_numbers_than_it_says_is_none() -> None:
    """Its CRC holds, and every entry would be before the first one. Found by tests/fuzz."""
    body = (1).to_bytes(8, "little") + bytes(8)
    assert ObjectIndex.decode(b"mtxnidx1" + zlib.crc32(body).to_bytes(4, "little") + body) is None
    assert ObjectIndex.decode(ObjectIndex().encode()) == ObjectIndex()


def test_a_storage_id_that_is_nested_too_deep_is_damaged() -> None:
    """Found by tests/fuzz."""
    with pytest.raises(StorageRefused, match="is damaged"):
        storage_id.parse("storage.json", 3_000 * b"[")


async def test_a_put_that_was_begun_has_ended_when_its_caller_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the interrupted prefixes of a deleted topic, on a busy machine: the fence of an opening that was called
    off landed behind the deletion's listing, and stayed."""
    bucket = Bucket(MemoryStore())
    begun, go = asyncio.Event(), asyncio.Event()
    put = obstore.put_async

    async def late(*arguments: Any, **more: Any) -> Any:
        begun.set()
        await go.wait()
        return await put(*arguments, **more)

    monkeypatch.setattr(obstore, "put_async", late)
    creating = asyncio.create_task(bucket.create("ledgers/x", b"content"))
    await begun.wait()
    creating.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not creating.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await bucket.get("ledgers/x") == b"content"


def test_no_more_objects_are_kept_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ones that were asked for last; what a deleted ledger had leaves room."""
    monkeypatch.setattr(object_ledger, "_CACHE_BYTES", 30)
    cache = object_ledger.ObjectCache()

    def kept() -> set[str]:
        return {name for name in ("a/1", "a/2", "b/1", "b/2", "b/3") if name in cache._objects}

    for name in ("a/1", "a/2", "b/1"):
        cache.put(name, bytes(10))
    assert cache.get("a/1") is not None
    cache.put("b/2", bytes(10))
    assert kept() == {"a/1", "b/1", "b/2"}
    cache.forget("a/")
    cache.put("b/3", bytes(10))
    assert kept() == {"b/1", "b/2", "b/3"}


@pytest.mark.parametrize("formed", [False, True])
async def test_an_object_that_is_gone_by_now_is_damage_unless_the_ledger_has_another_form(
    storage: ObjectStorage, other: ObjectStorage, store: MemoryStore, formed: bool
) -> None:
    """Found by a ledger that was opened before. Who opens it again finds the form."""

    async def no_pace(_: int) -> None: ...

    ledger = await storage.create(SEGMENT, 1)
    for payload in (b"a", b"b", b"c"):
        await append_all(ledger, [payload])
    sealed = await ledger.seal()
    opened = await other.open_sealed(SEGMENT, 1, 3)
    if formed:
        await storage.write_form(SEGMENT, sealed, Form(7, 1), [1], no_pace)
    store.delete(object_name(SEGMENT, 1, 1))
    error, why = (LedgerMissing, "another form") if formed else (LedgerCorrupt, "0001 is missing")
    with pytest.raises(error, match=why):
        await opened.read(0, 1 << 20)


async def test_an_object_that_became_shorter_is_not_copied(
    storage: ObjectStorage, other: ObjectStorage, store: MemoryStore
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    for payload in (b"a", b"b"):
        await append_all(ledger, [payload])
    await ledger.seal()
    opened = await other.open_sealed(SEGMENT, 1, 2)
    name = object_name(SEGMENT, 1, 1)
    store.put(name, bytes(store.get(name).bytes())[:-1])
    with pytest.raises(LedgerCorrupt, match="have become shorter"):
        await opened.raw_bytes(0, 1)
