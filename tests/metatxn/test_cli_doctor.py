"""Goal: `metatxn doctor` finds each thing that is set up wrongly, says what to do, and finds nothing in what is right.

Method: the real command against a development server, and checks on services that are made up, where the fault is hard
to make. `tests/metastore/etcd/test_settings.py` has the checks of etcd.
"""

from __future__ import annotations

import base64
import json
import ssl
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import metatxn
from metastore.backends.sqlite import SqliteStore
from metastore.doctor import examine
from metastore.txn.records.processes import BrokerRecord
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.store import INDEXES
from metatxn.cli import doctor, status
from metatxn.wire.broker import TopicInfo
from metatxn.wire.models import STORE, BrokerProcess, DiskSpace
from tests.metatxn.command_line import run_here
from tests.metatxn.dev_server import DevServer
from tests.metatxn.test_cli_status import BROKER, COORDINATOR, GONE, OTHER, Services, Unannounced, WithoutStore

NOW_S = 1_000.0


def found(services: Services, url: str = COORDINATOR.url) -> list[tuple[str, str, str]]:
    checked = doctor.of_cluster(cast(metatxn.Client, services), url, clock=lambda: NOW_S)
    return [(each.check, each.about, each.verdict) for each in checked]


def wrong(services: Services, url: str = COORDINATOR.url) -> list[tuple[str, str]]:
    return [(check, about) for check, about, verdict in found(services, url) if verdict != "ok"]


def test_a_development_server_is_in_order(dev: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "HANGING_MS", 2**40)
    done = run_here("doctor", METATXN_URL=dev.coordinator_url)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line[0]: line[1] for line in lines[1:] if line[0] not in ("store", "disk")} == dict.fromkeys(
        ("address", "ready", "clock", "version", "upgrade", "segments", "transactions"), "ok"
    )
    as_json = json.loads(run_here("doctor", "-o", "json", METATXN_URL=dev.coordinator_url).stdout)
    assert [each["verdict"] for each in as_json if each["what"] == "the store itself was not examined"] == ["skipped"]


def test_a_problem_is_in_the_exit_code(dev: DevServer, tmp_path: Path) -> None:
    done = run_here("doctor", "--data-dir", str(tmp_path), "-o", "json", METATXN_URL=dev.coordinator_url)
    assert done.returncode == 1
    (problem,) = [each for each in json.loads(done.stdout) if each["check"] == "data directory"]
    assert problem["verdict"] == "problem" and "--data-dir" in problem["action"]


