"""Goal: each promise is kept by a good history, and each lie breaks the promise that it is about.

Method: one small history of a bank, of keyed appends and of consumed orders; one thing in it is changed at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.histories.calls import Call, Outcome
from tests.histories.messages import PROMISES, judge
from tests.histories.messages.history import History

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
FINAL = 1_000
"""When everything is quiet."""
AWAY = "StoreUnavailable: it is not there"


def write(at: int, name: str, topic: str, key: str, txn: str | None = None, outcome: Outcome = OK, **more: Any) -> Call:
    action = {"do": "write", "id": name, "topic": topic, "key": key, "txn": txn, "amount": 0, "of": None} | more
    return Call("writer", action, outcome, at, at + 2, AWAY if outcome is FAILED else None)


def end(at: int, txn: str, commit: bool, outcome: Outcome = OK) -> Call:
    return Call("writer", {"do": "end", "txn": txn, "commit": commit}, outcome, at, at + 2, AWAY)


def begin(txn: str, timeout_ms: int = 3_000) -> Call:
    return Call("writer", {"do": "begin", "timeout_ms": timeout_ms}, OK, 0, 1, txn)


def init(at: int, producer: str, transactional_id: str) -> Call:
    action = {"do": "init", "producer": producer, "transactional_id": transactional_id}
    return Call("member", action, OK, at, at + 1)


def kafka_begin(at: int, txn: str, timeout_ms: int = 3_000) -> Call:
    """By the producer whose name is the first part of the transaction's."""
    action = {"do": "begin", "timeout_ms": timeout_ms, "producer": txn.partition(".")[0]}
    return Call("member", action, OK, at, at + 1, txn)


def offsets(at: int, txn: str) -> Call:
    return Call("member", {"do": "offsets", "txn": txn}, OK, at, at + 1)


def told(call: Call, error: str) -> Call:
    """A call of a client of Kafka's that has failed."""
    return replace(call, outcome=UNKNOWN, result=f"Kafka {error}: because")


def sent(at: int, name: str, topic: str, times: int, txn: str | None = None, **more: Any) -> Call:
    """By a client of Pulsar's, and so often."""
    return replace(write(at, name, topic, "k", txn, resends=True, **more), result=times)


def told_by_pulsar(call: Call, error: str) -> Call:
    return replace(call, outcome=UNKNOWN, result=f"V5 {error}: because")


def read_segment(segment: int, *messages: str) -> Call:
    action = {"do": "read", "reader": "r", "topic": "parcels", "segment": segment}
    return Call("r", action, OK, 60, 61, [["k", name] for name in messages])


def refused(call: Call, error: str) -> Call:
    return replace(call, outcome=FAILED, result=f"{error}: because")


def final(topic: str, *messages: tuple[str, str]) -> Call:
    return Call("last", {"do": "final", "topic": topic}, OK, FINAL, FINAL + 1, [list(one) for one in messages])


def read(reader: str, *messages: tuple[str, str]) -> Call:
    return Call(reader, {"do": "read", "reader": reader, "topic": "log"}, OK, 60, 61, [list(one) for one in messages])


def snapshot(at: int, **topics: list[str]) -> Call:
    return Call("auditor", {"do": "snapshot"}, OK, at, at + 5, topics)


