"""Goal: an operator sees from the command line what is stored in a segment, and what readers see of it.

Method: the real commands against a development server, with open, aborted and committed transactions.
"""

from __future__ import annotations

import csv
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import metatxn
from metatxn.stored import looking
from tests.metatxn.command_line import Done, error_line
from tests.metatxn.dev_server import DevServer
from tests.metatxn.waiting import eventually

STATES = ["readable", "aborted", "readable", "undecided", "waits"]


@pytest.fixture
def segment(dev: DevServer) -> str:
    """A segment with a message of each state: the number of each is its place."""
    topic = f"stored-{uuid.uuid4().hex[:12]}"
    with metatxn.connect(dev.broker_url) as client:
        segment = client.create_topic(topic).segments[0].segment
        producer = client.producer(topic)
        producer.send({"n": 0, "country": "DE"}, key="a").result()
        aborted = client.begin()
        producer.send({"n": 1, "country": "DE"}, key="a", txn=aborted).result()
        aborted.abort()
        with client.transaction() as committed:
            producer.send({"n": 2, "country": "FR"}, key="b", txn=committed)
        open_ = client.begin()
        producer.send({"n": 3, "country": "DE"}, key="b", txn=open_).result()
        open_.leave_open()
        producer.send(b"\xff\x00", key="c").result()
        eventually(lambda: [each.state for each in client.stored_messages(segment)], STATES)
    return segment


def test_everything_that_is_stored_is_listed_with_its_state(
    cli: Callable[..., Done], ask: Callable[..., Any], segment: str
) -> None:
    listed = ask("segment", "messages", segment)
    assert [each["readers"] for each in listed] == STATES
    assert [each.get("value", {}).get("n") for each in listed] == [0, 1, 2, 3, None]
    assert listed[-1]["value_base64"] == "/wA=" and listed[-1]["key"] == "c"
    assert [each["txn_id"] is None for each in listed] == [True, False, False, False, True]
    lines = cli("segment", "messages", segment).stdout.splitlines()
    assert lines[0].split() == ["POSITION", "READERS", "PUBLISHED", "KEY", "VALUE", "TXN_ID"]
    assert [line.split()[1] for line in lines[1:]] == [each["readers"] for each in listed]
    assert listed[3]["txn_id"] in lines[4] and "<2 bytes>" in lines[5]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--readable",), [0, 2]),
        (("--key", "b"), [2, 3]),
        (("--where", 'country = "DE" and n > 0'), [1, 3]),
        (("--where", 'country = "DE"', "--readable"), [0]),
        (("--limit", "2"), [0, 1]),
        (("--since", "1h", "--limit", "1"), [0]),
        (("--since", "2100-01-01T00:00:00Z"), []),
        (("--last", "3", "--limit", "2"), [2, 3]),
        (("--last", "1000", "--readable"), [0, 2]),
    ],
)
def test_what_is_looked_for_is_chosen(
    ask: Callable[..., Any], segment: str, options: tuple[str, ...], expected: list[int]
) -> None:
    assert [each["value"]["n"] for each in ask("segment", "messages", segment, *options)] == expected


def test_a_look_goes_on_after_a_position(ask: Callable[..., Any], segment: str) -> None:
    listed = ask("segment", "messages", segment)
    assert ask("segment", "messages", segment, "--after", listed[2]["position"]) == listed[3:]


def test_many_pages_are_one_list(ask: Callable[..., Any], segment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ask("segment", "messages", segment)
    monkeypatch.setattr(looking, "MOST_ENTRIES", 1)
    assert ask("segment", "messages", segment) == listed
    monkeypatch.setattr(looking, "MOST_ENTRIES_LOOKED_AT", 1)
    assert ask("segment", "messages", segment, "--key", "b") == listed[2:4]


@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow"])
def test_messages_are_written_to_a_file(cli: Callable[..., Done], segment: str, tmp_path: Path, form: str) -> None:
    file = tmp_path / f"messages.{form}"
    done = cli("segment", "messages", segment, "--to", str(file))
    assert (done.returncode, done.stdout) == (0, f"wrote 5 messages to {file}\n")
    match form:
        case "jsonl":
            written = [json.loads(line)["readers"] for line in file.read_text().splitlines()]
        case "csv":
            written = [row["__readers"] for row in csv.DictReader(file.read_text().splitlines())]
        case _:
            written = pa.ipc.open_file(str(file)).read_all()["__readers"].to_pylist()
    assert written == STATES
    again = cli("segment", "messages", segment, "--to", str(file))
    assert again.returncode == 1 and f"--to: {file} exists" in error_line(again)


@pytest.mark.parametrize("options", [(), ("--limit", "9")])
def test_a_file_says_where_to_go_on(
    cli: Callable[..., Done],
    ask: Callable[..., Any],
    dev: DevServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    """With an entry that the file has only a part of: nothing of it is passed over."""
    topic = f"stored-{uuid.uuid4().hex[:12]}"
    with metatxn.connect(dev.broker_url) as client:
        segment = client.create_topic(topic).segments[0].segment
        producer = client.producer(topic, linger_ms=1_000)
        sent = [producer.send(number) for number in range(5)]
        producer.flush()
        assert len({future.result() for future in sent}) == 1, "they share an entry"
        producer.send(5).result()
    for most, left in ((2, [0, 1, 2, 3, 4, 5]), (5, [5])):
        monkeypatch.setattr("metatxn.cli.stored.MOST_IN_A_FILE", most)
        done = cli("segment", "messages", segment, "--to", str(tmp_path / f"{most}.csv"), *options)
        assert f"these are the first {most}. Go on with --after " in done.stderr
        told = done.stderr.rpartition("--after ")[2].strip().removesuffix(".")
        assert [each["value"] for each in ask("segment", "messages", segment, "--after", told)] == left


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--after", "x"), "after: "),
        (("--after", "0:-1", "--since", "1h"), "--since: --after gives a place, too."),
        (("--since", "yesterday"), "--since: 'yesterday' is not a time."),
        (("--where", "n >"), "where: it ends where a value"),
        (
            ("--to", "/nowhere/messages.csv"),
            "--to: /nowhere/messages.csv cannot be written: No such file or directory.",
        ),
        (("--to", "messages.txt"), "--to: messages.txt does not end in one of .jsonl, .arrow, .csv."),
    ],
)
def test_what_cannot_be_understood_is_named(
    cli: Callable[..., Done], segment: str, options: tuple[str, ...], said: str
) -> None:
    done = cli("segment", "messages", segment, *options)
    assert done.returncode == 1 and said in error_line(done) and not done.stdout


def test_a_segment_that_is_not_there_is_named(cli: Callable[..., Done]) -> None:
    done = cli("segment", "messages", "segment://public/default/nothing/0000-ffff-0")
    assert done.returncode == 1 and "nothing" in error_line(done)
