"""A program that publishes under a producer and sequences of its own may repeat all of it. Issue 20, §4.

Method: a cluster in one process, and a second client in place of the restarted program.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import metatxn
from tests.metatxn.dev_server import DevServer


def test_a_restarted_program_publishes_nothing_twice(
    client: metatxn.Client, new_topic: Callable[..., str], dev: DevServer
) -> None:
    topic = new_topic(2)
    keys = [str(number) if number % 3 else None for number in range(12)]

    def program(client: metatxn.Client, up_to: int) -> list[str]:
        return [
            client.publish(topic, {"row": row}, keys[row], {"by": "hand"}, producer="importer", sequence=row)
            for row in range(up_to)
        ]

    first = program(client, 8)
    client.split_segment(client.topic(topic).segments[0].segment)
    with metatxn.connect(dev.broker_url) as restarted:
        assert program(restarted, 12)[:8] == first
    found = list(client.reader(topic))
    assert sorted(message.value["row"] for message in found) == list(range(12))
    assert {message.key for message in found} == set(keys)
    assert found[0].properties == {"by": "hand"}
    client.publish(topic, b"another", producer="other", sequence=0)
    assert len(list(client.reader(topic))) == 13, "sequences are those of a producer"


def test_a_message_is_delivered_later(client: metatxn.Client, new_topic: Callable[..., str]) -> None:
    topic, hour = new_topic(1), timedelta(hours=1)
    client.publish(topic, "later", producer="p", sequence=0, deliver_after=hour)
    client.publish(topic, "at", producer="p", sequence=1, deliver_at=datetime.now(UTC) + hour)
    client.publish(topic, "now", producer="p", sequence=2, deliver_at=datetime.now(UTC) - hour)
    for message, hours in zip(client.reader(topic), (1, 1, -1), strict=True):
        assert message.deliver_at_ms is not None
        assert abs(message.deliver_at_ms - message.publish_ms - hours * 3_600_000) < 600_000
    with client.subscribe(topic, "s", type="shared", initial="earliest") as consumer:
        assert [message.value for message in consumer.receive_many(10)] == ["now"]
        assert consumer.receive(timeout_s=0) is None and consumer.others_hold is False


def test_what_cannot_be_published_changes_nothing(client: metatxn.Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    with pytest.raises(TypeError):
        client.publish(topic, {1, 2}, producer="p", sequence=0)
    with pytest.raises(metatxn.InvalidArgument, match="sequence"):
        client.publish(topic, "x", producer="p", sequence=-1)
    with pytest.raises(metatxn.InvalidArgument, match="producer"):
        client.publish(topic, "x", producer="", sequence=0)
    with pytest.raises(metatxn.NotFound):
        client.publish("nowhere", "x", producer="p", sequence=0)
    hour = timedelta(hours=1)
    for wrong, field in (
        ({"deliver_after": -hour}, "deliver_after_ms"),
        ({"deliver_after": hour, "deliver_at": datetime.now(UTC)}, "deliver_at_ms"),
        ({"deliver_at": datetime.now(UTC).replace(tzinfo=None)}, "deliver_at"),
    ):
        with pytest.raises(metatxn.InvalidArgument, match=field):
            client.publish(topic, "x", producer="p", sequence=0, **wrong)
    assert list(client.reader(topic)) == []
