"""Goal: a message that a consumer holds already is not handed out a second time: in one transaction it would count
twice, as the second acknowledgement of a transaction succeeds like the first. What was settled may come again.

Method: a broker whose answers are written down here; a home that has moved gives again what nobody has acknowledged.
Found by `make chaos` (mix `frozen`, seed 203).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

import metatxn
from metatxn.wire.names import MessageId
from metatxn.wire.position import Position
from tests.over_httpx import OverHttpx

URL = "http://broker.test"
TXN_ID = "0" * 31 + "1"
Settle = Callable[[metatxn.Consumer, metatxn.Message], None]


class Home:
    """Gives the messages of one list of names after another."""

    opened_again: str | None = None
    """A segment whose broker knows of nobody who was given anything."""
    ack_timeout_ms: int | None = None

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked_for: list[int] = []
        """How many messages each request wanted."""
        self.returned: list[list[str]] = []
        """The messages that each request wanted to be delivered again."""
        self.returns_fail = False
        self.left: list[str] = []
        """The consumers that have gone."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/cluster"):
            processes = {"coordinators": [{"id": "c", "url": URL}], "brokers": [{"id": "b", "url": URL}]}
            return httpx.Response(200, json=processes | {"revision": 1})
        if request.url.path.endswith("/receive"):
            names = self._answers.pop(0) if self._answers else []
            self.asked_for.append(json.loads(request.content)["max"])
            count = len(self.asked_for) - 1 if self.ack_timeout_ms is not None else 0
            given = {"publish_ms": 1, "redelivery_count": count}
            messages = [{"message_id": name, "value": name, **given} for name in names]
            return httpx.Response(200, json={"messages": messages, "ack_timeout_ms": self.ack_timeout_ms})
        if request.url.path.endswith("/txns"):
            header = {"txn_id": TXN_ID, "state": "OPEN", "timeout_ms": 1000, "created_ms": 1}
            return httpx.Response(200, json=header)
        if request.url.path.endswith("/acks") and self.opened_again is not None:
            said = {"status": 409, "title": "", "detail": "", "code": "TXN_CONFLICT", "retriable": False}
            said |= {"definite": True, "action": "", "never_given": True, "segment": self.opened_again}
            return httpx.Response(409, json=said, headers={"Content-Type": "application/problem+json"})
        if request.url.path.endswith("/redeliver"):
            self.returned.append(json.loads(request.content)["message_ids"])
            if self.returns_fail:
                return httpx.Response(422, json={})
        if request.method == "DELETE":
            self.left.append(request.url.path.rpartition("/")[2])
        return httpx.Response(200, json={"redelivered": 0})

    def client(self) -> metatxn.Client:
        return metatxn.connect(URL, transport=OverHttpx(httpx.MockTransport(self)))

    def consumer(self) -> metatxn.Consumer:
        return self.client().consumer("t", "s")


def test_before_it_times_out_a_message_is_not_handed_out_again() -> None:
    home = Home(["a"], ["a", "b"])
    home.ack_timeout_ms = 3_600_000
    assert received(home.consumer()) == ["a", "b"]


def test_what_has_timed_out_comes_again_and_is_not_acknowledged_twice_in_one_transaction() -> None:
    """The answer with the second delivery was under way when the first one was acknowledged."""
    home = Home(["a"], ["a"])
    home.ack_timeout_ms = 1
    consumer = home.consumer()
    client = home.client()
    txn = client.begin(1_000)
    first = consumer.receive(1)
    assert first is not None
    consumer.acknowledge(first, txn)
    consumer.acknowledge(first, txn)
    second = consumer.receive(1)
    assert second is not None and second.message_id == first.message_id
    with pytest.raises(metatxn.TransactionConflict, match="delivered twice"):
        consumer.acknowledge(second, txn)
    with pytest.raises(metatxn.InvalidTransactionState):
        txn.commit()


def test_with_an_ack_timeout_nothing_is_fetched_before_the_program_wants_it() -> None:
    home, patient = Home(["a"], ["b"]), Home(["a"], ["b"])
    home.ack_timeout_ms = 60_000
    for each in (home, patient):
        consumer = each.consumer()
        assert consumer.receive(1) is not None and len(consumer.receive_many(7, 1)) == 1
    assert home.asked_for == [1, 7] and patient.asked_for == [1, 100]


def received(consumer: metatxn.Consumer) -> list[str]:
    found = []
    while message := consumer.receive(0):
        found.append(message.value)
    return found


def test_what_is_held_is_not_handed_out_again() -> None:
    consumer = Home(["a", "b"], ["a", "b", "c", "c"]).consumer()
    assert received(consumer) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "settle",
    [
        lambda consumer, message: consumer.acknowledge(message),
        lambda consumer, message: consumer.acknowledge_cumulative(message),
        lambda consumer, message: consumer.negative_acknowledge(message),
    ],
    ids=["acknowledged", "acknowledged with all before it", "given back"],
)
def test_what_was_settled_may_come_again(settle: Settle) -> None:
    """Its transaction was aborted, or its acknowledgement has not arrived."""
    consumer = Home(["a"], ["a"]).consumer()
    message = consumer.receive(1)
    assert message is not None
    settle(consumer, message)
    assert received(consumer) == ["a"]


@pytest.mark.parametrize("fails", [False, True], ids=["returned", "returned by leaving"])
def test_what_nobody_has_looked_at_yet_comes_again_once_its_segment_was_opened_again(fails: bool) -> None:
    """One transaction fails of it, not one for each message that was fetched. Some of these may have been delivered
    since the segment was opened again: the broker believes them to be here until it is told. Found by
    `tests/participants/processes/test_consumers.py`: they were never delivered again."""
    opened, other = (MessageId(segment, Position(1, 0), 0) for segment in ("segment://t/0", "segment://t/1"))
    first, second, third = str(opened), str(other), str(replace(opened, index=1))
    home = Home([first, second, third], [first, third])
    home.opened_again, home.returns_fail = opened.segment, fails
    consumer = home.consumer()
    message = consumer.receive(1)
    assert message is not None
    with pytest.raises(metatxn.TransactionConflict):
        consumer.acknowledge(message)
    assert home.returned == [[third]] and len(home.left) == fails
    assert received(consumer) == [*([] if fails else [second]), first, third]
