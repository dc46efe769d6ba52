"""Goal: dead letters return to their topic, each exactly once, and those of other subscriptions stay.

Method: the real command against a development server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import metatxn
from metatxn import redrive
from tests.metatxn.command_line import error_line, run_here
from tests.metatxn.dev_server import DevServer
from tests.metatxn.waiting import eventually

VALUES: list[Any] = [{"id": 1}, b"\x00\xff", "text"]


@pytest.fixture
def letters(client: metatxn.Client, new_topic: Callable[..., str]) -> tuple[str, str]:
    """A topic of which two subscriptions have given up every message, and their dead-letter topic."""
    topic, dead = new_topic(), new_topic()
    with client.producer(topic) as producer:
        for value in VALUES:
            producer.send(value, "key", properties={"of": "the user"})
    for name in ("s", "other"):
        with client.subscribe(topic, name, "shared", "earliest", dead, 0) as consumer:
            held: list[metatxn.Message] = []
            while len(held) < len(VALUES):
                held += consumer.receive_many()
            consumer.negative_acknowledge(held)
            eventually(lambda name=name: client.subscription(topic, name).segments[0].backlog, 0)  # type: ignore[misc]
    return topic, dead


def redriven(dev: DevServer, *arguments: str) -> int:
    done = run_here("subscription", "redrive", *arguments, "-o", "json", METATXN_URL=dev.broker_url)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["redriven"])


def would(dev: DevServer, *arguments: str) -> str:
    done = run_here("subscription", "redrive", *arguments, "--dry-run", "-o", "json", METATXN_URL=dev.broker_url)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["would"])


def new_messages(client: metatxn.Client, topic: str) -> list[metatxn.Message]:
    return [message for message in client.reader(topic) if redrive.REDRIVEN in message.properties]


def test_each_letter_returns_once(
    dev: DevServer, client: metatxn.Client, letters: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "TOGETHER", 2)
    monkeypatch.setattr(redrive, "WAIT_S", 0.2)
    topic, dead = letters
    originals = {message.message_id for message in client.reader(topic)}
    ours = [letter.value for letter in client.reader(dead) if letter.properties["metatxn.origin-subscription"] == "s"]
    assert sorted(ours, key=repr) == sorted(VALUES, key=repr)
    assert would(dev, topic, "s").startswith("publish 3 messages of ")
    assert would(dev, topic, "s", "--limit", "1").startswith("publish 1 message of ")
    with pytest.raises(metatxn.NotFound):
        client.subscription(dead, redrive.reader_name(client.subscription(topic, "s")))
    assert redriven(dev, topic, "s", "--limit", "1") == 1
    assert client.preview_redrive(topic, "s") == 2 and client.preview_redrive(topic, "other") == 3
    told: list[int] = []
    assert client.redrive(topic, "s", progress=told.append) == told[-1] == 2
    assert redriven(dev, topic, "s") == client.preview_redrive(topic, "s") == 0
    eventually(lambda: len(new_messages(client, topic)), 3)
    found = new_messages(client, topic)
    assert [message.value for message in found] == ours
    assert {message.properties.pop(redrive.REDRIVEN) for message in found} == originals
    assert [(message.key, message.properties) for message in found] == [("key", {"of": "the user"})] * 3
    assert client.subscription(topic, "s").segments[0].backlog == 3
    assert len(list(client.reader(dead))) == 6, "a dead-letter topic is a log: nothing is taken out of it"


def test_a_subscription_without_a_dead_letter_topic(
    dev: DevServer, client: metatxn.Client, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    client.create_subscription(topic, "s")
    done = run_here("subscription", "redrive", topic, "s", METATXN_URL=dev.broker_url)
    assert "has no dead-letter topic" in error_line(done)
    with pytest.raises(metatxn.InvalidArgument, match="has no dead-letter topic"):
        client.redrive(topic, "s")


def test_a_letter_that_cannot_be_published_stays(
    client: metatxn.Client, letters: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is aborted, and the next attempt finds the same letters."""
    topic, _ = letters

    def refused(*_: object) -> None:
        raise metatxn.StoreUnavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr("metatxn.producer.AsyncProducer.send", refused)
        with pytest.raises(metatxn.StoreUnavailable):
            client.redrive(topic, "s")
    assert new_messages(client, topic) == []
    assert client.redrive(topic, "s") == 3


def test_the_name_of_its_reader_is_never_too_long(client: metatxn.Client, letters: tuple[str, str]) -> None:
    wanted = client.subscription(letters[0], "s")
    assert redrive.reader_name(wanted) == f"redrive of {wanted.topic} s"
    assert len(redrive.reader_name(wanted.model_copy(update={"name": "n" * 300}))) < 100
