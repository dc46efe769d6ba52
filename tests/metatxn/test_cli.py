"""The command line as users and scripts meet it: output, exit codes and error lines. A command runs in this process
where nothing depends on its being one of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.core import TyperCommand

import metatxn
from metatxn.cli import topic as topic_commands
from metatxn.cli.main import COMMANDS, app
from metatxn.cli.output import TIMES
from metatxn.cli.times import duration_option, milliseconds_of
from metatxn.wire.coordinator import TransactionHeader, TransactionKeyInfo
from tests.forked import Metatxn
from tests.metatxn.command_line import TIMEOUT_S, error_line, run, run_here
from tests.metatxn.dev_server import DevServer
from tests.metatxn.waiting import eventually

Run = Callable[..., subprocess.CompletedProcess[str]]
PATIENT = ("--timeout-ms", "600000")
"""On a machine that has other things to do, three commands take a minute."""


@pytest.fixture
def cli(dev: DevServer) -> Run:
    """Runs a command against the development server."""

    def call(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return run_here(*arguments, METATXN_URL=dev.broker_url, **options)

    return call


@pytest.fixture
def ask(cli: Run) -> Callable[..., Any]:
    """The JSON a command prints."""

    def call(*arguments: str, **options: Any) -> Any:
        done = cli(*arguments, "--output", "json", **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call


@pytest.fixture
def topic(ask: Callable[..., Any]) -> str:
    return str(ask("topic", "create", f"cli-{uuid.uuid4().hex[:12]}")["name"])


def test_transaction_by_hand(ask: Callable[..., Any], topic: str) -> None:
    """The story `--help` tells: what is sent inside becomes visible with the commit."""
    txn_id = ask("txn", "begin", *PATIENT, "--property", "job=by hand")["txn_id"]
    assert ask("topic", "produce", topic, '{"id": 7}', "--txn", txn_id, "--key", "7")["sent"] == 1
    assert ask("topic", "consume", topic) == []
    shown = ask("txn", "show", txn_id, "--operations")
    assert shown["state"] == "OPEN" and shown["properties"] == {"job": "by hand"}
    assert [operation["kind"] for operation in shown["operations"]] == ["write"]
    assert txn_id in {header["txn_id"] for header in ask("txn", "list", "--state", "open", "--limit", "1000")}
    assert ask("txn", "commit", txn_id)["state"] == "COMMITTED"
    eventually(lambda: [message["value"] for message in ask("topic", "consume", topic)], [{"id": 7}])
    (message,) = ask("topic", "consume", topic)
    assert (message["key"], message["txn_id"]) == ("7", txn_id)


def test_hanging_transactions(ask: Callable[..., Any], cli: Run, topic: str) -> None:
    """Who holds back which segment, since when: one line for each, that `grep` finds; it is gone with the end."""
    txn_id = ask("txn", "begin", *PATIENT, "--owner", "billing")["txn_id"]
    ask("topic", "produce", topic, '{"id": 7}', "--txn", txn_id)
    (found,) = [txn for txn in ask("txn", "hanging", "--max-age-ms", "0") if txn["txn_id"] == txn_id]
    assert (found["owner"], found["state"]) == ("billing", "OPEN") and found["age_ms"] >= 0
    (touched,) = found["touched"]
    assert touched["segment"].startswith(f"segment://{topic}/") and "after" in touched
    header, *lines = cli("txn", "hanging", "--max-age-ms", "0").stdout.splitlines()
    (line,) = [line for line in lines if touched["segment"] in line and txn_id in line]
    assert header.split()[:5] == ["SINCE", "AGE_S", "TXN_ID", "OWNER", "KEY"]
    assert line.split()[3:] == [txn_id, "billing", "-", touched["segment"], "-", touched["after"], "-", "-"]
    header, *lines = cli("txn", "hanging", "--max-age-ms", "0", "--cost").stdout.splitlines()
    (line,) = [line for line in lines if touched["segment"] in line and txn_id in line]
    assert header.split()[-5:] == ["READERS", "ENTRIES", "BYTES", "ACKNOWLEDGED", "SUBSCRIPTIONS"]
    assert line.split()[-5:-3] == ["wait", "1"] and line.split()[-2:] == ["-", "0"]
    (found,) = [txn for txn in ask("txn", "hanging", "--max-age-ms", "0", "--cost") if txn["txn_id"] == txn_id]
    assert found["cost"]["size_bytes"] == found["cost"]["places"][0]["size_bytes"] > 0
    assert txn_id not in cli("txn", "hanging", "--older-than", "1m").stdout
    idle = ask("txn", "begin", *PATIENT)["txn_id"]
    holding = {txn["txn_id"] for txn in ask("txn", "hanging", "--max-age-ms", "0", "--holding")}
    assert txn_id in holding and idle not in holding
    ask("txn", "begin", "--timeout", "10m")
    eventually(lambda: "more than these 1" in cli("txn", "hanging", "--older-than", "0s", "--limit", "1").stderr, True)
    ask("txn", "abort", txn_id)
    assert txn_id not in cli("txn", "hanging", "--max-age-ms", "0").stdout


def test_a_time_in_a_table_is_a_date_and_so_is_its_name(ask: Callable[..., Any], cli: Run) -> None:
    key = f"k-{uuid.uuid4().hex[:12]}"
    epoch = ask("key", "connect", key)["epoch"]
    txn_id = ask("txn", "begin", "--timeout", "10m", "--key", key, "--epoch", str(epoch))["txn_id"]
    ask("txn", "keep-alive", txn_id, "--timeout", "10m")
    for command, names in (
        (("txn", "show", txn_id), {"created", "deadline"}),
        (("key", "get", key), {"updated"}),
        (("txn", "abort", txn_id), {"created", "finalized", "renewed"}),
    ):
        printed = dict(line.split(maxsplit=1) for line in cli(*command).stdout.splitlines() if line)
        assert not [name for name in printed if name.endswith("_ms")]
        assert all(datetime.fromisoformat(printed[name]).tzinfo for name in names), printed


def test_every_time_of_a_transaction_or_a_key_is_known_as_one() -> None:
    members = {*TransactionHeader.model_fields, *TransactionKeyInfo.model_fields}
    assert {name for name in members if name.endswith("_ms")} <= TIMES


def test_abort_by_hand(ask: Callable[..., Any], topic: str) -> None:
    txn_id = ask("txn", "begin", *PATIENT)["txn_id"]
    ask("topic", "produce", topic, '"x"', "--txn", txn_id)
    assert ask("txn", "abort", txn_id, "--reason", "second thoughts")["reason"] == "second thoughts"
    assert ask("topic", "consume", topic) == []


def test_what_a_client_says_is_no_command_to_the_terminal(cli: Run, ask: Callable[..., Any]) -> None:
    """The reason of an abort is anybody's text: its escape sequences are shown, as what they are."""
    txn_id = ask("txn", "begin", *PATIENT)["txn_id"]
    reason = "é \x1b]0;forged\x07\nand more"
    assert ask("txn", "abort", txn_id, "--reason", reason)["reason"] == reason
    (line,) = [line for line in cli("txn", "show", txn_id).stdout.splitlines() if line.startswith("reason ")]
    assert line.split(maxsplit=1)[1] == r"é \x1b]0;forged\x07 and more"
    assert "\x1b" not in error_line(cli("txn", "show", "\x1b]0;forged\x07"))


