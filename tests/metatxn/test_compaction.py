"""The latest committed value of each key through the library: then what comes, in one reader.

Method: a development server in a process of its own. What the view is, `test_compaction` of the brokers says.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import metatxn
from tests.metatxn.waiting import eventually

NewTopic = Callable[..., str]


def test_a_compacted_reader_begins_with_the_latest_values_and_goes_on(
    client: metatxn.Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    committed, aborted = client.begin(), client.begin()
    with client.producer(topic) as producer:
        for key in "abc":
            producer.send("old", key=key)
        producer.send("new", key="a", txn=committed)
        producer.send("never", key="b", txn=aborted)
        producer.flush()
        committed.commit()
        aborted.abort()
        producer.send(None, key="c")
        producer.send("nobody's")
        producer.flush()

        def view() -> list[tuple[str | None, object]]:
            return [(message.key, message.value) for message in client.reader(topic, compacted=True)]

        eventually(view, [("b", "old"), ("a", "new")])
        reader = client.reader(topic, compacted=True)
        assert {message.key: message.value for message in reader} == {"b": "old", "a": "new"}
        assert list(reader) == [], "it stands at the end"
        producer.send("newer", key="a")
        producer.send(None, key="b")
        producer.flush()
        assert [(message.key, message.value) for message in reader] == [("a", "newer"), ("b", None)]
    resumed = client.reader(topic, start=reader.token or "")
    assert list(resumed) == []


def test_a_compacted_reader_has_one_beginning(client: metatxn.Client, new_topic: NewTopic) -> None:
    for start in ("latest", "a token"):
        with pytest.raises(metatxn.InvalidArgument) as error:
            client.reader(new_topic(), start=start, compacted=True)
        assert error.value.definite