def good() -> dict[str, Call]:
    """By a name for each call, so that a lie can say which one it changes."""
    return {
        "take": write(1, "w1", "bank0", "a", "t1", amount=-5),
        "give": write(1, "w2", "bank1", "b", "t1", amount=5),
        "t1": end(5, "t1", commit=True),
        "dropped": write(10, "w3", "bank0", "a", "t2", amount=7),
        "t2": end(15, "t2", commit=False),
        "lost reply": end(16, "t3", commit=True, outcome=UNKNOWN),
        "in doubt": write(12, "w4", "bank0", "a", "t3", amount=0),
        "begin": begin("t1"),
        "too late": refused(end(9, "t1", commit=False), "InvalidTransactionState"),
        "behind the end": refused(write(8, "w10", "log", "k", "t1"), "TransactionConflict"),
        "begin of a short one": begin("t5", timeout_ms=0),
        "timed out": refused(end(9, "t5", commit=True), "ExpiredTransaction"),
        "begin of one in pieces": begin("t6"),
        "one piece": write(8, "w11", "log", "k", "t6", outcome=FAILED),
        "not all there": refused(end(12, "t6", commit=True), "InvalidTransactionState"),
        "given up with it": refused(write(13, "w12", "log", "k", "t6"), "TransactionConflict"),
        "split": Call("surveyor", {"do": "split", "segment": "s"}, UNKNOWN, 1, 2),
        "split before": refused(Call("surveyor", {"do": "split", "segment": "s"}, OK, 3, 4), "SegmentSealed"),
        "too old": refused(snapshot(9), "InvalidArgument"),
        "snapshot": snapshot(20, bank0=["w1"], bank1=["w2"]),
        "first": write(30, "w5", "log", "k"),
        "second": write(33, "w6", "log", "k"),
        "refused": write(36, "w7", "log", "k", outcome=FAILED),
        "late": write(39, "w8", "log", "k", outcome=UNKNOWN),
        "third": write(42, "w9", "log", "k"),
        "reader": read("reader", ("k", "w5"), ("k", "w6")),
        "order": write(50, "o1", "orders", "k"),
        "bill": write(52, "b1", "bills", "k", "t4", of="o1"),
        "t4": end(55, "t4", commit=True),
        "payment": write(60, "p1", "payments", "0"),
        "next payment": write(63, "p2", "payments", "0"),
        "given up": told(write(66, "p3", "payments", "1"), "_MSG_TIMED_OUT"),
        "member": init(70, "m0", "m"),
        "zombie": kafka_begin(72, "m0.t0"),
        "member again": init(75, "m1", "m"),
        "fenced": told(end(77, "m0.t0", commit=True), "_FENCED"),
        "one with a timeout": init(70, "n0", "n"),
        "it times out": kafka_begin(72, "n0.t0", timeout_ms=0),
        "too late for it": told(end(75, "n0.t0", commit=True), "_FENCED"),
        "transforming": kafka_begin(80, "m1.t0"),
        "receipt": write(81, "r1", "receipts", "0", "m1.t0", of="p1"),
        "next receipt": write(81, "r2", "receipts", "0", "m1.t0", of="p2"),
        "another generation": told(offsets(82, "m1.t0"), "ILLEGAL_GENERATION"),
        "offsets": offsets(84, "m1.t0"),
        "another one": kafka_begin(87, "m1.t1"),
        "message that failed": told(write(88, "r3", "receipts", "1", "m1.t1", of="p2"), "_MSG_TIMED_OUT"),
        "not committed without it": told(end(90, "m1.t1", commit=True), "_INCONSISTENT"),
        "transformed": end(86, "m1.t0", commit=True),
        "payments": final("payments", ("0", "p1"), ("0", "p2")),
        "receipts": final("receipts", ("0", "r1"), ("0", "r2")),
        "parcel": sent(60, "q1", "parcels", 1),
        "parcel that was sent again": sent(63, "q2", "parcels", 2),
        "parcel without an answer": told_by_pulsar(sent(66, "q3", "parcels", 1), "TimeoutException"),
        "parcel of one that was killed": replace(sent(69, "q4", "parcels", 1), outcome=UNKNOWN, result=None),
        "begin of a long one": begin("t7"),
        "labels in one": sent(75, "l1", "labels", 1, "t7", of="q1"),
        "waybill in it": sent(75, "y1", "waybills", 1, "t7", of="q1"),
        "t7": end(78, "t7", commit=True),
        "more labels": sent(80, "l2", "labels", 1, of="q2"),
        "more waybills": sent(80, "y2", "waybills", 1, of="q4"),
        "the rest of the labels": sent(83, "l3", "labels", 1, of="q2"),
        "the rest of the waybills": sent(83, "y3", "waybills", 1, of="q2"),
        "the last label": sent(86, "l4", "labels", 1, of="q4"),
        "the last waybill": sent(86, "y4", "waybills", 1, of="q2"),
        "begin of what its client lets time out": begin("t8", timeout_ms=0),
        "its time is over": told_by_pulsar(end(90, "t8", commit=True), "InvalidTxnStatusException"),
        "begin of what misses a message": begin("t9"),
        "it was sent again": sent(91, "l5", "labels", 2, "t9", of="q1"),
        "it is not committed": told_by_pulsar(end(95, "t9", commit=True), "TransactionHasOperationFailedException"),
        "one segment": read_segment(0, "q1", "q2"),
        "its child": read_segment(1, "q4", "q2"),
        "parcels": final("parcels", *(("k", name) for name in ("q1", "q2", "q4", "q2"))),
        "labels": final("labels", *(("k", name) for name in ("l1", "l2", "l3", "l4"))),
        "waybills": final("waybills", *(("k", name) for name in ("y1", "y2", "y3", "y4"))),
        "bank0": final("bank0", ("a", "w1"), ("a", "w4")),
        "bank1": final("bank1", ("b", "w2")),
        "log": final("log", ("k", "w5"), ("k", "w6"), ("k", "w9"), ("k", "w8")),
        "orders": final("orders", ("k", "o1")),
        "bills": final("bills", ("k", "b1")),
    }


