"""What is wrong with a cluster, and what to do, judged from what its services say: for the command line and the
console."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from metatxn.wire.broker import TopicInfo
from metatxn.wire.coordinator import HangingTransaction
from metatxn.wire.models import STORE, Cluster, KnownServices, Process, ServiceStatus, ThroughputAnswer
from metatxn.wire.names import DEFAULT_NAMESPACE, topic_of_segment
from metatxn.words import duration

HANGING_MS = 60_000
MOST_NAMES = 3
"""The most topics, subscriptions or groups that a sentence about a transaction names."""
MOST_SKEW_MS = 2_000
STORE_ACTION = (
    "Start it, or check the network to it: the services go on by themselves once it answers. Until then no "
    "transaction begins or ends, and none is lost."
)

FULL_STORE_ACTION = (
    "Make room in it, and end the alarm, as docs/stores.md says: they go on by themselves then. Until then what would "
    "make it larger is refused, such as new transactions and commits, and none is lost."
)


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """Something that is wrong, and what to do about it. `about` is a word and a name, or `cluster`."""

    about: str
    problem: str
    action: str


@dataclass(frozen=True, slots=True)
class AskedService:
    """A service of the cluster with what it says, or, if it does not answer, why not."""

    name: str
    process: Process
    status: ServiceStatus | None = None
    silence: str = ""

    @property
    def about(self) -> str:
        return f"{self.name} {self.process.id}"


def processes_of(cluster: Cluster | KnownServices) -> list[tuple[str, Process]]:
    """The processes that are announced, each with its role."""
    coordinators: list[tuple[str, Process]] = [("coordinator", process) for process in cluster.coordinators]
    return coordinators + [("broker", process) for process in cluster.brokers]


@dataclass(frozen=True, slots=True)
class StoreAway:
    """The metadata store answers no service: why, when it last answered one of them, and how long ago that was."""

    why: str
    answered_ms: int | None = None
    for_ms: int | None = None

    @property
    def text(self) -> str:
        return f"no answer{'' if self.for_ms is None else f' for {duration(self.for_ms)}'}: {self.why}"


def store_away(services: Iterable[AskedService]) -> StoreAway | None:
    """None if the store answers at least one service, or if no service answers."""
    statuses = [service.status for service in services if service.status is not None]
    if not statuses or any(STORE not in status.waiting_for for status in statuses):
        return None
    ages = [(one.now_ms - one.store_answered_ms, one) for one in statuses if one.store_answered_ms is not None]
    if not ages:
        return StoreAway(statuses[0].waiting_for[STORE])
    for_ms, latest = min(ages, key=lambda each: each[0])
    return StoreAway(latest.waiting_for[STORE], latest.store_answered_ms, max(0, for_ms))


def service_problems(services: Sequence[AskedService]) -> Iterator[HealthProblem]:
    """The problems of each service, and those that show only in what they say together."""
    away = store_away(services)
    if away is not None:
        yield HealthProblem("store", away.text, STORE_ACTION)
    full = (each.status.warnings[STORE] for each in services if each.status and STORE in each.status.warnings)
    if (why := next(full, None)) is not None:
        yield HealthProblem("store", why, FULL_STORE_ACTION)
    for service in services:
        if service.status is None:
            url = service.process.url
            action = f"Start it, or check whether {url} can be reached from here; if it is gone, it leaves the list."
            yield HealthProblem(service.about, service.silence, action)
    for name in ("coordinator", "broker"):
        if not any(service.name == name for service in services):
            yield HealthProblem("cluster", f"there is no {name}", f"Start one; see `metatxn {name} --help`.")
    yield from draining_problems(services)
    for service in services:
        if service.status is not None:
            yield from _own_problems(service.about, service.status, store_is_away=away is not None)
    yield from _differences([service.status for service in services if service.status is not None])


def draining_problems(services: Iterable[AskedService]) -> Iterator[HealthProblem]:
    """The drains that cannot end. A broker that does not answer may take nothing, so it counts as absent."""
    answering = [each for each in services if each.name == "broker" and each.status is not None]
    if answering and all(each.status is not None and each.status.draining for each in answering):
        what = "every broker is being drained: none takes their segments or, with local files, new topics"
        action = f"Start another one, or end a drain: metatxn broker undrain {answering[0].process.id}"
        yield HealthProblem("cluster", what, action)


def unannounced_problem(service: AskedService) -> HealthProblem:
    what = f"it answers, but no {service.name} is announced in the metadata store, where others look for it"
    return HealthProblem(service.about, what, "Wait a moment: it announces itself again. If not, its log says why.")


def _own_problems(about: str, status: ServiceStatus, *, store_is_away: bool) -> Iterator[HealthProblem]:
    for what, why in status.waiting_for.items():
        if what != STORE:
            yield HealthProblem(about, f"not ready: {what}: {why}", "Wait a moment; if it stays so, its log says why.")
        elif not store_is_away:  # otherwise it was said once for all of them
            action = "Check the network between it and the metadata store, which answers others."
            yield HealthProblem(about, f"not ready: {what}: {why}", action)
    for what, why in status.warnings.items():
        if what != STORE:  # it was said once for all of them
            yield HealthProblem(about, f"{what}: {why}", "It still serves; act before it stops.")


def _differences(statuses: Sequence[ServiceStatus]) -> Iterator[HealthProblem]:
    clocks = [status.now_ms for status in statuses]
    if clocks and max(clocks) - min(clocks) > MOST_SKEW_MS:
        apart_s = (max(clocks) - min(clocks)) / 1000
        action = "Run NTP on every machine: deadlines depend on it."
        yield HealthProblem("cluster", f"clocks are {apart_s:.1f} s apart", action)
    versions = sorted({status.version for status in statuses})
    if len(versions) > 1:
        action = "Finish the upgrade: see docs/upgrade.md."
        yield HealthProblem("cluster", f"versions differ: {', '.join(versions)}", action)


def topic_problems(topic: TopicInfo, brokers: Iterable[str]) -> Iterator[HealthProblem]:
    """The segments of a topic that none of the announced brokers, given by their URLs, serves."""
    announced = {url.rstrip("/") for url in brokers}
    for segment in topic.segments:
        if segment.owner is None or segment.owner.rstrip("/") not in announced:
            where = f"its owner {segment.owner} is not running" if segment.owner else "it has no owner"
            action = "Start a broker that has its storage."
            yield HealthProblem(f"segment {segment.segment}", f"not served: {where}", action)


def hanging_problem(txn: HangingTransaction) -> HealthProblem:
    what = f"open for {duration(txn.age_ms)}, and {held_text(txn)}"
    return HealthProblem(f"transaction {txn.txn_id}", what, f"Commit or abort it: metatxn txn abort {txn.txn_id}")


def held_text(txn: HangingTransaction) -> str:
    """What a transaction holds, in words. Only what it has written holds readers back."""
    topics = {topic_of_segment(at.segment) for at in txn.touched if at.after is not None}
    written = {topic.removeprefix(f"{DEFAULT_NAMESPACE}/") for topic in topics}
    acknowledged = {at.subscription for at in txn.touched if at.subscription is not None}
    groups = {at.group for at in txn.touched if at.group is not None}
    held = [
        f"{words} {_some(sorted(names))}"
        for words, names in (
            ("holds back readers of", written),
            ("holds messages that it has acknowledged on", acknowledged),
            ("holds offsets of group", groups),
        )
        if names
    ]
    return " and ".join(held) or "has written and acknowledged nothing so far"


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def per_second(told: ThroughputAnswer, lately_ms: int) -> dict[str, float]:
    """The rates of what a service has counted in about that time."""
    samples = told.samples[-max(1, lately_ms // told.interval_ms) :]
    totals: dict[str, int] = {}
    for sample in samples:
        for name, number in sample.model_dump(exclude={"at_ms"}, exclude_none=True).items():
            totals[name] = totals.get(name, 0) + number
    return {name: total * 1000 / (len(samples) * told.interval_ms) for name, total in totals.items()}