def test_a_prepared_transaction_is_listed_as_such(cli: Run, ask: Callable[..., Any], dev: DevServer) -> None:
    """Anyone who looks for one that hangs sees that its external coordinator has to be asked."""
    owner = uuid.uuid4().hex
    open_, prepared = [ask("txn", "begin", *PATIENT, "--owner", owner)["txn_id"] for _ in range(2)]
    assert httpx.post(f"{dev.coordinator_url}/v1/txns/{prepared}/prepare", timeout=60).status_code == 200
    header, *lines = cli("txn", "list", "--owner", owner, "--state", "open").stdout.splitlines()
    assert header.split()[-1] == "PREPARED"
    assert {line.split()[0]: line.split()[-1] for line in lines} == {open_: "-", prepared: "yes"}
    assert [txn.get("prepared") for txn in ask("txn", "list", "--owner", owner)] == [True, None], "the newest first"


def test_values_from_standard_input(ask: Callable[..., Any], topic: str) -> None:
    assert ask("topic", "produce", topic, stdin="1\n[2]\n")["sent"] == 2
    assert ask("topic", "produce", topic, "--text", stdin="plain words\n")["sent"] == 1
    assert [message["value"] for message in ask("topic", "consume", topic)] == [1, [2], "plain words"]
    assert len(ask("topic", "consume", topic, "--limit", "2")) == 2


