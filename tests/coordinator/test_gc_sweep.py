"""Forgetting what is finished (DESIGN §5.7, scenarios M92–M93, D34, X115). Method: a clock that is moved."""

from __future__ import annotations

import asyncio
import contextlib
import functools

import pytest

from coordinator.gc_sweep import _MOST_RIVALS, OVERDUE_INTERVALS, PAUSE_MS, SLICE, TOGETHER, Collected, GcSweep
from coordinator.shares import share_of
from coordinator.timeout_sweep import TimeoutSweep
from coordinator.transactions import Transactions
from metastore.backends.etcd import EtcdStore
from metastore.backends.memory import MemoryStore
from metastore.errors import CheckFailed, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.operations import WriteOp
from metastore.txn.records.topics import TopicRecord
from metastore.txn.store import gc_horizon, put_write_op
from metastore.versions import ClusterVersion
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from participants.messages.read_holds import ReadHolds, WantedHold
from tests.coordinator.conftest import FakeClock, refusal, under_key
from tests.coordinator.stores import FaultyStore
from tests.coordinator.test_transactions import begin

RETENTION_MS = 60_000
SEGMENT = "segment://public/default/orders/0000-ffff-0"


@pytest.fixture
def gc(store: FaultyStore, clock: FakeClock, transactions: Transactions) -> GcSweep:
    return GcSweep(store, clock, transactions.metrics, retention_ms=RETENTION_MS)


async def write(truth: MemoryStore, txn_id: TxnId) -> str:
    """One operation record, as a broker leaves it."""
    op = WriteOp(segment=SEGMENT, after="1:-1", count=1)
    await truth.apply(put_write_op(truth.batch(), txn_id, 1, 1, op))
    return paths.write_op(txn_id, SEGMENT, 1, 1)


async def left(truth: MemoryStore) -> list[str]:
    """Keys that a quiet store must not have."""
    records = (await truth.range("/", "0")).records
    roots = ("/txn/", "/txn-op/", "/txn-lease/", "/txn-prepared/", "/txn-writers/", "/idx/")
    return [record.key for record in records if record.key.startswith(roots)]


async def test_a_header_goes_after_its_retention_and_leaves_nothing(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore
) -> None:
    """M92; D34: after that the transaction is not found."""
    committed, aborted = await begin(transactions), await begin(transactions)
    await transactions.keep_alive(committed, 5_000)
    await transactions.commit(committed)
    await transactions.abort(aborted, "no use")
    clock.now_ms += RETENTION_MS - 1
    assert await gc.collect_once() == Collected(deleted=0, kept=0)
    clock.now_ms += 1
    assert await gc.collect_once() == Collected(deleted=2, kept=0)
    assert await left(truth) == []
    await refusal(transactions.commit(committed), ErrorCode.TXN_NOT_FOUND)


async def test_an_open_transaction_is_never_collected(
    transactions: Transactions, gc: GcSweep, clock: FakeClock
) -> None:
    txn_id = await begin(transactions)
    clock.now_ms += 100 * RETENTION_MS
    assert await gc.collect_once() == Collected(deleted=0, kept=0)
    assert (await transactions.get(txn_id))["state"] == "OPEN"


async def test_a_header_with_operations_is_kept_until_its_broker_has_deleted_them(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore
) -> None:
    """M93, X115: never force-deleted; the broker that was down for a month still finds both."""
    txn_id = await begin(transactions)
    op = await write(truth, txn_id)
    await transactions.commit(txn_id)
    clock.now_ms += 1_000 * RETENTION_MS
    assert await gc.collect_once() == Collected(deleted=0, kept=1)
    assert await truth.get(op) is not None
    assert await truth.get(paths.header(txn_id)) is not None
    record = await truth.get(op)
    assert record is not None
    await truth.apply(truth.batch().remove(record))
    assert await gc.collect_once() == Collected(deleted=1, kept=0)


async def test_a_header_that_stays_keeps_no_other_one(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore, store: FaultyStore
) -> None:
    """Headers share an apply while all of them can go."""
    txn_ids = [await begin(transactions) for _ in range(3 * TOGETHER)]
    for txn_id in txn_ids[:2]:
        await write(truth, txn_id)
    for txn_id in txn_ids:
        await transactions.commit(txn_id)
    clock.now_ms += RETENTION_MS
    store.sent.clear()
    assert await gc.collect_once() == Collected(deleted=len(txn_ids) - 2, kept=2)
    assert len(store.sent) == 1 + 3 + TOGETHER, "the horizon, three applies, and one of them header by header"
    assert [record.key for record in (await truth.scan(paths.HEADERS)).records] == [
        paths.header(txn_id) for txn_id in txn_ids[:2]
    ]


