"""Goal: `metatxn status` says what runs, and names everything that is wrong, with what to do.

Method: the real command against a development server; what is hard to break there, with services that are made up.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

import metatxn
from metatxn.cli import members, status
from metatxn.health import hanging_problem
from metatxn.wire.broker import SegmentInfo, TopicInfo
from metatxn.wire.coordinator import HangingTransaction, TouchedSegment
from metatxn.wire.models import (
    STORE,
    BrokerProcess,
    Cluster,
    DiskSpace,
    KnownServices,
    OpenTransactions,
    Process,
    ServiceStatus,
    StoreStatus,
    ThroughputAnswer,
    ThroughputSample,
)
from metatxn.words import duration
from tests.metatxn.command_line import error_line, run_here
from tests.metatxn.dev_server import DevServer

COORDINATOR = Process(id="c", url="http://c")
BROKER, OTHER, GONE = (BrokerProcess(id=name, url=f"http://{name}") for name in ("b", "other", "gone"))


def test_a_healthy_cluster(dev: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests leave transactions open on this server, however long that takes them."""
    monkeypatch.setattr(status, "HANGING_MS", 2**40)
    done = run_here("status", METATXN_URL=dev.coordinator_url)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["cluster", "healthy"] in lines and done.returncode == 0, done.stdout + done.stderr
    assert [line[:3] for line in lines if line[:1] in (["coordinator"], ["broker"])] == [
        ["coordinator", dev.coordinator_url, "yes"],
        ["broker", dev.broker_url, "yes"],
    ]