LIES: dict[str, tuple[str, dict[str, Call]]] = {
    "half of a transaction in the end": ("all or nothing", {"bank1": final("bank1")}),
    "half of a transaction in a snapshot": ("all or nothing", {"snapshot": snapshot(20, bank0=["w1"], bank1=[])}),
    "an aborted write in the end": (
        "aborted is never seen",
        {"bank0": final("bank0", ("a", "w1"), ("a", "w3"), ("a", "w4"))},
    ),
    "an aborted write in a snapshot": (
        "aborted is never seen",
        {"snapshot": snapshot(20, bank0=["w1", "w3"], bank1=["w2"])},
    ),
    "a write of a transaction whose commit was refused": (
        "aborted is never seen",
        {"lost reply": end(16, "t3", commit=True, outcome=FAILED)},
    ),
    "a refused write": ("aborted is never seen", {"reader": read("reader", ("k", "w7"))}),
    "a write of nobody": ("aborted is never seen", {"reader": read("reader", ("k", "w99"))}),
    "a lost plain write": ("acknowledged is there, once", {"log": final("log", ("k", "w5"), ("k", "w6"))}),
    "a lost transaction": ("acknowledged is there, once", {"bank0": final("bank0"), "bank1": final("bank1")}),
    "a write that is there twice": ("acknowledged is there, once", {"bank1": final("bank1", ("b", "w2"), ("b", "w2"))}),
    "two that changed places": (
        "order per key",
        {"log": final("log", ("k", "w6"), ("k", "w5"), ("k", "w9"))},
    ),
    "two that were sent at once and changed places": (
        "order per key",
        {"second": Call("writer", write(0, "w6", "log", "k").action, OK, 29, 50)},
    ),
    "one that appears below a reader": (
        "reading on",
        {"reader": read("reader", ("k", "w5"), ("k", "w9"))},
    ),
    "one that is taken back": ("reading on", {"reader": read("reader", ("k", "w5"), ("k", "w6"), ("k", "w8"))}),
    "a sum": ("snapshot sums", {"give": write(1, "w2", "bank1", "b", "t1", amount=4)}),
    "a snapshot without what was committed before": ("snapshot sums", {"snapshot": snapshot(20, bank0=[], bank1=[])}),
    "an order without a bill": ("acks exactly when outputs", {"bills": final("bills")}),
    "an order with two bills": (
        "acks exactly when outputs",
        {"again": write(53, "b2", "bills", "k", "t4", of="o1"), "bills": final("bills", ("k", "b1"), ("k", "b2"))},
    ),
    "a bill of what is no order": ("acks exactly when outputs", {"orders": final("orders")}),
    "an acknowledged input of Kafka's that is not there": (
        "acknowledged is there, once",
        {"payments": final("payments", ("0", "p1"))},
    ),
    "an input of Kafka's that is there twice": (
        "acknowledged is there, once",
        {"payments": final("payments", ("0", "p1"), ("0", "p2"), ("0", "p1"))},
    ),
    "an input of Kafka's without an output": (
        "acks exactly when outputs",
        {"receipts": final("receipts", ("0", "r1"))},
    ),
    "an input of Kafka's with two outputs": (
        "acks exactly when outputs",
        {
            "zombie's receipt": write(74, "r0", "receipts", "0", "m0.t0", of="p1"),
            "receipts": final("receipts", ("0", "r0"), ("0", "r1"), ("0", "r2")),
        },
    ),
    "outputs that changed places": (
        "outputs in the order of inputs",
        {
            "receipt": write(81, "r1", "receipts", "0", "m1.t0", of="p2"),
            "next receipt": write(81, "r2", "receipts", "0", "m1.t0", of="p1"),
        },
    ),
    "a producer that nobody has replaced is fenced": (
        "Kafka's errors have a reason",
        {"member again": init(75, "m1", "another")},
    ),
    "a producer is fenced before the other one comes": (
        "Kafka's errors have a reason",
        {"member again": init(80, "m1", "m")},
    ),
    "a producer is fenced that was the last": (
        "Kafka's errors have a reason",
        {"member": init(77, "m0", "m"), "fenced": told(end(79, "m0.t0", commit=True), "_FENCED")},
    ),
    "a transaction of Kafka's times out before its time": (
        "Kafka's errors have a reason",
        {"it times out": kafka_begin(72, "n0.t0")},
    ),
    "a producer is fenced by the timeout of what was over": (
        "Kafka's errors have a reason",
        {
            "it times out": kafka_begin(72, "n0.t0", timeout_ms=1),
            "in time": end(73, "n0.t0", commit=False),
            "too late for it": told(offsets(2_000_000, "n0.t0"), "_FENCED"),
        },
    ),
    "a commit that was refused, of what is all there, to a client of Kafka's": (
        "Kafka's errors have a reason",
        {"message that failed": write(88, "r3", "receipts", "1", "m1.t1", of="p2")},
    ),
    "an error that no client of Kafka's causes": (
        "Kafka's errors have a reason",
        {"given up": told(write(66, "p3", "payments", "1"), "OUT_OF_ORDER_SEQUENCE_NUMBER")},
    ),
    "an idempotent producer is fenced": (
        "Kafka's errors have a reason",
        {"given up": told(write(66, "p3", "payments", "1"), "INVALID_PRODUCER_EPOCH")},
    ),
    "a message of Pulsar's that is there more often than it was sent": (
        "acknowledged is there, once",
        {"parcel that was sent again": sent(63, "q2", "parcels", 1)},
    ),
    "one of a transaction that is there twice, however often it was sent": (
        "acknowledged is there, once",
        {
            "labels in one": sent(75, "l1", "labels", 2, "t7", of="q1"),
            "labels": final("labels", *(("k", name) for name in ("l1", "l1", "l2", "l3", "l4"))),
        },
    ),
    "an input of Pulsar's that was there twice, with one output": (
        "acks exactly when outputs",
        {"labels": final("labels", *(("k", name) for name in ("l1", "l2", "l4")))},
    ),
    "an input of Pulsar's with an output of one of its consumers only": (
        "acks exactly when outputs",
        {"waybills": final("waybills", *(("k", name) for name in ("y2", "y3", "y4")))},
    ),
    "outputs of Pulsar's that changed places": (
        "outputs in the order of inputs",
        {"waybills": final("waybills", *(("k", name) for name in ("y2", "y1", "y3", "y4")))},
    ),
    "a segment of Pulsar's with a gap": ("reading on", {"one segment": read_segment(0, "q1", "q4")}),
    "a segment of Pulsar's with what is not there": ("reading on", {"its child": read_segment(1, "q4", "q3")}),
    "an aborted message in a segment": ("aborted is never seen", {"its child": read_segment(1, "w3")}),
    "an error that no client of Pulsar's causes": (
        "Pulsar's errors have a reason",
        {"parcel without an answer": told_by_pulsar(sent(66, "q3", "parcels", 1), "ChecksumException")},
    ),
    "a transaction of Pulsar's that is over before its time": (
        "Pulsar's errors have a reason",
        {"begin of what its client lets time out": begin("t8")},
    ),
    "two decisions": ("one decision", {"again": end(70, "t1", commit=False)}),
    "a refusal that has nothing to do with the call": (
        "refused with a reason",
        {"refused": refused(write(36, "w7", "log", "k"), "NotFound")},
    ),
    "an abort that was refused, of one that nobody commits": (
        "refused with a reason",
        {"too late": refused(end(9, "t6", commit=False), "InvalidTransactionState")},
    ),
    "a conflict in a transaction that nobody ends": (
        "refused with a reason",
        {"behind the end": refused(write(8, "w10", "log", "k", "t6"), "TransactionConflict")},
    ),
    "a conflict before the end": (
        "refused with a reason",
        {"behind the end": refused(write(1, "w10", "log", "k", "t1"), "TransactionConflict")},
    ),
    "a timeout before its time": ("refused with a reason", {"begin of a short one": begin("t5")}),
    "a commit that was refused, of what is all there": (
        "refused with a reason",
        {"one piece": write(8, "w11", "log", "k", "t6")},
    ),
    "a seal that nobody has made": (
        "refused with a reason",
        {"split": Call("surveyor", {"do": "split", "segment": "s"}, UNKNOWN, 5, 6)},
    ),
    "a snapshot that was too old before anything had ended": (
        "refused with a reason",
        {"too old": refused(snapshot(-9), "InvalidArgument")},
    ),
}


def judged(calls: dict[str, Call]) -> dict[str, list[str]]:
    return judge(History.of(calls.values()))


def test_a_good_history_keeps_every_promise() -> None:
    assert judged(good()) == {}


@pytest.mark.parametrize(("promise", "lie"), LIES.values(), ids=LIES)
def test_a_lie_breaks_its_promise(promise: str, lie: dict[str, Call]) -> None:
    assert promise in judged(good() | lie)


def test_every_promise_can_be_broken() -> None:
    assert {promise for promise, _ in LIES.values()} == PROMISES.keys()
