"""Goal: the shell completes what the cluster has. Method: the command line as bash asks it for completions."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

import pytest

import metatxn
from metatxn.cli.main import run as run_command
from metatxn.words import short_id
from tests.metatxn.dev_server import DevServer


@pytest.fixture
def completed(dev: DevServer) -> Callable[..., list[str]]:
    """The choices for the last word."""

    def call(*words: str, url: str = dev.coordinator_url) -> list[str]:
        typed = " ".join(["metatxn", *words])
        place = {"_METATXN_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words))}
        output, errors = io.StringIO(), io.StringIO()
        with (
            patch.dict(os.environ, {**place, "METATXN_URL": url}),
            redirect_stdout(output),
            redirect_stderr(errors),
            pytest.raises(SystemExit) as end,
        ):
            run_command([])
        assert (end.value.code, errors.getvalue()) == (0, "")
        return output.getvalue().split()

    return call


def test_names_of_the_cluster(
    completed: Callable[..., list[str]], client: metatxn.Client, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    bare = topic.removeprefix("public/default/")
    client.create_subscription(topic, "billing", "shared", "earliest")
    (segment,) = [each.segment for each in client.topic(topic).segments]
    key = f"k-{uuid.uuid4().hex}"
    txn = client.begin(600_000, key, client.connect_key(key).epoch)
    assert completed("topic", "show", bare[:-1]) == [bare]
    assert completed("topic", "show", topic[:-1]) == [topic]
    assert completed("subscription", "show", bare, "bil") == ["billing"]
    assert completed("subscription", "redrive", bare, "bil") == ["billing"]
    assert completed("subscription", "create", bare, "new", "--dead-letters", bare[:-1]) == [bare]
    assert completed("topic", "consume", bare, "--subscription", "bil") == ["billing"]
    assert completed("segment", "show", segment[:-1]) == [segment]
    assert completed("txn", "list", "--segment", segment[:-1]) == [segment]
    for command in (("key", "get"), ("txn", "list", "--key"), ("txn", "begin", "--key")):
        assert completed(*command, key[:-1]) == [key]
    assert short_id(txn.id) in completed("txn", "commit", short_id(txn.id)[:1])
    assert txn.id in completed("txn", "commit", txn.id[:-1])
    assert txn.id in completed("topic", "consume", bare, "--subscription", "billing", "--txn", txn.id[:-1])
    txn.commit()
    assert short_id(txn.id) not in completed("txn", "commit", short_id(txn.id)[:1])


def test_nothing_is_said_when_nobody_answers(completed: Callable[..., list[str]]) -> None:
    assert completed("topic", "show", "t", url="http://127.0.0.1:1") == []
    assert completed("topic", "show", "t", url="nonsense") == []


def test_options_are_minded(completed: Callable[..., list[str]], new_topic: Callable[..., str], dev: DevServer) -> None:
    topic = new_topic()
    place = ("--url", dev.broker_url)
    assert completed(*place, "topic", "show", topic[:-1], url="http://127.0.0.1:1") == [topic]
    assert completed("topic", "show", *place, topic[:-1], url="http://127.0.0.1:1") == [topic]