@pytest.mark.parametrize("slice_size", [1, 2, 3, 100])
async def test_every_header_is_found_once_however_they_are_spread_over_time(
    transactions: Transactions,
    gc: GcSweep,
    clock: FakeClock,
    truth: MemoryStore,
    slice_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many in one millisecond, then none for hours, then one now and then; every fourth of them has to stay."""
    monkeypatch.setattr("coordinator.gc_sweep.SLICE", slice_size)
    pauses_ms = [0, 0, 0, 0, 0, 1, 40_000_000, 3, 3, 60_000, 0, 7_000_000]
    for number, pause_ms in enumerate(pauses_ms):
        clock.now_ms += pause_ms
        txn_id = await begin(transactions)
        if number % 4 == 0:
            await write(truth, txn_id)
        await transactions.commit(txn_id)
    clock.now_ms += RETENTION_MS
    assert await gc.collect_once() == Collected(deleted=9, kept=3)


async def test_the_horizon_moves_before_the_header_goes(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore, store: FaultyStore
) -> None:
    """DESIGN §5.7: at no moment is a header gone whose decision the horizon has not reached."""
    revisions = []
    for _ in range(3):
        revisions.append((await transactions.commit(await begin(transactions)))["revision"])
    clock.now_ms += RETENTION_MS
    seen: list[int] = []
    forward = store.apply

    async def watching(batch):  # type: ignore[no-untyped-def]
        applied = await forward(batch)
        present = list((await truth.scan(paths.HEADERS)).records)
        if len(present) < 3:
            seen.append(await gc_horizon(truth))
        return applied

    store.apply = watching  # type: ignore[method-assign]
    assert (await gc.collect_once()).deleted == 3
    assert seen
    assert min(seen) >= max(revision for revision in revisions if revision is not None)


async def test_the_horizon_never_moves_backwards(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore
) -> None:
    await transactions.commit(await begin(transactions))
    await truth.apply(truth.batch().create(paths.GC_HORIZON, b'{"revision":1000000}'))
    clock.now_ms += RETENTION_MS
    assert (await gc.collect_once()).deleted == 1
    assert await gc_horizon(truth) == 1_000_000


async def test_two_sweeps_at_once_delete_each_header_once(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore, store: FaultyStore
) -> None:
    """DESIGN §5.17."""
    for _ in range(SLICE + 20):
        await transactions.commit(await begin(transactions))
    clock.now_ms += RETENTION_MS
    other = GcSweep(store, clock, transactions.metrics, retention_ms=RETENTION_MS)
    await asyncio.gather(gc.collect_once(), other.collect_once())
    assert await left(truth) == []


async def test_a_slice_that_another_sweep_has_deleted_meanwhile_counts_for_that_one(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore, store: FaultyStore
) -> None:
    await transactions.commit(await begin(transactions))
    clock.now_ms += RETENTION_MS
    other = GcSweep(truth, clock, transactions.metrics, retention_ms=RETENTION_MS)
    store.before_reads.append(other.collect_once)
    store.requests = 0
    assert await gc.collect_once() == Collected(deleted=0, kept=0)
    assert await left(truth) == [] and not store.before_reads
    assert store.requests == 1, "once it has read that the headers are gone, it asks for nothing more"


async def test_a_sweep_whose_horizon_others_move_each_time_deletes_nothing(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore, store: FaultyStore
) -> None:
    """It does not try forever, and the next one goes on."""
    txn_id = await begin(transactions)
    await transactions.commit(txn_id)
    clock.now_ms += RETENTION_MS

    async def moved() -> None:
        await truth.apply(truth.batch().put(paths.GC_HORIZON, b'{"revision":1}'))

    store.before_applies.extend([moved] * _MOST_RIVALS)
    with pytest.raises(StoreUnavailable, match="other sweeps moved the horizon each time") as given_up:
        await gc.collect_once()
    assert given_up.value.definite and await gc_horizon(truth) == 1
    assert await truth.get(paths.header(txn_id)) is not None
    assert await gc.collect_once() == Collected(deleted=1, kept=0)


async def test_an_operation_that_slips_in_behind_the_look_keeps_the_header(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore, store: FaultyStore
) -> None:
    """The proof is in the apply that deletes, not in a read before it. (A decided transaction gets no operation, so
    the record is put by force.)"""
    txn_id = await begin(transactions)
    await transactions.commit(txn_id)
    clock.now_ms += RETENTION_MS
    forward = store.get_many

    async def with_late_op(wanted):  # type: ignore[no-untyped-def]
        snapshot = await forward(wanted)
        op = WriteOp(segment=SEGMENT, after="1:-1", count=1)
        with contextlib.suppress(CheckFailed):
            await truth.apply(truth.batch().create(paths.write_op(txn_id, SEGMENT, 1, 9), op.encode()))
        return snapshot

    store.get_many = with_late_op  # type: ignore[method-assign]
    assert await gc.collect_once() == Collected(deleted=0, kept=1)
    assert await truth.get(paths.header(txn_id)) is not None


class RecordedPauses(GcSweep):
    """Notes how long it would have waited, and does not."""

    pauses: list[int]

    async def stopped_within(self, wait_ms: int) -> bool:
        self.pauses.append(wait_ms)
        return self.stopping


async def test_a_sweep_leaves_room_for_commits_until_it_has_fallen_behind(
    transactions: Transactions, clock: FakeClock, store: FaultyStore
) -> None:
    """A pause behind every apply; none when what it deletes is overdue, or a busy cluster would never be clean."""
    for overdue in (False, True):
        for _ in range(SLICE + 1):
            await transactions.commit(await begin(transactions))
        clock.now_ms += RETENTION_MS + (OVERDUE_INTERVALS * 1_000 if overdue else 0)
        sweep = RecordedPauses(store, clock, transactions.metrics, interval_ms=1_000, retention_ms=RETENTION_MS)
        sweep.pauses = []
        assert await sweep.collect_once() == Collected(deleted=SLICE + 1, kept=0)
        assert len(sweep.pauses) == SLICE // TOGETHER + 1
        assert all(pause == 0 if overdue else pause >= PAUSE_MS for pause in sweep.pauses)


async def test_a_stop_ends_the_sweep_between_two_applies(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore, store: FaultyStore
) -> None:
    """And what is left goes the next time."""
    for _ in range(3 * SLICE):
        await transactions.commit(await begin(transactions))
    clock.now_ms += RETENTION_MS
    store.before_applies.append(gc.stop)
    collected = await gc.collect_once()
    assert collected == Collected(deleted=TOGETHER, kept=0)
    again = await GcSweep(store, clock, transactions.metrics, retention_ms=RETENTION_MS).collect_once()
    assert again == Collected(deleted=3 * SLICE - TOGETHER, kept=0)
    assert await left(truth) == []


async def test_coordinators_divide_the_headers(
    transactions: Transactions, clock: FakeClock, truth: MemoryStore, store: FaultyStore
) -> None:
    """Each collects its share; what another one has left for two intervals is everybody's."""
    first, second = (
        GcSweep(
            *(store, clock, transactions.metrics),
            interval_ms=1_000,
            retention_ms=RETENTION_MS,
            share=functools.partial(share_of, process, ["a", "b"]),
        )
        for process in "ab"
    )
    for _ in range(20):
        await transactions.commit(await begin(transactions))
    clock.now_ms += RETENTION_MS
    assert await first.collect_once() == Collected(deleted=10, kept=0)
    assert await first.collect_once() == Collected(deleted=0, kept=0)
    assert await second.collect_once() == Collected(deleted=10, kept=0)
    for _ in range(4):
        await transactions.commit(await begin(transactions))
    clock.now_ms += RETENTION_MS + 2_000
    assert await second.collect_once() == Collected(deleted=4, kept=0)
    assert await left(truth) == []


async def test_at_quiescence_nothing_is_left(etcd: EtcdStore, clock: FakeClock) -> None:
    """DESIGN §4, issue of the coordinator: every kind of transaction, on a real etcd; only the keys' records and the
    sequence of ids stay."""
    transactions = Transactions(etcd, clock)
    plain, kept, remembered, prepared = [await begin(transactions) for _ in range(4)]
    await transactions.keep_alive(kept, 90_000)
    await transactions.add_writers(remembered, ["w"])
    await transactions.prepare(prepared)
    for txn_id in (plain, kept, remembered, prepared):
        await transactions.commit(txn_id)
    for _ in range(2):
        await under_key(transactions)
    await asyncio.gather(*(begin(transactions, timeout_ms=1) for _ in range(SLICE + 5)))
    clock.now_ms += 60_000 + 1_000
    await TimeoutSweep(transactions).sweep_once()
    clock.now_ms += RETENTION_MS
    gc = GcSweep(etcd, clock, transactions.metrics, retention_ms=RETENTION_MS)
    assert (await gc.collect_once()).deleted == 4 + 2 + SLICE + 5
    everything = [record.key for record in (await etcd.range("/", "0", keys_only=True)).records]
    assert everything == [paths.GC_HORIZON, paths.transaction_key(None, "k"), paths.id_sequence(0)]


TOPIC = "public/default/orders"


@pytest.fixture
async def holds(truth: MemoryStore, clock: FakeClock) -> ReadHolds:
    """Of readers of a topic."""
    topic = TopicRecord(name=TOPIC, segments=(), next_segment=0, created_ms=1)
    await truth.apply(truth.batch().create(paths.topic(TOPIC), topic.encode()))
    return ReadHolds(truth, ClusterVersion(), clock)


def wanted(hold_id: str = "a", revision: int | None = None) -> WantedHold:
    return WantedHold(hold_id, 1_000, revision, None)


async def test_headers_of_decisions_behind_a_held_revision_stay_until_the_hold_has_ended(
    transactions: Transactions,
    gc: GcSweep,
    clock: FakeClock,
    truth: MemoryStore,
    store: FaultyStore,
    holds: ReadHolds,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DESIGN §5.24; scenario 130."""
    monkeypatch.setattr("coordinator.gc_sweep.SLICE", 2)
    await transactions.commit(await begin(transactions))
    clock.now_ms += RETENTION_MS
    held = (await holds.take(TOPIC, wanted())).revision
    for _ in range(4):
        await transactions.commit(await begin(transactions))
    clock.now_ms += RETENTION_MS
    await holds.keep_alive(TOPIC, "a", 1_000)
    store.requests = 0
    assert await gc.collect_once() == Collected(deleted=1, kept=0)
    assert len((await truth.scan(paths.HEADERS)).records) == 4 and await gc_horizon(truth) <= held
    assert store.requests == 6, "it looks no further than at a slice of which all stay"
    clock.now_ms += 1_001
    assert await gc.collect_once() == Collected(deleted=4, kept=0), "the hold is over"
    assert await holds.of_topic(TOPIC) == []
    await refusal(holds.keep_alive(TOPIC, "a", 1_000), ErrorCode.NOT_FOUND)
    await refusal(holds.take(TOPIC, wanted(revision=held)), ErrorCode.INVALID_ARGUMENT)


@pytest.mark.parametrize("horizon", [True, False], ids=["it has moved before", "for the first time"])
async def test_a_hold_that_is_taken_while_the_horizon_moves_keeps_it_where_it_is(
    transactions: Transactions,
    gc: GcSweep,
    clock: FakeClock,
    truth: MemoryStore,
    store: FaultyStore,
    holds: ReadHolds,
    horizon: bool,
) -> None:
    if horizon:
        await transactions.commit(await begin(transactions))
        clock.now_ms += RETENTION_MS
        assert (await gc.collect_once()).deleted == 1
    before = await truth.current_revision()
    await transactions.commit(await begin(transactions))
    clock.now_ms += RETENTION_MS
    store.before_applies.append(lambda: holds.take(TOPIC, wanted(revision=before)))
    assert await gc.collect_once() == Collected(deleted=0, kept=0)
    assert await gc_horizon(truth) <= before
    await holds.release(TOPIC, "a")
    assert await gc.collect_once() == Collected(deleted=1, kept=0)


async def test_a_hold_that_is_taken_just_before_the_horizon_is_read_is_seen(
    transactions: Transactions, gc: GcSweep, clock: FakeClock, truth: MemoryStore, store: FaultyStore, holds: ReadHolds
) -> None:
    before = await truth.current_revision()
    await transactions.commit(await begin(transactions))
    clock.now_ms += RETENTION_MS
    store.before_reads.extend([None, lambda: holds.take(TOPIC, wanted(revision=before))])  # behind that of the headers
    assert await gc.collect_once() == Collected(deleted=0, kept=0)
    assert not store.before_reads and [hold.hold_id for hold in await holds.of_topic(TOPIC)] == ["a"]
