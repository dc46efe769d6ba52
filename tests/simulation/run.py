"""One seed: a cluster is set up, everything goes wrong for a simulated minute, everything heals, and is judged."""

from __future__ import annotations

import asyncio
import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import IO, Any

import structlog

from metastore.check import StoreCheck
from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.txn.records.topics import TopicRecord
from metastore.types import Record
from participants.broker.broker import Broker
from participants.segment import indexing
from participants.topic import forgetting
from participants.topic.deletion import owner_tombstone
from participants.txn import header_mirror
from participants.txn.header_mirror import HeaderMirror
from tests.bounds import applied, drawn
from tests.simulation.backups import Backups
from tests.simulation.checkers import judge
from tests.simulation.client import Doubtful, Refused
from tests.simulation.cluster import Cluster
from tests.simulation.entropy import no_threads, seeded_entropy
from tests.simulation.history import History
from tests.simulation.loop import Stuck
from tests.simulation.memory import transactions_in
from tests.simulation.nemesis import Nemesis
from tests.simulation.network import LATE_S, TIMEOUT_S
from tests.simulation.services import RECONCILE_INTERVAL_MS, SURVEY_INTERVAL_MS, SimulatedBroker
from tests.simulation.workloads import WORKLOADS
from tests.simulation.workloads.bank import Bank
from tests.simulation.workloads.base import Workload
from tests.simulation.workloads.layout import Layout
from tests.simulation.world import World

FAULTY_S = 60.0
FINISH_WITHIN_S = 240.0
"""Once the faults have stopped everything that was begun has ended by then, or hangs: five times the longest timeout
of a transaction, and some sweeps."""
LOOK_EVERY_S = 2.0
CHECK_LAWS_EVERY_S = 7.0
_LOOKS = 40
_BETWEEN_LOOKS_S = 0.25
FORGOTTEN_SOON_S = 60
"""Records are waited for that are to be forgotten within so long, whatever the clocks say."""
_TENDED_WITHIN_MS = 6 * RECONCILE_INTERVAL_MS
"""One look finds that a segment is idle, one more that its ledger can be indexed; the others are for what is slow."""
_FORGOTTEN_WITHIN_S = max(2 * RECONCILE_INTERVAL_MS, 1.2 * SURVEY_INTERVAL_MS) / 1000
"""What is gone from the store is forgotten by everybody's next look."""
TEMPORARY = (paths.HEADERS, paths.LEASES, paths.PREPARED, paths.REMEMBERED_WRITERS, paths.OPS, "/idx/")
"""Nothing stays below these."""
TRANSACTIONS = "transactions"
_BUGS = ("unhandled error", "sweep failed")
"""What a service logs when it has met its own mistake."""
_REMEMBERED = (".buffer._outcomes[]", "._mirror._decided[]")
"""Until the entries are trimmed or indexed; and the latest ten thousand."""


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    workload: str
    violations: list[str]
    lines: list[str]
    """The last ones of the trace, when a promise was broken."""
    digest: str
    faults: Counter[str]
    counts: Counter[str]
    """What was done, by its name in the record of many seeds."""
    simulated_s: float
    wall_s: float

    @property
    def transactions(self) -> int:
        return self.counts[TRANSACTIONS]


def run_seed(seed: int, workload: str | None = None, trace_file: IO[str] | None = None) -> Result:
    """With the workload of this name, or the one that the seed draws."""
    collecting, logging = gc.isenabled(), structlog.get_config()
    gc.disable()  # when it runs depends on what ran before, and finalizers are callbacks
    try:
        return _run_and_judge(seed, workload, trace_file)
    finally:
        structlog.configure(**logging)
        if collecting:
            gc.enable()  # the world is out of reach: it goes at once, and nothing of it grows old


def _run_and_judge(seed: int, workload: str | None, trace_file: IO[str] | None) -> Result:
    began = time.perf_counter()
    world = World(seed, trace_file)
    history = History()
    kind = _drawn(world, workload)
    world.faults.aim(world.generator("aim"), kind.aims)
    bounds = drawn(seed)
    world.trace.note("world", f"bounds: {bounds}")
    with seeded_entropy(f"{seed}/entropy"), no_threads(), applied(bounds):
        _listen(world, history)
        try:
            world.loop.run_until_complete(_life(world, history, kind))
            violations = judge(history)
        except Stuck as stuck:
            violations = [f"nothing hangs: {stuck}"]
        except Unfinished as unfinished:
            violations = [f"nothing hangs: {unfinished}"]
        except (Refused, Doubtful) as error:
            violations = [f"everything is served once nothing fails: {error!r}"]
        except Exception as error:  # noqa: BLE001 - of a client: thousands of other seeds go on
            world.trace.note("world", traceback.format_exc())
            violations = [f"no mistake of the simulation itself: {error!r}"]
        finally:
            world.loop.abandon()
            world.loop.close()
    return Result(
        seed,
        kind.name,
        violations,
        list(world.trace.lines) if violations else [],
        world.trace.digest,
        world.faults.made,
        _counts(world, history),
        world.loop.time(),
        time.perf_counter() - began,
    )


