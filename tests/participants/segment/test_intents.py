"""Goal: no transactional frame without an operation record, no frame after the decision, nothing seen too early.

Method: the store holds one chosen request at one chosen moment (`Fault`), the test does what may happen meanwhile,
and then lets it go. The sections follow DESIGN §5.1-5; scenarios C, D, 97 and 105-114.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.operations import WriteOp, decode_op
from metastore.txn.states import ExpiredBy
from metastore.types import Batch
from metatxn.wire import errors
from metatxn.wire.broker import MAX_ENTRY_MESSAGES
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.segment.trimming import trim
from tests.participants.segment.faulty_store import INTENT, Fault
from tests.participants.segment.world import (
    World,
    assert_at_the_floor,
    committed,
    entry,
    materialized,
    publish,
    released,
    sending,
    uncommitted,
)


def code(error: pytest.ExceptionInfo[errors.MetatxnError]) -> ErrorCode | None:
    return error.value.code


# -- visibility (C) --------------------------------------------------------------------------------------------------


async def test_20_21_an_open_transaction_holds_back_everything_behind_its_first_write(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "A")
    await publish(segment, "B", txn)
    await publish(segment, "C")
    assert await committed(segment) == ["A"]
    await world.commit(txn)
    await released(segment, txn)
    assert await committed(segment) == ["A", "B", "C"]


async def test_17_two_interleaved_transactions_become_visible_each_at_its_commit(world: World) -> None:
    segment = await world.segment()
    first, second = await world.begin(), await world.begin()
    sent = [
        sending(segment, f"{name}{number}", txn) for number in range(100) for name, txn in (("a", first), ("b", second))
    ]
    await asyncio.gather(*sent)
    assert await committed(segment) == []
    await world.commit(second)
    await released(segment, second)
    assert await committed(segment) == []
    await world.commit(first)
    await released(segment, first)
    assert sorted(await committed(segment)) == sorted(f"{name}{number}" for name in "ab" for number in range(100))


async def test_18_19_an_aborted_transaction_leaves_only_the_sentinel(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "never", txn)
    await publish(segment, "sentinel")
    await world.abort(txn)
    await released(segment, txn)
    page = await segment.reader.read_committed(segment.ledgers.start, 1 << 20)
    assert await committed(segment) == ["sentinel"]
    assert page.end and page.next == segment.buffer.last_durable, "a reader gets past the aborted data"


async def test_22_of_six_interleaved_transactions_exactly_the_committed_half_is_read(world: World) -> None:
    segment = await world.segment()
    txns = [await world.begin() for _ in range(6)]
    for number in range(10):
        await asyncio.gather(*(publish(segment, f"{index}-{number}", txn) for index, txn in enumerate(txns)))
    for index, txn in enumerate(txns):
        await (world.abort(txn) if index % 2 else world.commit(txn))
    await released(segment, *txns)
    assert sorted(await committed(segment)) == sorted(
        f"{index}-{number}" for index in (0, 2, 4) for number in range(10)
    )


async def test_25_26_order_inside_a_transaction_is_kept_and_nothing_comes_twice(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await asyncio.gather(*(sending(segment, str(number), txn, writer="w") for number in range(500)))
    await world.commit(txn)
    await released(segment, txn)
    assert await committed(segment) == [str(number) for number in range(500)]


async def test_101_without_transactions_the_horizon_moves_with_every_publish(world: World) -> None:
    segment = await world.segment()
    for number in range(3):
        position = await publish(segment, str(number))
        assert segment.buffer.max_read_position == position


async def test_97_the_last_readable_position_stops_before_the_first_open_write(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    last = await publish(segment, "A")
    await publish(segment, "B", txn)
    assert segment.buffer.max_read_position == last
    await world.commit(txn)
    await released(segment, txn)
    assert segment.buffer.max_read_position == last.next


@pytest.mark.parametrize("restarted", [False, True])
async def test_97_the_last_message_is_not_an_aborted_one(
    world: World, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """Nor one that is held back, void, or trimmed; however many of them there are behind it. Looked for once, it is
    known."""
    segment = await world.segment()
    assert await segment.reader.last_visible() is None
    aborted, void, waiting = await world.begin(), await world.begin(), await world.begin()
    await publish(segment, "never", aborted)
    last = await publish(segment, "A")
    for number in range(30):
        await publish(segment, f"never {number}", aborted)
        await publish(segment, f"void {number}", void, writer="w")
    assert await segment.reader.last_visible() is None, "everything is behind an open transaction"
    await world.abort(aborted)
    await world.commit(void, [])
    await materialized(segment, aborted, void)
    if restarted:
        segment = await world.reopened()
    assert await segment.reader.last_visible() == last
    after = await publish(segment, "B")
    assert await segment.reader.last_visible() == after
    held = await publish(segment, "held back", waiting)
    await publish(segment, "behind it")
    assert await segment.reader.last_visible() == after
    await world.commit(waiting)
    await released(segment, waiting)
    assert await segment.reader.last_visible() == held.next

    async def unread(*_: object) -> NoReturn:
        raise AssertionError("it is known")

    monkeypatch.setattr(segment.ledgers, "read", unread)
    assert await segment.reader.last_visible() == held.next


async def test_97_the_last_message_was_trimmed(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    aborted = await world.begin()
    await publish(segment, "A")
    end = await publish(segment, "never", aborted)
    await world.abort(aborted)
    await materialized(segment, aborted)
    await trim(segment, world.store, node.storage, end)
    assert await segment.reader.last_visible() is None


# -- no late write (rule 1) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "expected"),
    [("commit", ErrorCode.TXN_CONFLICT), ("abort", ErrorCode.TXN_CONFLICT), ("expire", ErrorCode.EXPIRED_TRANSACTION)],
)
@pytest.mark.parametrize("watch", ["watching", "blind"])
async def test_32_a_write_after_the_decision_is_refused_and_leaves_nothing(
    world: World, ending: str, expected: ErrorCode, watch: str
) -> None:
    """With a blind mirror only the store stands in the way, and it does."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    if watch == "blind":
        world.store.events_flow.clear()
    match ending:
        case "commit":
            await world.commit(txn)
        case "abort":
            await world.abort(txn)
        case "expire":
            await world.abort(txn, ExpiredBy.TIMEOUT)
    with pytest.raises(errors.MetatxnError) as error:
        await publish(segment, "late", txn)
    assert code(error) == expected
    assert await uncommitted(segment) == []
    assert await world.operations(txn) == []
    assert_at_the_floor(segment, node)


