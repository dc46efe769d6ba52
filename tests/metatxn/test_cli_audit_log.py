"""Goal: who looks for a change in the audit logs of all services finds it once, in the order of time, and is told of
services that were not asked.

Method: a client whose services have made-up lines, because `metatxn dev` has one file for both of its services.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import metatxn
from metatxn.cli.main import run
from metatxn.cli.options import ServiceOptions
from metatxn.wire.models import AuditEntry, BrokerProcess, Cluster, Process

A, B, C = "http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"
NO_FILE = metatxn.NotFound("this service writes its audit log among the lines of its log")


def entry(second: int, verb: str = "topic.delete") -> AuditEntry:
    at = f"2026-03-02T09:04:{second:02}.000000Z"
    return AuditEntry(timestamp=at, verb=verb, object={"topic": "t"}, outcome="allowed", status=204)


class Services:
    """What a client is asked here. A service without lines has no file."""

    def __init__(self, **lines: list[AuditEntry]) -> None:
        self.lines = {A: lines.get("a"), B: lines.get("b"), C: lines.get("c")}
        self.asked: list[dict[str, Any]] = []

    def cluster(self) -> Cluster:
        brokers = [BrokerProcess(id=name, url=url, storage="s") for name, url in (("b", B), ("c", C))]
        return Cluster(coordinators=[Process(id="a", url=A)], brokers=brokers, revision=1, version=1)

    def audit_log(self, url: str, **asked: Any) -> Iterator[AuditEntry]:
        self.asked.append(asked)
        found = self.lines[url]
        if found is None:
            raise NO_FILE
        yield from found


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def of(services: Services, *options: str) -> tuple[list[list[str]], str, int]:
        class Session:
            def __enter__(self) -> Services:
                return services

            def __exit__(self, *error: object) -> None:
                pass

        monkeypatch.setattr(ServiceOptions, "connect", lambda session: Session())
        code = run(["audit-log", "--all", *options])
        output = capsys.readouterr()
        return [line.split() for line in output.out.splitlines()], output.err, code

    return of


def test_the_lines_of_all_services_are_in_one_order(printed: Any) -> None:
    services = Services(a=[entry(9), entry(4)], b=[entry(8), entry(1)], c=[entry(7), entry(6), entry(5)])
    rows, notes, code = printed(services, "--limit", "6", "--principal", "ada", "--verb", "topic")
    assert [row[0][17:19] for row in rows[1:]] == ["09", "08", "07", "06", "05", "04"] and code == 0
    assert [row[-2:] for row in rows[1:4]] == [["coordinator", "a"], ["broker", "b"], ["broker", "c"]]
    assert "there are more than these 6" in notes
    assert [each["principal"] for each in services.asked] == ["ada"] * 3


def test_a_file_that_services_share_is_shown_once(printed: Any) -> None:
    shared = [entry(9), entry(4), entry(4, "topic.create")]
    rows, notes, _ = printed(Services(a=shared, b=shared))
    assert [row[2] for row in rows[1:]] == ["topic.delete", "topic.delete", "topic.create"]
    assert notes.splitlines() == [f"note: broker c: {NO_FILE}"]


def test_no_list_is_shown_if_no_service_has_a_file(printed: Any) -> None:
    rows, notes, code = printed(Services())
    assert rows == [] and code == 1 and "Start each of them with --audit-log FILE" in notes.splitlines()[-1]


def test_an_outcome_that_does_not_exist_is_refused_in_plain_words(printed: Any) -> None:
    rows, said, code = printed(Services(), "--outcome", "denied")
    known = "'allowed', 'refused', 'failed', 'unknown'"
    see = "See `metatxn audit-log --help`."
    assert said == f"metatxn: Invalid value for '--outcome': 'denied' is not one of {known}. {see}\n"
    assert rows == [] and code == 2
