"""Goal: every pending-ack store decides every conflict as DESIGN §5.10 says, and forgets exactly what ends.

Method: for the one that is built in, and one that looks through lists: the rules one by one; then a state machine
against a table of (transaction, writer, message) that is looked through from the beginning every time. Scenarios 50,
51, 63, 64, 67, 68.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.subscription.cursor import Cursor
from participants.subscription.pending_acks import Ack, AckConflict, AckState, PendingAckStore
from participants.subscription.places import START, Place
from tests.extent import usually
from tests.participants.plain_providers import PENDING_ACKS

T1, T2, T3 = (TxnId(0, number) for number in (1, 2, 3))
SIZE = 4


def single(entry: int, index: int | None = None, writer: str | None = None) -> Ack:
    return Ack(Position(1, entry), index, None if index is None else SIZE, writer=writer)


def run(entry: int, index: int, last: int) -> Ack:
    return Ack(Position(1, entry), index, SIZE, last=last)


def up_to(entry: int, index: int | None = None, writer: str | None = None) -> Ack:
    return Ack(Position(1, entry), index, None if index is None else SIZE, True, writer)


class Store:
    """A pending-ack store with its cursor, as the owner of a segment uses them."""

    def __init__(self, open_pending: Callable[[], PendingAckStore]) -> None:
        self.open_pending = open_pending
        self.pending = open_pending()
        self.cursor = Cursor(START)

    def ack(self, txn_id: TxnId | None, ack: Ack) -> None:
        self.pending.check(txn_id, ack, self.cursor)
        if txn_id is None:
            self.cursor.add(ack.span)
        else:
            self.pending.reserve(txn_id, ack)
            self.pending.stored(txn_id, ack)

    def refused(self, txn_id: TxnId | None, ack: Ack) -> TxnId | None:
        """Who holds what it wants; None when it is acknowledged."""
        with pytest.raises(AckConflict) as conflict:
            self.pending.check(txn_id, ack, self.cursor)
        return conflict.value.holder

    def commit(self, txn_id: TxnId) -> None:
        known = self.pending.end(txn_id)
        for ack in known.acks if known else ():
            self.cursor.add(ack.span)


@pytest.fixture(params=sorted(PENDING_ACKS))
def store(request: pytest.FixtureRequest) -> Store:
    return Store(PENDING_ACKS[request.param])


def test_50_a_message_that_is_pending_elsewhere_conflicts_and_its_neighbours_do_not(store: Store) -> None:
    store.ack(T1, single(0))
    assert store.refused(T2, single(0)) == T1
    assert store.refused(None, single(0)) == T1
    store.ack(T2, single(1))


def test_51_what_is_acknowledged_conflicts_inside_a_transaction_and_is_no_news_outside(store: Store) -> None:
    store.ack(None, single(0))
    assert store.refused(T1, single(0)) is None
    store.ack(None, single(0))
    store.ack(T1, single(1))
    store.commit(T1)
    assert store.refused(T2, single(1)) is None


def test_the_same_again_succeeds_and_another_writer_leaves_its_own(store: Store) -> None:
    store.ack(T1, single(0, writer="a"))
    store.ack(T1, single(0, writer="a"))
    store.ack(T1, single(0, writer="b"))
    known = store.pending.get(T1)
    assert known is not None and len(known.acks) == 2


def test_63_only_one_transaction_acknowledges_cumulatively_at_a_time(store: Store) -> None:
    store.ack(T1, up_to(1))
    assert store.refused(T2, up_to(5)) == T1
    assert store.refused(None, up_to(5)) == T1
    store.pending.end(T1)
    store.ack(T2, up_to(5))


def test_62_steps_upwards_succeed_and_below_a_pending_one_is_a_conflict_in_its_own_transaction_too(
    store: Store,
) -> None:
    store.ack(T1, up_to(1))
    store.ack(T1, up_to(3, 1))
    assert store.refused(T1, up_to(2)) == T1
    assert store.refused(T1, up_to(3, 0)) == T1
    store.ack(T1, up_to(3, 1))
    store.ack(T1, up_to(1))  # the same one again
    store.ack(T1, up_to(3, 1, writer="b"))


def test_64_a_cumulative_ack_below_the_mark_delete_conflicts(store: Store) -> None:
    store.ack(None, up_to(4))
    assert store.refused(T1, up_to(4)) is None
    assert store.refused(T1, up_to(2)) is None
    store.ack(T1, up_to(5, 0))


def test_a_cumulative_ack_over_what_another_transaction_holds_conflicts_and_the_other_way_round(store: Store) -> None:
    """Else both could commit, and one message would count in two transactions."""
    store.ack(T1, single(1))
    assert store.refused(T2, up_to(3)) == T1
    assert store.refused(None, up_to(3)) == T1
    store.ack(T2, up_to(0))
    assert store.refused(T1, single(0)) == T2
    store.ack(T1, single(3))


def test_single_and_cumulative_acks_end_independently(store: Store) -> None:
    store.ack(T1, up_to(2))
    store.ack(T2, single(4))
    store.commit(T2)
    assert Place(1, 4, 0) in store.cursor and Place(1, 2, 0) not in store.cursor
    assert store.pending.holder(Place(1, 2, 0)) == T1
    store.pending.end(T1)
    assert store.pending.holder(Place(1, 2, 0)) is None


def test_67_68_messages_of_one_batch_are_apart(store: Store) -> None:
    store.ack(T1, single(0, 0))
    store.ack(T2, single(0, 1))
    assert store.refused(T2, single(0)) == T1
    store.commit(T1)
    store.pending.end(T2)
    assert store.refused(T3, single(0, 0)) is None
    store.ack(T3, single(0, 1))
    store.ack(T3, single(0, 2))


def test_messages_that_follow_each_other_are_acknowledged_together_and_conflict_one_by_one(store: Store) -> None:
    store.ack(T1, run(0, 1, 2))
    store.ack(T2, single(0, 0))
    store.ack(T2, single(0, 3))
    assert store.refused(T2, single(0, 1)) == store.refused(T2, run(0, 2, 3)) == T1
    assert store.refused(None, run(0, 0, 1)) in (T1, T2)
    assert store.refused(T3, run(0, 2, 3)) == T1
    assert [store.pending.holder(Place(1, 0, index)) for index in range(SIZE)] == [T2, T1, T1, T2]
    assert list(run(0, 1, 2).each()) == [single(0, 1), single(0, 2)]
    store.commit(T1)
    assert store.refused(T2, run(0, 0, 1)) is None
    assert [Place(1, 0, index) in store.cursor for index in range(SIZE)] == [False, True, True, False]


def test_113_a_refused_operation_leaves_no_reservation_and_an_unknown_one_stays(store: Store) -> None:
    store.pending.reserve(T1, single(0))
    store.pending.release(T1, single(0))
    assert store.pending.get(T1) is None
    store.ack(T2, single(0))
    store.pending.reserve(T1, single(1))
    store.pending.unknown(T1, single(1))
    store.pending.reserve(T1, single(1))
    store.pending.release(T1, single(1))
    assert store.pending.state(T1, single(1)) is AckState.UNKNOWN
    assert store.refused(T2, single(1)) == T1


ENTRIES = 6
TXNS = st.sampled_from([T1, T2, T3])
WRITERS = st.sampled_from([None, "a", "b"])
INDEXES = st.one_of(st.none(), st.integers(0, SIZE - 2))
LASTS = st.one_of(st.none(), st.integers(1, SIZE - 1))


def messages(ack: Ack) -> set[tuple[int, int]]:
    """What it covers, one by one."""
    return {
        (entry, index)
        for entry in range(ENTRIES)
        for index in range(SIZE)
        if ack.span.start <= Place(1, entry, index) < ack.span.end
    }


class PendingMachine(RuleBasedStateMachine):
    """The model: a list of the stored acknowledgements of each open transaction, and a set of deleted messages."""

    def __init__(self, open_pending: Callable[[], PendingAckStore]) -> None:
        super().__init__()
        self.store = Store(open_pending)
        self.held: dict[TxnId, list[Ack]] = {}
        self.deleted: set[tuple[int, int]] = set()

    def others(self, txn_id: TxnId | None, cumulative: bool | None = None) -> Iterator[Ack]:
        for holder, acks in self.held.items():
            if holder != txn_id:
                yield from (ack for ack in acks if cumulative in (None, ack.cumulative))

    def conflicts(self, txn_id: TxnId | None, ack: Ack) -> bool:
        own = self.held.get(txn_id, []) if txn_id is not None else []
        if ack in own:
            return False
        covered = messages(ack)
        if ack.cumulative:
            low = any(each.cumulative and each.span.end > ack.span.end for each in own)
            done = txn_id is not None and covered <= self.deleted and ack.span.end <= self.store.cursor.mark_delete
            return low or done or any(self.others(txn_id, True)) or self.hits(covered, self.others(txn_id))
        return (txn_id is not None and bool(covered & self.deleted)) or self.hits(covered, self.others(txn_id))

    def hits(self, covered: set[tuple[int, int]], acks: Iterator[Ack]) -> bool:
        return any(covered & messages(ack) for ack in acks)

    @rule(
        txn_id=st.one_of(st.none(), TXNS),
        entry=st.integers(0, ENTRIES - 1),
        index=INDEXES,
        last=LASTS,
        cumulative=st.booleans(),
        writer=WRITERS,
        outcome=st.sampled_from(["stored", "stored", "refused", "unknown"]),
    )
    def acknowledge(
        self,
        txn_id: TxnId | None,
        entry: int,
        index: int | None,
        last: int | None,
        cumulative: bool,
        writer: str | None,
        outcome: str,
    ) -> None:
        if cumulative or index is None or last is None or last <= index:
            last = None
        ack = Ack(Position(1, entry), index, None if index is None else SIZE, cumulative, writer, last)
        expected = self.conflicts(txn_id, ack)
        if expected:
            self.store.refused(txn_id, ack)
            return
        self.store.pending.check(txn_id, ack, self.store.cursor)
        if txn_id is None:
            self.store.cursor.add(ack.span)
            self.deleted |= messages(ack)
            return
        self.store.pending.reserve(txn_id, ack)
        if outcome == "refused":
            self.store.pending.release(txn_id, ack)
        else:
            getattr(self.store.pending, outcome)(txn_id, ack)
            if ack not in self.held.setdefault(txn_id, []):
                self.held[txn_id].append(ack)

    @rule(txn_id=TXNS, commit=st.booleans(), counted=st.sets(st.sampled_from(["a", "b"])))
    def end(self, txn_id: TxnId, commit: bool, counted: set[str]) -> None:
        acks = self.held.pop(txn_id, [])
        if commit:
            for ack in acks:
                if ack.writer is None or ack.writer in counted:
                    self.store.cursor.add(ack.span)
                    self.deleted |= messages(ack)
        self.store.pending.end(txn_id)

    @rule()
    def restart(self) -> None:
        """Recovery takes up the operations that are stored."""
        self.store.pending = self.store.open_pending()
        for txn_id, acks in self.held.items():
            for ack in acks:
                self.store.pending.restore(txn_id, ack)

    @invariant()
    def every_message_is_in_its_state(self) -> None:
        for entry in range(ENTRIES):
            for index in range(SIZE):
                place = Place(1, entry, index)
                holders = {t for t, acks in self.held.items() if any((entry, index) in messages(a) for a in acks)}
                assert len(holders) <= 1, "nothing is pending twice"
                assert self.store.pending.holder(place) == next(iter(holders), None)
                assert (place in self.store.cursor) == ((entry, index) in self.deleted)


@pytest.mark.parametrize("kind", sorted(PENDING_ACKS))
def test_any_order(kind: str) -> None:
    class OfKind(PendingMachine):
        def __init__(self) -> None:
            super().__init__(PENDING_ACKS[kind])

    run_state_machine_as_test(OfKind, settings=settings(max_examples=usually(20, 60), stateful_step_count=40))