def test_the_last_quarter_of_an_hour_is_shown_minute_by_minute(dev: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three samples in the last minute, and one in the last but two."""
    now_ms = 1_767_225_600_000

    def throughput(client: metatxn.Client, url: str) -> ThroughputAnswer:
        broker = ("messages_in", "messages_out", "bytes_in", "bytes_out")
        counted = broker if url == dev.broker_url else ("transactions_committed",)
        samples = [(150_000, 600), (20_000, 10), (10_000, 20), (0, 30)]
        told = [ThroughputSample(at_ms=now_ms - ago, **dict.fromkeys(counted, number)) for ago, number in samples]
        return ThroughputAnswer(interval_ms=10_000, samples=told)

    monkeypatch.setattr(metatxn.Client, "throughput", throughput)
    monkeypatch.setattr(status, "time", SimpleNamespace(time_ns=lambda: now_ms * 1_000_000))
    history = json.loads(run_here("status", "--history", "-o", "json", METATXN_URL=dev.broker_url).stdout)["history"]
    assert [each["at_ms"] for each in history] == [now_ms - minute * 60_000 for minute in range(15, 0, -1)]
    assert [each["messages_in"] for each in history[-4:]] == [None, 60, None, 2]
    assert history[-1]["transactions_committed"] == 2 and history[-1]["transactions_aborted"] is None
    lines = run_here("status", "--history", METATXN_URL=dev.broker_url).stdout.splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("MINUTE  ")]
    assert re.split("  +", lines[head])[-2:] == ["BYTES/S IN", "BYTES/S OUT"]
    assert lines[head + 15].split()[2:] == ["2", "-", "2", "2", "2", "B", "2", "B"]
    assert "history" not in json.loads(run_here("status", "-o", "json", METATXN_URL=dev.broker_url).stdout)


def test_what_holds_readers_back_is_named(dev: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "HANGING_MS", 0)
    with metatxn.connect(dev.coordinator_url) as client, client.begin(timeout_ms=600_000) as txn:
        done = run_here("status", "-o", "json", METATXN_URL=dev.broker_url)
        said = json.loads(done.stdout)
        assert (done.returncode, said["healthy"], said["store"]["kind"]) == (1, False, "sqlite")
        (broker,) = [each["status"] for each in said["services"] if each["service"] == "broker"]
        assert said["store"]["size_bytes"] > 0 and 0 < broker["disk"]["used_bytes"] <= broker["disk"]["capacity_bytes"]
        (problem,) = [one for one in said["problems"] if one["about"] == f"transaction {txn.id}"]
        assert problem["action"].endswith(f"metatxn txn abort {txn.id}")
        assert problem["problem"].endswith(", and has written and acknowledged nothing so far")
        monkeypatch.setattr(status, "MOST_HANGING", 0)
        said = json.loads(run_here("status", "-o", "json", METATXN_URL=dev.broker_url).stdout)
        assert said["more_hanging"] and said["problems"][-1]["about"] == "transactions"
        assert "List them: metatxn txn hanging" in run_here("doctor", METATXN_URL=dev.broker_url).stdout


SEGMENT = "segment://public/default/{}/0000-ffff-0"


@pytest.mark.parametrize(
    ("touched", "held"),
    [
        ([("t", {"after": "1:0"})], "holds back readers of t"),
        ([(topic, {"after": "1:0"}) for topic in "edcba"], "holds back readers of a, b, c and 2 more"),
        ([("t", {"subscription": "s"})], "holds messages that it has acknowledged on s"),
        ([("t", {"group": "g"}), ("u", {"after": "1:0"})], "holds back readers of u and holds offsets of group g"),
    ],
)
def test_a_transaction_is_named_with_what_it_holds(touched: list[tuple[str, dict[str, str]]], held: str) -> None:
    """Only what it has written holds readers back."""
    places = [TouchedSegment(segment=SEGMENT.format(topic), **place) for topic, place in touched]
    txn = HangingTransaction(txn_id="0" * 32, state="OPEN", created_ms=1, age_ms=60_000, touched=places)
    assert hanging_problem(txn).problem == f"open for 1m, and {held}"


class Services:
    """What `status` asks a client for."""

    def __init__(self, **changes: Any) -> None:
        self.of_broker = changes
        self.segment = SegmentInfo(
            segment="segment://public/default/t/0000-ffff-0",
            range=(0, 65535),
            state="active",
            parents=[],
            children=[],
            owner=BROKER.url,
        )
        self.brokers = [BROKER]

    def cluster(self, *, patient: bool = True) -> Cluster:
        return Cluster(coordinators=[COORDINATOR], brokers=self.brokers, revision=7)

    def service_status(self, url: str) -> ServiceStatus:
        if url == GONE.url:
            raise metatxn.ServiceUnreachable("nobody listens there")
        store = StoreStatus(kind="etcd", revision=7, read_ms=1.0, size_bytes=3_145_728)
        about = {"version": "1", "now_ms": 1_000_000, "up_ms": 90_061_000, "ready": True, "store": store}
        if url == BROKER.url:
            disk = DiskSpace(used_bytes=21 << 30, capacity_bytes=100 << 30)
            return ServiceStatus(service="broker", segments=1, **{"disk": disk} | about | self.of_broker)
        open_ = OpenTransactions(count=2, oldest_ms=5)
        return ServiceStatus(service="coordinator", open_transactions=open_, gc_backlog=1_234, **about)

    def upgrade_status(self) -> metatxn.UpgradeStatus:
        return metatxn.UpgradeStatus(version=2, target=2, processes=[], obstacles=[], features=[])

    def throughput(self, url: str) -> ThroughputAnswer:
        if url == COORDINATOR.url:
            raise metatxn.NotFound("this version does not tell it")
        counts = {"messages_in": 120_000, "bytes_in": 8_192_000, "messages_out": 4, "bytes_out": 40}
        samples = [ThroughputSample(at_ms=number, **counts) for number in range(10)]
        return ThroughputAnswer(interval_ms=10_000, samples=samples)

    def topics(self) -> Iterator[TopicInfo]:
        yield TopicInfo(name="t", segments=[self.segment])
        yield TopicInfo(name="u", segments=[])

    def hanging(self, max_age_ms: int) -> Iterator[Any]:
        return iter(())


def problems(services: Services) -> list[str]:
    return [
        f"{one.about}: {one.problem}" for one in status.look(cast(metatxn.Client, services), COORDINATOR.url).problems
    ]


def test_nothing_is_wrong_with_these(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(status, "MOST_TOPICS", 1)
    assert problems(Services()) == []
    status._print(status.look(cast(metatxn.Client, Services()), COORDINATOR.url))
    printed = capsys.readouterr().out
    lately = "throughput    12.0k messages/s in (800.0 KiB/s), 0.4 messages/s out (4 B/s)\n"
    garbage = "1,234 ended transactions wait for brokers to clean up"
    for words in (
        "etcd, revision 7, read in 1.0 ms, 3.0 MiB",
        "2 open",
        "more than 1, of which the first 1 were looked at (`metatxn doctor` looks at all)",
        "1d 1h",
        "21 % of 100",
        garbage,
        lately,
    ):
        assert words in printed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"now_ms": 1_003_500}, "cluster: clocks are 3.5 s apart"),
        ({"version": "2"}, "cluster: versions differ: 1, 2"),
        ({"ready": False, "waiting_for": {"segment": "being opened"}}, "broker b: not ready: segment: being opened"),
        ({"warnings": {"storage": "91 % used"}}, "broker b: storage: 91 % used"),
    ],
)
def test_what_services_say_is_wrong(changes: dict[str, Any], said: str) -> None:
    assert problems(Services(**changes)) == [said]


class FullStore(Services):
    """The store answers all services, and refuses what would make it larger."""

    def service_status(self, url: str) -> ServiceStatus:
        return super().service_status(url).model_copy(update={"warnings": {STORE: "etcd at e is full"}})


def test_a_store_that_is_full_is_named_once() -> None:
    (said,) = status.look(cast(metatxn.Client, FullStore()), COORDINATOR.url).problems
    assert (said.about, said.problem) == ("store", "etcd at e is full")
    assert "docs/stores.md" in said.action


def test_a_broker_that_drains_is_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    draining = Services(draining=True)
    draining.brokers = [BROKER, OTHER]
    assert problems(draining) == []
    status._print(status.look(cast(metatxn.Client, draining), COORDINATOR.url))
    assert re.search(r"^broker +http://b +draining ", capsys.readouterr().out, re.MULTILINE)


def test_drains_that_cannot_end_are_a_problem() -> None:
    draining = Services(draining=True)
    draining.brokers = [BROKER, GONE]
    (said,) = [each for each in problems(draining) if each.startswith("cluster")]
    assert said.startswith("cluster: every broker is being drained")


def test_a_service_that_does_not_answer_and_what_it_served() -> None:
    services = Services()
    services.brokers = [BROKER, GONE]
    assert problems(services) == ["broker gone: nobody listens there"]
    services.brokers = [BROKER]
    services.segment.owner = GONE.url
    assert problems(services) == [
        f"segment {services.segment.segment}: not served: its owner {GONE.url} is not running"
    ]
    services.segment.owner = None
    assert problems(services) == [f"segment {services.segment.segment}: not served: it has no owner"]


def test_a_cluster_without_a_broker() -> None:
    services = Services()
    services.brokers = []
    assert problems(services) == ["cluster: there is no broker"]


class Unannounced(Services):
    """The store has ended the session of the coordinator, which begins another one."""

    def cluster(self, *, patient: bool = True) -> Cluster:
        return super().cluster().model_copy(update={"coordinators": []})


def test_a_service_that_answers_and_is_not_announced() -> None:
    (said,) = problems(Unannounced())
    assert said.startswith(f"coordinator {COORDINATOR.url}: it answers, but no coordinator is announced")


class WithoutStore(Services):
    """The store answers none of the services, or only not the coordinator, which is the one that is asked."""

    def __init__(self, *, all_of_them: bool = True) -> None:
        super().__init__()
        self.all_of_them = all_of_them
        self.known: KnownServices | None = KnownServices(coordinators=[COORDINATOR], brokers=[BROKER, GONE])

    def cluster(self, *, patient: bool = True) -> Cluster:
        raise AssertionError("this takes long, and fails")

    topics = cluster  # type: ignore[assignment]
    hanging = cluster  # type: ignore[assignment]

    def service_status(self, url: str) -> ServiceStatus:
        found = super().service_status(url)
        if url == BROKER.url and not self.all_of_them:
            return found
        away = {"store": None, "ready": False, "waiting_for": {STORE: f"{url} gets no answer"}}
        answered_ms = found.now_ms - (90_000 if url == COORDINATOR.url else 61_000)
        return found.model_copy(update=away | {"store_answered_ms": answered_ms, "last_known": self.known})


def test_a_store_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    """Who answers is shown all the same, and the store is named once, as the one that it answered last says it."""
    found = status.look(cast(metatxn.Client, WithoutStore()), COORDINATOR.url)
    assert [(one.about, one.problem) for one in found.problems] == [
        ("store", "no answer for 1m 1s: http://b gets no answer"),
        ("broker gone", "nobody listens there"),
    ]
    status._print(found)
    printed = capsys.readouterr().out
    assert re.search(r"^coordinator +http://c +no ", printed, re.MULTILINE)
    assert re.search(r"^broker +http://gone +no answer ", printed, re.MULTILINE)
    assert printed.count(status.UNKNOWN) == 2 and "2 were open when they were last counted" in printed
    said = found.as_object()
    assert (said["healthy"], said["store"], said["topics"]) == (False, None, None)
    assert said["store_away"] == {"why": "http://b gets no answer", "answered_ms": 939_000, "for_ms": 61_000}


def test_a_service_that_alone_does_not_reach_the_store() -> None:
    found = status.look(cast(metatxn.Client, WithoutStore(all_of_them=False)), COORDINATOR.url)
    assert found.store_away is None and found.as_object()["store"]["kind"] == "etcd"
    assert "coordinator c: not ready: metadata store: http://c gets no answer" in [
        f"{one.about}: {one.problem}" for one in found.problems
    ]


def test_a_service_that_knows_no_others() -> None:
    services = WithoutStore()
    services.known = None
    found = status.look(cast(metatxn.Client, services), COORDINATOR.url)
    assert [(each.name, each.process.url) for each in found.services] == [("coordinator", COORDINATOR.url)]


def test_a_service_that_never_answers_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "ANSWER_WITHIN_S", 0.05)
    services, closed = Services(), threading.Event()
    services.brokers = [GONE]
    asked = services.service_status
    monkeypatch.setattr(services, "service_status", lambda url: closed.wait() if url == GONE.url else asked(url))
    try:
        assert f"broker gone: {GONE.url} did not answer within 0.05 s" in problems(services)
    finally:
        closed.set()


def test_watching_goes_on_when_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pause:
        looks = 0

        def wait(self, seconds: float) -> None:
            Pause.looks += 1
            if Pause.looks == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(status, "threading", SimpleNamespace(Event=Pause))
    done = run_here("status", "--watch", METATXN_URL="http://127.0.0.1:1")
    assert (done.returncode, done.stderr.count("nothing answers at http://127.0.0.1:1")) == (130, 2)


def test_watching_looks_again(dev: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    class Pause:
        def wait(self, seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(status, "threading", SimpleNamespace(Event=Pause))
    for option, value in (("--interval-s", "0.5"), ("--interval", "500ms")):
        done = run_here("status", "--watch", option, value, METATXN_URL=dev.coordinator_url)
        assert (looks, done.returncode) == ([0.5, 0.5], 130)
        assert done.stdout.count("SERVICE") == 2
        assert len(re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z$", done.stdout, re.MULTILINE)) == 2
        looks.clear()
    twice = run_here("status", "--watch", "--interval-s", "5", "--interval", "1s", METATXN_URL=dev.coordinator_url)
    assert "--interval" in error_line(twice)


@pytest.mark.parametrize(
    ("ms", "said"), [(0, "0s"), (999, "0s"), (61_000, "1m 1s"), (3_600_000, "1h"), (90_061_000, "1d 1h")]
)
def test_durations_as_people_say_them(ms: int, said: str) -> None:
    assert duration(ms) == said