@pytest.mark.parametrize("output", ["table", "json"])
def test_what_nobody_could_read_is_not_acknowledged(
    client: metatxn.Client, cli: Run, ask: Callable[..., Any], topic: str, dev: DevServer, output: str
) -> None:
    """The reader of the output has gone before anything was printed."""
    ask("topic", "produce", topic, stdin="1\n2\n3\n")
    client.create_subscription(topic, "s", "shared", "earliest")
    read, write = os.pipe()
    os.close(read)
    command = ("topic", "consume", topic, "--subscription", "s", "-o", output)
    with Metatxn(["--url", dev.broker_url, *command], stdout=write, stderr=subprocess.PIPE) as done:
        os.close(write)
        assert done.communicate(timeout=TIMEOUT_S)[1] == "" and done.returncode == 0
    assert sum(each.backlog for each in client.subscription(topic, "s").segments) == 3
    eventually(lambda: [each["value"] for each in ask(*command[:-2])], [1, 2, 3])
    assert client.subscription(topic, "s").segments[0].backlog == 0


def test_a_backlog_is_printed_part_by_part(
    client: metatxn.Client, cli: Run, ask: Callable[..., Any], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is larger than what a consumer may hold."""
    monkeypatch.setattr(topic_commands, "AT_ONCE", 4)
    client.set_topic_policy(topic, max_unacked_per_consumer=3)
    client.create_subscription(topic, "s", "shared", "earliest")
    ask("topic", "produce", topic, stdin="\n".join(map(str, range(10))))
    values = list(range(10))
    assert [each["value"] for each in ask("topic", "consume", topic)] == values
    lines = cli("topic", "consume", topic, "--subscription", "s", "--limit", "6").stdout.splitlines()
    assert [line.split()[-2] for line in lines] == ["VALUE", *map(str, values[:6])]
    eventually(lambda: [each["value"] for each in ask("topic", "consume", topic, "--subscription", "s")], values[6:])
    assert ask("topic", "consume", topic, "--subscription", "s") == []
    assert cli("topic", "consume", topic, "--subscription", "s").stdout.split()[0] == "PUBLISHED"


def test_messages_that_are_to_be_delivered_later(ask: Callable[..., Any], cli: Run, topic: str) -> None:
    ask("subscription", "create", topic, "s", "--type", "shared", "--initial", "earliest")
    ask("topic", "produce", topic, "1", "--deliver-after", "1h")
    ask("topic", "produce", topic, "2", "--deliver-at", "2026-01-01T00:00:00Z")
    found = ask("topic", "consume", topic)
    assert [message["value"] for message in found] == [1, 2]
    assert found[0]["deliver_at_ms"] - found[0]["publish_ms"] > 3_500_000
    assert [message["value"] for message in ask("topic", "consume", topic, "--subscription", "s")] == [2]
    assert "1 of them to be delivered later" in cli("subscription", "show", topic, "s").stdout
    assert "--deliver-after" in error_line(
        cli("topic", "produce", topic, "3", "--deliver-after", "1h", "--deliver-at", "2026-01-01T00:00:00Z")
    )


def test_the_latest_value_of_each_key(ask: Callable[..., Any], cli: Run, topic: str) -> None:
    for key, values in (("a", ["1", "2"]), ("b", ["1", "null"]), ("c", ["3"])):
        ask("topic", "produce", topic, *values, "--key", key)
    found = ask("topic", "consume", topic, "--compacted")
    assert [(message["key"], message["value"]) for message in found] == [("a", 2), ("c", 3)]
    assert "--compacted" in error_line(cli("topic", "consume", topic, "--compacted", "--subscription", "s"))
    assert "start" in error_line(cli("topic", "consume", topic, "--compacted", "--start", "latest"))


def test_a_topic_and_a_subscription_are_read_from_a_time_on(ask: Callable[..., Any], cli: Run, topic: str) -> None:
    ask("topic", "produce", topic, '"x"')
    assert [message["value"] for message in ask("topic", "consume", topic, "--since", "1h")] == ["x"]
    assert ask("topic", "consume", topic, "--since", "2126-11-22T10:00:00+01:00") == []
    ask("subscription", "create", topic, "s", "--initial", "latest")
    (segment,) = ask("subscription", "seek", topic, "s", "--to", "1h")["segments"]
    assert segment["backlog"] == 1
    assert ask("subscription", "seek", topic, "s", "--to", "latest")["segments"][0]["backlog"] == 0
    place = f"{segment['segment']}=1:0"
    assert ask("subscription", "seek", topic, "s", "--position", place)["segments"][0]["backlog"] == 1
    revision = str(ask("status")["store"]["revision"])
    (told,) = ask("subscription", "seek", topic, "s", "--revision", revision, "--preview")["segments"]
    assert (told["messages"], told["again"], told["skipped"]) == (1, 0, 0)
    assert ask("subscription", "seek", topic, "s", "--revision", revision)["segments"][0]["backlog"] == 1
    assert "future" in error_line(cli("subscription", "seek", topic, "s", "--revision", "99999999"))
    for wrong in (["--to", "noon"], ["--to", "2026-11-22T10:00:00"], [], ["--position", "1:0"], ["--to", "99999999d"]):
        assert "--to" in error_line(cli("subscription", "seek", topic, "s", *wrong)) or "--position" in wrong
    assert "positions" in error_line(cli("subscription", "seek", topic, "s", "--position", "segment://t=1:0"))


def test_the_layout_of_a_topic_by_hand(ask: Callable[..., Any], cli: Run, topic: str) -> None:
    """Split, merge, trim, seal, delete: messages stay readable until they are trimmed, a sealed topic says so."""
    name = f"segment://{topic}"
    ask("topic", "produce", topic, '"x"', "--key", "k")
    children = ask("topic", "split", f"{name}/0000-ffff-0")["children"]
    assert children == [f"{name}/0000-7fff-1", f"{name}/8000-ffff-2"]
    assert ask("topic", "merge", *children)["children"] == [f"{name}/0000-ffff-3"]
    ask("topic", "produce", topic, '"y"', "--key", "k")
    assert [message["value"] for message in ask("topic", "consume", topic)] == ["x", "y"]
    assert cli("topic", "split", f"{name}/0000-ffff-0").stdout.split() == children, "split so already"
    first = ask("topic", "trim", f"{name}/0000-ffff-0", "--before", "1:1")["first_position"]
    assert first == "1:1"
    assert [message["value"] for message in ask("topic", "consume", topic)] == ["y"]
    assert ask("topic", "seal", f"{name}/0000-ffff-3")["children"] == []
    assert "no active segment" in error_line(cli("topic", "produce", topic, '"z"', "--key", "k"))
    assert ask("topic", "delete", topic) == {"deleted": topic}
    assert "does not exist" in error_line(cli("topic", "show", topic))


def test_topics(ask: Callable[..., Any], cli: Run) -> None:
    name = f"cli-{uuid.uuid4().hex[:12]}"
    ask("topic", "create", name, "--segments", "3", "--schema", "id:int64,at:timestamp[us]")
    shown = ask("topic", "show", name)
    assert shown["name"] == f"public/default/{name}" and len(shown["segments"]) == 3
    assert [field["type"] for field in shown["schema"]["fields"]] == ["int64", "timestamp[us]"]
    assert shown["name"] in {found["name"] for found in ask("topic", "list")}
    assert shown["name"] in {found["name"] for found in ask("topic", "list", "--text", shown["name"].upper())}
    assert ask("topic", "list", "--text", "no topic has this") == []
    assert ask("topic", "list", "--text", name, "--count") == {"topics": 1, "more": False}
    assert cli("topic", "list", "--text", "no topic has this", "--count").stdout == "0 topics\n"
    table = cli("topic", "show", name).stdout
    assert "id:int64,at:timestamp[us]" in table and table.count("active") == 3


def test_schemas(ask: Callable[..., Any], cli: Run) -> None:
    name = f"cli-{uuid.uuid4().hex[:12]}"
    ask("topic", "create", name)
    assert ask("schema", "show", name)["version"] == 0
    ask("schema", "set", name, "--schema", "id:int32,price:decimal128(9, 2)")
    changed = cli("schema", "set", name, "--add", "tags:list<string>", "--drop", "price").stdout.splitlines()
    assert changed[-2].startswith("2 ") and changed[-2].endswith("id:int32,tags:list<item: string>")
    assert changed[-1].startswith("1 ") and changed[-1].endswith("id:int32,price:decimal128(9, 2)")
    assert cli("schema", "show", name, "--version", "1").stdout.split() == [
        *("COLUMN", "TYPE", "id", "int32", "price"),
        *("decimal128(9,", "2)"),
    ]
    refused = cli("schema", "check", name, "--add", "price:string")
    assert refused.returncode == 1
    assert "column price is string, which cannot hold every decimal128(9, 2) of version 1" in refused.stdout
    assert ask("schema", "check", name, "--schema", "id:int32")["compatible"] is True
    assert "may not come next" in error_line(cli("schema", "set", name, "--schema", "id:int64"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("set",), "--schema"),
        (("set", "--schema", "id:int64", "--add", "a:int8"), "not both"),
        (("check", "--add", "a"), "--add: 'a' is not a column"),
        (("set", "--drop", "a"), "--drop: {topic} has no column 'a'"),
        (("set", "--add", "a:decimal128(99, 2)"), "precision"),
        (("show", "--version", "3"), "--version: 3 is not remembered. These versions are: none."),
    ],
)
def test_a_schema_that_cannot_be_set_is_refused(
    cli: Run, topic: str, arguments: tuple[str, ...], expected: str
) -> None:
    verb, *options = arguments
    assert expected.format(topic=topic) in error_line(cli("schema", verb, topic, *options))


def test_who_the_caller_is(ask: Callable[..., Any], cli: Run) -> None:
    assert ask("token", "show") == {"admin": True, "topics": {}}
    assert cli("token", "show").stdout == "principal  none: there is no authentication\nadmin      true\n"
    assert ask("token", "list") == []


def test_the_audit_log_of_a_service(ask: Callable[..., Any], cli: Run) -> None:
    name = f"p-{uuid.uuid4().hex[:12]}"
    cli("quota", "set", name, "--requests-per-second", "500")
    (latest,) = ask("audit-log", "--limit", "1")
    assert (latest["verb"], latest["object"], latest["outcome"]) == ("quota.change", {"principal": name}, "allowed")
    lines = cli("audit-log").stdout.splitlines()
    assert lines[0].split() == ["TIME", "PRINCIPAL", "VERB", "OBJECT", "OUTCOME", "ADDRESS"] and name in lines[1]
    assert ask("audit-log", "--text", name.upper(), "--verb", "quota") == [latest]
    assert ask("audit-log", "--text", name, "--outcome", "refused") == []


def test_quotas(ask: Callable[..., Any], cli: Run) -> None:
    name = f"p-{uuid.uuid4().hex[:12]}"
    shown = cli(
        "quota", "set", name, "--requests-per-second", "500", "--bytes-out-per-second", "-1"
    ).stdout.splitlines()
    assert [line.split()[:3] for line in shown] == [
        ["AMOUNT", "VALUE", "FROM"],
        ["requests_per_second", "500", "principal"],
        ["bytes_in_per_second", "-", "none"],
        ["bytes_out_per_second", "-", "principal"],
    ]
    assert name in {each["principal"] for each in ask("quota", "list")}
    assert ask("quota", "show", name)["quota"] == {"requests_per_second": 500, "bytes_out_per_second": -1}
    assert ask("quota", "show", "--default")["effective"]["requests_per_second"] == {"value": -1, "source": "none"}
    assert ask("quota", "set", name, "--unset", "requests_per_second")["quota"] == {"bytes_out_per_second": -1}
    for arguments, expected in (
        (("set", name), "nothing to change"),
        (("set", "--requests-per-second", "5"), "--default"),
        (("set", name, "--unset", "bytes"), "--unset: 'bytes' is not an amount"),
        (("set", name, "--requests-per-second", "0"), "requests_per_second: must be -1 or at least 1"),
    ):
        assert expected in error_line(cli("quota", *arguments))


def test_keys(ask: Callable[..., Any], cli: Run, client: metatxn.Client) -> None:
    key = f"key-{uuid.uuid4().hex[:12]}"
    epoch = client.connect_key(key).epoch
    txn_id = ask("txn", "begin", *PATIENT, "--key", key, "--epoch", str(epoch), "--version", "3")["txn_id"]
    assert ask("key", "get", key)["txn_id"] == txn_id
    assert key in {found["key"] for found in ask("key", "list")}
    assert ask("key", "fence", key) == {"epoch": epoch + 1, "aborted_txn_id": txn_id}
    assert ask("txn", "show", txn_id)["expired_by"] == "fencing"
    (now, before) = ask("key", "history", key)
    assert (now["epoch"], now["begun"], before["epoch"], before["fenced"]) == (epoch + 1, 0, epoch, [txn_id])
    assert f"epoch {epoch}" in error_line(cli("key", "fence", key, "--epoch", str(epoch)))
    assert ask("key", "delete", key) == {"deleted": key}


def test_tables_are_plain_columns(cli: Run, topic: str) -> None:
    cli("topic", "produce", topic, '{"a": 1}', "--key", "k")
    lines = cli("topic", "consume", topic).stdout.splitlines()
    assert lines[0].split() == ["PUBLISHED", "KEY", "VALUE", "TXN_ID"]
    assert lines[1].split()[2:] == ["k", '{"a":', "1}", "-"]
    assert cli("txn", "list", "--limit", "1").stdout.startswith("TXN_ID")


def test_options_before_the_command(dev: DevServer) -> None:
    done = run_here("--url", dev.coordinator_url, "--output", "json", "topic", "list")
    assert isinstance(json.loads(done.stdout), list)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topic", "consume", "missing"], "missing"),
        (["topic", "show", "missing"], "Create it first"),
        (["topic", "show", "my missing"], "metatxn topic create 'public/default/my missing'"),
        (["topic", "produce", "missing", "1"], "missing"),
        (["txn", "show", "zz"], "32 lower-case hexadecimal digits"),
        (["txn", "commit", "f" * 32], "f" * 32),
        (["txn", "list", "--state", "running"], "open, committed or aborted"),
        (["txn", "begin", "--timeout-ms", "0"], "timeout_ms"),
        (["txn", "begin", "--property", "x"], "NAME=VALUE"),
        (["topic", "create", "x", "--schema", "id"], "NAME:TYPE"),
        (["topic", "create", "x", "--schema", "id:nonsense"], "nonsense"),
        (["topic", "produce", "missing", "not json"], "--text"),
        (["topic", "consume", "missing", "--isolation", "none"], "read_committed"),
        (["topic", "consume", "missing", "--since", "noon"], "2026-11-22T10:00:00Z"),
        (["topic", "consume", "missing", "--since", "1h", "--start", "latest"], "--since"),
        (["key", "get", "missing"], "missing"),
        (["txn", "list", "--no-such-option"], "--help"),
        (["no-such-command"], "--help"),
    ],
)
def test_wrong_input_is_one_line(cli: Run, arguments: list[str], says: str) -> None:
    assert says in error_line(cli(*arguments))


def test_wrong_port_is_known_at_once() -> None:
    assert "http://127.0.0.1:9" in error_line(run_here("txn", "list", "--url", "http://127.0.0.1:9"))
    assert "http://" in error_line(run_here("txn", "list", METATXN_URL="localhost:8470"))


def test_another_server_on_the_port() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            line = error_line(run_here("topic", "list", "--url", f"http://127.0.0.1:{server.server_port}"))
        finally:
            server.shutdown()
    assert "not from a metatxn service" in line


@pytest.mark.parametrize("group", [[], ["dev"], ["coordinator"], ["broker"], ["txn"], ["topic"], ["topic", "produce"]])
def test_help_has_an_example(group: list[str]) -> None:
    done = run_here(*group, "--help")
    assert done.returncode == 0
    assert "metatxn " in done.stdout and ("Example" in done.stdout or "Try it" in done.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_cleanly_and_data_stays(tmp_path: Path, number: signal.Signals) -> None:
    server = DevServer(tmp_path / "data")
    server.start()
    with metatxn.connect(server.coordinator_url) as client:
        client.create_topic("kept")
        with client.transaction() as txn:
            client.producer("kept").send("x", txn=txn)
    assert server.stop(number) == 0
    assert (tmp_path / "data" / "metadata.db").exists()
    with server, metatxn.connect(server.broker_url) as client:
        eventually(lambda: [message.value for message in client.reader("kept")], ["x"])


def test_killed_server_starts_again(tmp_path: Path) -> None:
    """Scenario 73: what was open stays invisible until it is decided, also across a kill."""
    server = DevServer(tmp_path / "data")
    server.start()
    with metatxn.connect(server.coordinator_url) as client:
        client.create_topic("kept")
        txn_id = client.begin().id
        with client.producer("kept") as producer:
            producer.send("inside", txn=client.attach(txn_id))
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with server, metatxn.connect(server.broker_url) as client:
        assert list(client.reader("kept")) == []
        client.attach(txn_id).commit()
        eventually(lambda: [message.value for message in client.reader("kept")], ["inside"])


def test_data_directory_in_use(tmp_path: Path) -> None:
    with DevServer(tmp_path / "data"):
        line = error_line(run("dev", "--data-dir", str(tmp_path / "data"), "--port", "0"))
        assert f"the data directory {tmp_path / 'data'} is in use" in line and line.endswith("another --data-dir.\n")
        assert "Error" not in line and "InUse" not in line and "sqlite" not in line
        line = error_line(
            run_here("coordinator", "--store", f"sqlite:///{tmp_path / 'data' / 'metadata.db'}", "--port", "0")
        )
        assert "stop that process" in line and "InUse" not in line
        broker = ("broker", "--store", "memory://", "--data-dir", str(tmp_path / "data" / "broker"), "--port", "0")
        line = error_line(run_here(*broker))
        assert "StorageLocked" not in line and line.endswith("another --data-dir.\n")


@pytest.mark.parametrize("option", ["--port", "--broker-port"])
def test_port_in_use(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        other = "--broker-port" if option == "--port" else "--port"
        line = error_line(run_here("dev", "--data-dir", str(tmp_path), option, port, other, "0"))
    assert f"port {port} is in use" in line and option in line


@pytest.mark.parametrize("url", ["nonsense", "redis://localhost", "sqlite:///", "etcd://127.0.0.1:9"])
def test_wrong_store(tmp_path: Path, url: str) -> None:
    for command in (["dev", "--port", "0", "--data-dir", str(tmp_path)], ["coordinator", "--port", "0"]):
        line = error_line(run_here(*command, "--store", url))
        assert url.partition(":")[0] in line and re.search(r"[.)?] (Give|Check) [^.]+\.$", line)
        assert not re.search(r"Store[A-Z]\w+:|\w+Error:", line), "a class name is nothing to a user"


def test_store_is_needed(tmp_path: Path) -> None:
    assert "METATXN_STORE" in error_line(run_here("coordinator"))
    broker = partial(run_here, "broker", "--store", "memory://")
    assert "--data-dir or --storage" in error_line(broker())
    both = ("--data-dir", str(tmp_path / "data"), "--storage", "memory:///")
    assert "--data-dir or --storage" in error_line(broker(*both))
    provider = ["--data-dir", str(tmp_path / "broker"), "--transaction-buffer"]
    assert "TENANT/NAMESPACE" in error_line(broker(*provider, "public=memory"))
    assert "there are: memory" in error_line(broker(*provider, "a/b=spilling"))
    assert "not the URL of an object store" in error_line(broker("--storage", "nowhere"))
    (tmp_path / "file").write_text("")
    assert "--data-dir" in error_line(run_here("dev", "--data-dir", str(tmp_path / "file")))


@pytest.mark.parametrize("state", ["open", "OPEN", "Open"])
def test_states_in_either_case(cli: Run, state: str) -> None:
    assert cli("txn", "list", "--state", state, "--limit", "1").returncode == 0


def test_a_key_needs_its_epoch(ask: Callable[..., Any], cli: Run) -> None:
    """Else the one who typed it would fence the job that works under the key; taking over has a verb of its own."""
    key = f"key {uuid.uuid4().hex[:12]}"
    assert ask("key", "connect", key)["epoch"] == 0
    running = ask("txn", "begin", *PATIENT, "--key", key, "--epoch", "0")["txn_id"]
    refused = error_line(cli("txn", "begin", "--key", key))
    assert "--epoch" in refused and f"metatxn key connect '{key}'" in refused
    assert ask("txn", "show", running)["state"] == "OPEN"
    taken = ask("key", "connect", key, "--session", "operator")
    assert taken == ask("key", "connect", key, "--session", "operator") | {"aborted_txn_id": running}
    assert taken["epoch"] == 1
    assert "epoch 0" in error_line(cli("key", "connect", key, "--epoch", "0"))


def test_help_without_arguments() -> None:
    assert "Usage" in run_here().stdout + run_here().stderr
    assert run("--version").stdout == f"metatxn {version('metatxn')}\n"


def test_the_help_loads_no_command_and_says_of_each_what_that_says_itself() -> None:
    code = "import sys; from metatxn.cli.main import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "metatxn.cli.main" in loaded and not {"metatxn.wire.broker", "pyarrow", "aiohttp"} & loaded
    assert not [each for each in COMMANDS if f"metatxn.cli.{each}" in loaded]
    loaded_ones: Any = typer.main.get_command(app)
    for name, command in loaded_ones.commands.items():
        said = TyperCommand(name, help=COMMANDS[name].about)
        assert command.get_short_help_str(1_000) == said.get_short_help_str(1_000)


INTERRUPTED_WHILE_LOADING = """
import os, signal, sys, types, weakref
from metatxn.__main__ import run_metatxn

class Lock:
    pass

def interrupted(name):
    lock = Lock()
    gone = weakref.ref(lock, lambda _: os.kill(os.getpid(), signal.SIGINT))  # as in the middle of an import
    del lock
    return lambda: print("not interrupted")

sys.modules["metatxn.cli.main"] = loading = types.ModuleType("metatxn.cli.main")
loading.__getattr__ = interrupted
run_metatxn()
"""


def test_an_interrupt_while_the_command_is_loading_is_quiet_and_not_lost() -> None:
    """Python drops what is raised where it lets go of an import's lock."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_WHILE_LOADING], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_policies_are_shown_with_where_each_value_comes_from(ask: Callable[..., Any], cli: Run) -> None:
    namespace = f"shop/{uuid.uuid4().hex[:12]}"
    topic = f"{namespace}/orders"
    ask("topic", "create", topic)
    ask("policy", "set", namespace, "--retention-ms", "5s", "--retention", "hard")
    assert ask("topic", "set", topic, "--retention-ms", "-1", "--roll-ms", "1000")["policy"] == {
        "retention_ms": -1,
        "roll_ms": 1000,
    }
    shown = ask("topic", "show", topic)
    assert (shown["name"], shown["effective"]["retention"]) == (topic, {"value": "hard", "source": "namespace"})
    assert ask("policy", "show", namespace)["policy"] == {"retention_ms": 5000, "retention": "hard"}
    assert ask("policy", "show", "--cluster")["policy"] == {}
    changed = cli("topic", "set", topic, "--unset", "retention_ms", "--ttl-ms", "1209600000", "--roll-ms", "5400000")
    lines = [line.split() for line in changed.stdout.splitlines()]
    assert lines[1:3] == [["retention_ms", "5s", "namespace"], ["retention_bytes", "-", "default"]]
    assert {line[0]: line[1] for line in lines} | {
        "ttl_ms": "14d",
        "roll_ms": "90m",
        "delete_retention_ms": "1d",
        "max_unacked_per_consumer": "50000",
    } == {line[0]: line[1] for line in lines}


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0ms"), (1, "1ms"), (1_500, "1500ms"), (90_000, "90s"), (604_800_000, "7d"), (3_600_000, "1h")]
)
def test_a_duration_is_shown_as_it_can_be_given(ms: int, text: str) -> None:
    assert duration_option(ms) == text and milliseconds_of("--it", text) == ms