def test_each_check_of_a_healthy_cluster_says_that_it_has_looked() -> None:
    assert wrong(Services()) == []
    assert {check for check, _, _ in found(Services())} >= {"address", "ready", "clock", "version", "store latency"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"now_ms": 1_000_501}, [("clock", "broker b")]),
        ({"now_ms": 1_000_500}, []),
        ({"now_ms": 999_400}, [("clock", "coordinator c")]),
        ({"version": "2"}, [("version", "cluster")]),
        ({"warnings": {"storage": "91 % used"}}, [("storage", "broker b")]),
        ({"warnings": {STORE: "it is full"}}, [(STORE, "broker b")]),
        ({"ready": False, "waiting_for": {"segment": "being opened"}}, [("ready", "broker b")]),
        ({"peer_token_ends_ms": (NOW_S + doctor.SOON_S - 1) * 1000}, [("peer token", "broker b")]),
        ({"peer_token_ends_ms": (NOW_S + doctor.SOON_S + 1) * 1000}, []),
    ],
)
def test_what_services_tell(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert wrong(Services(**changes)) == expected


def test_a_store_that_is_away() -> None:
    """What services say of themselves is checked, and the rest skipped."""
    assert wrong(WithoutStore()) == [
        ("store", "cluster"),
        ("address", "broker gone"),
        ("ready", "coordinator c"),
        ("ready", "broker b"),
        *((check, "cluster") for check in doctor.OF_THE_STORE),
    ]


def test_a_store_that_cannot_be_opened_is_a_problem_among_others(dev: DevServer, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/missing.db"
    done = run_here("doctor", "--store", store, "-o", "json", METATXN_URL=dev.coordinator_url)
    problems = {each["about"]: each for each in json.loads(done.stdout) if each["verdict"] == "problem"}
    assert store in problems["--store"]["what"] and done.returncode == 1
    assert any(each["check"] == "address" for each in json.loads(done.stdout)) and done.stderr == ""


@pytest.mark.parametrize(("used", "verdict"), [(79, "ok"), (80, "advice")])
def test_a_disk_that_fills_up(used: int, verdict: str) -> None:
    services = Services(disk=DiskSpace(used_bytes=used, capacity_bytes=100))
    (checked,) = [
        each for each in doctor.of_cluster(cast(metatxn.Client, services), "http://c") if each.check == "disk"
    ]
    assert (checked.verdict, checked.what, bool(checked.action)) == (verdict, f"{used} % of 100 B is used", used == 80)


def test_an_upgrade_that_was_not_finalized_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    services, old = Services(), metatxn.UpgradeStatus(version=1, target=2, processes=[], obstacles=[], features=[])
    monkeypatch.setattr(services, "upgrade_status", lambda: old)
    assert [each for each in found(services) if each[0] == "upgrade"] == [("upgrade", "cluster", "advice")]

    def unknown() -> metatxn.UpgradeStatus:
        raise metatxn.NotFound("every coordinator runs release 0.2.0")

    monkeypatch.setattr(services, "upgrade_status", unknown)
    assert [each for each in found(services) if each[0] == "upgrade"] == [("upgrade", "cluster", "skipped")]


def test_the_way_of_an_answer_is_no_skew() -> None:
    """An answer that took two seconds says nothing about a clock that is one second off."""
    (fast, slow) = (Services().service_status(url) for url in (COORDINATOR.url, BROKER.url))
    seen = [
        doctor.SeenService("coordinator", COORDINATOR, fast),
        doctor.SeenService("broker", BROKER, slow, 1_000, 1_000),
    ]
    assert [each.verdict for each in doctor.clocks(seen)] == ["ok", "ok"]


def test_addresses_that_cannot_be_reached() -> None:
    services = Services()
    services.brokers = [BROKER, GONE]
    (problem,) = [
        each
        for each in doctor.of_cluster(cast(metatxn.Client, services), COORDINATOR.url)
        if each.about == "broker gone"
    ]
    assert "nobody listens there" in problem.what and "--advertise-url" in problem.action and GONE.url in problem.action
    services.brokers = [BrokerProcess(id="b", url="http://127.0.0.1:8471")]
    services.segment.owner = services.brokers[0].url
    assert wrong(services, "http://metatxn.example:8470") == [("address", "broker b")]
    assert wrong(services, "http://127.0.0.1:8470") == []


def test_a_service_that_is_not_announced_is_named() -> None:
    assert wrong(Unannounced()) == [("address", f"coordinator {COORDINATOR.url}")]


def test_a_broker_that_drains_is_named_as_advice() -> None:
    services = Services(draining=True)
    services.brokers = [BROKER, OTHER]
    checked = list(doctor.of_cluster(cast(metatxn.Client, services), COORDINATOR.url))
    (found,) = [each for each in checked if each.check == "drain"]
    assert (found.about, found.verdict, found.action.split()[-1]) == ("broker b", "advice", "b")
    services.brokers = [BROKER]
    assert ("drain", "cluster") in wrong(services)


def test_segments_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all topics, also behind those at which `metatxn status` looks."""

    class Ordered(Services):
        def topics(self) -> Iterator[TopicInfo]:
            return reversed(list(super().topics()))

    services = Ordered()
    services.segment.owner = None
    monkeypatch.setattr(status, "MOST_TOPICS", 1)
    assert wrong(services) == [("segments", f"segment {services.segment.segment}")]
    assert not status.look(cast(metatxn.Client, services), COORDINATOR.url).problems, "and it says so"


def jwt(**claims: Any) -> str:
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims, {})
    )


@pytest.mark.parametrize(
    ("token", "verdicts"),
    [
        (jwt(exp=NOW_S + doctor.SOON_S - 1), ["problem"]),
        (jwt(exp=NOW_S + doctor.SOON_S + 1), ["ok"]),
        (jwt(exp=NOW_S - 1), ["problem"]),
        (jwt(), []),
        (jwt(exp=float("inf")), []),
        ("mtx_1", []),
        ("a.%.c", []),
        (None, []),
    ],
)
def test_tokens_that_end_soon(token: str | None, verdicts: list[str]) -> None:
    checked = doctor.of_credentials(token, "http://c", None, clock=lambda: NOW_S)
    assert [each.verdict for each in checked] == verdicts


def test_certificates_that_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_s = ssl.cert_time_to_seconds("Jan  5 09:34:43 2030 GMT")
    monkeypatch.setattr(doctor, "expires_at", lambda url, ca: ends_s)
    for left_s, verdict in ((doctor.SOON_S - 60, "problem"), (doctor.SOON_S + 60, "ok")):
        (checked,) = doctor.of_credentials(None, "https://c", None, clock=lambda: ends_s - left_s)  # noqa: B023
        assert (checked.check, checked.verdict) == ("certificate", verdict)


def test_the_certificate_of_each_service_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those that do not answer, which are named already; that of the URL of the command is looked at anyway."""
    services = Services()
    asked: list[tuple[str, str | None]] = []
    services.brokers = [BROKER, GONE, *(BrokerProcess(id=id_, url=f"https://{id_}/") for id_ in ("given", "other"))]

    def ends(url: str, ca: str | None) -> float:
        asked.append((url, ca))
        return NOW_S + doctor.SOON_S - 1

    monkeypatch.setattr(doctor, "expires_at", ends)
    checked = [
        *doctor.of_cluster(cast(metatxn.Client, services), "https://given", "ca.pem", clock=lambda: NOW_S),
        *doctor.of_credentials(None, "https://given", "ca.pem", clock=lambda: NOW_S),
    ]
    found = [(each.about, each.verdict) for each in checked if each.check == "certificate"]
    assert found == [("broker other", "problem"), ("https://given", "problem")]
    assert asked == [("https://other/", "ca.pem"), ("https://given", "ca.pem")]


async def test_storages_without_a_broker_and_their_directories(tmp_path: Path) -> None:
    """Two storages have segments, and a broker has one of them open; a third belongs to another cluster."""
    served, alone, other = (uuid.uuid4().hex for _ in range(3))
    store = await SqliteStore.open(tmp_path / "metadata.db", INDEXES)
    batch = store.batch().put("/cluster/broker/b", BrokerRecord(url="http://b", storage=served).encode())
    for number, storage in enumerate((served, alone, alone)):
        record = SegmentRecord(topic="t", range=(0, 65535), storage=storage)
        batch.put(f"/segment/{number}", record.encode())
    gone = SegmentRecord(topic="t", range=(0, 65535), storage=other, state="deleted")
    await store.apply(batch.put("/segment/gone", gone.encode()))
    seen = [
        doctor.Checked(each.check, each.about, each.verdict, each.what, each.action) async for each in examine(store)
    ]
    await store.close()
    assert {each.about: (each.verdict, each.what.partition(",")[0]) for each in seen} == {
        f"storage {served}": ("ok", "1 segment"),
        f"storage {alone}": ("problem", "2 segments"),
    }
    directories = []
    for storage in (served, alone, other):
        (directory := tmp_path / storage / "broker").mkdir(parents=True)
        (directory / "storage.json").write_text(json.dumps({"format": 1, "storage_id": storage}))
        directories.append(directory.parent)
    checked = list(doctor.of_directories(directories, seen))
    assert [each.verdict for each in checked] == ["ok", "problem", "advice"]
    assert f"--data-dir {directories[1] / 'broker'}" in checked[1].action
    (skipped,) = doctor.of_directories(directories[:1], [doctor._not_examined()])
    assert (skipped.verdict, skipped.action) == ("skipped", "Give --store, too.")
