"""The rules of a recovery one by one, on a store in memory: what is decided, what is hidden, what is adopted and what
is refused. The whole story, on real stores, is told in `test_recovery`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metastore.backends.memory import MemoryStore
from metastore.check import StoreCheck, dump
from metastore.errors import StoreTooNew, StoreWentBack
from metastore.incarnation import IDS_PER_MS, IncarnationGuard
from metastore.txn import paths
from metastore.txn.records.operations import Outcome
from metastore.txn.records.processes import Incarnation, VersionRecord
from metastore.txn.records.segments import LedgerRecord, MergeClaim, OwnerRecord, SegmentRecord
from metastore.txn.records.topics import TopicRecord
from metastore.txn.records.transactions import GcHorizon, Header, Prepared, TransactionKey
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, begin, read_transaction
from metastore.types import Applied, Batch
from metastore.versions import FIRST, SPEAKS
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.ledger.form import Form
from participants.ledger.local import LocalStorage
from participants.ledger.storage import StorageRefused
from participants.restored import recovery
from participants.restored.ledgers import Ledgers, survey
from participants.restored.merges import give_up_merges
from participants.restored.recovery import OtherCluster, StillServed, StoreRecovery, Wishes
from participants.restored.seen_store import SeenStore, StoreMemory
from participants.restored.sequences import leap
from participants.restored.transactions import FrameSurvey, RestoredTransactions
from tests.participants.ledger.ledgers import SEGMENT, append_all
from tests.participants.prefixes.steps import InPlace

NOW_MS = 2_000_000_000_000
TOPIC = "public/default/orders"
LATER = TxnId(0, 7)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(INDEXES)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage.open(tmp_path / "data", executor=InPlace())


async def put(store: MemoryStore, key: str, value: bytes) -> Applied:
    return await store.apply(store.batch().create(key, value))


async def opened(store: MemoryStore, txn_id: TxnId, *, key: str | None = None, version: int | None = None) -> None:
    epoch = None if key is None else 3
    header = Header(state=TxnState.OPEN, timeout_ms=2, created_ms=1, key=key, epoch=epoch, version=version)
    await put(store, paths.id_sequence(txn_id.coordinator), str(txn_id.sequence + 1).encode())
    await store.apply(begin(store.batch(), txn_id, header))


async def header_of(store: MemoryStore, txn_id: TxnId) -> Header:
    records = await read_transaction(store, txn_id)
    assert records is not None
    return records.header


def transactions(store: MemoryStore) -> RestoredTransactions:
    return RestoredTransactions(store, NOW_MS, max_clock_skew_ms=500, backup_ms=None)


async def problems(store: MemoryStore) -> list[str]:
    return [f"{finding.key}: {finding.problem}" async for finding in StoreCheck(store).findings()]


# -- transactions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", [TxnState.COMMITTED, TxnState.ABORTED])
async def test_what_is_prepared_waits_for_its_external_coordinator(store: MemoryStore, decision: TxnState) -> None:
    await opened(store, LATER)
    records = await read_transaction(store, LATER)
    assert records is not None
    await store.apply(records.prepare(store.batch(), Prepared(prepared_ms=1, deadline_ms=9)))
    assert await transactions(store).decide(decision) == (0, 1)
    assert (await header_of(store, LATER)).state is TxnState.OPEN


@pytest.mark.parametrize("decision", [TxnState.COMMITTED, TxnState.ABORTED])
async def test_a_transaction_under_a_key_is_decided_as_the_coordinator_does(
    store: MemoryStore, decision: TxnState
) -> None:
    """The key lets go of it, and a version that is committed never runs again."""
    await opened(store, LATER, key="job", version=5)
    held = TransactionKey(epoch=3, updated_ms=1, txn_id=str(LATER), last_version=4)
    await put(store, paths.transaction_key(None, "job"), held.encode())
    assert await transactions(store).decide(decision) == (1, 0)
    assert (await header_of(store, LATER)).state is decision
    record = await store.get(paths.transaction_key(None, "job"))
    assert record is not None
    key = TransactionKey.decode(record.value)
    assert (key.txn_id, key.last_version) == (None, 5 if decision is TxnState.COMMITTED else 4)
    assert await problems(store) == []


async def test_a_transaction_that_its_key_holds_no_more_is_aborted(store: MemoryStore) -> None:
    await opened(store, LATER, key="job")
    await put(store, paths.transaction_key(None, "job"), TransactionKey(epoch=4, updated_ms=1).encode())
    assert await transactions(store).decide(TxnState.COMMITTED) == (1, 0)
    assert (await header_of(store, LATER)).state is TxnState.ABORTED


@pytest.mark.parametrize(
    ("published_ms", "decision", "hidden"),
    [
        (1_500, TxnState.ABORTED, False),  # within the clocks' difference of what was collected: decided before
        (1_501, TxnState.ABORTED, True),
        (1_501, TxnState.COMMITTED, False),
    ],
)
async def test_what_has_no_header_was_collected_or_began_after_the_backup(
    store: MemoryStore, published_ms: int, decision: TxnState, hidden: bool
) -> None:
    await put(store, paths.GC_HORIZON, GcHorizon(revision=1, finalized_ms=1_000).encode())
    found = FrameSurvey(SEGMENT, {LATER: published_ms}, Position(4, 9))
    assert await transactions(store).hide(found, decision) == int(hidden)
    outcome = await store.get(paths.outcome(SEGMENT, LATER))
    assert (outcome and Outcome.decode(outcome.value)) == (Outcome(highest="4:9", aborted=True) if hidden else None)


# -- ledgers -------------------------------------------------------------------------------------------------------


async def segment_with(storage: LocalStorage, store: MemoryStore, *numbers: int, **fields: object) -> SegmentRecord:
    """A segment of sealed ledgers with an entry each; the store knows them."""
    for number in numbers:
        ledger = await storage.create(SEGMENT, number)
        await append_all(ledger, [b"x"])
        await ledger.seal()
    listed = tuple(LedgerRecord(id=number, storage=storage.storage_id, entries=1) for number in numbers)
    record = SegmentRecord(topic=TOPIC, range=(0, 0xFFFF), storage=storage.storage_id, ledgers=listed)
    await put(store, paths.segment(SEGMENT), record.model_copy(update=fields).encode())
    return record


@pytest.mark.parametrize(
    ("gone", "lost"), [((), False), ((1,), False), ((1, 2), False), ((2,), True), ((3,), True), ((1, 2, 3), True)]
)
async def test_a_trim_takes_the_oldest_ledgers_and_never_all(
    store: MemoryStore, storage: LocalStorage, gone: tuple[int, ...], lost: bool
) -> None:
    async with storage:
        await segment_with(storage, store, 1, 2, 3)
        for number in gone:
            await storage.delete(SEGMENT, number)
        (found,) = (await survey(store, storage)).segments
        assert (found.missing, found.lost) == ([*gone], lost)


@pytest.mark.parametrize(
    ("facts", "lost"),
    [
        ({"bytes": 0, "form": (1, 1)}, False),
        ({"bytes": 40, "hidden_bytes": 40, "hidden": 1}, False),
        ({"bytes": 40, "hidden_bytes": 39, "hidden": 1}, True),
        ({"bytes": 40, "form": (1, 1), "hidden": 1}, True),
        ({"hidden_bytes": 40, "hidden": 1}, True),
        ({}, True),
    ],
)
@pytest.mark.parametrize("trimmed", [False, True])
async def test_a_ledger_that_was_dropped_because_nothing_was_left_of_it_is_not_lost(
    store: MemoryStore, storage: LocalStorage, facts: dict[str, Any], lost: bool, trimmed: bool
) -> None:
    """If readers could see nothing of it when the backup was made. What begins behind it is as it was."""
    async with storage:
        record = await segment_with(storage, store, 1, 2, 3, 4)
        ledgers = [each.model_copy(update=facts) if each.id == 3 else each for each in record.ledgers]
        stored = await store.get(paths.segment(SEGMENT))
        assert stored is not None
        await store.apply(store.batch().replace(stored, record.model_copy(update={"ledgers": tuple(ledgers)}).encode()))
        gone = [1, 3] if trimmed else [3]
        for number in gone:
            await storage.delete(SEGMENT, number)
        (found,) = (await survey(store, storage)).segments
        assert (found.missing, found.lost) == (gone, lost)
        assert found.dropped == (set() if lost else {3})
        if not lost:
            restored = StoreRecovery(store, [storage], lambda: NOW_MS)
            whats = {each.where: each.what async for each in restored.differences(Wishes())}
            assert whats[f"{SEGMENT} 3"] == "dropped ledger" and whats.get(f"{SEGMENT} 1") in (None, "trimmed ledger")
            await Ledgers(store, storage, "aside", 1).adopt(found, [])
            stored = await store.get(paths.segment(SEGMENT))
            assert stored is not None
            adopted = SegmentRecord.decode(stored.value)
            assert [each.id for each in adopted.ledgers] == [number for number in (1, 2, 3, 4) if number not in gone]
            assert adopted.first_position == ("2:0" if trimmed else "0:-1")


async def test_what_is_hidden_in_a_ledger_of_the_backup_stays_hidden(store: MemoryStore, storage: LocalStorage) -> None:
    """The record goes on naming the index of a ledger that was sealed before the backup; another one has none yet."""
    async with storage:
        record = await segment_with(storage, store, 1)
        indexed = record.model_copy(update={"ledgers": (record.ledgers[0].model_copy(update={"hidden": 1}),)})
        stored = await store.get(paths.segment(SEGMENT))
        assert stored is not None
        await store.apply(store.batch().replace(stored, indexed.encode()))
        unknown = await storage.create(SEGMENT, 2)
        await append_all(unknown, [b"x"])
        ledgers = Ledgers(store, storage, "aside", 1)
        (found,) = (await survey(store, storage)).segments
        await ledgers.adopt(found, await ledgers.sealed(found))
        stored = await store.get(paths.segment(SEGMENT))
        assert stored is not None
        assert [ledger.hidden for ledger in SegmentRecord.decode(stored.value).ledgers] == [1, None]


async def test_the_rest_of_a_deleted_segment_is_adopted_by_nobody(store: MemoryStore, storage: LocalStorage) -> None:
    async with storage:
        await (await storage.create(SEGMENT, 1)).close()
        assert [found.unknown for found in (await survey(store, storage)).segments] == [[1]]
        owner = OwnerRecord(broker="", url="", generation=2, deleted=True)
        await put(store, paths.segment_owner(SEGMENT), owner.encode())
        assert (await survey(store, storage)).segments == []


async def test_a_directory_whose_name_is_no_segment_is_set_aside(store: MemoryStore, storage: LocalStorage) -> None:
    async with storage:
        await (await storage.create("orders", 1)).close()
        found = await survey(store, storage)
        assert (found.segments, found.unnamed) == ([], ["orders"])
        restored = StoreRecovery(store, [storage], lambda: NOW_MS)
        differences = [each async for each in restored.differences(Wishes())]
        assert differences == [("unknown segment, its directory does not tell its name", "orders", "set aside")]
        await restored.recover(Wishes())
        assert await storage.numbers("orders") == []
        assert [record async for record in dump(store, paths.SEGMENTS)] == []


class Noting(MemoryStore):
    """Notes which keys are written, apply by apply."""

    def __init__(self) -> None:
        super().__init__(INDEXES)
        self.written: list[set[str]] = []

    async def apply(self, batch: Batch) -> Applied:
        applied = await super().apply(batch)
        self.written.append(batch.written())
        return applied


async def test_what_is_hidden_is_hidden_before_its_ledger_is_known(storage: LocalStorage) -> None:
    """In between the recovery may die, and be begun again: then the ledger is not looked at any more."""
    store = Noting()
    async with storage:
        await segment_with(storage, store)
        ledger = await storage.create(SEGMENT, 4)
        await ledger.append(Entry(b"x", PayloadKind.BYTES, 1, LATER), 1).durable
        await ledger.close()
        topic = TopicRecord(name=TOPIC, segments=(SEGMENT,), next_segment=2, created_ms=1)
        await put(store, paths.topic(TOPIC), topic.encode())
        await StoreRecovery(store, [storage], lambda: NOW_MS).recover(Wishes())
    order = [key for keys in store.written for key in sorted(keys)]
    assert order.index(paths.outcome(SEGMENT, LATER)) < len(order) - 1 - order[::-1].index(paths.segment(SEGMENT))


# -- who is there --------------------------------------------------------------------------------------------------


async def test_nothing_is_recovered_while_a_service_runs(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "SILENT_WITHIN_S", 0)
    for key in (paths.coordinator_process("c"), paths.broker_process("b")):
        there = await put(store, key, b"{}")
        with pytest.raises(StillServed, match=key):
            await StoreRecovery(store, [], lambda: NOW_MS).recover(Wishes())
        assert await store.current_revision() == there.revision
        await store.apply(store.batch().delete(key))


@pytest.mark.parametrize("version", [FIRST, SPEAKS])
async def test_release_0_2_0_is_kept_out_of_a_recovered_store(store: MemoryStore, version: int) -> None:
    """As before, by a text that only it takes for the reason not to start."""
    await put(store, paths.VERSION, VersionRecord(version=version).encode())
    await StoreRecovery(store, [], lambda: NOW_MS).recover(Wishes())
    guard = IncarnationGuard(store, lambda: NOW_MS)
    await guard.start()
    await guard.stop()
    record = await store.get(paths.INCARNATION)
    assert record is not None
    incarnation = Incarnation.decode(record.value)
    assert (incarnation.went_back is not None) is (version > FIRST)
    assert guard.version.current == version


async def test_a_store_of_a_later_release_is_not_recovered(store: MemoryStore) -> None:
    await put(store, paths.VERSION, VersionRecord(version=SPEAKS + 1).encode())
    with pytest.raises(StoreTooNew):
        await StoreRecovery(store, [], lambda: NOW_MS).recover(Wishes())
    assert await store.get(paths.INCARNATION) is None


async def test_the_storage_of_another_cluster_is_not_recovered(store: MemoryStore, storage: LocalStorage) -> None:
    await put(store, paths.INCARNATION, Incarnation(id="a" * 32, begun_ms=1).encode())
    async with storage:
        await SeenStore("b" * 32, 9).write(storage)
        await (await storage.create(SEGMENT, 1)).close()
        with pytest.raises(OtherCluster, match="b" * 32):
            await StoreRecovery(store, [storage], lambda: NOW_MS).recover(Wishes())


@pytest.mark.parametrize(
    ("incarnation", "revision", "refusal"),
    [("a" * 32, 2, None), ("a" * 32, 1_000, StoreWentBack), ("b" * 32, 2, StorageRefused)],
)
async def test_a_broker_starts_on_the_store_that_its_storage_has_seen(
    store: MemoryStore,
    storage: LocalStorage,
    incarnation: str,
    revision: int,
    refusal: type[Exception] | None,
) -> None:
    await put(store, paths.INCARNATION, Incarnation(id="a" * 32, begun_ms=1).encode())
    guard = IncarnationGuard(store, lambda: NOW_MS)
    await guard.start()
    async with storage:
        await SeenStore(incarnation, revision).write(storage)
        memory = StoreMemory(storage, store, guard)
        if refusal is not None:
            with pytest.raises(refusal):
                await memory.start()
        else:
            await memory.start()
            await memory.stop()
    await guard.stop()


async def test_a_broker_starts_beside_another_one_that_has_just_seen_more(
    store: MemoryStore, storage: LocalStorage
) -> None:
    """Both share the storage: what the other one has written there is later than the look with which ours started."""
    guard, other = (IncarnationGuard(store, lambda: NOW_MS) for _ in range(2))
    async with storage:
        await guard.start()
        await put(store, "/later", b"")
        await other.start()
        await StoreMemory(storage, store, other).start()
        memory = StoreMemory(storage, store, guard)
        await memory.start()
        await memory.stop()
    for each in (guard, other):
        await each.stop()
    assert store.refusal is None


# -- counters and merges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 10**15])
async def test_every_counter_leaps_behind_what_may_have_been_given_out(store: MemoryStore, ahead: int) -> None:
    """Unless it is there already."""
    before = 5 + ahead
    counter, key = paths.id_sequence(0), paths.transaction_key(None, "job")
    owner, topic = paths.segment_owner(SEGMENT), paths.topic(TOPIC)
    await put(store, counter, str(before).encode())
    await put(store, key, TransactionKey(epoch=before, updated_ms=1).encode())
    await put(store, owner, OwnerRecord(broker="b", url="http://b", generation=before).encode())
    await put(store, topic, TopicRecord(name=TOPIC, segments=(), next_segment=before, created_ms=1).encode())
    await leap(store, NOW_MS)
    found = (await store.get_many([counter, key, owner, topic])).records
    values = {name: record.value for name, record in found.items() if record is not None}
    assert int(values[counter]) == max(before, NOW_MS * IDS_PER_MS)
    assert TransactionKey.decode(values[key]).epoch == max(before, NOW_MS)
    assert OwnerRecord.decode(values[owner]) == OwnerRecord(broker="", url="", generation=max(before, NOW_MS))
    assert TopicRecord.decode(values[topic]).next_segment == max(before, NOW_MS)


async def test_who_was_sealed_for_a_merge_that_is_given_up_has_a_child(store: MemoryStore) -> None:
    """Else its keys would have nobody."""
    one, other = f"segment://{TOPIC}/0000-7fff-1", f"segment://{TOPIC}/8000-ffff-2"
    topic = TopicRecord(name=TOPIC, segments=(one, other), next_segment=3, created_ms=1)
    await put(store, paths.topic(TOPIC), topic.encode())
    for segment, rival, low, state in ((one, other, 0, "sealed"), (other, one, 0x8000, "active")):
        record = SegmentRecord(topic=TOPIC, range=(low, low + 0x7FFF), storage="s")
        claim = MergeClaim(other=rival, child=f"segment://{TOPIC}/0000-ffff-9", claimed_ms=1)
        await put(store, paths.segment(segment), record.model_copy(update={"state": state, "merge": claim}).encode())
    await give_up_merges(store)
    child = f"segment://{TOPIC}/0000-7fff-3"
    found = (await store.get_many([paths.segment(segment) for segment in (one, other, child)])).records
    sealed, active, made = (SegmentRecord.decode(record.value) for record in found.values() if record is not None)
    assert (sealed.merge, sealed.children) == (None, (child,))
    assert (active.merge, active.children, active.state) == (None, (), "active")
    assert (made.range, made.parents, made.state) == ((0, 0x7FFF), (one,), "active")


async def test_of_a_ledger_that_was_rewritten_after_the_backup_the_last_form_counts(
    store: MemoryStore, storage: LocalStorage
) -> None:
    """DESIGN §5.18. One that was unknown to the backup is adopted as it is, too."""

    async def no_pace(_: int) -> None: ...

    for number in (1, 2):
        ledger = await storage.create(SEGMENT, number)
        await append_all(ledger, [b"a", b"b", b"c"])
        sealed = await ledger.seal()
        await storage.write_form(SEGMENT, sealed, Form(4, 1), [0, 1], no_pace)
        await storage.write_form(SEGMENT, sealed, Form(5, 1), [1], no_pace)
        await storage.delete_forms_before(SEGMENT, number, Form(4, 1))
    listed = LedgerRecord(id=1, storage=storage.storage_id, entries=3, hidden=4)
    record = SegmentRecord(topic=TOPIC, range=(0, 0xFFFF), storage=storage.storage_id, ledgers=(listed,))
    await put(store, paths.segment(SEGMENT), record.encode())
    (segment,) = (await survey(store, storage)).segments
    assert (segment.missing, segment.unknown, segment.lost) == ([], [2], False)
    ledgers = Ledgers(store, storage, "aside", NOW_MS)
    await ledgers.adopt(segment, await ledgers.sealed(segment))
    stored = await store.get(paths.segment(SEGMENT))
    assert stored is not None
    found = SegmentRecord.decode(stored.value).ledgers
    assert [(each.id, each.entries, each.form, each.hidden) for each in found] == [
        (1, 3, (5, 1), 4),
        (2, 3, (5, 1), None),
    ]


def test_a_note_of_a_later_release_is_not_taken_for_a_damaged_one() -> None:
    """Nobody is told to delete it."""
    with pytest.raises(StorageRefused, match=r"store.json has format 2, of a later release: start that one"):
        SeenStore.decode(b'{"format": 2, "incarnation": "a"}')
    with pytest.raises(StorageRefused, match="is damaged"):
        SeenStore.decode(b'{"format": 1}')
