"""Goal: an offset that a consumer group commits inside a transaction counts exactly if the transaction commits, in the
order of the decisions; and nothing of an earlier generation can be committed.

Method: `CommittedOffsets` over a store with faults, and the coordinator's own verbs; a process that dies after every
number of applies. DESIGN §5.21.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from coordinator.transactions import Transactions
from metastore.check import StoreCheck
from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.store import read_transaction
from metatxn.wire import errors
from metatxn.wire.coordinator import BeginRequest
from metatxn.wire.ids import TxnId
from metatxn_gateways.kafka import offsets
from metatxn_gateways.kafka.codes import KafkaError
from metatxn_gateways.kafka.offsets import CommittedOffsets, GivenOffset, GroupMoved, checked_offset
from tests.participants.segment.faulty_store import INTENT, Fault, FaultyStore, puts

GROUP = "g"
SEGMENT = "segment://public/default/t/0000-ffff-0"
OTHER = "segment://public/default/t/0000-ffff-1"


class Committing:
    def __init__(self) -> None:
        self.store = FaultyStore()
        self._times = count(1_000)
        self.transactions = Transactions(self.store, lambda: next(self._times), 7)
        self.offsets = CommittedOffsets(self.store, lambda: next(self._times))

    async def begin(self) -> TxnId:
        begun = await self.transactions.begin(BeginRequest(timeout_ms=60_000))
        return begun.txn_id

    async def put(self, offset: int, segment: str = SEGMENT) -> None:
        await self.offsets.commit(await self.offsets.group(GROUP), GROUP, {segment: GivenOffset(offset, None, None)})

    async def put_in(self, txn_id: TxnId, offset: int, segment: str = SEGMENT) -> None:
        group = await self.offsets.group(GROUP)
        await self.offsets.commit_in(txn_id, group, GROUP, {segment: GivenOffset(offset, 3, "m")})

    async def found(self, segment: str = SEGMENT) -> tuple[int | None, bool]:
        """The committed offset, and whether it is stable."""
        found, unstable = await self.offsets.fetch(GROUP, [segment])
        return (found[segment].offset if segment in found else None), segment not in unstable

    async def operations(self) -> list[str]:
        return [record.key for record in (await self.store.inner.scan(paths.OPS)).records]

    async def assert_lawful(self) -> None:
        """Apart from segments: there are none in this store."""
        findings = [each async for each in StoreCheck(self.store.inner).findings()]
        assert findings == []


@pytest.fixture
def committing() -> Committing:
    return Committing()


async def test_an_offset_goes_back_and_keeps_what_came_with_it(committing: Committing) -> None:
    group = await committing.offsets.group(GROUP)
    for given in (GivenOffset(7, 2, "seven"), GivenOffset(3, None, None)):
        await committing.offsets.commit(group, GROUP, {SEGMENT: given})
        (stored,) = (await committing.offsets.fetch(GROUP, None))[0].values()
        assert GivenOffset(stored.offset, stored.leader_epoch, stored.metadata) == given
    assert await committing.found(OTHER) == (None, True)
    assert await committing.offsets.fetch("h", None) == ({}, frozenset())
    await committing.assert_lawful()


async def test_an_offset_in_a_transaction_counts_when_it_commits(committing: Committing) -> None:
    await committing.put(1)
    txn = await committing.begin()
    await committing.put_in(txn, 5)
    await committing.put_in(txn, 6)
    assert await committing.found() == (1, False) and await committing.found(OTHER) == (None, True)
    assert len(await committing.operations()) == 1, "the later one has replaced the earlier one"
    await committing.assert_lawful()
    await committing.transactions.commit(txn)
    assert await committing.found() == (6, True)
    assert await committing.operations() == []


async def test_an_offset_in_a_transaction_is_ignored_when_it_aborts(committing: Committing) -> None:
    await committing.put(1)
    txn = await committing.begin()
    await committing.put_in(txn, 5)
    await committing.transactions.abort(txn)
    assert await committing.found() == (1, True)
    assert await committing.operations() == []


async def test_no_offset_joins_a_transaction_that_is_decided_or_prepared(committing: Committing) -> None:
    decided, prepared = await committing.begin(), await committing.begin()
    await committing.put_in(decided, 4)
    await committing.transactions.commit(decided)
    await committing.transactions.prepare(prepared, 60_000)
    for txn, expected in ((decided, errors.TransactionConflict), (prepared, KafkaError)):
        with pytest.raises(expected):
            await committing.put_in(txn, 5)
    assert await committing.found() == (4, True)


async def test_decisions_count_in_their_order_and_not_in_that_of_the_ids(committing: Committing) -> None:
    first, second = await committing.begin(), await committing.begin()
    await committing.put_in(first, 10)
    await committing.put_in(second, 20)
    await committing.transactions.commit(second)
    await committing.transactions.commit(first)
    assert await committing.found() == (10, True)


async def test_an_offset_outside_stands_over_what_was_decided_before(committing: Committing) -> None:
    txn = await committing.begin()
    await committing.put_in(txn, 9)
    await committing.transactions.commit(txn)
    await committing.put(2)
    assert await committing.found() == (2, True)
    assert await committing.operations() == []


async def test_a_transaction_that_the_index_did_not_show_yet_is_settled_in_its_turn(committing: Committing) -> None:
    """Its operation and its decision come between the read of the index and that of the headers."""
    late, seen = await committing.begin(), await committing.begin()
    await committing.put_in(seen, 20)
    held = committing.store.hold_range(paths.OFFSETS_INDEX)
    settling = asyncio.create_task(committing.offsets.settle(GROUP))
    await held.reached.wait()
    await committing.put_in(late, 10)
    await committing.transactions.commit(late)
    await committing.transactions.commit(seen)
    held.go.set()
    await settling
    assert await committing.found() == (20, True), "what was decided last counts"


async def test_two_that_settle_at_once_do_it_once(committing: Committing) -> None:
    txn = await committing.begin()
    await committing.put_in(txn, 5)
    await committing.transactions.commit(txn)
    slow = committing.store.fault(Fault(puts(paths.GROUP_OFFSETS), hold_before=True))
    settling = asyncio.create_task(committing.offsets.settle(GROUP))
    await slow.reached.wait()
    assert await committing.found() == (5, True)
    await committing.put(1)
    slow.go.set()
    await settling
    assert await committing.found() == (1, True)


async def test_nothing_of_an_earlier_generation_can_be_committed(committing: Committing) -> None:
    before = await committing.offsets.group(GROUP)
    txn = await committing.begin()
    after = await committing.offsets.begin_generation(before)
    given = {SEGMENT: GivenOffset(5, None, None)}
    with pytest.raises(GroupMoved):
        await committing.offsets.commit(before, GROUP, given)
    with pytest.raises(GroupMoved):
        await committing.offsets.commit_in(txn, before, GROUP, given)
    with pytest.raises(GroupMoved):
        await committing.offsets.begin_generation(before)
    assert await committing.operations() == [] and await committing.found() == (None, True)
    await committing.offsets.commit(after, GROUP, given)
    assert await committing.offsets.group(GROUP) == after


async def test_a_lost_answer_is_repeated_without_harm(committing: Committing) -> None:
    txn = await committing.begin()
    committing.store.fault(Fault(INTENT, after=OutcomeUnknown("lost")))
    with pytest.raises(OutcomeUnknown):
        await committing.put_in(txn, 5)
    await committing.put_in(txn, 5)
    await committing.transactions.commit(txn)
    assert await committing.found() == (5, True)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_death_between_any_two_steps_leaves_all_or_nothing(commit: bool) -> None:
    """Two partitions of one transaction; anyone who comes later finishes it, and its header can be collected."""
    died, outcomes = True, set()
    for steps in count():
        if not died:
            break
        committing = Committing()
        await committing.put(1)
        await committing.put(1, OTHER)
        done: list[TxnId] = []
        died = await _dies(committing.store, steps, lambda: _consume(committing, done, commit=commit))  # noqa: B023
        if done and not (await _decided(committing, done[0])):
            await committing.transactions.abort(done[0])
        await committing.offsets.sweep()
        assert await committing.operations() == []
        outcomes.add(found := (await committing.found(), await committing.found(OTHER)))
        committed = bool(done) and (await committing.transactions.get(done[0]))["state"] == "COMMITTED"
        assert found == (((8, True), (9, True)) if committed else ((1, True), (1, True)))
        await committing.assert_lawful()
    assert steps > 5 and len(outcomes) == 1 + commit


async def _decided(committing: Committing, txn_id: TxnId) -> bool:
    read = await read_transaction(committing.store, txn_id)
    return read is not None and read.header.state.final


async def _consume(committing: Committing, done: list[TxnId], *, commit: bool) -> None:
    done.append(await committing.begin())
    await committing.put_in(done[0], 8)
    await committing.put_in(done[0], 9, OTHER)
    await (committing.transactions.commit if commit else committing.transactions.abort)(done[0])
    await committing.offsets.settle(GROUP)


async def _dies(store: FaultyStore, steps: int, work: Callable[[], Awaitable[None]]) -> bool:
    """Whether `work` died, before its apply of this number; from then on nothing that it does reaches the store."""
    numbers = count()
    store.fault(Fault(lambda _: next(numbers) >= steps, before=StoreUnavailable("it is dead"), times=1_000_000))
    try:
        async with asyncio.timeout(5):
            await work()
    except (StoreUnavailable, errors.MetatxnError, TimeoutError):
        return True
    finally:
        store._faults.clear()
    return False


def test_what_a_client_commits_is_bounded() -> None:
    assert checked_offset(5, -1, "") == GivenOffset(5, None, None)
    for offset, metadata in ((-1, None), (1, "x" * 4_097)):
        with pytest.raises(KafkaError):
            checked_offset(offset, None, metadata)


async def test_offsets_of_deleted_topics_are_deleted(committing: Committing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every group, and no others; also over several reads and applies."""
    monkeypatch.setattr(offsets, "_PER_READ", 2)
    monkeypatch.setattr(offsets, "_PER_APPLY", 2)
    record = SegmentRecord(topic="public/default/t", range=(0, 1), storage="s").encode()
    await committing.store.apply(committing.store.batch().create(paths.segment(SEGMENT), record))
    for group in ("g", "h", "i"):
        known = await committing.offsets.group(group)
        for segment in (SEGMENT, OTHER, "segment://public/default/gone/0000-ffff-0"):
            await committing.offsets.commit(known, group, {segment: GivenOffset(7, None, None)})
    await committing.offsets.clean_up()
    for group in ("g", "h", "i"):
        found, _ = await committing.offsets.fetch(group, None)
        assert list(found) == [SEGMENT]
    await committing.offsets.clean_up()
