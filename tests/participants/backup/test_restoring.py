"""Goal: a backup is restored into empty places only, no process serves it before it is complete, and no number that was
given out is given out again.

Method: as in `test_cut`; a restore is interrupted at each of its writes to the store.
"""

from __future__ import annotations

from itertools import count

import pytest

from metastore.api import MetadataStore
from metastore.check import dump
from metastore.errors import StoreUnavailable, StoreWentBack
from metastore.incarnation import IDS_PER_MS, IncarnationGuard
from metastore.txn import paths
from metastore.txn.records.groups import GroupRecord
from metastore.txn.records.processes import BrokerRecord, VersionRecord
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.txn.records.topics import PulsarSchemaRecord, TopicRecord
from metastore.txn.records.transactions import Header, TransactionKey
from metastore.types import Applied, Batch
from metastore.versions import SPEAKS
from metatxn_gateways.pulsar.commands import Command
from metatxn_gateways.pulsar.topic_schemas import TopicSchemas
from participants.backup import verifying
from participants.backup.manifest import Manifest
from participants.backup.restoring import BackupRestorer, ClockBehind, NotEmpty, Restored, is_begun
from participants.ledger.storage import LedgerStorage
from participants.restored.recovery import StoreRecovery, Wishes
from participants.restored.seen_store import SeenStore
from tests.coordinator.stores import WrappedStore
from tests.participants.backup.cases import RESTORED_MS, BackupCase
from tests.participants.segment.world import SEGMENT, committed, materialized, publish, uncommitted


async def test_it_is_known_how_far_it_is(case: BackupCase) -> None:
    """In bytes of ledgers and records, for `metatxn backup verify` and `restore`."""
    segment = await case.begin()
    for number in range(3):
        await publish(segment, f"{number}" * 1_000)
    manifest = await case.take()
    checking: list[tuple[int, int]] = []
    problems = verifying.problems_of(case.place, manifest, lambda *told: checking.append(told))
    assert [each async for each in problems] == []
    await case.restore(manifest)
    for told in (checking, case.restoring):
        done, totals = [each[0] for each in told], {each[1] for each in told}
        assert done == sorted(done) and done[0] < done[-1] and len(totals) == 1
        assert done[0] > 0 and 0.8 < done[-1] / totals.pop() <= 1