def _counts(world: World, history: History) -> Counter[str]:
    return Counter(
        {
            TRANSACTIONS: len(history.begun),
            "entries that clients wrote": len(history.writes),
            "pages that were read": sum(1 for _ in history.committed_reads()),
            "lines of the traces": world.trace.count,
            "callbacks": world.loop.steps,
        }
    )


def _drawn(world: World, wanted: str | None) -> type[Workload]:
    """One workload, beside the operator's; more would only make a seed longer."""
    drawn = world.generator("workloads").choice(WORKLOADS)
    return next((kind for kind in WORKLOADS if kind.name == wanted), drawn)


class Unfinished(Exception):
    """What has not ended in time although nothing fails any more."""


async def _life(world: World, history: History, kind: type[Workload]) -> None:
    cluster = Cluster(world, kafka=kind.kafka)
    cluster.store.listeners.append(history.hear)
    workloads = [each(cluster, history) for each in (kind, Layout)]
    await cluster.start()
    for workload in workloads:
        await workload.set_up()
    for workload in workloads:
        workload.start()
    nemesis = Nemesis(cluster, (process for workload in workloads for process in workload.processes))
    backups = Backups(cluster) if isinstance(workloads[0], Bank) else None
    world.faults.on = True
    nemesis.start()
    if backups is not None:
        backups.start()
    laws = asyncio.create_task(_keep_checking_laws(cluster, history))
    await asyncio.sleep(FAULTY_S)
    try:
        async with asyncio.timeout(FINISH_WITHIN_S):
            await nemesis.stop()
            laws.cancel()
            if backups is not None:
                await backups.finish()
            await cluster.heal()
            for workload in workloads:
                await workload.finish()
            await asyncio.sleep(TIMEOUT_S + LATE_S)  # what is late arrives
            await _until(lambda: not cluster.network.under_way())
            for workload in workloads:
                await workload.drain()
            cluster.survivor.end()
            await _until(lambda: set(history.begun) == set(history.decisions))
            await _compare_mirrors(cluster, history)
            cluster.let_time_pass()
            await _until(lambda: not _leftovers(cluster))
            await _tend_idle_segments(cluster, history)
            for workload in workloads:
                await workload.read_everything()
            if backups is not None:
                await backups.judge(workloads[0], history)
    except TimeoutError:
        raise Unfinished(_what_is_left(cluster)) from None
    await asyncio.sleep(_FORGOTTEN_WITHIN_S)
    history.left |= _memory(cluster, history)
    history.efforts = cluster.network.efforts
    await _check_laws(cluster, history)


async def _until(done: Callable[[], bool]) -> None:
    while not done():
        await asyncio.sleep(LOOK_EVERY_S)


async def _keep_checking_laws(cluster: Cluster, history: History) -> None:
    while True:
        await asyncio.sleep(CHECK_LAWS_EVERY_S)
        await _check_laws(cluster, history)


async def _check_laws(cluster: Cluster, history: History) -> None:
    """The laws of the layout hold at every revision, not only in the end."""
    async for finding in StoreCheck(cluster.store.truth).findings():
        history.broken.append(f"at {cluster.store.revision} {finding.key}: {finding.problem}")


async def _compare_mirrors(cluster: Cluster, history: History) -> None:
    """What brokers have been told of headers is what there is, as soon as the watches have said it all."""
    for _ in range(_LOOKS):
        await asyncio.sleep(_BETWEEN_LOOKS_S)
        truth = {record.key: record for record in cluster.store.records(paths.HEADERS)}
        differ = [name for name, broker in _brokers(cluster) if not _agrees(broker._mirror, truth)]
        if not differ:
            return
    history.left["headers in a mirror differ from those in the store"] = differ


async def _tend_idle_segments(cluster: Cluster, history: History) -> None:
    """Nobody writes any more: outcomes and segments leave the store within the time after which a segment is idle, and
    some looks of its broker."""
    history.few_outcomes = indexing.FEW_OUTCOMES
    loop = asyncio.get_running_loop()
    soon_s = (forgetting.FORGET_AFTER_MS + forgetting.LOOK_EVERY_MS + 2 * cluster.most_ms) / 1000
    deadline = loop.time() + (indexing.IDLE_MS + _TENDED_WITHIN_MS) / 1000 + min(soon_s, FORGOTTEN_SOON_S)
    while True:
        prefix = paths.SEGMENT_STATES
        keys = [record.key.removeprefix(prefix).split("/") for record in cluster.store.records(prefix)]
        history.outcomes = Counter(unescape(segment) for segment, kind, *_ in keys if kind == "outcome")
        is_soon = soon_s < FORGOTTEN_SOON_S
        history.bare = [each for each in _removable(cluster) if is_soon or not _was_never_opened(cluster, each)]
        history.tombstones = _to_forget(cluster) if is_soon else []
        few = all(count < history.few_outcomes for count in history.outcomes.values())
        if loop.time() > deadline or (few and not history.bare and not history.tombstones):
            return
        await asyncio.sleep(LOOK_EVERY_S)


