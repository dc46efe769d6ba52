"""Goal: an operator finds out from the command line what holds a topic back, and what has become of a transaction.

Method: the real commands against a development server; what is hard to make there, from records that are made up.
"""

from __future__ import annotations

import errno
import io
import json
import queue
import shlex
import subprocess
import uuid
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

import metatxn
from metatxn.cli import blockers, following, topic_sizes, txn
from metatxn.cli.following import FollowingNote
from metatxn.cli.main import run
from metatxn.cli.options import CliError
from metatxn.cli.times import delivery_time, milliseconds_of
from metatxn.cli.txn import full_id, oldest_first
from metatxn.timeline import timeline
from metatxn.wire.broker import OpenTransaction, SegmentDetail, WorkOnSegment
from metatxn.wire.coordinator import HangingTransaction, Operation, StoredRecord, TransactionHeader
from metatxn.words import short_id, size_text
from tests.metatxn.command_line import Done, error_line
from tests.metatxn.dev_server import COMMAND
from tests.metatxn.waiting import eventually

_AGES = ((), ("--older-than", "0s"), ("--older-than", "1h"))
SEGMENT = "segment://public/default/t/0000-ffff-0"


@pytest.fixture
def held_back(ask: Callable[..., Any]) -> tuple[str, str, str]:
    """A topic, its segment, and a transaction that holds it back."""
    topic = ask("topic", "create", f"held-{uuid.uuid4().hex[:12]}")
    txn_id = ask("txn", "begin", "--timeout-ms", "600000", "--owner", "billing")["txn_id"]
    ask("topic", "produce", topic["name"], "1")
    ask("topic", "produce", topic["name"], "2", "--txn", short_id(txn_id))
    ask("topic", "produce", topic["name"], "3")
    return topic["name"], topic["segments"][0]["segment"], txn_id


def test_who_holds_readers_back_is_named_where_somebody_looks(
    cli: Callable[..., Done], ask: Callable[..., Any], held_back: tuple[str, str, str]
) -> None:
    """In the topic, in its segment, and to somebody who reads and gets less than there is."""
    topic, segment, txn_id = held_back
    shown = ask("topic", "show", topic)
    (found,) = shown["blockers"]
    assert (found["txn_id"], found["segment"], found["owner"]) == (txn_id, segment, "billing")
    assert (shown["segments"][0]["entries"], shown["segments"][0]["pinned_by"]) == (3, txn_id)
    assert found["after"] == shown["segments"][0]["max_read_position"] == shown["segments"][0]["first_position"]
    assert ask("segment", "show", segment)["blockers"][0]["txn_id"] == txn_id
    for command in (("topic", "show", topic), ("segment", "show", segment)):
        printed = cli(*command).stdout
        assert [line for line in printed.splitlines() if line.startswith(f"{short_id(txn_id)} ")], printed

    done = cli("topic", "consume", topic)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2
    assert f"holds back what follows: {short_id(txn_id)} (open for " in done.stderr and "owner billing" in done.stderr
    assert cli("topic", "consume", topic, "--limit", "1").stderr == "", "there was enough"
    assert cli("topic", "consume", topic, "--isolation", "read_uncommitted").stderr == ""
    ask("txn", "abort", txn_id)
    eventually(lambda: len(ask("topic", "consume", topic)), 2)
    assert cli("topic", "consume", topic).stderr == ""
    assert ask("topic", "show", topic)["blockers"] == []


