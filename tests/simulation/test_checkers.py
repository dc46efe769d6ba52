"""Goal: every checker finds the lie it is there for, and nothing in a history that is true.

Method: one small true story, and for each promise a version of it in which that promise is broken. That the rest of the
simulation leads checkers to such histories is what `make mutants` shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from metastore.txn import paths
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metatxn.transport.api import Answer, Headers, Request
from metatxn.wire.names import MessageId
from metatxn.wire.position import Position
from tests.simulation.checkers import CHECKERS, judge
from tests.simulation.efforts import Effort
from tests.simulation.history import (
    Asked,
    Begun,
    Browsed,
    Claimed,
    Decision,
    Delivered,
    Dropped,
    End,
    Expired,
    HandedOut,
    HeldRead,
    History,
    HorizonSeen,
    KafkaRecords,
    Outcome,
    Read,
    Retold,
    Returned,
    Seen,
    Write,
    connection,
)
from tests.simulation.transport import Stays

TOPIC, MARKS = "public/default/t", "public/default/marks"
SEGMENT, MARKS_SEGMENT = "segment://public/default/t/0000-ffff-0", "segment://public/default/marks/0000-ffff-0"
_COMMIT = Request("POST", "http://coordinator-1/v1/txns/1/commit", Headers(), b"{}", 1, 1, 1)
T1, T2, T3 = (f"{number:032x}" for number in (1, 2, 3))


def header(state: TxnState, writers: tuple[str, ...] | None = None, **more: object) -> Header:
    return Header.model_validate(
        {"state": state, "timeout_ms": 60_000, "created_ms": 0, "finalized_ms": 1, "writers": writers, **more}
    )


def write(name: str, entry: int, txn_id: str | None, key: str, amount: int, begun: float) -> Write:
    written = Write(name, txn_id, "w", TOPIC, key, amount, "client", begun, begun + 0.5, Outcome.OK)
    written.segment, written.position = SEGMENT, (1, entry)
    return written


def seen(written: Write) -> Seen:
    assert written.position is not None
    return Seen(SEGMENT, written.position, written.txn_id, written.writer, written.id, written.key, written.amount)


def read(frames: list[Seen], isolation: str = "read_committed", *, at: int = 50, segment: str = SEGMENT) -> Read:
    return Read("reader", segment, isolation, (0, -1), (1, 9), True, None, at, at, frames)


def refused(verb: str, code: str, between: tuple[int, int], **about: Any) -> Asked:
    floor, at_revision = between
    return Asked(verb, floor, at_revision=at_revision, code=code, outcome=Outcome.FAILED, **about)


def true_story() -> History:
    """T1 and T2 committed at 10 and 20, T3 aborted at 30; all was read in between and in the end, and marked."""
    history = History()
    a, b, c = (
        write("a", 0, T1, "k", 5, 1.0),
        write("b", 1, T2, "k", -5, 2.0),
        write("c", 2, T3, "k", 7, 3.0),
    )
    history.writes = [a, b, c]
    history.retold = [Retold(a, a.segment, a.position)]
    history.begun = {T1: 1, T2: 2, T3: 3}
    history.claims = [Claimed(TOPIC, 5, 0.5), Claimed(TOPIC, 7, 2.5)]
    history.decisions = {
        T1: Decision(header(TxnState.COMMITTED, key="nightly", epoch=1, version=1), 10),
        T2: Decision(header(TxnState.COMMITTED, ("w",), key="nightly", epoch=1, version=2), 20),
        T3: Decision(header(TxnState.ABORTED), 30),
    }
    history.epochs = {"nightly": [(1, 1)]}
    history.counted = {paths.transaction_key(None, "nightly"): [(1, 1)]}
    by = {"by": f"{connection('nightly', 1)} for version 1"}
    history.under_keys = {T1: header(TxnState.OPEN, key="nightly", epoch=1, properties=by)}
    history.answered_begins = [Begun(T1, "client", "client")]
    history.efforts = [
        Effort("POST http://coordinator-1/v1/txns", writes=20),
        Effort("DELETE http://broker-1/v1/topics/t", writes=200, overtaken=5),
    ]
    history.stays.append(Stays())
    for base, other in (("coordinator-1", "coordinator-2"), ("coordinator-2", "coordinator-1")):
        sent = replace(_COMMIT, url=f"http://{base}/v1/txns/{T1}/commit")
        history.stays[0].sends(sent, [f"http://{other}"])
        history.stays[0].answered(sent, Answer("POST", sent.url, 503), 0.5)
    history.ends = [End(T1, True, "client", outcome=Outcome.OK), End(T2, True, "client", ("w",), outcome=Outcome.OK)]
    history.closed = {T1: 5.0, T2: 6.0, T3: 7.0}
    history.collected = {T1: (40, 30), T2: (41, 30), T3: (42, 30)}
    history.gc_horizons = [0, 20, 30]
    history.outcomes, history.few_outcomes = {SEGMENT: 15}, 16
    history.browsed = {"reader": Browsed(TOPIC, ["a", "b"], since=100.0)}
    history.layouts = {TOPIC: [SEGMENT], MARKS: [MARKS_SEGMENT]}
    history.reads = [replace(read([seen(a), seen(b)]), txn_id=T2), read([seen(a), seen(b)])]
    history.reads[0].frames = [seen(a)]
    history.reads[0].next = (1, 0)
    history.snapshots = [[replace(read([seen(a), seen(b)], "snapshot"), revision=25, floor=20)]]
    mark = Seen(MARKS_SEGMENT, (1, 0), None, None, "m", f"{SEGMENT} 1:1", 0)
    history.writes.append(replace(write("m", 0, None, mark.key, 0, 4.0), topic=MARKS, segment=MARKS_SEGMENT))
    history.final_reads = [
        read([seen(a), seen(b)]),
        read([seen(a), seen(b), seen(c)], "read_uncommitted"),
        read([mark], segment=MARKS_SEGMENT),
    ]
    history.compactions = [(36, SEGMENT), (46, SEGMENT)]
    held = HeldRead(paths.read_hold(TOPIC, "h"), TOPIC, 21, [[seen(a), seen(b)], [seen(a), seen(b)]], ended=40)
    history.held_reads = [held, replace(held, reads=[], ended=50, refused="POSITION_TRIMMED")]
    again = HeldRead(paths.read_hold(TOPIC, "again"), TOPIC, 39, [], ended=48, refused="POSITION_TRIMMED")
    history.held_reads.append(again)
    history.marks, history.mark_deletes = MARKS, {SEGMENT: (1, 1)}
    history.states = {
        paths.topic(TOPIC): [(1, "there")],
        paths.topic("gone"): [(1, "there"), (20, None)],
        paths.segment(SEGMENT): [(1, "active"), (30, "sealed")],
        again.key: [(40, "there"), (43, None), (48, "there")],
        paths.subscription(TOPIC, "s"): [(1, "there")],
        paths.read_hold(TOPIC, "h"): [(36, "there"), (45, None)],
        f"{paths.PREPARED}{T2}": [(15, "there"), (20, None)],
    }
    history.begun_by = {T1: "by one", T2: "by two", T3: "by three"}
    moved = Asked("seek", 40, topic=TOPIC, subscription="moved", outcome=Outcome.OK)
    moved.floor = 60  # it was sent again then
    history.asked = [
        Asked("txns", 0, by="by one", outcome=Outcome.OK),
        Asked("commit", 9, txn_id=T1, outcome=Outcome.OK),
        Asked("abort", 29, txn_id=T3, outcome=Outcome.OK),
        refused("acks", "TXN_CONFLICT", (29, 31), txn_id=T1, holder=T3),
        refused("acks", "TXN_CONFLICT", (41, 42), txn_id=T1, holder=T3),
        refused("acks", "TXN_CONFLICT", (21, 22), txn_id=T3, holder=T2),
        refused("keep-alive", "TXN_CONFLICT", (14, 16), txn_id=T2),
        refused("abort", "INVALID_TXN_STATE", (9, 10), txn_id=T1),
        refused("commit", "TXN_NOT_FOUND", (39, 40), txn_id=T1),
        refused("messages", "NOT_FOUND", (19, 21), topic="gone"),
        refused("entries", "SEGMENT_SEALED", (29, 31), segment=SEGMENT),
        refused("topics", "ALREADY_EXISTS", (5, 5), topic=TOPIC),
        refused("entries", "STORE_UNAVAILABLE", (5, 5), segment=SEGMENT),
        refused("acks", "TXN_CONFLICT", (41, 42), topic=TOPIC, subscription="moved"),
        moved,
        refused("txns", "NOT_ALLOWED", (5, 5), by="late", key="nightly", epoch=0),
        Asked("commit", 4, txn_id=T3, outcome=Outcome.UNKNOWN),
        refused("messages", "TXN_CONFLICT", (4, 5), txn_id=T3, topic=TOPIC),
    ]
    history.horizons = [HorizonSeen(SEGMENT, "http://b", 1, 2, (1, 0)), HorizonSeen(SEGMENT, "http://b", 3, 4, (1, 1))]
    return history


def test_a_true_story_breaks_no_promise() -> None:
    assert judge(true_story()) == []


Lie = Callable[[History], object]


def second_decision(history: History) -> None:
    history.broken.append("decided twice")


def transaction_of_somebody_else(history: History) -> None:
    history.answered_begins.append(Begun(T1, "client", "rival"))


def handed_out_twice(history: History) -> None:
    history.handed_out += [HandedOut(T1, 1, ahead=True)] * 2


def handed_out_after_its_end(history: History) -> None:
    history.handed_out.append(HandedOut(T1, history.decisions[T1].revision, ahead=True))


def endless_request(history: History) -> None:
    history.efforts.append(Effort("POST http://coordinator-1/v1/txns", writes=1_000))


def request_that_is_overtaken_for_ever(history: History) -> None:
    history.efforts.append(Effort("PATCH http://broker-1/v1/topics/t", writes=1_000, overtaken=1_000))


def client_that_stays(history: History) -> None:
    history.stays[0].answered(_COMMIT, Answer("POST", _COMMIT.url, 503), 1.0)
    history.stays[0].sends(_COMMIT, ["http://coordinator-1", "http://coordinator-2"])


def aborted_entry(history: History) -> None:
    history.reads[1].frames.append(seen(history.writes[2]))


def entry_before_its_decision(history: History) -> None:
    history.reads[1].at_revision = 15


def read_from_each_other(history: History) -> None:
    history.reads.append(replace(read([seen(history.writes[1])]), txn_id=T1))


def write_behind_the_end(history: History) -> None:
    history.writes[0].begun = 5.5


def entry_that_comes_later(history: History) -> None:
    history.reads[1].frames.pop()


def lost(history: History) -> None:
    history.final_reads[0].frames.pop()


def latest_of_its_key_lost(history: History) -> None:
    """What it would have been replaced by is not there."""
    history.compacted.add(TOPIC)
    lost(history)


def twice(history: History) -> None:
    history.final_reads[0].frames.append(history.final_reads[0].frames[0])


def certainly_refused(history: History) -> None:
    history.writes[0].outcome = Outcome.FAILED


def told_another_place(history: History) -> None:
    history.retold[0] = replace(history.retold[0], index=1)


def retry_refused(history: History) -> None:
    history.retold.append(Retold(history.writes[0], code="INVALID_ARGUMENT"))


def half_a_snapshot(history: History) -> None:
    history.snapshots[0][0].frames.pop()


def taken_behind_a_later_claim(history: History) -> None:
    history.claims.append(Claimed(TOPIC, 6, 0.9))


def mixed_with_others(history: History) -> None:
    uncommitted = next(each for each in history.final_reads if each.isolation == "read_uncommitted")
    uncommitted.frames[2] = replace(uncommitted.frames[2], amount=5)


def out_of_order(history: History) -> None:
    first, second = history.writes[:2]
    first.begun, first.ended = 4.0, 4.5
    assert second.ended is not None and second.ended < first.begun


def opposite_end_answered(history: History) -> None:
    history.ends.append(End(T1, False, "rival", outcome=Outcome.OK))


def refused_because_of_an_aborted_one(history: History) -> None:
    """The true story has one that was refused while that was open, and one when it was collected."""
    history.asked.append(refused("acks", "TXN_CONFLICT", (30, 31), txn_id=T2, holder=T3))


def refused_and_begun(history: History) -> None:
    history.asked[0].outcome = Outcome.FAILED


def refused_and_committed(history: History) -> None:
    history.asked[1].outcome = Outcome.FAILED


def refused_and_aborted(history: History) -> None:
    history.asked[2].outcome = Outcome.FAILED


def refused_and_deleted(history: History) -> None:
    history.asked.append(refused("DELETE", "STORE_UNAVAILABLE", (19, 21), topic="gone"))


UNFOUNDED = [
    refused("keep-alive", "INVALID_TXN_STATE", (18, 19), txn_id=T2),
    refused("commit", "EXPIRED_TRANSACTION", (40, 40), txn_id=T3),
    refused("commit", "TXN_NOT_FOUND", (38, 39), txn_id=T1),
    refused("prepare", "TXN_CONFLICT", (8, 9), txn_id=T1),
    refused("messages", "TXN_CONFLICT", (8, 9), txn_id=T1, topic=TOPIC),
    refused("acks", "TXN_CONFLICT", (8, 9), txn_id=T1, topic=TOPIC, subscription="s"),
    refused("messages", "NOT_FOUND", (18, 19), topic="gone"),
    refused("acks", "NOT_FOUND", (5, 6), topic=TOPIC, subscription="s"),
    refused("entries", "SEGMENT_SEALED", (28, 29), segment=SEGMENT),
    refused("topics", "ALREADY_EXISTS", (20, 21), topic="gone"),
    refused("txns", "NOT_ALLOWED", (5, 5), by="late", key="nightly", epoch=1),
    refused("entries", "POSITION_TRIMMED", (5, 5), segment=SEGMENT),
    refused("acks", "INVALID_ARGUMENT", (5, 5), topic=TOPIC, subscription="s", argument="message_ids"),
    refused("entries", "INVALID_ARGUMENT", (5, 5), sequence=("p", 1, "x"), argument="sequence"),
    refused("entries", "INVALID_ARGUMENT", (5, 5), segment=SEGMENT, argument="after"),
    refused("acks", "INVALID_ARGUMENT", (5, 5), topic=TOPIC, subscription="s", argument="positions"),
    refused("entries", "PAYLOAD_TOO_LARGE", (5, 5), segment=SEGMENT),
    refused("entries", "SEGMENT_IN_USE", (5, 6), segment=SEGMENT),
    refused("DELETE", "SEGMENT_IN_USE", (5, 6), segment=f"{SEGMENT}0"),
    refused("seek", "TXN_CONFLICT", (5, 6), topic=TOPIC, subscription="s", holders=(T1,)),
]


@pytest.mark.parametrize("unfounded", UNFOUNDED, ids=lambda asked: f"{asked.code}-{asked.verb}-{asked.argument}")
def test_a_refusal_without_a_reason_is_found(unfounded: Asked) -> None:
    history = true_story()
    history.asked.append(unfounded)
    (violation,) = CHECKERS["refused only for what was so"](history)
    assert str(unfounded) in violation


@pytest.mark.parametrize(
    ("letters", "detail", "founded"),
    [
        ({}, "it is being sent to the dead-letter topic", False),
        ({TOPIC: Counter()}, "it is being sent to the dead-letter topic", True),
        ({TOPIC: Counter()}, "somebody has it", False),
        ({TOPIC: Counter(["a letter"])}, "somebody has it", True),
    ],
)
def test_a_message_that_is_given_up_may_be_left_to_one_more_delivery(
    letters: dict[str, Counter[str]], detail: str, founded: bool
) -> None:
    """Then there is no dead letter in the end."""
    history = true_story()
    history.letters |= letters
    history.asked.append(
        refused("acks", "TXN_CONFLICT", (8, 9), txn_id=T1, topic=TOPIC, subscription="s", detail=detail)
    )
    assert bool(list(CHECKERS["refused only for what was so"](history))) is not founded


def taken_of_nobody(history: History) -> None:
    history.given_to_nobody.append("an acknowledgement")


def refused_and_done(history: History) -> None:
    history.ends[0].outcome = Outcome.FAILED


def other_writers_remembered(history: History) -> None:
    history.ends[1].writers, history.ends[1].remembered = None, ("w", "x")


def input_without_output(history: History) -> None:
    history.pipes.append((TOPIC, MARKS))


def letter_again(history: History) -> None:
    """Each input has one and no output, but for one that has two."""
    ids = [seen.id for seen in history.visible_in(TOPIC)]
    history.layouts["nothing"] = []
    history.pipes.append((TOPIC, "nothing"))
    history.letters[TOPIC] = Counter([*ids, ids[0]])


def delivered_after_all(history: History) -> None:
    """Moved to the beginning, a subscription does not deliver what can be read."""
    history.again[TOPIC] = set()


def delivered_too_often(history: History) -> None:
    """Each input has one dead letter, but one of them was delivered once more than can be explained."""
    ids = [seen.id for seen in history.visible_in(TOPIC)]
    history.layouts["nothing"] = []
    history.pipes.append((TOPIC, "nothing"))
    history.letters[TOPIC] = Counter(ids)
    history.max_redeliveries[TOPIC] = 1
    history.given = Counter(ids * 3 + ids[:1])


def never_delivered_early(history: History) -> None:
    history.early[TOPIC] = set()


def version_again(history: History) -> None:
    again = history.decisions[T2].header.model_copy(update={"version": 1})
    history.decisions[T2] = Decision(again, 20)


def under_a_stale_epoch(history: History) -> None:
    history.epochs["nightly"].append((15, 2))


def epoch_of_a_forgotten_key(history: History) -> None:
    history.counted[paths.transaction_key(None, "nightly")] += [(15, 2), (30, 2)]


def segment_again(history: History) -> None:
    history.states[paths.segment(SEGMENT)] = [(1, "active"), (5, None), (9, "active")]


def begun_by_who_has_not_connected(history: History) -> None:
    history.under_keys[T2] = header(TxnState.OPEN, key="nightly", epoch=1, properties={"by": "somebody"})


def reader_is_sent_back(history: History) -> None:
    history.horizons.append(HorizonSeen(SEGMENT, "http://b", 5, 6, (1, 0)))


def collected_above_the_horizon(history: History) -> None:
    history.collected[T3] = (42, 20)


def horizon_of_the_store_goes_back(history: History) -> None:
    history.gc_horizons.append(10)


def acknowledged_without_a_mark(history: History) -> None:
    history.final_reads[2].frames[0] = replace(history.final_reads[2].frames[0], key=f"{SEGMENT} 1:0")


def mark_without_acknowledgement(history: History) -> None:
    history.mark_deletes[SEGMENT] = (1, 0)


def shared_by_key(history: History, *delivered: tuple[str, str]) -> None:
    """Consumers of a topic with one output for each entry were given these messages, one after the other."""
    history.pipes.append((TOPIC, TOPIC))
    history.states[paths.segment_owner(SEGMENT)] = [(1, "1")]
    for number, (consumer, entry) in enumerate(delivered):
        message_id = str(MessageId(SEGMENT, Position(1, int(entry)), 0))
        asked = 10.0 + number
        history.delivered.append(Delivered(consumer, 20, 25, asked, asked + 0.5, {message_id: "k"}))


def given_before_the_one_before(history: History) -> None:
    shared_by_key(history, ("one", "1"))


def given_before_its_time(history: History) -> None:
    shared_by_key(history, ("one", "0"))
    history.due_s = {seen.id: 10.9 for seen in history.visible_in(TOPIC)}
    history.clocks_differ_s = 0.3


def given_while_another_has_the_key(history: History) -> None:
    shared_by_key(history, ("one", "1"), ("two", "1"))
    first = str(MessageId(SEGMENT, Position(1, 0), 0))  # of which nothing is wrong
    history.taken[T1] = {first: None}


def given_while_a_transaction_has_the_key(history: History) -> None:
    shared_by_key(history, ("one", "0"), ("two", "0"))
    history.taken[T2] = dict.fromkeys(history.delivered[0].keys, 10.7)
    history.decisions[T2] = Decision(history.decisions[T2].header, 26)
    history.returned.append(Returned([*history.delivered[0].keys], 10.6, 10.7))


def left_in_memory(history: History) -> None:
    history.left["broker"] = "a transaction"


def told_of_kafka(history: History) -> KafkaRecords:
    """Two inputs with their outputs, between which a record was aborted."""
    history.kafka = records = KafkaRecords("in", "out", {b"s-1-0", b"s-1-1"}, {b"s-1-0"}, [(0, 0, b"s-1-0")])
    records.committed = {("in", 0): [(0, b"s-1-0"), (1, b"s-1-1")], ("out", 0): [(0, b"s-1-0"), (2, b"s-1-1")]}
    records.uncommitted = {
        ("in", 0): [(0, b"s-1-0"), (1, b"s-1-1")],
        ("out", 0): [(0, b"s-1-0"), (1, b"c"), (2, b"s-1-1")],
    }
    return records


def input_that_is_lost(history: History) -> None:
    records = told_of_kafka(history)
    for found in (*records.committed.values(), *records.uncommitted.values()):
        del found[0]
    records.read.clear()


def output_that_is_repeated(history: History) -> None:
    records = told_of_kafka(history)
    for found in (records.committed, records.uncommitted):
        found["out", 0].append((3, b"s-1-1"))


def output_of_nothing(history: History) -> None:
    records = told_of_kafka(history)
    records.committed["out", 0].insert(1, (1, b"c"))


def offsets_that_go_back(history: History) -> None:
    told_of_kafka(history).uncommitted["out", 0].append((2, b"d"))


def record_that_others_do_not_see(history: History) -> None:
    told_of_kafka(history).read.append((0, 1, b"c"))


def refused_for_nothing(history: History) -> None:
    told_of_kafka(history).unexpected.append("a client was refused")


def inputs_in_another_order(history: History) -> None:
    records = told_of_kafka(history)
    for found in (records.committed, records.uncommitted):
        found["in", 0] = [(0, b"s-1-1"), (1, b"s-1-0")]


def seen_twice(history: History) -> None:
    history.browsed["reader"] = Browsed(TOPIC, ["a", "b", "b"], since=100.0)


def missed(history: History) -> None:
    history.browsed["reader"] = Browsed(TOPIC, ["a"], since=100.0)


def missed_in_a_child(history: History) -> None:
    """It was trimmed before the reader came there."""
    history.browsed["reader"] = Browsed(TOPIC, ["a", "b"], since=1.0)
    history.writes.append(replace(write("z", 0, None, "k", 0, 4.0), segment=SEGMENT, position=(9, 0)))
    history.trimmed[SEGMENT] = (9, 1)


def seen_in_another_order(history: History) -> None:
    history.browsed["reader"] = Browsed(TOPIC, ["b", "a"], since=100.0)
    a, b = history.writes[:2]
    a.ended, b.begun = 1.5, 2.0


def compacted_while_held(history: History) -> None:
    history.compactions.append((38, SEGMENT))


def dropped_while_held(history: History) -> None:
    dropped(revision=40)(history)


def refused_while_held(history: History) -> None:
    history.held_reads[1].ended = 44


def held_read_that_shows_less(history: History) -> None:
    del history.held_reads[0].reads[1][0]


def held_read_of_a_later_decision(history: History) -> None:
    history.held_reads[0].revision = 15


def kept_for_nothing(history: History) -> None:
    history.bare = [SEGMENT]


def tombstone_for_ever(history: History) -> None:
    history.tombstones = [TOPIC]


def as_many_outcomes_as_an_idle_segment_is_rolled_for(history: History) -> None:
    history.outcomes[SEGMENT] = 16


def dropped(**differs: Any) -> Lie:
    """A drop of the first two entries, which is as it should be but for what differs."""

    def lie(history: History) -> None:
        was = Dropped(SEGMENT, (0, -1), (1, 2), 35, 9.0, 6_000, 100, False, 50, {"s": (1, 2)})
        history.trimmed[SEGMENT] = was.first
        history.dropped.append(replace(was, **differs))

    lie.__name__ = f"dropped_although_{next(iter(differs), 'nothing')}"
    return lie


def expired(**differs: Any) -> Lie:
    """The first two entries expire, as they should but for what differs."""

    def lie(history: History) -> None:
        was = Expired(SEGMENT, (0, -1), (1, 2), 9.0, 6_000, (0, -1))
        history.expired.append(replace(was, **differs))

    lie.__name__ = f"expired_although_{next(iter(differs), 'nothing')}"
    return lie


@pytest.mark.parametrize("segment", [SEGMENT, MARKS_SEGMENT])
def test_what_has_expired_is_not_acknowledged_in_a_transaction(segment: str) -> None:
    history = true_story()
    history.asked.append(refused("acks", "TXN_CONFLICT", (8, 9), txn_id=T1, topic=TOPIC, subscription="s"))
    expired(segment=segment)(history)
    assert bool(list(CHECKERS["refused only for what was so"](history))) == (segment == MARKS_SEGMENT)


@pytest.mark.parametrize("letters", [Counter(), Counter({"given up": 1})], ids=["none", "one"])
def test_what_is_a_dead_letter_is_not_acknowledged_in_a_transaction(letters: Counter[str]) -> None:
    history = true_story()
    history.asked.append(refused("acks", "TXN_CONFLICT", (8, 9), txn_id=T1, topic=TOPIC, subscription="s"))
    history.letters[TOPIC] = letters
    assert bool(list(CHECKERS["refused only for what was so"](history))) == (not letters)


EVICTED: dict[str, Any] = {"ttl_ms": -1, "evicts_ms": -1, "evicts_bytes": 500}


def test_what_is_old_or_too_much_may_expire() -> None:
    for differs in {}, {"ttl_ms": -1, "trimmed": (1, 2)}, {"mark": (1, 3), "ttl_ms": 7_000}, EVICTED:
        history = true_story()
        expired(**differs)(history)
        assert judge(history) == []


def not_freed(history: History) -> None:
    history.not_freed.append("a ledger")


def test_what_was_aborted_may_be_dropped_at_any_age() -> None:
    history = true_story()
    aborted = next(write for write in history.writes if write.txn_id in history.aborted)
    assert aborted.segment is not None and aborted.position is not None
    dropped(
        segment=aborted.segment,
        before=aborted.position,
        first=(aborted.position[0], aborted.position[1] + 1),
        revision=10**6,
        kept_ms=10**9,
        marks={},
    )(history)
    assert list(CHECKERS["never drops what the policy keeps"](history)) == []


def test_what_the_policy_frees_may_be_dropped() -> None:
    for differs in {}, {"kept_ms": -1, "left_bytes": 100}, {"hard": True, "marks": {"s": (0, 0)}}:
        history = true_story()
        dropped(**differs)(history)
        assert judge(history) == []


def test_who_has_the_key_goes_on_with_it_though_another_had_it_before() -> None:
    """It has acknowledged the first message in a transaction that is open, and gets the second one."""
    history = true_story()
    shared_by_key(history, ("one", "0"), ("two", "0"), ("two", "1"))
    first, *_ = history.delivered[0].keys
    history.returned.append(Returned([first], 10.6, 10.7))
    history.taken[T2] = {first: 11.7}
    history.decisions[T2] = Decision(history.decisions[T2].header, 26)
    assert list(CHECKERS["order per key, at one consumer"](history)) == []
    history.delivered[1] = replace(history.delivered[1], asked=history.delivered[0].asked)
    assert list(CHECKERS["order per key, at one consumer"](history)) == [], "it has waited for what came back"
    del history.delivered[1]
    history.returned.clear()
    assert list(CHECKERS["order per key, at one consumer"](history))


def test_what_an_open_transaction_has_is_not_returned_by_whoever_acknowledged_it() -> None:
    """So the next message of the key may follow."""
    history = true_story()
    shared_by_key(history, ("one", "0"), ("one", "1"))
    first, *_ = history.delivered[0].keys
    history.returned.append(Returned([first], 10.7, 10.8))
    history.taken = {T2: {first: 10.6}}
    history.decisions[T2] = Decision(history.decisions[T2].header, 26)
    assert list(CHECKERS["order per key, at one consumer"](history)) == []
    history.decisions[T2] = Decision(history.decisions[T3].header, 19)
    assert list(CHECKERS["order per key, at one consumer"](history)), "it was decided before"
    history.taken[T2][first] = 10.75
    assert list(CHECKERS["order per key, at one consumer"](history)), "it was returned first"


def test_what_was_replaced_may_be_missing_where_it_is_compacted() -> None:
    history = true_story()
    history.compacted.add(TOPIC)
    del history.final_reads[0].frames[0]
    assert judge(history) == []


LIES: dict[str, list[Lie]] = {
    "one decision": [second_decision],
    "a begin answers its own transaction": [
        *(transaction_of_somebody_else, handed_out_twice, handed_out_after_its_end),
    ],
    "no aborted read": [aborted_entry],
    "no early read": [entry_before_its_decision],
    "no cycle of reads": [read_from_each_other],
    "nothing after the decision": [write_behind_the_end],
    "atomic visibility": [entry_that_comes_later],
    "no lost write": [lost, latest_of_its_key_lost],
    "no repeated write": [twice, certainly_refused],
    "a retry is told where the first one lies": [told_another_place, retry_refused],
    "snapshot sums": [half_a_snapshot],
    "order": [out_of_order],
    "ends are idempotent": [opposite_end_answered, refused_and_done, other_writers_remembered],
    "no request tries forever": [endless_request, request_that_is_overtaken_for_ever],
    "no client stays with who cannot serve": [client_that_stays],
    "acknowledged exactly when there is an output": [
        *(input_without_output, letter_again, delivered_after_all),
        *(never_delivered_early, delivered_too_often),
    ],
    "order per key, at one consumer": [
        given_before_the_one_before,
        given_while_another_has_the_key,
        given_while_a_transaction_has_the_key,
    ],
    "no delivery before its time": [given_before_its_time],
    "acknowledged up to the highest mark": [acknowledged_without_a_mark, mark_without_acknowledgement],
    "refused only for what was so": [
        refused_because_of_an_aborted_one,
        taken_of_nobody,
        refused_and_begun,
        refused_and_committed,
        refused_and_aborted,
        refused_and_deleted,
    ],
    "fencing": [version_again, under_a_stale_epoch, begun_by_who_has_not_connected],
    "one exclusive producer at a time": [taken_behind_a_later_claim, mixed_with_others],
    "horizons never go back": [reader_is_sent_back, collected_above_the_horizon, horizon_of_the_store_goes_back],
    "nothing is left": [left_in_memory],
    "never drops what the policy keeps": [
        dropped(kept_ms=9_000),
        dropped(left_bytes=99, kept_ms=-1),
        dropped(marks={"r": (1, 2), "s": (1, 1)}),
        dropped(revision=15),
        expired(ttl_ms=9_000),
        expired(ttl_ms=-1),
        expired(ttl_ms=-1, evicts_ms=9_000),
        expired(ttl_ms=-1, evicts_bytes=10_000),
    ],
    "keeps what a reader holds": [
        compacted_while_held,
        dropped_while_held,
        refused_while_held,
        held_read_that_shows_less,
        held_read_of_a_later_decision,
    ],
    "frees what the policy frees": [not_freed],
    "no number is given out twice": [epoch_of_a_forgotten_key, segment_again],
    "the store is bounded": [
        as_many_outcomes_as_an_idle_segment_is_rolled_for,
        kept_for_nothing,
        tombstone_for_ever,
    ],
    "Kafka's clients have one output for each input": [
        input_that_is_lost,
        output_that_is_repeated,
        output_of_nothing,
        offsets_that_go_back,
        record_that_others_do_not_see,
        refused_for_nothing,
        inputs_in_another_order,
    ],
    "who follows a topic misses nothing": [seen_twice, missed, missed_in_a_child, seen_in_another_order],
}


@pytest.mark.parametrize(
    ("promise", "lie"), [pytest.param(promise, lie, id=lie.__name__) for promise, lies in LIES.items() for lie in lies]
)
def test_its_checker_finds_the_lie(promise: str, lie: Lie) -> None:
    history = true_story()
    lie(history)
    assert list(CHECKERS[promise](history)), f"{promise} has nothing to say"


def test_a_true_story_of_kafkas_clients_is_believed() -> None:
    history = true_story()
    told_of_kafka(history)
    assert not judge(history)


def test_every_checker_is_lied_to() -> None:
    assert set(LIES) == set(CHECKERS)
