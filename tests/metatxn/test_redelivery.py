"""Goal: a message that a consumer holds already is not handed out a second time: in one transaction it would count
twice, as the second acknowledgement of a transaction succeeds like the first. What was settled may come again.

Method: a broker whose answers are written down here; a home that has moved gives again what nobody has acknowledged.
Found by `make chaos` (mix `frozen`, seed 203).
"""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

import metatxn

URL = "http://broker.test"
Settle = Callable[[metatxn.Consumer, metatxn.Message], None]


class Home:
    """Gives the messages of one list of names after another."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/cluster"):
            processes = {"coordinators": [{"id": "c", "url": URL}], "brokers": [{"id": "b", "url": URL}]}
            return httpx.Response(200, json=processes | {"revision": 1})
        if request.url.path.endswith("/receive"):
            names = self._answers.pop(0) if self._answers else []
            messages = [{"message_id": name, "value": name, "publish_ms": 1, "redelivery_count": 0} for name in names]
            return httpx.Response(200, json={"messages": messages})
        return httpx.Response(200, json={"count": 0})

    def consumer(self) -> metatxn.Consumer:
        return metatxn.connect(URL, transport=httpx.MockTransport(self)).consumer("t", "s")


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
