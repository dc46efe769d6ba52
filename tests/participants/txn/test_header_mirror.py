"""Goal: the header mirror's memory is bounded by what is open, not by what was decided and waits to be collected, nor
by segments that are gone.

Method: a mirror that keeps two decisions; what it has forgotten is asked for in every way in which it was used. And a
segment that is closed while it waits for the store.
"""

from __future__ import annotations

import asyncio

import pytest

from metastore.txn import paths
from metastore.txn.records.operations import WriteOp
from metastore.txn.records.transactions import Header
from metastore.txn.store import put_write_op
from metastore.types import Event
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from participants.txn import header_mirror
from participants.txn.header_mirror import HeaderMirror, Listener
from tests.participants.reconciling import reconcile
from tests.participants.segment.world import World, assert_at_the_floor, materialized, publish, snapshot


@pytest.fixture(autouse=True)
def _two_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_mirror, "KEPT_DECISIONS", 2)


def seen(mirror: HeaderMirror, txn_ids: list[TxnId]) -> list[bool]:
    return [mirror.seen(txn_id) is not None for txn_id in txn_ids]


async def test_a_forgotten_decision_is_read_from_the_store(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    aborted, *committed = txn_ids = [await world.begin() for _ in range(5)]
    still_open = await world.begin()
    for txn_id in (*txn_ids, still_open):
        await publish(segment, str(txn_id), txn_id)
    await world.abort(aborted)
    for txn_id in committed:
        await world.commit(txn_id)
    await materialized(segment, *txn_ids)
    assert seen(node.mirror, txn_ids) == [False, False, False, True, True]
    assert node.mirror.seen(still_open) is not None, "who is open is remembered whatever comes after it"
    assert await snapshot(segment) == [str(txn_id) for txn_id in committed]
    with pytest.raises(errors.MetatxnError) as refused:
        await publish(segment, "late", aborted)
    assert refused.value.code is ErrorCode.TXN_CONFLICT
    await world.commit(still_open)
    await materialized(segment, still_open)
    assert_at_the_floor(segment, node)


async def test_a_listing_after_a_gap_brings_back_no_more_than_is_kept(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn_ids = [await world.begin() for _ in range(5)]
    for txn_id in txn_ids:
        await publish(segment, str(txn_id), txn_id)
        await world.commit(txn_id)
    await materialized(segment, *txn_ids)
    world.store.cut_watches()
    last = await world.begin()
    await publish(segment, str(last), last)
    await world.commit(last)
    await materialized(segment, last)
    assert node.mirror.resyncs == 1
    assert sum(seen(node.mirror, [*txn_ids, last])) == 2


async def test_a_segment_that_was_closed_follows_nothing(world: World) -> None:
    """A frozen broker wakes up: its reconcile finds an operation of the next owner, and the segment is lost meanwhile.

    Found by the simulation: the mirror went on to hold the header and the closed segment.
    """
    node = await world.first_node()
    segment = await node.open()
    txn_id = await world.begin()
    op = WriteOp(segment=segment.id, after=str(segment.buffer.last_durable), count=1)
    await world.store.apply(put_write_op(world.store.batch(), txn_id, segment.ownership.generation + 1, 1, op))
    held = world.store.hold_range(paths.WRITES_INDEX)
    reconciling = asyncio.create_task(reconcile(segment))
    await held.reached.wait()
    await segment.close()
    held.go.set()
    await reconciling
    assert not node.mirror._listeners


async def test_a_decision_reaches_many_listeners_in_several_turns_of_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other work, such as the answer to the commit, gets its turn between them; the order stays that of the store. Who
    stops following meanwhile is passed over, and `told` waits for the last one."""
    monkeypatch.setattr(header_mirror, "LISTENERS_AT_ONCE", 2)
    mirror, loop = (await world.first_node()).mirror, asyncio.get_running_loop()
    first, second = [await world.begin() for _ in range(2)]
    heard: list[tuple[TxnId, int, int]] = []
    turn = 0

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if len(heard) < 9:
            loop.call_soon(next_turn)

    def listener(number: int) -> Listener:
        def hear(txn_id: TxnId, _: Header) -> None:
            heard.append((txn_id, number, turn))

        return hear

    listeners = [listener(number) for number in range(5)]
    leaver = listener(5)

    def leads_away(txn_id: TxnId, _: Header) -> None:
        mirror.unfollow(txn_id, leaver)

    for txn_id in (first, second):
        for each in (leads_away, *listeners, leaver):
            mirror.follow(txn_id, each)
    next_turn()
    await world.commit(first)
    await world.commit(second)
    while mirror.final(second) is None:
        await asyncio.sleep(0)
    assert len(heard) < 10, "the mirror knows the decision before all listeners do"
    await mirror.told()
    assert [(txn_id, number) for txn_id, number, _ in heard] == [(t, n) for t in (first, second) for n in range(5)]
    turns = [turn for _, _, turn in heard]
    assert max(map(turns.count, turns)) <= 2
    await mirror.told()


@pytest.mark.parametrize(("listeners", "at_once"), [(2, [0, 1]), (3, [])])
async def test_where_many_hear_a_decision_the_answer_to_its_commit_waits_for_none_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch, listeners: int, at_once: list[int]
) -> None:
    """It may be ready in the same turn of the loop, behind the change. A few are told at once, for which it hardly
    waits."""
    monkeypatch.setattr(header_mirror, "LISTENERS_AT_ONCE", 2)
    mirror, txn_id = HeaderMirror(world.store), await world.begin()
    heard: list[int] = []

    def listener(number: int) -> Listener:
        return lambda *_: heard.append(number)

    for number in range(listeners):
        mirror.follow(txn_id, listener(number))
    await world.commit(txn_id)
    mirror._on_change(Event(paths.header(txn_id), await world.store.get(paths.header(txn_id))))
    assert heard == at_once
    await mirror.told()
    assert heard == list(range(listeners))


async def test_who_waits_for_listeners_is_answered_when_the_mirror_stops(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listeners that were not told by then have no segment any more."""
    monkeypatch.setattr(header_mirror, "LISTENERS_AT_ONCE", 1)
    mirror = HeaderMirror(world.store)
    txn_id = await world.begin()
    heard: list[int] = []

    def listener(number: int) -> Listener:
        return lambda *_: heard.append(number)

    async with mirror.running():
        for number in range(50):
            mirror.follow(txn_id, listener(number))
        await world.commit(txn_id)
        while mirror.final(txn_id) is None:
            await asyncio.sleep(0)
        waiting = [asyncio.create_task(mirror.told()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    await asyncio.sleep(0)
    assert [(each.done(), each.cancelled()) for each in waiting] == [(True, True), (True, False)]
    told = len(heard)
    assert 0 < told < 50
    await asyncio.sleep(0)
    assert len(heard) == told