@pytest.mark.parametrize(
    ("option", "text", "ms"),
    [
        ("retention", "7d", 604_800_000),
        ("retention", "500ms", 500),
        ("delete-retention", "0", 0),
        ("ttl", "2h", 7_200_000),
        ("backlog", "10m", 600_000),
        ("backlog", "-1", -1),
        ("roll", "10s", 10_000),
    ],
)
def test_times_of_policies_are_durations(cli: Run, option: str, text: str, ms: int) -> None:
    """Nothing is changed: what would be is enough."""
    said = cli("policy", "set", "--cluster", f"--{option}-ms", text, "--dry-run").stdout
    shown = said.partition(" to ")[2].removesuffix(".\n").partition(";")[0]
    assert f"{option.replace('-', '_')}_ms from" in said
    assert (-1 if shown == "no bound" else milliseconds_of("--it", shown)) == ms


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("topic", "set", "orders"), "nothing to change"),
        (("topic", "set", "orders", "--unset", "retention_hours"), "--unset: 'retention_hours'"),
        (("topic", "set", "orders", "--unset", "roll_ms", "--roll-ms", "1000"), "--unset: roll_ms"),
        (("policy", "set", "shop/prod", "--cluster", "--roll-ms", "1000"), "--cluster"),
        (("topic", "set", "orders", "--roll-ms", "-1"), "Invalid value for '--roll-ms': -1 is too short"),
        (("topic", "set", "orders", "--backlog-ms", "5x"), "'5x' is not a time. Give a duration such as 500ms"),
        (("policy", "show"), "--cluster"),
        (("policy", "show", "shop"), "namespace: "),
        (("policy", "show", "shop/prod/orders"), "namespace: "),
    ],
)
def test_a_policy_that_cannot_be_set_is_refused(cli: Run, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in error_line(cli(*arguments))
