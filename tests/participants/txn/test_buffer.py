"""Goal: every transaction buffer keeps DESIGN §5.4-6 alone, whatever order its events come in.

Method: for the one that is built in, and one that looks through lists: stories for the rules, then a state machine that
plays a segment at random against a model: the horizon never moves back, nothing of an undecided transaction is at or
below it, decided is what the decision said, unknown is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from metastore.txn.records.operations import Outcome
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.txn.buffer import Decision, TrackedTransaction, TransactionBuffer
from tests.participants.plain_providers import BUFFERS, PlainBuffer

EMPTY = Position(1, -1)
T1, T2 = TxnId(0, 1), TxnId(0, 2)
OpenBuffer = Callable[[Position], TransactionBuffer]


@pytest.fixture(params=sorted(BUFFERS))
def open_buffer(request: pytest.FixtureRequest) -> OpenBuffer:
    return BUFFERS[request.param]


def at(entry: int) -> Position:
    return Position(1, entry)


def decision(state: TxnState, writers: tuple[str, ...] | None = None) -> Decision:
    return Decision(Header(state=state, timeout_ms=1, created_ms=0, finalized_ms=2, writers=writers))


COMMITTED, ABORTED = decision(TxnState.COMMITTED), decision(TxnState.ABORTED)


def appended(buffer: TransactionBuffer, txn_id: TxnId, entry: int, writer: str | None = None) -> TrackedTransaction:
    transaction = buffer.track(txn_id, 0)
    intent = buffer.pin(transaction, buffer.last_durable)
    buffer.append_begun(transaction, intent, at(entry), writer)
    buffer.durable_up_to(at(entry))
    buffer.append_ended(transaction)
    return transaction


def test_a_fresh_buffer_reads_up_to_where_it_began(open_buffer: OpenBuffer) -> None:
    buffer = open_buffer(EMPTY)
    assert buffer.max_read_position == EMPTY
    buffer.durable_up_to(at(0))
    assert buffer.max_read_position == at(0)
    assert buffer.pinned_by is None


def test_the_lowest_pin_of_any_undecided_transaction_is_the_horizon(open_buffer: OpenBuffer) -> None:
    buffer = open_buffer(EMPTY)
    buffer.durable_up_to(at(0))
    first = appended(buffer, T1, 1)
    second = appended(buffer, T2, 2)
    assert (buffer.max_read_position, buffer.pinned_by) == (at(0), first)
    buffer.close(first, COMMITTED)
    assert buffer.max_read_position == at(0), "closed is not yet released"
    buffer.release(first)
    assert (buffer.max_read_position, buffer.pinned_by) == (at(1), second)
    buffer.close(second, ABORTED)
    buffer.release(second)
    assert buffer.max_read_position == at(2)
    assert buffer.hides(T2, None) and not buffer.hides(T1, None)


def test_a_pin_moves_up_from_the_intent_to_just_below_the_frame(open_buffer: OpenBuffer) -> None:
    buffer = open_buffer(EMPTY)
    transaction = buffer.track(T1, 0)
    intent = buffer.pin(transaction, EMPTY)
    buffer.durable_up_to(at(4))
    assert buffer.max_read_position == EMPTY
    buffer.append_begun(transaction, intent, at(7), None)
    buffer.durable_up_to(at(7))
    assert buffer.max_read_position == at(6)


def test_a_refused_intent_is_forgotten_and_an_unknown_one_is_not(open_buffer: OpenBuffer) -> None:
    buffer = open_buffer(EMPTY)
    for maybe_stored in (False, True):
        transaction = buffer.track(T1, 0)
        intent = buffer.pin(transaction, buffer.last_durable)
        buffer.unpin(transaction, intent, maybe_stored=maybe_stored)
        assert (buffer.get(T1) is not None) == maybe_stored
        buffer.durable_up_to(buffer.last_durable.next)
        assert buffer.max_read_position == buffer.last_durable


def test_an_outcome_that_was_found_stands_against_one_made_from_fewer_frames(open_buffer: OpenBuffer) -> None:
    """Recovery sees the frames behind the operations that are left; the outcome record was made from all of them."""
    buffer = open_buffer(at(9))
    buffer.restore_outcome(T1, Outcome(highest="1:9", counted_writers=("good",)))
    transaction = buffer.track(T1, 0)
    buffer.recovered_frame(transaction, at(9), "void")
    buffer.close(transaction, decision(TxnState.COMMITTED, ("good",)))
    buffer.release(transaction)
    assert not buffer.hides(T1, "good")
    assert buffer.hides(T1, "void")
    assert not buffer.hides(T1, None)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (COMMITTED, None),
        (ABORTED, Outcome(highest="1:1", aborted=True)),
        (decision(TxnState.COMMITTED, ("v", "w", "x")), None),
        (decision(TxnState.COMMITTED, ("w",)), Outcome(highest="1:1", counted_writers=("w",))),
        (decision(TxnState.COMMITTED, ()), Outcome(highest="1:1", counted_writers=())),
        (Decision(None), None),
    ],
    ids=["committed", "aborted", "all count", "one counts", "none counts", "collected"],
)
def test_an_outcome_is_kept_only_for_what_is_not_simply_committed(
    header: Decision, expected: Outcome | None, open_buffer: OpenBuffer
) -> None:
    buffer = open_buffer(EMPTY)
    appended(buffer, T1, 0, "v")
    transaction = appended(buffer, T1, 1, "w")
    buffer.close(transaction, header)
    assert buffer.release(transaction) == expected
    assert expected is None or Outcome.decode(expected.encode()) == expected


def test_a_transaction_without_frames_has_no_outcome(open_buffer: OpenBuffer) -> None:
    buffer = open_buffer(EMPTY)
    transaction = buffer.track(T1, 0)
    transaction.stored = True
    buffer.close(transaction, ABORTED)
    assert buffer.release(transaction) is None
    buffer.forget(transaction)
    assert not list(buffer.tracked())


def test_what_nobody_remembers_is_committed(open_buffer: OpenBuffer) -> None:
    assert not open_buffer(EMPTY).hides(T1, "w")


def test_outcomes_that_a_buffer_does_not_tell_cannot_be_dropped() -> None:
    """That of a package which knows nothing of indexes of ledgers: what it hides stays hidden."""

    class Silent(PlainBuffer):
        outcomes = TransactionBuffer.outcomes
        drop = TransactionBuffer.drop

    buffer = Silent(EMPTY)
    transaction = appended(buffer, T1, 0)
    buffer.close(transaction, ABORTED)
    assert buffer.release(transaction) is not None
    assert buffer.outcomes() == {}
    with pytest.raises(NotImplementedError):
        buffer.drop([T1])
    assert buffer.hides(T1, None)


WRITERS = (None, "v", "w")


@dataclass
class Model:
    intents: dict[int, Position] = field(default_factory=dict)
    frames: dict[Position, str | None] = field(default_factory=dict)
    in_flight: list[Position] = field(default_factory=list)
    failed: set[Position] = field(default_factory=set)
    decision: Decision | None = None
    released: bool = False


class BufferMachine(RuleBasedStateMachine):
    """Plays the segment: positions are given out, some roll back for lack of space, decisions come at any time."""

    def __init__(self, open_buffer: OpenBuffer) -> None:
        super().__init__()
        self.buffer = open_buffer(EMPTY)
        self.assigned = -1
        self.owner: dict[Position, TxnId | None] = {}
        self.model: dict[TxnId, Model] = {}
        self.seen_horizon = EMPTY
        self.numbers = 0

    def _open(self) -> list[TxnId]:
        return [txn_id for txn_id, model in self.model.items() if model.decision is None]

    def _of(self, txn_id: TxnId) -> TrackedTransaction:
        found = self.buffer.get(txn_id)
        assert found is not None
        return found

    @rule()
    def begin(self) -> None:
        self.numbers += 1
        self.model[TxnId(0, self.numbers)] = Model()

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def intent(self, data: st.DataObject) -> None:
        txn_id = data.draw(st.sampled_from(self._open()))
        transaction = self.buffer.track(txn_id, 0)
        token = self.buffer.pin(transaction, self.buffer.last_durable)
        self.model[txn_id].intents[token] = self.buffer.last_durable

    @precondition(lambda self: any(model.intents for model in self.model.values()))
    @rule(data=st.data(), unknown=st.booleans())
    def intent_fails(self, data: st.DataObject, unknown: bool) -> None:
        txn_id = data.draw(st.sampled_from([txn_id for txn_id, model in self.model.items() if model.intents]))
        model = self.model[txn_id]
        token = data.draw(st.sampled_from(sorted(model.intents)))
        del model.intents[token]
        if (transaction := self.buffer.get(txn_id)) is not None:
            self.buffer.unpin(transaction, token, maybe_stored=unknown)

    @precondition(lambda self: any(m.intents and m.decision is None for m in self.model.values()))
    @rule(data=st.data(), writer=st.sampled_from(WRITERS))
    def append(self, data: st.DataObject, writer: str | None) -> None:
        ready = [txn_id for txn_id in self._open() if self.model[txn_id].intents]
        txn_id = data.draw(st.sampled_from(ready))
        model = self.model[txn_id]
        token = data.draw(st.sampled_from(sorted(model.intents)))
        assert model.intents.pop(token) < at(self.assigned + 1), "`after` is a lower bound, come what may"
        self.assigned += 1
        position = at(self.assigned)
        self.buffer.append_begun(self._of(txn_id), token, position, writer)
        self.owner[position] = txn_id
        model.frames[position] = writer
        model.in_flight.append(position)

    @rule()
    def plain_append(self) -> None:
        self.assigned += 1
        self.owner[at(self.assigned)] = None

    @rule(count=st.integers(1, 4))
    def sync(self, count: int) -> None:
        """A group becomes durable; its futures are resolved after the end has moved."""
        start = self.buffer.last_durable.entry + 1
        group = [at(entry) for entry in range(start, min(start + count, self.assigned + 1))]
        if not group:
            return
        self.buffer.durable_up_to(group[-1])
        self._end(group)

    @rule()
    def no_space(self) -> None:
        """Everything that is not durable fails, and its positions are given out again."""
        failed = [position for position in self.owner if position > self.buffer.last_durable]
        self.assigned = self.buffer.last_durable.entry
        for position in failed:
            if (txn_id := self.owner.pop(position)) is not None:
                self.model[txn_id].frames.pop(position, None)
                self.model[txn_id].in_flight.remove(position)
                self.buffer.append_ended(self._of(txn_id))
                self._release_if_drained(txn_id)

    def _end(self, group: list[Position]) -> None:
        for position in group:
            if (txn_id := self.owner[position]) is not None:
                self.model[txn_id].in_flight.remove(position)
                self.buffer.append_ended(self._of(txn_id))
                self._release_if_drained(txn_id)

    @precondition(lambda self: self._open())
    @rule(data=st.data(), final=st.sampled_from([COMMITTED, ABORTED, decision(TxnState.COMMITTED, ("v",))]))
    def decide(self, data: st.DataObject, final: Decision) -> None:
        txn_id = data.draw(st.sampled_from(self._open()))
        self.model[txn_id].decision = final
        if (transaction := self.buffer.get(txn_id)) is not None:
            self.buffer.close(transaction, final)
            self._release_if_drained(txn_id)

    def _release_if_drained(self, txn_id: TxnId) -> None:
        model = self.model[txn_id]
        if model.decision is not None and not model.in_flight:
            self.buffer.release(self._of(txn_id))
            model.released = True

    @precondition(lambda self: any(model.released and not model.intents for model in self.model.values()))
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        done = [txn_id for txn_id, model in self.model.items() if model.released and self.buffer.get(txn_id)]
        if done:
            self.buffer.forget(self._of(data.draw(st.sampled_from(done))))

    @invariant()
    def the_horizon_never_moves_backwards(self) -> None:
        assert self.seen_horizon <= self.buffer.max_read_position <= self.buffer.last_durable
        self.seen_horizon = self.buffer.max_read_position

    @invariant()
    def nothing_unreleased_is_at_or_below_the_horizon(self) -> None:
        for model in self.model.values():
            if not model.released:
                assert all(position > self.buffer.max_read_position for position in model.frames)

    @invariant()
    def readers_skip_exactly_what_the_decisions_say(self) -> None:
        for txn_id, model in self.model.items():
            if not model.released or model.decision is None or model.decision.header is None:
                continue
            header = model.decision.header
            for writer in model.frames.values():
                counts = header.writers is None or writer is None or writer in header.writers
                visible = header.state is TxnState.COMMITTED and counts
                assert self.buffer.hides(txn_id, writer) != visible

    @invariant()
    def nothing_holds_readers_back_but_the_undecided(self) -> None:
        if all(m.released or not (m.intents or m.frames or m.in_flight) for m in self.model.values()):
            leftovers = [t for t in self.buffer.tracked() if not t.released and t.pin is not None]
            assert leftovers or self.buffer.max_read_position == self.buffer.last_durable

    def teardown(self) -> None:
        self.sync(10**6)
        for txn_id in self._open():
            self.model[txn_id].decision = ABORTED
            if (transaction := self.buffer.get(txn_id)) is not None:
                self.buffer.close(transaction, ABORTED)
                self._release_if_drained(txn_id)
        assert self.buffer.max_read_position == self.buffer.last_durable
        assert self.buffer.pinned_by is None


def test_any_order(open_buffer: OpenBuffer) -> None:
    class OfKind(BufferMachine):
        def __init__(self) -> None:
            super().__init__(open_buffer)

    run_state_machine_as_test(OfKind, settings=settings(max_examples=50, stateful_step_count=40))
