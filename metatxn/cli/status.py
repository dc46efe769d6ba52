"""`metatxn status`: what runs, what is open, and what is wrong."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

import metatxn
from metatxn.cli.options import ServiceOptions, takes_session
from metatxn.cli.output import as_json, print_fields, print_json, print_rows
from metatxn.wire.coordinator import HangingTransaction, Process
from metatxn.words import duration

EXIT_UNHEALTHY = 1
HANGING_MS = 60_000
MOST_HANGING = 100
MOST_TOPICS = 1_000
MOST_SKEW_MS = 2_000
COLUMNS = ("SERVICE", "URL", "READY", "UP", "SEGMENTS", "VERSION")


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """Something that is wrong, and what to do about it."""

    about: str
    problem: str
    action: str


@dataclass(slots=True)
class Findings:
    """`services` are pairs of a process and its status, or None if it does not answer."""

    services: list[tuple[str, Process, metatxn.ServiceStatus | None]] = field(default_factory=list)
    topics: int = 0
    more_topics: bool = False
    hanging: list[HangingTransaction] = field(default_factory=list)
    problems: list[HealthProblem] = field(default_factory=list)

    @property
    def statuses(self) -> list[metatxn.ServiceStatus]:
        return [status for _, _, status in self.services if status is not None]

    def as_object(self) -> dict[str, Any]:
        store = next((status.store for status in self.statuses if status.store), None)
        open_ = next((status.open_transactions for status in self.statuses if status.open_transactions), None)
        return {
            "healthy": not self.problems,
            "store": as_json(store),
            "services": [
                {"id": process.id, "url": process.url, "service": name, "status": as_json(status)}
                for name, process, status in self.services
            ],
            "topics": self.topics,
            "more_topics": self.more_topics,
            "open_transactions": as_json(open_),
            "hanging": as_json(self.hanging),
            "problems": [{"about": one.about, "problem": one.problem, "action": one.action} for one in self.problems],
        }


@takes_session
def status(
    session: ServiceOptions,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.1, help="With --watch, the time between two looks.")] = 2.0,
) -> None:
    """Show the services, the store, what is open, and what is wrong. The exit code is 1 if anything is."""
    while True:
        with session.connect() as client:
            found = look(client)
        if session.json:
            print_json(found.as_object())
        else:
            _print(found)
        if not watch:
            raise typer.Exit(EXIT_UNHEALTHY if found.problems else 0)
        threading.Event().wait(interval_s)  # Ctrl-C ends it
        print()


def look(client: metatxn.Client) -> Findings:
    found = Findings()
    cluster = client.cluster()
    processes = [("coordinator", process) for process in cluster.coordinators]
    processes += [("broker", process) for process in cluster.brokers]
    for name, process in processes:
        try:
            found.services.append((name, process, client.service_status(process.url)))
        except metatxn.MetatxnError as error:
            found.services.append((name, process, None))
            action = (
                f"Start it, or see whether {process.url} can be reached from here; if it is gone, it leaves the list."
            )
            found.problems.append(HealthProblem(f"{name} {process.id}", str(error), action))
    for name, listed in (("coordinator", cluster.coordinators), ("broker", cluster.brokers)):
        if not listed:
            found.problems.append(
                HealthProblem("cluster", f"there is no {name}", f"Start one; see `metatxn {name} --help`.")
            )
    found.problems += _of_services(found)
    if any(name == "broker" and status for name, _, status in found.services):
        found.problems += _of_topics(client, found, {process.url.rstrip("/") for process in cluster.brokers})
    if any(name == "coordinator" and status for name, _, status in found.services):
        found.hanging = list(itertools.islice(client.hanging(HANGING_MS), MOST_HANGING))
        found.problems += map(_hanging, found.hanging)
    return found


def _of_services(found: Findings) -> Iterator[HealthProblem]:
    for name, process, status in found.services:
        if status is not None:
            about = f"{name} {process.id}"
            for what, why in status.waiting_for.items():
                yield HealthProblem(
                    about, f"not ready: {what}: {why}", "Wait a moment; if it stays so, its log says why."
                )
            for what, why in status.warnings.items():
                yield HealthProblem(about, f"{what}: {why}", "It still serves; act before it does not.")
    clocks = [status.now_ms for status in found.statuses]
    if clocks and max(clocks) - min(clocks) > MOST_SKEW_MS:
        apart_s = (max(clocks) - min(clocks)) / 1000
        yield HealthProblem(
            "cluster", f"clocks are {apart_s:.1f} s apart", "Run NTP on every machine: deadlines depend on it."
        )
    versions = sorted({status.version for status in found.statuses})
    if len(versions) > 1:
        yield HealthProblem(
            "cluster", f"versions differ: {', '.join(versions)}", "Finish the upgrade: see docs/upgrade.md."
        )


def _of_topics(client: metatxn.Client, found: Findings, brokers: set[str]) -> Iterator[HealthProblem]:
    """Segments that no broker serves that is announced."""
    for topic in client.topics():
        if found.topics == MOST_TOPICS:
            found.more_topics = True
            return
        found.topics += 1
        for segment in topic.segments:
            if segment.owner is None or segment.owner.rstrip("/") not in brokers:
                where = f"its owner {segment.owner} is not there" if segment.owner else "it has no owner"
                action = "Start a broker that has its storage."
                yield HealthProblem(f"segment {segment.segment}", f"not served: {where}", action)


def unserved_segments(client: metatxn.Client, brokers: set[str]) -> Iterator[HealthProblem]:
    """Those of the first topics by name that none of these brokers serves."""
    return _of_topics(client, Findings(), brokers)


def hanging_problems(client: metatxn.Client) -> Iterator[HealthProblem]:
    return map(_hanging, itertools.islice(client.hanging(HANGING_MS), MOST_HANGING))


def _hanging(txn: HangingTransaction) -> HealthProblem:
    what = f"open for {duration(txn.age_ms)}, and holds readers back"
    return HealthProblem(f"transaction {txn.txn_id}", what, f"Commit or abort it: metatxn txn abort {txn.txn_id}")


def _print(found: Findings) -> None:
    shown = found.as_object()
    store, open_ = shown["store"], shown["open_transactions"]
    fields = {
        "cluster": "unhealthy, see below" if found.problems else "healthy",
        "store": f"{store['kind']}, revision {store['revision']}, read in {store['read_ms']} ms"
        if store
        else "no answer",
        "topics": f"{found.topics}{' or more' if found.more_topics else ''}",
        "transactions": f"{open_['count']} open, the oldest for {duration(open_['oldest_ms'])}"
        if open_
        else "not counted yet",
        "hanging": len(found.hanging),
    }
    print_fields(fields)
    print()
    print_rows(COLUMNS, [_row(*service) for service in found.services])
    if found.problems:
        print()
        print_rows(("PROBLEM", "WHAT", "DO"), [(one.about, one.problem, one.action) for one in found.problems])


def _row(name: str, process: Process, status: metatxn.ServiceStatus | None) -> Sequence[Any]:
    if status is None:
        return (name, process.url, "no answer", None, None, None)
    ready = "draining" if status.ready and status.draining else "yes" if status.ready else "no"
    return (name, process.url, ready, duration(status.up_ms), status.segments, status.version)
