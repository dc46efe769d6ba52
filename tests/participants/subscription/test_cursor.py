"""Goal: a cursor says exactly what was acknowledged, and what it stores says so too: in bounded records, whatever
prefix of a write the store got.

Method: state machines against plain sets of message numbers. The stored side takes the changes as `CursorStore` does,
in its order, and stops anywhere.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metatxn.wire.position import Position
from participants.subscription import cursor as cursor_module
from participants.subscription.cursor import Cursor
from participants.subscription.places import START, Place, Span, entry_span, message_span
from participants.subscription.ranges import RangeSet
from tests.extent import usually

MESSAGES = 90
PER_ENTRY = 3


def place_of(number: int) -> Place:
    """Messages of a segment by number: entries of three, ledgers of thirty."""
    entry, message = divmod(number, PER_ENTRY)
    ledger, entry = divmod(entry, 10)
    return Place(ledger + 1, entry, message)


def spans_of(first: int, last: int) -> Span:
    """From message `first` to `last`, both included. Between two ledgers there is nothing: it was passed."""
    return Span(place_of(first), place_of(last + 1))


def test_a_batch_acknowledged_message_by_message_is_one_range_with_its_neighbours() -> None:
    ranges = RangeSet()
    for message in (2, 0, 1):
        ranges.add(message_span(Position(1, 5), message, 3))
    ranges.add(entry_span(Position(1, 6)))
    assert list(ranges) == [Span(Place(1, 5, 0), Place(1, 7, 0))]


def test_the_mark_delete_moves_over_what_is_acknowledged_without_a_gap() -> None:
    cursor = Cursor(START)
    cursor.add(entry_span(Position(1, 1)))
    assert cursor.mark_delete == START
    cursor.add(Span(START, Place(1, 1, 0)))
    assert cursor.mark_delete == Place(1, 2, 0)
    cursor.add(Span(START, Place(1, 1, 0)))
    assert cursor.mark_delete == Place(1, 2, 0)


def test_one_acknowledgement_writes_one_bounded_record_however_fragmented_the_rest_is() -> None:
    cursor = Cursor(START)
    for entry in range(0, 20_000, 2):
        cursor.add(entry_span(Position(1, entry + 1)))
    stored = cursor.take_changes()
    assert len(stored.puts) > 50
    cursor.add(message_span(Position(1, 10_000), 0, 7))
    changes = cursor.take_changes()
    assert len(changes.puts) <= 2 and changes.mark_delete is None
    assert all(len(ranges) <= cursor_module.RANGES_PER_BUCKET for ranges in (stored.puts | changes.puts).values())


def test_what_is_healed_behind_a_stuck_message_takes_no_space() -> None:
    """One message that nobody acknowledges, and a window of others that are acknowledged out of order."""
    cursor = Cursor(START)
    buckets: set[Place] = set()
    for window in range(50):
        entries = range(1 + window * 400, 1 + (window + 1) * 400)
        for entry in (*entries[::2], *entries[1::2]):
            cursor.add(entry_span(Position(1, entry)))
        changes = cursor.take_changes()
        buckets = (buckets | changes.puts.keys()) - changes.deletes
    assert len(buckets) == 1


class CursorMachine(RuleBasedStateMachine):
    @initialize(per_bucket=st.integers(2, 6))
    def begin(self, per_bucket: int) -> None:
        cursor_module.RANGES_PER_BUCKET = per_bucket
        self.mark = place_of(0)
        self.cursor = Cursor(self.mark)
        self.acked: set[int] = set()
        self.buckets: dict[Place, list[Span]] = {}
        self.durable: set[int] = set()

    def teardown(self) -> None:
        cursor_module.RANGES_PER_BUCKET = 128

    @rule(first=st.integers(0, MESSAGES - 1), length=st.integers(1, 6))
    def acknowledge(self, first: int, length: int) -> None:
        last = min(first + length, MESSAGES) - 1
        self.cursor.add(spans_of(first, last))
        self.acked |= set(range(first, last + 1))

    @rule(last=st.integers(0, MESSAGES - 1))
    def acknowledge_up_to(self, last: int) -> None:
        end = spans_of(last, last).end
        if end > self.cursor.mark_delete:
            self.cursor.add(Span(self.cursor.mark_delete, end))
        self.acked |= set(range(last + 1))

    @rule(stop_after=st.integers(0, 12))
    def write(self, stop_after: int) -> None:
        changes = self.cursor.take_changes()
        for number, write in enumerate(changes.in_order()):
            if number == stop_after:
                self.cursor.untake(changes)
                return
            name, spans = write
            if name is None:
                assert changes.mark_delete is not None
                self.mark = changes.mark_delete
            elif spans is None:
                self.buckets.pop(name, None)
            else:
                self.buckets[name] = spans
        self.durable = set(self.acked)

    @rule()
    def restart(self) -> None:
        self.cursor = Cursor(self.mark, self.buckets.items())
        self.acked = {number for number in range(MESSAGES) if place_of(number) in self.cursor}

    @invariant()
    def says_what_was_acknowledged(self) -> None:
        if hasattr(self, "cursor"):
            assert {n for n in range(MESSAGES) if place_of(n) in self.cursor} == self.acked
            missing = min(set(range(MESSAGES)) - self.acked, default=MESSAGES)
            assert self.cursor.mark_delete == place_of(missing)

    @invariant()
    def loses_nothing_that_was_durable(self) -> None:
        if hasattr(self, "cursor"):
            again = Cursor(self.mark, self.buckets.items())
            found = {n for n in range(MESSAGES) if place_of(n) in again}
            assert self.durable <= found <= self.acked
            assert all(len(ranges) <= cursor_module.RANGES_PER_BUCKET for ranges in self.buckets.values())


TestCursorMachine = CursorMachine.TestCase
TestCursorMachine.settings = settings(max_examples=usually(20, 40), stateful_step_count=30, deadline=None)


@settings(max_examples=100, deadline=None)
class RangeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ranges = RangeSet()
        self.model: set[int] = set()

    @rule(first=st.integers(0, 40), length=st.integers(1, 8))
    def add(self, first: int, length: int) -> None:
        span = Span(Place(0, 0, first), Place(0, 0, first + length))
        held, _ = self.ranges.add(span)
        self.model |= set(range(first, first + length))
        assert held.start <= span.start and held.end >= span.end

    @rule(end=st.integers(0, 40))
    def remove_before(self, end: int) -> None:
        self.ranges.remove_before(Place(0, 0, end))
        self.model -= set(range(end))

    @rule(first=st.integers(0, 45), length=st.integers(1, 8))
    def look(self, first: int, length: int) -> None:
        span, numbers = Span(Place(0, 0, first), Place(0, 0, first + length)), set(range(first, first + length))
        assert self.ranges.covers(span) == (numbers <= self.model)
        assert self.ranges.overlaps(span) == bool(numbers & self.model)
        cut = self.ranges.between(*span)
        assert {n for a, b in cut for n in range(a.message, b.message)} == numbers & self.model
        assert len(cut) == self.ranges.count(*span)

    @invariant()
    def is_the_set(self) -> None:
        assert {n for a, b in self.ranges for n in range(a.message, b.message)} == self.model
        ends = [place for span in self.ranges for place in span]
        assert ends == sorted(set(ends)), "ranges are disjoint and do not touch"


TestRangeMachine = RangeMachine.TestCase