async def test_no_number_is_given_out_again(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    store = case.world.store.inner
    key = TransactionKey(epoch=7, updated_ms=1).encode()
    await store.apply(store.batch().create(paths.transaction_key(None, "job"), key))
    await case.restore(await case.take())
    store = case.restored.store.inner
    sequence, held, owner, topic = [
        await store.get(each)
        for each in (
            paths.id_sequence(1),
            paths.transaction_key(None, "job"),
            paths.segment_owner(SEGMENT),
            paths.topic("public/default/t"),
        )
    ]
    assert sequence is not None and int(sequence.value) >= RESTORED_MS * IDS_PER_MS
    assert held is not None and TransactionKey.decode(held.value).epoch >= RESTORED_MS
    assert owner is not None and OwnerRecord.decode(owner.value).generation >= RESTORED_MS
    assert topic is not None and TopicRecord.decode(topic.value).next_segment >= RESTORED_MS
    assert (await case.served()).ledgers.open.id >= RESTORED_MS  # type: ignore[union-attr]


async def test_what_processes_say_of_themselves_is_not_restored(case: BackupCase) -> None:
    await case.begin()
    store = case.world.store.inner
    batch = store.batch().put(paths.broker_process("b"), BrokerRecord(url="http://b").encode())
    batch.put(paths.drain_of_storage("s"), b'{"since_ms":1}').put(paths.quota_use("b"), b'{"uses":{}}')
    batch.put(paths.group("g"), GroupRecord(generation=3, updated_ms=1).encode())
    await store.apply(batch)
    await case.restore(await case.take())
    here = [record.key async for record in dump(case.restored.store.inner)]
    assert not [key for key in here if key.startswith(("/cluster/broker/", "/cluster/drain/", "/quota-use/"))]
    assert paths.group("g") in here
    assert await case.laws() == []


async def test_schemas_of_pulsars_clients_are_restored_and_no_version_is_given_out_again(case: BackupCase) -> None:
    await case.begin()
    store = case.world.store.inner
    stored = await store.get(paths.topic("public/default/t"))
    assert stored is not None
    topic = TopicRecord.decode(stored.value).model_copy(update={"format": "pulsar"})
    kept = PulsarSchemaRecord(type=2, data="e30=", created_ms=1, name="a", properties={"b": "c"})
    batch = store.batch().replace(stored, topic.encode())
    await store.apply(batch.create(paths.pulsar_schema("public/default/t", 0), kept.encode()))
    await case.restore(await case.take())
    schemas = TopicSchemas(case.restored.store.inner, case.restored.now_ms)
    assert await schemas.get("public/default/t", 0) == (0, kept)
    added = await schemas.version_of("public/default/t", Command().producer.schema.FromString(b"\x20\x04"))
    assert added == RESTORED_MS
    assert await case.laws() == []


async def test_the_cluster_has_the_version_of_the_release_that_restores(case: BackupCase) -> None:
    await case.begin()
    store = case.world.store.inner
    await store.apply(store.batch().put(paths.VERSION, VersionRecord(version=1).encode()))
    manifest = await case.take()
    assert manifest.version == 1
    done = await case.restore(manifest)
    guard = IncarnationGuard(case.restored.store.inner, case.restored.now_ms)
    await guard.start()
    await guard.stop()
    assert (guard.id, guard.version.current) == (done.incarnation, SPEAKS)
    async with await case.device.again().open() as storage:
        assert await SeenStore.read(storage) is not None


async def test_only_empty_places_are_filled(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a")
    manifest = await case.take()
    with pytest.raises(NotEmpty, match="has ledgers already"):
        await restored_into(case, manifest, case.restored.store.inner, case.node.storage)
    async with await case.restored.new_device("empty").open() as storage:
        with pytest.raises(NotEmpty, match="the store is not empty"):
            await restored_into(case, manifest, case.world.store.inner, storage)
        late = BackupRestorer(case.restored.store.inner, [storage], case.place, lambda: manifest.finished_ms)
        with pytest.raises(ClockBehind):
            await late.restore(manifest)
    assert [record async for record in dump(case.restored.store.inner)] == []
    assert await committed(segment) == ["a"]


async def restored_into(case: BackupCase, manifest: Manifest, store: MetadataStore, storage: LedgerStorage) -> Restored:
    return await BackupRestorer(store, [storage], case.place, case.restored.now_ms).restore(manifest)


class Ending(WrappedStore):
    """Its process dies before the apply of this number."""

    def __init__(self, inner: MetadataStore, last: int) -> None:
        super().__init__(inner)
        self._left = last

    async def apply(self, batch: Batch) -> Applied:
        if self._left <= 0:
            raise StoreUnavailable("the process has died")
        self._left -= 1
        return await super().apply(batch)


async def test_a_restore_that_is_interrupted_begins_again(case: BackupCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile no process serves the store, nor is it recovered."""
    monkeypatch.setattr("participants.backup.loading._TOGETHER", 2)
    world, segment = case.world, await case.begin()
    done, opened = await world.begin(), await world.begin()
    await publish(segment, "a", done)
    await publish(segment, "open", opened)
    await world.commit(done)
    await materialized(segment, done)
    manifest = await case.take()
    device, store = case.restored.new_device("restored"), case.restored.store.inner
    for applies in count(1):
        async with await device.again().open() as storage:
            ending = Ending(store, applies)
            restorer = BackupRestorer(ending, [storage], case.place, case.restored.now_ms)
            try:
                await restorer.restore(manifest)
                break
            except StoreUnavailable:
                with pytest.raises(StoreWentBack, match="metatxn restore"):
                    await IncarnationGuard(store, case.restored.now_ms).start()
                with pytest.raises(StoreWentBack, match="not restored completely"):
                    await StoreRecovery(store, [], case.restored.now_ms).recover(Wishes())
    assert applies > 8
    case.device = device
    restored = await case.served()
    assert await committed(restored) == ["a"] and await uncommitted(restored) == ["a", "open"]
    assert await case.laws() == []


async def test_another_backup_is_not_restored_over_half_of_one(case: BackupCase) -> None:
    await case.begin()
    first, second = await case.take(), await case.take()
    async with await case.restored.new_device("restored").open() as storage:
        ending = BackupRestorer(Ending(case.restored.store.inner, 2), [storage], case.place, case.restored.now_ms)
        with pytest.raises(StoreUnavailable):
            await ending.restore(first)
        assert await is_begun(first, case.restored.store.inner, [storage], case.restored.now_ms())
        with pytest.raises(NotEmpty):
            await restored_into(case, second, case.restored.store.inner, storage)


async def test_segments_are_divided_over_the_storages(case: BackupCase) -> None:
    """Ledgers of several brokers with local files go where the segment goes."""
    world = case.world
    await case.lawful()
    nodes = [await world.node(), await world.node()]
    names = [SEGMENT, SEGMENT.replace("ffff-0", "ffff-1")]
    batch = world.store.batch()
    for name, node in zip(names, nodes, strict=True):
        record = SegmentRecord(topic="public/default/t", range=(0, 0xFFFF), storage=node.storage.storage_id)
        batch.create(paths.segment(name), record.encode())
    await world.store.apply(batch)
    for name, node in zip(names, nodes, strict=True):
        await publish(await node.open(name), name[-1])
    storages = [node.storage for node in nodes]
    manifest = await case.take(storages=storages)
    case.restored.store = type(case.restored.store)()
    places = [case.restored.new_device(f"place-{number}") for number in range(2)]
    opened = [await place.open() for place in places]
    await BackupRestorer(case.restored.store.inner, opened, case.place, case.restored.now_ms).restore(manifest)
    for storage in opened:
        await storage.close()
    found = []
    for place in places:
        node = await case.restored.node(place.again())
        for name in names:
            stored = await case.restored.store.inner.get(paths.segment(name))
            assert stored is not None
            if SegmentRecord.decode(stored.value).storage == node.storage.storage_id:
                found += await committed(await node.open(name))
    assert sorted(found) == ["0", "1"]


async def test_a_decided_header_is_decided(case: BackupCase) -> None:
    """Everybody tells a decided header from an open one by the number of its writes."""
    await case.begin()
    done = await case.world.begin()
    await case.world.commit(done)
    await case.restore(await case.take())
    record = await case.restored.store.inner.get(paths.header(done))
    assert record is not None and not record.first and Header.decode(record.value).state.final
