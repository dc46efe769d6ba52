"""`metatxn status`: what runs, what is open, and what is wrong."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer

import metatxn
from metatxn.cli.members import asked_at_once, members_of
from metatxn.cli.options import ServiceOptions, takes_session
from metatxn.cli.output import as_json, print_error, print_error_as_json, print_fields, print_json, print_rows, when
from metatxn.cli.times import DURATION_HELP, one_duration
from metatxn.health import (
    HANGING_MS,
    AskedService,
    HealthProblem,
    StoreAway,
    hanging_problem,
    per_second,
    service_problems,
    store_away,
    topic_problems,
    unannounced_problem,
)
from metatxn.throughput import ThroughputOfAll
from metatxn.wire.coordinator import HangingTransaction
from metatxn.wire.models import Process, ThroughputAnswer
from metatxn.words import count_text, duration, size_text

EXIT_UNHEALTHY = 1
MOST_HANGING = 100
MOST_TOPICS = 1_000
DEFAULT_INTERVAL_S = 2.0
LATELY_MS = 60_000
"""The time over which rates are shown."""
UNKNOWN = "not known: the service that was asked does not reach the metadata store"
RATES = {
    "transactions_committed": "COMMITS/S",
    "transactions_aborted": "ABORTS/S",
    "messages_in": "MESSAGES/S IN",
    "messages_out": "MESSAGES/S OUT",
    "bytes_in": "BYTES/S IN",
    "bytes_out": "BYTES/S OUT",
}
"""The rates of `--history`, and their columns."""
COLUMNS = ("SERVICE", "URL", "READY", "UP", "SEGMENTS", "DISK", "VERSION")


@dataclass(slots=True)
class Findings:
    """`blind` means that nothing is known except what services tell of themselves (see `ClusterMembers`)."""

    services: list[AskedService] = field(default_factory=list)
    blind: bool = False
    topics: int = 0
    more_topics: bool = False
    hanging: Sequence[HangingTransaction] = ()
    more_hanging: bool = False
    throughputs: Sequence[ThroughputAnswer] = ()
    problems: list[HealthProblem] = field(default_factory=list)

    @property
    def rates(self) -> dict[str, float]:
        """The rates of the last minute, per second, of all services together."""
        rates: dict[str, float] = {}
        for told in self.throughputs:
            for name, rate in per_second(told, LATELY_MS).items():
                rates[name] = rates.get(name, 0) + rate
        return {name: round(rate, 3) for name, rate in rates.items()}

    @property
    def statuses(self) -> list[metatxn.ServiceStatus]:
        return [service.status for service in self.services if service.status is not None]

    @property
    def store_away(self) -> StoreAway | None:
        return store_away(self.services)

    def answers(self, name: str) -> bool:
        """Whether there is a service with this role that answers."""
        return any(service.name == name and service.status is not None for service in self.services)

    def as_object(self) -> dict[str, Any]:
        store = next((status.store for status in self.statuses if status.store), None)
        open_ = next((status.open_transactions for status in self.statuses if status.open_transactions), None)
        return {
            "healthy": not self.problems,
            "store": as_json(store),
            "store_away": None if self.store_away is None else asdict(self.store_away),
            "services": [
                {"id": each.process.id, "url": each.process.url, "service": each.name, "status": as_json(each.status)}
                for each in self.services
            ],
            "topics": None if self.blind else self.topics,
            "more_topics": self.more_topics,
            "open_transactions": as_json(open_),
            "rates": self.rates,
            "hanging": as_json(self.hanging),
            "more_hanging": self.more_hanging,
            "problems": [{"about": one.about, "problem": one.problem, "action": one.action} for one in self.problems],
        }


@takes_session
def status(
    session: ServiceOptions,
    history: Annotated[
        bool, typer.Option("--history", help="Show the throughput of the last 15 minutes, too, minute by minute.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show this again and again, until Ctrl-C.")] = False,
    interval_s: Annotated[
        float, typer.Option(min=0.1, help="With --watch, the time between two rounds.")
    ] = DEFAULT_INTERVAL_S,
    interval: Annotated[str | None, typer.Option(metavar="DURATION", help=f"The same: {DURATION_HELP}.")] = None,
) -> None:
    """Show the services, the store, what is open, and what is wrong. The exit code is 1 if anything is wrong."""
    interval_s = one_duration("--interval", interval, interval_s, DEFAULT_INTERVAL_S, unit_ms=1_000)
    if not watch:
        raise typer.Exit(EXIT_UNHEALTHY if _look_and_print(session, history).problems else 0)
    while True:
        if not session.json:
            print(when(time.time_ns() // 1_000_000))
        try:
            _look_and_print(session, history)
        except metatxn.MetatxnError as error:  # it may answer again
            (print_error_as_json if session.json else print_error)(f"{error.detail}. {error.action}", error)
        threading.Event().wait(interval_s)  # Ctrl-C ends it
        print()


def _look_and_print(session: ServiceOptions, history: bool) -> Findings:
    with session.client() as client:
        found = look(client, session.service_url)
    known = ThroughputOfAll(found.throughputs, time.time_ns() // 1_000_000) if history else None
    minutes = known.minutes(RATES) if known else []
    if session.json:
        shown = {"history": [{"at_ms": at_ms} | rates for at_ms, rates in minutes]}
        print_json(found.as_object() | (shown if history else {}))
        return found
    _print(found)
    if history:
        print()
        print_rows(("MINUTE", *RATES.values()), [(when(at_ms), *_rates_row(rates)) for at_ms, rates in minutes])
    return found


def _rates_row(rates: Mapping[str, float | None]) -> Iterator[str | None]:
    for name, rate in rates.items():
        if rate is None:
            yield None
        else:
            yield size_text(round(rate)) if name.startswith("bytes") else count_text(rate)


def look(client: metatxn.Client, url: str) -> Findings:
    members = members_of(client, url)
    answers = asked_at_once(members.services, lambda process: client.service_status(process.url))
    services = [_asked(*service, answer) for service, answer in zip(members.services, answers, strict=True)]
    found = Findings(services, members.blind)
    found.problems += service_problems(found.services)
    if members.unannounced is not None:
        found.problems.append(unannounced_problem(members.unannounced))
    found.throughputs = _throughputs(client, found.services)
    if found.blind:
        return found
    if found.answers("broker"):
        found.problems += _of_topics(client, found, members.broker_urls, MOST_TOPICS)
    if found.answers("coordinator"):
        found.hanging, found.more_hanging = oldest_hanging(client)
        found.problems += hanging_problems(found.hanging, more=found.more_hanging)
    return found


def _asked(name: str, process: Process, answer: metatxn.ServiceStatus | metatxn.MetatxnError) -> AskedService:
    if isinstance(answer, metatxn.MetatxnError):
        return AskedService(name, process, silence=str(answer))
    return AskedService(name, process, answer)


def _throughputs(client: metatxn.Client, services: Sequence[AskedService]) -> list[ThroughputAnswer]:
    """What the services report, without one before 0.3, which does not."""
    told = []
    for service in services:
        if service.status is not None:
            with contextlib.suppress(metatxn.MetatxnError):
                told.append(client.throughput(service.process.url))
    return told


def _of_topics(
    client: metatxn.Client, found: Findings, brokers: set[str], most: int | None = None
) -> Iterator[HealthProblem]:
    for topic in client.topics():
        if found.topics == most:
            found.more_topics = True
            return
        found.topics += 1
        yield from topic_problems(topic, brokers)


def unserved_segments(client: metatxn.Client, brokers: set[str]) -> Iterator[HealthProblem]:
    """The segments of all topics that none of these brokers serves."""
    return _of_topics(client, Findings(), brokers)


def oldest_hanging(client: metatxn.Client) -> tuple[Sequence[HangingTransaction], bool]:
    """The oldest hanging transactions, and whether there are more."""
    found = list(itertools.islice(client.hanging(HANGING_MS), MOST_HANGING + 1))
    return found[:MOST_HANGING], len(found) > MOST_HANGING


def hanging_problems(found: Iterable[HangingTransaction], *, more: bool) -> Iterator[HealthProblem]:
    yield from map(hanging_problem, found)
    if more:
        what = f"more of them have been open for {duration(HANGING_MS)}, and are not listed here"
        yield HealthProblem("transactions", what, "List them: metatxn txn hanging")


def _topics_text(found: Findings) -> str:
    if not found.more_topics:
        return f"{found.topics}"
    return f"more than {found.topics}, of which the first {found.topics} were looked at (`metatxn doctor` looks at all)"


def _print(found: Findings) -> None:
    shown = found.as_object()
    store, open_ = shown["store"], shown["open_transactions"]
    fields = {
        "cluster": "unhealthy, see below" if found.problems else "healthy",
        "store": _store_text(store) if store else found.store_away.text if found.store_away else "no answer",
        "topics": UNKNOWN if found.blind else _topics_text(found),
        "transactions": _open_text(open_, found.store_away) if open_ else "not counted yet",
        "hanging": UNKNOWN if found.blind else f"{len(found.hanging)}{' or more' if found.more_hanging else ''}",
        "garbage": _garbage(found.statuses) or "not looked at yet",
    }
    if found.rates:
        fields["throughput"] = _throughput(found.rates)
    print_fields(fields)
    print()
    print_rows(COLUMNS, [_row(service) for service in found.services])
    if found.problems:
        print()
        print_rows(("PROBLEM", "WHAT", "DO"), [(one.about, one.problem, one.action) for one in found.problems])


def _store_text(store: Mapping[str, Any]) -> str:
    size = f", {size_text(store['size_bytes'])}" if "size_bytes" in store else ""
    return f"{store['kind']}, revision {store['revision']}, read in {store['read_ms']} ms{size}"


def _open_text(counted: Mapping[str, Any], away: StoreAway | None) -> str:
    if away is not None:
        return f"{counted['count']} were open when they were last counted"
    return f"{counted['count']} open, the oldest for {duration(counted['oldest_ms'])}"


def _garbage(statuses: Sequence[metatxn.ServiceStatus]) -> str | None:
    """The largest backlog of a coordinator; None if no coordinator reports one."""
    kept = max((each.gc_backlog for each in statuses if each.gc_backlog is not None), default=None)
    if kept is None:
        return None
    return f"{kept:,} ended transactions wait for brokers to clean up" if kept else "nothing waits for brokers"


def _disk(status: metatxn.ServiceStatus) -> str | None:
    if status.disk is None or not status.disk.capacity_bytes:
        return None
    used, capacity = status.disk.used_bytes, status.disk.capacity_bytes
    return f"{100 * used / capacity:.0f} % of {size_text(capacity)}"


def _throughput(rates: dict[str, float]) -> str:
    """The throughput of the last minute. What no service has reported is left out."""
    said = [
        f"{count_text(rates[name])} {words}/s"
        for name, words in (("transactions_committed", "commits"), ("transactions_aborted", "aborts"))
        if name in rates
    ]
    for way in ("in", "out"):
        if f"messages_{way}" in rates:
            size = size_text(round(rates[f"bytes_{way}"]))
            said.append(f"{count_text(rates[f'messages_{way}'])} messages/s {way} ({size}/s)")
    return ", ".join(said)


def _row(service: AskedService) -> Sequence[Any]:
    status, url = service.status, service.process.url
    if status is None:
        return (service.name, url, "no answer", None, None, None, None)
    ready = "draining" if status.ready and status.draining else "yes" if status.ready else "no"
    return (service.name, url, ready, duration(status.up_ms), status.segments, _disk(status), status.version)
