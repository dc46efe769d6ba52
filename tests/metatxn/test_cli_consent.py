"""Goal: what destroys something says what it destroys, asks a person first, and never stops a script.

Method: the real commands against a development server. Whether they stand at a terminal is told to them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable

import pytest

import metatxn
from metatxn.cli import consent
from metatxn.wire.access import AccessInfo
from tests.metatxn.command_line import Done, error_line, run_here
from tests.metatxn.dev_server import DevServer
from tests.metatxn.terminal import Terminal


@pytest.fixture
def cli(dev: DevServer) -> Callable[..., Done]:
    return lambda *arguments, stdin="": run_here(*arguments, stdin=stdin, METATXN_URL=dev.broker_url)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consent, "at_terminal", lambda: True)


@pytest.fixture
def topic(client: metatxn.Client, new_topic: Callable[..., str]) -> str:
    """With a message, a subscription and an open transaction."""
    name = new_topic()
    client.create_subscription(name, "billing", "shared", "earliest")
    with client.producer(name) as producer:
        producer.send(1).result()
    return name


@pytest.mark.usefixtures("terminal")
def test_a_person_is_asked_and_told_what_is_at_stake(cli: Callable[..., Done], topic: str) -> None:
    for answer in ("n\n", "\n", "", "yess\n"):
        done = cli("topic", "delete", topic, stdin=answer)
        asked, _, said = done.stderr.partition("[y/N] ")
        assert (done.returncode, done.stdout) == (1, "")
        assert "1 segment with 1 entry (" in asked and "1 subscription (billing)" in asked
        assert said.lstrip("\n").startswith("metatxn: nothing was changed")
        assert cli("topic", "show", topic).returncode == 0
    done = cli("topic", "delete", topic, stdin="y\n")
    assert (done.returncode, done.stdout) == (0, f"deleted {topic}\n")
    assert cli("topic", "show", topic).returncode == 1


@pytest.mark.parametrize(("keys", "code"), [("n\n", 1), ("\n", 1), ("\x04", 1), ("", 130)])
def test_at_a_terminal_every_answer_but_yes_changes_nothing(dev: DevServer, topic: str, keys: str, code: int) -> None:
    """Without keys it is Ctrl-C. What is said then begins a line."""
    with Terminal("topic", "delete", topic, METATXN_URL=dev.broker_url) as terminal:
        terminal.until("[y/N] ")
        terminal.type(keys) if keys else terminal.press_ctrl_c()
        assert terminal.end() == code
    assert re.search(r"^metatxn: nothing was changed, because .*\.$", terminal.shown, re.MULTILINE), terminal.shown
    assert "Traceback" not in terminal.shown
    assert run_here("topic", "show", topic, METATXN_URL=dev.broker_url).returncode == 0


@pytest.mark.usefixtures("terminal")
def test_yes_is_not_asked(cli: Callable[..., Done], topic: str) -> None:
    assert cli("subscription", "drop", topic, "billing", "--yes").stderr == ""
    assert cli("topic", "delete", topic, "-y").stderr == ""


def test_a_script_is_not_asked(cli: Callable[..., Done], topic: str) -> None:
    """As before there was a question."""
    assert cli("subscription", "drop", topic, "billing").stdout == "dropped billing\n"
    assert cli("topic", "delete", topic).stderr == ""


def test_a_trial_changes_nothing(cli: Callable[..., Done], client: metatxn.Client, topic: str) -> None:
    (segment,) = [each.segment for each in client.topic(topic).segments]
    key = f"k-{uuid.uuid4().hex[:12]}"
    txn = client.begin(key=key, epoch=client.connect_key(key).epoch)
    said = {
        ("topic", "delete", topic): "1 segment with 1 entry",
        ("topic", "seal", segment): f"seal {segment} forever",
        ("topic", "trim", segment, "--before", "1:1"): "but not including, 1:1",
        ("segment", "delete", segment): "which is active",
        (
            "subscription",
            "seek",
            topic,
            "billing",
            "--to",
            "latest",
        ): "delivered again, and 1 message never",
        ("topic", "set", topic, "--retention-ms", "9"): "retention_ms from no bound (default) to 9ms; messages that",
        ("topic", "set", topic, "--retention-ms", "-1"): "retention_ms from no bound (default) to no bound.\n",
        ("topic", "set", topic, "--unset", "roll_ms"): "to what applies without it.",
        ("policy", "set", "--cluster", "--ttl-ms", "5"): "the policy of the cluster: ttl_ms from no bound",
        ("subscription", "drop", topic, "billing"): "1 message not acknowledged, 0 consumers connected",
        ("key", "connect", key): f"epoch 0, and abort its transaction {consent_id(txn.id)} unless",
        ("key", "connect", "never-used"): "connect to the new key never-used.",
        ("key", "delete", key): f"abort its transaction {consent_id(txn.id)}",
        ("txn", "abort", txn.id): "nothing that was done in it will be visible",
    }
    for command, words in said.items():
        done = cli(*command, "--dry-run")
        assert done.returncode == 0 and done.stdout.startswith("would ") and words in done.stdout, done
        as_json = json.loads(cli(*command, "--dry-run", "-o", "json").stdout)
        assert as_json["dry_run"] is True and f"would {as_json['would']}\n" == done.stdout
    assert client.subscription(topic, "billing").segments[0].backlog == 1
    assert client.attach(txn.id).header.state == "OPEN" and client.key(key).txn_id == txn.id
    txn.abort()
    assert "already ABORTED" in cli("txn", "abort", txn.id, "--dry-run").stdout


@pytest.mark.usefixtures("terminal")
def test_a_policy_that_may_drop_messages_is_asked_about(cli: Callable[..., Done], topic: str) -> None:
    refused = cli("topic", "set", topic, "--retention-ms", "1000", stdin="no\n")
    assert refused.returncode == 1 and "are gone forever" in refused.stderr
    assert cli("topic", "set", topic, "--schema-compatibility", "none").stderr == ""
    assert cli("topic", "set", topic, "--retention-ms", "1000", "--yes").stderr == ""


def test_a_trial_of_what_is_not_there_fails(cli: Callable[..., Done]) -> None:
    assert "does not exist" in error_line(cli("topic", "delete", "nowhere", "--dry-run"))


@pytest.mark.parametrize(
    ("command", "lacks"),
    [
        (("topic", "set", "{topic}", "--retention-ms", "1"), "the right admin on topic {topic}"),
        (("topic", "delete", "{topic}"), "the right admin on topic {topic}"),
        (("topic", "seal", "{segment}"), "the right admin on topic {topic}"),
        (("topic", "trim", "{segment}", "--before", "1:0"), "the right admin on topic {topic}"),
        (("segment", "delete", "{segment}"), "the right admin on topic {topic}"),
        (("policy", "set", "public/default", "--retention-ms", "1"), "the right admin on all topics public/default/*"),
        (("policy", "set", "--cluster", "--retention-ms", "1"), "the right admin on all topics *"),
    ],
)
def test_a_dry_run_is_refused_as_the_change_would_be(
    command: tuple[str, ...],
    lacks: str,
    cli: Callable[..., Done],
    topic: str,
    client: metatxn.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (segment,) = client.topic(topic).segments
    names = {"topic": topic, "segment": segment.segment}
    access = AccessInfo(principal="bob", admin=False, topics={"*": ["consume"], "public/other/*": ["admin"]})
    monkeypatch.setattr(metatxn.Client, "access", lambda _: access)
    refused = error_line(cli(*(part.format(**names) for part in command), "--dry-run"))
    assert f"principal 'bob' lacks {lacks.format(**names)}." in refused
    access.topics["*"].append("admin")
    assert cli(*(part.format(**names) for part in command), "--dry-run").stdout.startswith("would ")


@pytest.mark.usefixtures("terminal")
def test_only_an_abort_by_force_asks(cli: Callable[..., Done], client: metatxn.Client) -> None:
    txn = client.begin()
    txn.prepare(60_000)
    done = cli("txn", "abort", txn.id, "--force", stdin="no\n")
    assert "abort the prepared transaction" in done.stderr and done.returncode == 1
    assert cli("txn", "abort", txn.id).stderr == ""


@pytest.mark.usefixtures("terminal")
def test_only_a_takeover_that_aborts_something_asks(cli: Callable[..., Done], client: metatxn.Client) -> None:
    key = f"k-{uuid.uuid4().hex[:12]}"
    assert cli("key", "connect", key).stderr == "", "nobody has it"
    assert cli("key", "connect", key).stderr == "", "nothing is open"
    txn = client.begin(key=key, epoch=client.key(key).epoch)
    done = cli("key", "connect", key, stdin="no\n")
    assert f"abort its transaction {consent_id(txn.id)}" in done.stderr and done.returncode == 1
    assert client.attach(txn.id).refresh().state == "OPEN"
    assert cli("key", "connect", key, "--yes").stderr == ""
    assert client.attach(txn.id).refresh().state == "ABORTED"


def consent_id(txn_id: str) -> str:
    return txn_id.lstrip("0")


def test_an_error_for_a_program_is_an_object(cli: Callable[..., Done]) -> None:
    """What a service answers keeps its members; what the command itself refuses has the line for people."""
    for output in (("-o", "json"), ("--output", "json"), ("--output=json",), ("-ojson",), ("-o", "table", "-ojson")):
        done = cli("txn", "show", "ffff", *output)
        said = json.loads(done.stderr)
        assert done.stderr.count("\n") == 1 and done.stdout == "" and done.returncode == 1
        assert (said["code"], said["retriable"], said["definite"]) == ("TXN_NOT_FOUND", False, True)
        assert said["txn_id"].endswith("ffff") and said["error"].startswith(said["detail"])
    for letters in (("-fo", "json"), ("-fojson",)):
        followed = cli("topic", "consume", "nowhere", *letters)
        assert json.loads(followed.stderr)["code"] == "NOT_FOUND"
    refused = cli("-o", "json", "txn", "keep-alive", "1", "--timeout", "soon")
    assert "--timeout" in json.loads(refused.stderr)["error"]
    wrong = cli("topic", "create", "-o", "json")
    assert wrong.returncode == 2 and "TOPIC" in json.loads(wrong.stderr)["error"]
    assert error_line(cli("txn", "show", "ffff", "-o", "table"))
    assert error_line(cli("txn", "show", "ffff", "--", "-o", "json"))