def _to_forget(cluster: Cluster) -> list[str]:
    """The records of deleted topics and dropped subscriptions."""
    topics = [(each.key, TopicRecord.decode(each.value).deleted) for each in cluster.store.records(paths.TOPICS)]
    subscriptions = [
        (each.key, SubscriptionRecord.decode(each.value).deleted) for each in cluster.store.records(paths.SUBSCRIPTIONS)
    ]
    return [key for key, deleted in (*topics, *subscriptions) if deleted]


def _removable(cluster: Cluster) -> list[str]:
    """The segments of which nothing is needed any more, and records of those that are deleted."""
    records = {
        unescape(record.key.removeprefix(paths.SEGMENTS)): SegmentRecord.decode(record.value)
        for record in cluster.store.records(paths.SEGMENTS)
    }

    def unneeded(record: SegmentRecord) -> bool:
        if not record.is_bare or record.trimmed_up_to is None or not record.children or record.existing_parents:
            return False
        others = {parent for child in record.children for parent in records[child].existing_parents}
        inherited = all(records[child].dedup is not None for child in record.children)
        return inherited and all(records[other].is_bare for other in others)

    return [segment for segment, record in records.items() if record.state == "deleted" or unneeded(record)]


def _was_never_opened(cluster: Cluster, segment: str) -> bool:
    """Whether a deleted segment had no owner. Then the broker with its storage may not know it, and finds it when it
    looks for what can be forgotten."""
    owner = cluster.store.truth._get(paths.segment_owner(segment))
    return owner is not None and OwnerRecord.decode(owner.value) == owner_tombstone(None)


def _agrees(mirror: HeaderMirror, truth: Mapping[str, Record]) -> bool:
    """It may have forgotten the oldest decisions, but no more than it says."""
    known = mirror._mirror.records
    missing = [record for key, record in truth.items() if key not in known]
    forgets = len(mirror._decided) >= header_mirror.KEPT_DECISIONS
    wrong = any(truth.get(key) != record for key, record in known.items())
    return not wrong and not any(record.first or not forgets for record in missing)


def _brokers(cluster: Cluster) -> Iterator[tuple[str, Broker]]:
    for role in cluster.roles.values():
        if isinstance(role.service, SimulatedBroker) and role.service.broker is not None:
            yield role.name, role.service.broker


def _leftovers(cluster: Cluster) -> list[str]:
    return [record.key for prefix in TEMPORARY for record in cluster.store.records(prefix)]


def _what_is_left(cluster: Cluster) -> str:
    left = _leftovers(cluster)
    not_serving = [role.name for role in cluster.roles.values() if not role.started.is_set()]
    why = {name: broker.not_ready for name, broker in _brokers(cluster)}
    asked = cluster.network.under_way()
    return f"not serving: {not_serving}, not ready: {why}, asked: {asked}, {len(left)} records left: {left[:10]}"


def _memory(cluster: Cluster, history: History) -> dict[str, Any]:
    """What processes still remember of transactions, when nothing is left of them in the store."""
    left: dict[str, Any] = {}
    for role in cluster.roles.values():
        for place, count in transactions_in(role.service, history.begun).items():
            if not place.endswith(_REMEMBERED):
                left[f"{role.name}{place}"] = f"{count} transactions"
    return left


def _listen(world: World, history: History) -> None:
    """What services log goes to the trace, and what only a bug can cause to the violations."""

    def to_trace(_: Any, level: str, event: MutableMapping[str, Any]) -> str:
        what = event.pop("event")
        error = event.pop("exc_info", None)
        words = " ".join(f"{name}={value}" for name, value in event.items())
        world.trace.note("log", f"{level}: {what} {words}{f' {error!r}' if error else ''}".rstrip())
        if what in _BUGS:
            history.broken.append(f"a service met its own mistake: {what} {error!r} {words}")
        raise structlog.DropEvent

    structlog.configure(
        processors=[to_trace],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )

    def died(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "never retrieved" not in context["message"]:  # that is told by the garbage collector, whenever it likes
            history.broken.append(f"{context['message']}: {context.get('exception')!r}")
            world.trace.note("loop", f"{context['message']}: {context.get('exception')!r}")

    world.loop.set_exception_handler(died)
