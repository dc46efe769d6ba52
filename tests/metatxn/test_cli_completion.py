"""Goal: the shell completes what the cluster has. Method: the command line as bash asks it for completions."""

from __future__ import annotations

import io
import os
import re
import uuid
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

import metatxn
from metatxn.cli.main import run as run_command
from metatxn.words import short_id
from tests.metatxn.dev_server import DevServer


@pytest.fixture
def completed(dev: DevServer) -> Callable[..., list[str]]:
    """The choices for the last word, as the script for bash asks for them."""

    def call(*words: str, url: str = dev.coordinator_url, **environment: str) -> list[str]:
        typed = "\n".join(["metatxn", *words])
        place = {"_METATXN_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words))} | environment
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


def split_by_bash(*words: str) -> list[str]:
    """Bash begins a new word at each of its breaks, and keeps breaks that stand together."""
    return [part for word in words for part in re.split(r"([:=]+)", word) if part]


def test_words_that_bash_has_split_are_one(
    completed: Callable[..., list[str]], client: metatxn.Client, new_topic: Callable[..., str], dev: DevServer
) -> None:
    topic = new_topic()
    bare = topic.removeprefix("public/default/")
    client.create_subscription(topic, "billing", "shared", "earliest")
    (segment,) = [each.segment for each in client.topic(topic).segments]
    away = "http://127.0.0.1:1"
    for place in (["--url", dev.broker_url], [f"--url={dev.broker_url}"]):
        assert completed(*split_by_bash(*place, "topic", "show", bare[:-1]), url=away) == [bare]
    for place in (["--url", away], [f"--url={away}"]):
        assert completed(*split_by_bash(*place, "topic", "show", bare[:-1])) == []
    behind = segment.removeprefix("segment:")
    assert completed(*split_by_bash("segment", "show", segment[:-1])) == [behind]
    assert completed(*split_by_bash("txn", "list", f"--segment={segment[:-1]}")) == [behind]
    assert behind in completed("segment", "show", "segment", ":")
    assert completed(*split_by_bash("topic", "consume", bare, "--subscription=bil")) == ["billing"]
    assert completed("topic", "consume", bare, "--subscription", "=") == ["billing"]
    assert completed("topic", "consume", bare, "--isolation", "=", "snap") == ["snapshot"]
    assert segment in completed("topic", "merge", *split_by_bash(segment), "")


def test_nothing_is_said_about_the_file_of_settings(
    completed: Callable[..., list[str]], new_topic: Callable[..., str], dev: DevServer, tmp_path: Path
) -> None:
    """Others may read the token in it, which commands mention."""
    topic, settings = new_topic(), tmp_path / "config.toml"
    settings.write_text(f'[profiles.prod]\nurl = "{dev.broker_url}"\ntoken = "t"\n')
    settings.chmod(0o644)
    asked = ("--config", str(settings), "--profile", "prod", "topic", "show", topic[:-1])
    assert completed(*asked, url="") == [topic]
    settings.write_text("no settings")
    assert completed(*asked) == []
