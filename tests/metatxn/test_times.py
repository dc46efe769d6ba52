"""Reading from a time on, with a cluster in one process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import metatxn


def test_reading_begins_at_a_time_in_every_segment(client: metatxn.Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(4)
    with client.producer(topic) as producer:
        for number in range(20):
            producer.send(number, str(number))
    between = datetime.now(UTC)
    while datetime.now(UTC) - between < timedelta(milliseconds=2):
        pass
    with client.producer(topic) as producer:
        for number in range(20, 40):
            producer.send(number, str(number))
    between += timedelta(milliseconds=1)
    for isolation in ("read_committed", "snapshot", "read_uncommitted"):
        reader = client.reader(topic, between, isolation)
        assert sorted(message.value for message in reader) == list(range(20, 40))
    token = client.reader(topic, between).token
    assert token is not None and token.startswith("@")
    assert len(list(client.reader(topic, token))) == 20
    found = 0
    for segment in client.topic(topic).segments:
        page = client.read_frames(segment.segment, after=token)
        found += sum(frame.count for frame in page.frames)
    assert found == 20
    with pytest.raises(metatxn.InvalidArgument, match="time zone"):
        client.reader(topic, datetime(2026, 11, 22))  # noqa: DTZ001
    with pytest.raises(metatxn.InvalidArgument, match="after"):
        list(client.reader(topic, "@2026-11-22T10:00:00"))