def test_the_list_of_topics_has_sizes_and_says_where_readers_are_held_back(
    cli: Callable[..., Done], ask: Callable[..., Any], held_back: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, segment, txn_id = held_back
    (found,) = ask("topic", "list", "--sizes", "--text", topic)
    size = ask("topic", "show", topic)["segments"][0]["size_bytes"]
    assert (found["name"], found["segments"], found["entries"], found["size_bytes"]) == (topic, 1, 3, size)
    assert (found["held_back"], found["waiting_entries"], found["not_known"]) == (1, 2, 0)
    heads, row = cli("topic", "list", "--sizes", "--text", topic).stdout.splitlines()
    assert heads.split() == ["TOPIC", "SEGMENTS", "ENTRIES", "SIZE", "IN", "OUT", "HELD_BACK", "NOT_KNOWN"]
    assert row.split()[:3] == [topic, "1", "3"] and row.split()[-2:] == ["1", "-"]
    ask("txn", "abort", txn_id)
    eventually(lambda: ask("topic", "list", "--sizes", "--text", topic)[0]["held_back"], 0)
    ask("topic", "split", segment)
    asked: list[str] = []

    def unknown(client: metatxn.Client, segment: str, max_open: int | None = None) -> None:
        asked.append(segment)

    monkeypatch.setattr(topic_sizes, "detail_of", unknown)
    (found,) = ask("topic", "list", "--sizes", "--text", topic)
    assert (found["segments"], found["entries"], found["not_known"], found["rates"]) == (2, None, 2, None)
    assert len(asked) == 2 and segment not in asked, "a sealed segment is not asked"
    ask("topic", "create", f"{topic}-2")
    assert "there are more than these 1" in cli("topic", "list", "--sizes", "--limit", "1").stderr


def test_a_subscription_that_has_nothing_to_deliver_says_why(
    cli: Callable[..., Done], ask: Callable[..., Any], held_back: tuple[str, str, str]
) -> None:
    topic, _, txn_id = held_back
    ask("subscription", "create", topic, "s", "--initial", "latest")
    assert f"holds back what follows: {short_id(txn_id)}" in cli("subscription", "show", topic, "s").stderr
    assert cli("subscription", "show", topic, "s", "-o", "json").stderr == ""
    ask("txn", "commit", txn_id)
    eventually(lambda: cli("subscription", "show", topic, "s").stderr, "")


@pytest.mark.parametrize("subscription", [None, "s"])
def test_a_person_who_follows_is_told_what_holds_readers_back(
    client: metatxn.Client,
    held_back: tuple[str, str, str],
    subscription: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for each transaction, and with a subscription without the isolation that it ignores."""
    topic, _, txn_id = held_back
    notes: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(following, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(following, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(following, "print_note", notes.put)
    with FollowingNote(client, topic, subscription) as watching:
        messages = watching.over(client.reader(topic, follow=True))
        assert next(messages).value == 1
        said = notes.get(timeout=60)
        assert f"{short_id(txn_id)} (open for " in said and "owner billing" in said
        assert ("read_uncommitted" in said) is (subscription is None)
        client.attach(txn_id).commit()
        assert [next(messages).value for _ in range(2)] == [2, 3]
        another = client.begin(timeout_ms=600_000)
        with client.producer(topic) as producer:
            producer.send(4, txn=another).result()
        assert f"{short_id(another.id)} (open for " in notes.get(timeout=60)
        another.abort()
    assert notes.empty()


def test_the_story_of_a_transaction(
    cli: Callable[..., Done], ask: Callable[..., Any], held_back: tuple[str, str, str]
) -> None:
    """Under its short id: what it has done where, that it is prepared, and how it ended."""
    topic, segment, txn_id = held_back
    short = short_id(txn_id)
    kept = ask("txn", "keep-alive", short, "--timeout", "2h")
    assert kept["deadline_ms"] - kept["created_ms"] >= 7_200_000
    events = {each["event"]: each for each in ask("txn", "show", short)["timeline"]}
    assert events["kept alive"]["at_ms"] >= kept["created_ms"]
    ask("subscription", "create", topic, "s")
    ask("topic", "consume", topic, "--subscription", "s", "--txn", short)
    prepared = ask("txn", "prepare", short, "--timeout", "3h")
    assert prepared["prepared"] and prepared["deadline_ms"] - prepared["created_ms"] >= 3 * 3_600_000
    shown = ask("txn", "show", short)
    assert [(each["event"], each.get("segment")) for each in shown["timeline"]] == [
        ("begun", None),
        ("writes", segment),
        ("acknowledges", segment),
        ("kept alive", None),
        ("prepared", None),
        ("expires", None),
    ]
    assert "1 message in 1 entry, " in shown["timeline"][1]["what"]
    assert shown["timeline"][1]["at_ms"] <= shown["timeline"][4]["at_ms"], "the broker and the record tell when"
    assert ask("txn", "commit", short)["state"] == "COMMITTED"
    eventually(lambda: [each["event"] for each in ask("txn", "show", short)["timeline"]][-1], "materialized")
    ended = ask("txn", "show", short)
    told = [(each["event"], each.get("segment")) for each in ended["timeline"]]
    assert told[:5] == [
        ("begun", None),
        ("wrote", segment),
        ("acknowledged", segment),
        ("kept alive", None),
        ("committed", None),
    ]
    assert sorted(told[5:7]) == [("consumed", segment), ("visible", segment)] and told[7:] == [("materialized", None)]
    events = {each["event"]: each for each in ended["timeline"]}
    assert events["wrote"]["at_ms"] <= events["committed"]["at_ms"] == ended["finalized_ms"]
    assert min(events[name]["at_ms"] for name in ("visible", "consumed")) >= ended["finalized_ms"]
    assert "after the decision on subscription s" in events["consumed"]["what"]
    assert "materialized" in cli("txn", "show", short).stdout


def test_the_records_of_a_transaction_as_they_stand_in_the_store(
    cli: Callable[..., Done], ask: Callable[..., Any], held_back: tuple[str, str, str]
) -> None:
    """With what shows them in the tool of the store, which finds the same."""
    _, segment, txn_id = held_back
    ask("txn", "keep-alive", txn_id)
    shown = ask("txn", "show", txn_id, "--records")
    header, lease, operation = shown["records"]
    assert (header["key"], header["version"]) == (f"/txn/{txn_id}", shown["revision"])
    assert header["value"]["state"] == "OPEN" and lease["value"]["deadline_ms"] == shown["deadline_ms"]
    assert operation["value"]["segment"] == segment
    assert (
        header["command"] == f"sqlite3 -readonly metadata.db \"SELECT value FROM records WHERE key = '/txn/{txn_id}'\""
    )
    assert f"/txn-lease/{txn_id}" in cli("txn", "show", txn_id, "--records").stdout


def test_how_far_a_subscription_is_behind(
    cli: Callable[..., Done], ask: Callable[..., Any], client: metatxn.Client, new_topic: Callable[..., str]
) -> None:
    """In messages, bytes and time, of what readers can see: what was aborted before does not count."""
    topic = new_topic()
    ask("subscription", "create", topic, "s")
    assert "0 messages, 0 B" in cli("subscription", "show", topic, "s").stdout
    with client.producer(topic, max_entry_messages=1) as producer:
        txn = client.begin()
        producer.send("hidden", txn=txn).result()
        txn.abort()
        for number in range(2):
            producer.send(number).result()
    eventually(lambda: len(ask("topic", "consume", topic)), 2)
    published = [each["publish_ms"] for each in ask("topic", "consume", topic)]

    def behind() -> tuple[Any, ...]:
        (segment,) = ask("subscription", "show", topic, "s")["segments"]
        return segment["backlog"], segment["backlog_bytes"] > 0, segment.get("oldest_ms")

    assert behind() == (2, True, published[0])
    consumer = client.consumer(topic, "s", name="worker")
    assert len(consumer.receive_many(2, 0)) == 2
    printed = cli("subscription", "show", topic, "s").stdout
    assert "worker (2 held)" in printed and "2 messages, " in printed and "the oldest published " in printed
    consumer.close()
    ask("topic", "consume", topic, "--subscription", "s", "--limit", "1")
    assert behind() == (1, True, published[1])
    ask("topic", "consume", topic, "--subscription", "s")
    assert behind() == (0, False, None)


def test_a_transaction_that_is_prepared_outlives_its_client(
    client: metatxn.Client, new_topic: Callable[..., str]
) -> None:
    """Closing a client aborts what it has left open, but not what somebody is to decide."""
    topic = new_topic()
    with metatxn.connect(repr(client).split("'")[1]) as other:
        txn = other.begin()
        with other.producer(topic) as producer:
            producer.send(1, txn=txn).result()
        assert txn.prepare(60_000).prepared
    assert client.attach(txn.id).header.state == "OPEN"
    assert client.attach(txn.id).commit().state == "COMMITTED"


def test_a_list_says_that_there_is_more(cli: Callable[..., Done], ask: Callable[..., Any]) -> None:
    for _ in range(2):
        ask("txn", "begin")
    done = cli("txn", "list", "--limit", "1")
    assert len(done.stdout.splitlines()) == 2 and "--limit shows more" in done.stderr
    assert cli("txn", "list", "--limit", "1000").stderr == ""


def test_the_newest_transactions_are_listed_first(ask: Callable[..., Any]) -> None:
    owner = uuid.uuid4().hex
    begun = [ask("txn", "begin", "--owner", owner, "--timeout-ms", "600000")["txn_id"] for _ in range(3)]
    ask("txn", "commit", begun[2])
    listed = [each["txn_id"] for each in ask("txn", "list", "--owner", owner)]
    assert listed == begun[::-1], "whether they are open or not"
    assert [each["txn_id"] for each in ask("txn", "list", "--owner", owner, "--younger-than", "1h")] == listed
    assert ask("txn", "list", "--owner", owner, "--younger-than", "0s") == []


def test_the_age_of_listed_transactions_is_a_duration(cli: Callable[..., Done], ask: Callable[..., Any]) -> None:
    txn_id = ask("txn", "begin")["txn_id"]
    listed = [{each["txn_id"] for each in ask("txn", "list", "--limit", "1000", *age)} for age in _AGES]
    assert [txn_id in found for found in listed] == [True, True, False]
    assert "--older-than" in error_line(cli("txn", "list", "--older-than", "1s", "--older-than-ms", "1000"))


def test_a_reader_that_wants_no_more_is_no_failure() -> None:
    """`metatxn … | head` ends with 0 and says nothing."""

    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "nobody reads")

    errors = io.StringIO()
    with redirect_stdout(Closed()), redirect_stderr(errors):
        assert run(["token", "create", "--name", "billing"]) == 0
    assert errors.getvalue() == ""


def test_an_output_that_cannot_be_written_is_one_line() -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    errors = io.StringIO()
    with redirect_stdout(Full()), redirect_stderr(errors):
        assert run(["token", "create", "--name", "billing", "-o", "json"]) == 1
    assert "No space left on device. Free some space" in json.loads(errors.getvalue())["error"]


def test_streams_that_the_caller_has_closed_are_no_failure() -> None:
    """The connection to the service must not get their numbers: libuv would abort the process."""
    command = shlex.join([*COMMAND, "topic", "list", "--url", "http://127.0.0.1:1"])
    assert subprocess.run(["bash", "-c", f"{command} >&- 2>&- <&-"]).returncode == 1
    command = shlex.join([*COMMAND, "token", "create", "--name", "ada"])
    done = subprocess.run(["bash", "-c", f"{command} >&- <&-"], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


def test_hanging_transactions_of_several_pages_are_in_the_order_in_which_they_began() -> None:
    """The second page was read 50 ms after the first one, so its transactions were older by that."""
    pages = [
        HangingTransaction(txn_id=f"{n:032x}", state="OPEN", created_ms=n, age_ms=100 - n + 50 * (n > 2), touched=[])
        for n in (1, 2, 3, 4)
    ]
    assert oldest_first(pages[::-1]) == pages


def test_authorities_may_be_named_after_the_command(cli: Callable[..., Done]) -> None:
    """As the URL and the token: a file that is missing is named."""
    assert "nowhere.pem" in error_line(cli("topic", "list", "--url", "https://127.0.0.1:1", "--ca", "nowhere.pem"))


def test_wrong_ids_and_durations_are_refused(cli: Callable[..., Done]) -> None:
    for wrong in ("xyz", "2A", "0" * 33, ""):
        assert "up to 32 lower-case hexadecimal digits" in error_line(cli("txn", "show", wrong))
    for wrong in ("10", "1w", "-1s", "1.5h"):
        assert "--timeout" in error_line(cli("txn", "keep-alive", "1", f"--timeout={wrong}"))


def test_short_ids_and_durations() -> None:
    assert full_id("2a") == "0" * 30 + "2a" and short_id(full_id("2a")) == "2a"
    assert short_id("0" * 32) == "0"
    with pytest.raises(CliError):
        full_id("1" * 33)
    said = {text: milliseconds_of("--x", text) for text in ("5ms", "90s", "10m", "1h", "2d")}
    assert said == {"5ms": 5, "90s": 90_000, "10m": 600_000, "1h": 3_600_000, "2d": 172_800_000}


def test_delivery_times() -> None:
    noon = datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert delivery_time(None, None) is None
    assert delivery_time("2026-11-22T12:00:00Z", None) == noon
    assert delivery_time(None, "90s", noon.timestamp) == noon + timedelta(seconds=90)
    for wrong, said in (
        (("2026-11-22T12:00:00Z", "90s"), "--deliver-after: --deliver-at gives a time, too"),
        (("90s", None), "--deliver-after 90s"),
        (("soon", None), "--deliver-at"),
        ((None, "soon"), "--deliver-after"),
    ):
        with pytest.raises(CliError, match=said):
            delivery_time(*wrong)


@pytest.mark.parametrize(
    ("size", "said"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_500_000, "1.4 MiB"), (1 << 62, "4096.0 PiB")]
)
def test_sizes_as_people_say_them(size: int, said: str) -> None:
    assert size_text(size) == said


def segment_with(*open_: OpenTransaction) -> SegmentDetail:
    return SegmentDetail(
        segment=SEGMENT,
        topic="public/default/t",
        state="active",
        owner="http://b",
        generation=1,
        first_position="1:0",
        last_position="1:9",
        max_read_position="1:0",
        open_transactions=list(open_),
        aborted_count=0,
        entries=10,
        size_bytes=100,
    )


class Transactions:
    """A client that may see one transaction."""

    def __init__(self, **headers: TransactionHeader) -> None:
        self._headers = headers

    def attach(self, txn_id: str) -> Transactions:
        self._wanted = txn_id
        return self

    @property
    def header(self) -> TransactionHeader:
        if self._wanted not in self._headers:
            raise metatxn.NotAllowed("it belongs to somebody else")
        return self._headers[self._wanted]


def test_a_transaction_that_one_may_not_see_is_named_by_its_id() -> None:
    """The one that has been open for longest is first, by its begin if that may be seen."""
    mine = TransactionHeader(txn_id="a", state="OPEN", created_ms=1_000, transaction_key="k")
    client = cast(metatxn.Client, Transactions(a=mine))
    detail = segment_with(
        OpenTransaction(txn_id="b", max_read_position="1:4", since_ms=2_000),
        OpenTransaction(txn_id="a", max_read_position="1:0", since_ms=9_000),
    )
    found = blockers.blockers(client, [detail, None], clock=lambda: 61.0)
    assert [(each.txn_id, each.age_ms, each.key) for each in found] == [("a", 60_000, "k"), ("b", 59_000, None)]
    said = blockers.note("t", found)
    assert said is not None and "a (open for 1m, key k), and 1 more" in said
    assert blockers.note("t", []) is None


def test_what_is_left_after_a_decision_is_named_by_segment() -> None:
    header = TransactionHeader(txn_id="a", state="ABORTED", created_ms=1, finalized_ms=2, expired_by="timeout")
    left = [Operation(key="/x", kind="write", segment=SEGMENT, after="1:0")] * 2
    found = timeline(header, left, more=True)
    assert [(each.event, each.segment, each.at_ms) for each in found] == [
        ("begun", None, 1),
        ("aborted", None, 2),
        ("not cleaned up", SEGMENT, None),
        ("not cleaned up", None, None),
    ]
    assert found[1].what == "by timeout"
    taken_over = header.model_copy(update={"expired_by": "fencing", "reason": "epoch 1 took over"})
    assert timeline(taken_over, [])[1].what == "by fencing: epoch 1 took over"
    by_ada = header.model_copy(update={"expired_by": None, "ended_by": "ada"})
    assert timeline(by_ada, [])[1].what == "by ada"


@pytest.mark.parametrize(("state", "event"), [("COMMITTED", "consumed"), ("ABORTED", "redelivered")])
def test_what_was_only_acknowledged_has_its_effect(state: Any, event: str) -> None:
    header = TransactionHeader(txn_id="a", state=state, created_ms=1, finalized_ms=10)
    effects = {"slow": 30, "quick": 12}
    acks = {"slow": 1, "quick": 2, "away": 3}
    work = WorkOnSegment(segment=SEGMENT, entries=0, messages=0, size_bytes=0, acks=acks, acks_effective_ms=effects)
    told = [(each.event, each.at_ms, each.what) for each in timeline(header, [], work=[work])][-3:-1]
    assert told == [
        (event, 12, "2 ms after the decision on subscription quick"),
        (event, 30, "20 ms after the decision on subscription slow"),
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"deadline_ms": 9, "renewed_ms": 5, "renewals": 12}, (5, "12 times; this was the last")),
        ({"deadline_ms": 9, "renewed_ms": 5, "renewals": 1}, (5, None)),
        ({"deadline_ms": 9}, (None, None)),
        ("damaged", (None, None)),
    ],
)
def test_keep_alives_are_counted(value: Any, shown: tuple[int | None, str | None]) -> None:
    """A release before has not counted them, and anybody can have written anything into the store."""
    header = TransactionHeader(txn_id="a", state="OPEN", created_ms=1, deadline_ms=9)
    (event,) = timeline(header, [], records=[StoredRecord(key="/txn-lease/a", value=value, version=1, command="")])[
        1:-1
    ]
    assert (event.event, event.at_ms, event.what) == ("kept alive", *shown)


def test_keep_alives_are_told_after_the_decision() -> None:
    header = TransactionHeader(txn_id="a", state="COMMITTED", created_ms=1, finalized_ms=9, renewals=3, renewed_ms=5)
    events = [(event.event, event.at_ms) for event in timeline(header, [])]
    assert events[:3] == [("begun", 1), ("kept alive", 5), ("committed", 9)]


def test_the_page_shows_what_is_printed() -> None:
    """docs/brokers.md: the columns, the note and the events are those of the commands."""
    page = (Path(__file__).parents[2] / "docs" / "brokers.md").read_text()
    lines = [line.split() for line in page.splitlines()]
    assert [*blockers.BLOCKER_COLUMNS] in lines and [*txn.TIMELINE_COLUMNS] in lines
    found = blockers.Blocker("1".zfill(32), SEGMENT, "1:0", 8_000, "billing", None)
    assert f"note: {blockers.note('payments', [found])}\n" in page
    header = TransactionHeader(txn_id="1", state="OPEN", created_ms=1, deadline_ms=9, owner="billing")
    write = Operation(key="/x", kind="write", segment=SEGMENT, after="1:0")
    ack = Operation(key="/x", kind="ack", segment=SEGMENT, subscription="s", position="1:0")
    for event in timeline(header, [write, ack]):
        assert any(event.event in line and " ".join(line).endswith(event.what or "?") for line in lines), event


def test_a_transaction_with_very_many_operations_says_so() -> None:
    header = TransactionHeader(txn_id="a", state="OPEN", created_ms=1, deadline_ms=9)
    acks = [Operation(key="/x", kind="ack", segment=SEGMENT, subscription="s", position="1:0")] * 3
    found = timeline(header, acks, more=True)
    assert [(each.event, each.what) for each in found][1:3] == [
        ("acknowledges", "3 on subscription s"),
        ("more", "only 1,000 operations are shown here; see --operations"),
    ]