async def test_a_write_to_an_unknown_transaction_is_refused_and_nothing_remembers_it(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    with pytest.raises(errors.MetatxnError) as error:
        await publish(segment, "x", TxnId(7, 7))
    assert code(error) == ErrorCode.TXN_NOT_FOUND
    assert_at_the_floor(segment, node)


async def test_a_prepared_transaction_takes_no_write_and_stays_undecided(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "before", txn)
    await world.prepare(txn)
    with pytest.raises(errors.MetatxnError) as error:
        await publish(segment, "after", txn)
    assert code(error) == ErrorCode.TXN_CONFLICT
    assert await committed(segment) == []
    await world.commit(txn)
    await released(segment, txn)
    assert await committed(segment) == ["before"]


async def test_36_a_refused_write_harms_no_other_transaction(world: World) -> None:
    segment = await world.segment()
    ended, alive = await world.begin(), await world.begin()
    await world.commit(ended)
    results = await asyncio.gather(
        publish(segment, "late", ended), publish(segment, "fine", alive), return_exceptions=True
    )
    assert isinstance(results[0], errors.MetatxnError) and isinstance(results[1], Position)
    await world.commit(alive)
    await released(segment, alive)
    assert await committed(segment) == ["fine"]


async def test_108_the_header_flips_between_the_look_and_the_intent(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    intent = world.store.fault(Fault(INTENT, hold_before=True))
    late = sending(segment, "late", txn)
    await intent.reached.wait()
    await world.commit(txn)
    intent.go.set()
    with pytest.raises(errors.MetatxnError) as error:
        await late
    assert code(error) == ErrorCode.TXN_CONFLICT
    assert await world.operations(txn) == []
    assert await uncommitted(segment) == []


async def test_a_final_header_in_the_reply_closes_the_transaction_without_any_watch(world: World) -> None:
    """ "Watch, reconcile *or reply*": the refusal tells the decision, so nothing has to wait for the watch."""
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "early", txn)
    world.store.events_flow.clear()
    await world.commit(txn)
    with pytest.raises(errors.MetatxnError):
        await publish(segment, "late", txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["early"]
    assert await world.operations(txn) == []


# -- a deposed owner (rule 2) ----------------------------------------------------------------------------------------


async def test_a_deposed_owner_stores_no_intent_and_steps_down(world: World) -> None:
    node = await world.first_node()
    old = await node.open()
    txn = await world.begin()
    new = await node.open()
    with pytest.raises(errors.MetatxnError) as error:
        await publish(old, "x", txn)
    assert code(error) == ErrorCode.STORE_UNAVAILABLE
    assert old.lost
    assert await world.operations(txn) == []
    assert await publish(new, "y", txn)


async def test_a_deposed_owner_materializes_nothing(world: World) -> None:
    node = await world.first_node()
    old = await node.open()
    txn = await world.begin()
    await publish(old, "x", txn)
    key = paths.segment_owner(old.id)
    owner = await world.store.get(key)
    assert owner is not None
    await world.store.apply(world.store.batch().replace(owner, owner.value))
    await world.abort(txn)
    await materialized(old, txn)
    assert old.lost
    assert await world.operations(txn) and await world.outcome(txn) is None


# -- intent before data (rule 3) -------------------------------------------------------------------------------------


async def test_105_the_intent_is_durable_before_the_frame_exists(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "A")
    intent = world.store.fault(Fault(INTENT, hold_after=True))
    sent = sending(segment, "B", txn)
    await intent.reached.wait()
    (key,) = await world.operations(txn)
    record = await world.store.get(key)
    assert record is not None
    op = decode_op(record.value)
    assert isinstance(op, WriteOp)
    assert Position.parse(op.after) == segment.buffer.last_durable
    assert await uncommitted(segment) == ["A"]
    intent.go.set()
    assert await sent > Position.parse(op.after)


async def test_114_plain_publishes_write_nothing_to_the_store_and_go_on_without_it(world: World) -> None:
    segment = await world.segment()
    before = len(world.store.applied)
    world.store.away = StoreUnavailable("gone")
    await asyncio.gather(*(publish(segment, str(number)) for number in range(50)))
    assert len(await committed(segment)) == 50
    assert len(world.store.applied) == before


async def test_an_intent_that_never_reached_the_store_leaves_no_trace(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    world.store.fault(Fault(INTENT, before=StoreUnavailable("gone")))
    with pytest.raises(StoreUnavailable):
        await publish(segment, "x", txn)
    assert await uncommitted(segment) == []
    assert_at_the_floor(segment, node)
    await publish(segment, "x", txn)
    await world.commit(txn)
    await released(segment, txn)
    assert await committed(segment) == ["x"]


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
async def test_an_unknown_intent_pins_nothing_and_is_cleaned_up_after_the_decision(world: World, landed: bool) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    unknown = OutcomeUnknown("no answer")
    world.store.fault(Fault(INTENT, after=unknown) if landed else Fault(INTENT, before=unknown))
    with pytest.raises(OutcomeUnknown):
        await publish(segment, "x", txn)
    await publish(segment, "plain")
    assert await committed(segment) == await uncommitted(segment) == ["plain"]
    assert len(await world.operations(txn)) == landed
    assert segment.buffer.get(txn) is not None, "it stays tracked: the record may still land"
    await world.commit(txn)
    await materialized(segment, txn)
    assert await world.operations(txn) == []
    assert_at_the_floor(segment, node)


async def test_an_unknown_intent_that_lands_late_is_cleaned_up(world: World) -> None:
    """The request is on its way while its sender has given up; it lands before the decision, so it is allowed."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    on_its_way: list[Batch] = []

    def late(batch: Batch) -> bool:
        if INTENT(batch):
            on_its_way.append(batch)
        return INTENT(batch)

    world.store.fault(Fault(late, before=OutcomeUnknown("no answer")))
    with pytest.raises(OutcomeUnknown):
        await publish(segment, "x", txn)
    await world.store.inner.apply(on_its_way[0])
    assert await world.operations(txn)
    await world.abort(txn)
    await materialized(segment, txn)
    assert await world.operations(txn) == []
    assert await world.outcome(txn) is None, "there is no frame to hide"
    assert_at_the_floor(segment, node)


# -- one intent for all entries of a writer (rule 1) -----------------------------------------------------------------


async def test_one_intent_covers_all_entries_of_a_writer(world: World) -> None:
    """However many are in flight, and each of them holds readers back until the decision."""
    segment = await world.segment()
    txn = await world.begin()
    before = len(world.store.applied)
    sent = [sending(segment, f"{writer}{number}", txn, writer=writer) for number in range(50) for writer in "vw"]
    sent += [sending(segment, f"-{number}", txn) for number in range(50)]
    await asyncio.gather(*sent)
    await publish(segment, "last", txn, writer="w")
    assert len(await world.operations(txn)) == len(world.store.applied) - before == 3
    assert await committed(segment) == []
    await world.commit(txn, ["w"])
    await materialized(segment, txn)
    expected = [*(f"w{number}" for number in range(50)), *(f"-{number}" for number in range(50)), "last"]
    assert sorted(await committed(segment)) == sorted(expected)
    assert await world.operations(txn) == []


async def test_a_read_that_began_before_an_entry_arrived_says_nothing_to_it(world: World) -> None:
    """The store's answer to an earlier entry is on its way when the transaction commits and another entry arrives: the
    earlier one counts, the later one must not, although the watch is blind and both wait for the store."""
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "first", txn)
    read = world.store.hold_read(lambda keys: paths.header(txn) in keys)
    earlier = sending(segment, "earlier", txn)
    await read.reached.wait()
    world.store.events_flow.clear()
    await world.commit(txn)
    later = sending(segment, "later", txn)
    await asyncio.sleep(0)
    read.go.set()
    await earlier
    with pytest.raises(errors.MetatxnError) as error:
        await later
    assert code(error) == ErrorCode.TXN_CONFLICT
    await materialized(segment, txn)
    assert await committed(segment) == await uncommitted(segment) == ["first", "earlier"]


async def test_the_decision_overtakes_the_answer_to_a_later_entry(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "early", txn)
    read = world.store.hold_read(lambda keys: paths.header(txn) in keys)
    late = sending(segment, "late", txn)
    await read.reached.wait()
    await world.commit(txn)
    await released(segment, txn)
    read.go.set()
    with pytest.raises(errors.MetatxnError) as error:
        await late
    assert code(error) == ErrorCode.TXN_CONFLICT
    assert await uncommitted(segment) == ["early"]


async def test_a_later_entry_is_refused_while_the_store_is_away_and_taken_afterwards(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "1", txn)
    world.store.away = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        await publish(segment, "2", txn)
    world.store.away = None
    assert await uncommitted(segment) == ["1"]
    await publish(segment, "3", txn)
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["1", "3"]


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
async def test_an_entry_behind_an_intent_with_an_unknown_outcome_has_its_own(world: World, landed: bool) -> None:
    segment = await world.segment()
    txn = await world.begin()
    unknown = OutcomeUnknown("no answer")
    fault = (
        Fault(INTENT, after=unknown, hold_before=True) if landed else Fault(INTENT, before=unknown, hold_before=True)
    )
    intent = world.store.fault(fault)
    first = sending(segment, "1", txn, writer="w")
    await intent.reached.wait()
    second = sending(segment, "2", txn, writer="w")
    await asyncio.sleep(0)
    intent.go.set()
    with pytest.raises(OutcomeUnknown):
        await first
    await second
    assert len(await world.operations(txn)) == 1 + landed
    await world.abort(txn)
    await materialized(segment, txn)
    assert await world.operations(txn) == [] == await committed(segment)


async def test_the_next_owner_announces_again_and_finds_every_frame(world: World) -> None:
    """From the one intent of the first entry, which is behind none of them."""
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "plain")
    for number in range(3):
        await publish(segment, str(number), txn)
    segment = await world.reopened()
    assert await committed(segment) == ["plain"]
    await publish(segment, "3", txn)
    assert len(await world.operations(txn)) == 2
    await world.abort(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["plain"]


# -- the horizon (rule 4) --------------------------------------------------------------------------------------------


async def test_a_pin_stands_before_the_intent_is_sent(world: World) -> None:
    """A plain publish overtakes the transaction's; when the frame lands behind it, nothing has leaked or moved back."""
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "A")
    intent = world.store.fault(Fault(INTENT, hold_before=True))
    sent = sending(segment, "B", txn)
    await intent.reached.wait()
    await publish(segment, "C")
    assert await committed(segment) == ["A"]
    intent.go.set()
    await sent
    assert await committed(segment) == ["A", "C"], "the pin has moved up to just below the frame"
    await world.abort(txn)
    await released(segment, txn)
    assert await committed(segment) == ["A", "C"]


async def test_a_fresh_segment_shows_nothing_while_its_first_append_is_in_flight(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    node.device.hold()
    sent = sending(segment, "first", txn)
    await node.device.held()
    assert await committed(segment) == []
    node.device.go()
    await sent
    assert await committed(segment) == []


async def test_the_horizon_never_moves_backwards(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await world.first_node()
    segment = await node.open()
    seen: list[Position] = []
    notify = segment.changed.notify

    def looking() -> None:
        seen.append(segment.buffer.max_read_position)
        notify()

    monkeypatch.setattr(segment.changed, "notify", looking)
    txns = [await world.begin() for _ in range(8)]
    work = [sending(segment, str(number), txns[number % 8] if number % 3 else None) for number in range(160)]
    await asyncio.gather(*work)
    for index, txn in enumerate(reversed(txns)):
        await (world.commit(txn) if index % 2 else world.abort(txn))
    await materialized(segment, *txns)
    assert seen == sorted(seen)
    assert segment.buffer.max_read_position == segment.buffer.last_durable
    assert_at_the_floor(segment, node)


async def test_readers_of_committed_entries_are_woken_by_the_release_and_not_by_each_entry(world: World) -> None:
    """Those of uncommitted ones hear of every entry. With many segments and entries the former would do nothing else
    while a transaction is written."""
    node = await world.first_node()
    segment = await node.open()
    await publish(segment, "plain")
    txn = await world.begin()
    await publish(segment, "first", txn)
    (committed_changed,) = segment.next_changes("read_committed")
    either = segment.next_changes("read_uncommitted")
    await publish(segment, "second", txn)
    assert not committed_changed.done()
    assert any(change.done() for change in either)
    await world.commit(txn)
    await materialized(segment, txn)
    assert committed_changed.done()


# -- a decision closes at once (rule 5) ------------------------------------------------------------------------------


async def test_the_decision_overtakes_the_reply_to_our_own_intent(world: World) -> None:
    """The intent was stored in time, but its frame was never begun: it is refused, and its record is cleaned up."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    await publish(segment, "early", txn)
    intent = world.store.fault(Fault(INTENT, hold_after=True))
    late = sending(segment, "late", txn, writer="another")
    await intent.reached.wait()
    assert len(await world.operations(txn)) == 2
    await world.commit(txn)
    await released(segment, txn)
    assert await committed(segment) == ["early"]
    intent.go.set()
    with pytest.raises(errors.MetatxnError) as error:
        await late
    assert code(error) == ErrorCode.TXN_CONFLICT
    await materialized(segment, txn)
    assert await uncommitted(segment) == ["early"]
    assert await world.operations(txn) == []
    assert_at_the_floor(segment, node)


async def test_begun_appends_are_drained_before_the_horizon_is_released(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    node.device.hold()
    sent = sending(segment, "begun", txn)
    await node.device.held()
    decided = asyncio.Event()
    node.mirror.follow(txn, lambda *_: decided.set())
    await world.commit(txn)
    await decided.wait()
    transaction = segment.buffer.get(txn)
    assert transaction is not None and transaction.decision is not None and not transaction.released
    assert await committed(segment) == []
    assert await world.operations(txn), "nothing is cleaned up before the appends have ended"
    node.device.go()
    await sent
    await materialized(segment, txn)
    assert await committed(segment) == ["begun"]


async def test_an_abort_seen_while_a_publish_waits_for_its_writers_turn_refuses_it(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    first = world.store.fault(Fault(INTENT, hold_after=True))
    one = sending(segment, "1", txn, writer="w")
    await first.reached.wait()
    two = sending(segment, "2", txn, writer="w")
    await asyncio.sleep(0)
    await world.abort(txn)
    await released(segment, txn)
    first.go.set()
    for late in (one, two):
        with pytest.raises(errors.MetatxnError) as error:
            await late
        assert code(error) == ErrorCode.TXN_CONFLICT
    assert await uncommitted(segment) == []


# -- input that cannot be a frame ------------------------------------------------------------------------------------


@pytest.mark.parametrize("transactional", [True, False])
async def test_an_entry_too_large_for_a_frame_is_refused_before_anything_happens(
    world: World, transactional: bool
) -> None:
    """Scenario 27: the failing send leaves no pin, and the transaction can still be ended."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin() if transactional else None
    with pytest.raises(errors.MetatxnError) as error:
        await publish(segment, "x" * (MAX_PAYLOAD_BYTES + 1), txn)
    assert code(error) == ErrorCode.PAYLOAD_TOO_LARGE
    assert txn is None or await world.operations(txn) == []
    assert_at_the_floor(segment, node)
    await publish(segment, "next")
    assert await committed(segment) == ["next"]


async def test_an_entry_that_counts_too_many_messages_is_refused_whatever_its_kind(world: World) -> None:
    """But for a table, which was decoded before, and opaque bytes, which are one message whatever they count."""
    segment = await world.segment()
    for kind in (PayloadKind.MESSAGES, PayloadKind.BATCH, PayloadKind.PULSAR):
        with pytest.raises(errors.PayloadTooLarge, match="100000 messages, and this one counts 2147483647"):
            await segment.publish(Entry(b"x", kind, (1 << 31) - 1))
    await segment.publish(Entry(b"x", PayloadKind.ARROW, MAX_ENTRY_MESSAGES + 1))
    await segment.publish(Entry(b"x", PayloadKind.BYTES, MAX_ENTRY_MESSAGES + 1))


async def test_whatever_stops_a_frame_from_being_made_its_pin_goes(world: World) -> None:
    """A name that the format cannot hold: a programming error above us, but it must not pin the segment forever."""
    segment = await world.segment()
    txn = await world.begin()
    with pytest.raises(ValueError):
        await segment.publish(entry("x", txn, writer="w" * (1 << 16)))
    await publish(segment, "plain")
    assert await committed(segment) == ["plain"]
