"""One run: clients at work, the schedule, quiet, the last look, the verdict."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import httpx
from confluent_kafka import TopicPartition

import metatxn
from metastore.api import MetadataStore
from metastore.check import StoreCheck
from metastore.txn import paths
from participants.segment.rolling import DEFAULT_MAX_LEDGER_BYTES
from tests.bounds import drawn, ledger_bytes
from tests.chaos.client import BANK, LOG, SUBSCRIPTION, Ledger, Worker
from tests.chaos.cluster import OURSELVES, PATIENCE_S, Cluster
from tests.chaos.kafka_client import PARTITIONS, Member, Reader
from tests.chaos.mixes import MIXES, Fault
from tests.chaos.nemesis import Nemesis
from tests.chaos.pulsar_client import PULSAR_TOPICS
from tests.chaos.schedule import PULSAR_CLIENTS, Strike, schedule
from tests.histories.calls import Call, Outcome, Recorder, read_calls
from tests.histories.messages import judge, pulsar_errors
from tests.histories.messages.consumption import INPUTS, KAFKA_INPUTS, KAFKA_OUTPUTS, OUTPUTS
from tests.histories.messages.history import History
from tests.histories.messages.kafka_errors import name_of

TOPICS = {**dict.fromkeys(BANK, 2), LOG: 2, INPUTS: 1, OUTPUTS: 2}
"""And how many segments each has."""
KAFKA_TOPICS = {KAFKA_INPUTS: PARTITIONS, KAFKA_OUTPUTS: PARTITIONS}
LISTENER_TOPICS: dict[str | None, dict[str, int]] = {None: {}, "kafka": KAFKA_TOPICS, "pulsar": PULSAR_TOPICS}
POLL_S = 0.5
REQUEST_S = 20.0
PER_TRANSACTION = (
    *(paths.HEADERS, paths.LEASES, paths.REMEMBERED_WRITERS, paths.PREPARED, paths.OPS),
    *(paths.WRITES_INDEX, paths.ACKS_INDEX, paths.OFFSETS_INDEX, paths.DEADLINE_INDEX, paths.FINAL_STATE_INDEX),
)
"""Prefixes below which nothing is left when all is quiet."""


@dataclass(slots=True)
class Report:
    """What happened in one run. `anomalies` by promise."""

    mix: str
    seed: int
    seconds: float
    directory: Path
    strikes: list[Strike]
    faults: Counter[Fault] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    restarts: Counter[str] = field(default_factory=Counter)
    """How often a client of Pulsar's had hung, and its process was started again."""
    anomalies: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def replay(self) -> str:
        return f"python -m tests.chaos --mix {self.mix} --seed {self.seed} --minutes {self.seconds / 60:g}"

    def __str__(self) -> str:
        lines = [f"mix {self.mix}, seed {self.seed}, {self.seconds:g} s of faults"]
        lines += [f"    {count:>7} {what}" for what, count in sorted(self.counts.items())]
        lines += [f"    {count:>7} × {fault}" for fault, count in sorted(self.faults.items())]
        lines += [f"    {count:>7} × {name} ended by itself" for name, count in self.ended.items()]
        lines += [f"    {count:>7} × {name} had hung and was started again" for name, count in self.restarts.items()]
        lines += [f"    {note}" for note in self.notes]
        lines.append(f"    {sum(map(len, self.anomalies.values())):>7} anomalies")
        for promise, found in self.anomalies.items():
            lines += [f"{promise}: {len(found)}", *(f"    {one}" for one in found[:10])]
        if self.anomalies:
            lines += [f"evidence: {self.directory}", f"replay: {self.replay}"]
        return "\n".join(lines)


async def run(name: str, seed: int, seconds: float, directory: Path) -> Report:
    """Everything stays behind in `directory`."""
    mix = MIXES[name]
    report = Report(name, seed, seconds, directory, schedule(mix, seed, seconds))
    report.notes.append(
        f"ledgers of {ledger_bytes(seed, DEFAULT_MAX_LEDGER_BYTES)} bytes, {len(drawn(seed))} other bounds are small"
    )
    cluster = Cluster(mix, seed, directory)
    async with cluster.running():
        await rage(cluster, report)
        await Calm(cluster, report).come()
        if report.anomalies:
            for name, disk in cluster.disks.items():
                shutil.copytree(disk.path, directory / "evidence" / name)
    return report


async def rage(cluster: Cluster, report: Report) -> None:
    """Clients at work, and the faults of the schedule."""
    await asyncio.to_thread(make_topics, cluster.urls, Random(report.seed), cluster.mix.listener)
    for client in cluster.clients.values():
        client.launch()
    (report.directory / "schedule.txt").write_text("\n".join(map(str, report.strikes)))
    nemesis = Nemesis(cluster)
    await nemesis.rage(report.strikes)
    report.faults = nemesis.made
    if not all(disk.mounted for disk in cluster.disks.values()):
        report.notes.append("mounting is not permitted here, so no disk was ever full")


def make_topics(urls: Sequence[str], dice: Random, listener: Literal["kafka", "pulsar"] | None = None) -> None:
    """Each over a service that is drawn, so that with local files both brokers have some."""
    of_listener = LISTENER_TOPICS[listener]
    for topic, segments in (TOPICS | of_listener).items():
        with metatxn.connect(dice.choice(urls)) as client:
            client.create_topic(topic, segments, format=listener if topic in of_listener else None)
    with metatxn.connect(dice.choice(urls)) as client:
        client.subscribe(INPUTS, SUBSCRIPTION, "shared", "earliest").close()


class LastWorker(Worker):
    """Commits whatever it begins."""

    abort = 0.0


class LastMember(Member):
    """Commits whatever it begins."""

    abort = 0.0

    def is_done(self) -> bool:
        """Whether its group has passed all inputs."""
        if self.consumer is None:
            return False
        places = [TopicPartition(KAFKA_INPUTS, number) for number in range(PARTITIONS)]
        passed = sum(max(each.offset, 0) for each in self.consumer.committed(places, REQUEST_S))
        return bool(passed == sum(self.consumer.get_watermark_offsets(each, REQUEST_S)[1] for each in places))


class Calm:
    """No faults any more: everything must come to its end, and then the truth is told."""

    def __init__(self, cluster: Cluster, report: Report) -> None:
        self._cluster = cluster
        self._report = report
        self._recorder = Recorder(Ledger(cluster.histories / "last.jsonl").take, "last", time.monotonic_ns)
        self._read = 0
        self._hung = threading.Event()

    async def come(self) -> None:
        await self._in_time("the services are ready again", self._cluster.ready())
        clients = self._cluster.clients.items()
        # All at once: what one of them reads would grow while the others wait for their turn to stop.
        await asyncio.gather(
            *(
                self._in_time(f"{name} comes to its end", client.stop(), partial(self._written_by, name))
                for name, client in clients
            )
        )
        for name, client in clients:
            if name in PULSAR_CLIENTS:  # a milestone, and its own process: docs/pulsar.md says what it does not survive
                self._report.restarts[name] = client.ended
                continue
            self._expect(not client.ended, "clients work", f"{name} failed {client.ended} times, see {name}.log")
        if self._cluster.mix.upgrade:
            await self._in_time("the upgrade is finalized", self._upgrade())
        self._report.ended = self._cluster.died + Counter(
            {name: one.ended for name, one in self._cluster.services.items()}
        )
        async with self._cluster.store() as store:
            await self._in_time("open transactions time out", empty(store, paths.DEADLINE_INDEX))
            await self._in_time("orders are consumed", asyncio.to_thread(self._consume), lambda: self._read)
            if self._cluster.mix.listener == "kafka":
                transforming = asyncio.to_thread(self._transform)
                await self._in_time("Kafka's inputs are transformed", transforming, lambda: self._read)
            if self._cluster.mix.listener == "pulsar":
                by_pulsar = self._transform_by_pulsar()
                await self._in_time("Pulsar's inputs are transformed", by_pulsar, partial(self._written_by, OURSELVES))
            await self._in_time("read holds can be ended", self._end_holds(store))
            await self._in_time("the store drains", self._drain(store))
            for finding in [finding async for finding in StoreCheck(store).findings()]:
                self._expect(False, "laws of the store", str(finding))
        await self._in_time("everything can be read", asyncio.to_thread(self._look), lambda: self._read)
        if self._cluster.mix.listener == "pulsar":
            looking = self._look_by_pulsar()
            await self._in_time("Pulsar's client reads it all", looking, partial(self._written_by, OURSELVES))
        self._judge()

    def _expect(self, holds: bool, promise: str, otherwise: str) -> None:
        if not holds:
            self._report.anomalies.setdefault(promise, []).append(otherwise)

    async def _in_time(
        self, what: str, awaited: Coroutine[Any, Any, object], progress: Callable[[], object] = lambda: None
    ) -> None:
        """It hangs if there is no progress for `PATIENCE_S`: on a busy machine a long read takes longer."""
        task = asyncio.create_task(awaited)
        before: object = self
        while not task.done() and before != (before := progress()):
            await asyncio.wait([task], timeout=PATIENCE_S)
        if not task.done():
            self._hung.set()
            task.cancel()
            self._expect(False, "nothing hangs", f"{PATIENCE_S:g} s without faults pass, and it is not so that {what}")
        try:
            await task
        except asyncio.CancelledError:
            pass
        except metatxn.MetatxnError as error:
            self._expect(False, "nothing hangs", f"without faults it is not so that {what}: {error!r}")

    def _written_by(self, client: str) -> list[int]:
        files = (self._cluster.log(client), *self._cluster.histories.glob(f"{client}-*"))
        return [each.stat().st_size for each in files if each.exists()]

    async def _upgrade(self) -> None:
        """Everything runs this release, and the upgrade is finalized. Until then there was nothing that the previous
        release does not know; after that it is not started any more."""
        for name in self._cluster.services.keys() & self._cluster.of_previous:
            await self._cluster.upgrade_or_back(name)
        await self._cluster.ready()
        async with self._cluster.store() as store:
            for finding in [finding async for finding in StoreCheck(store).findings()]:
                if "cluster version" in finding.problem:
                    self._expect(False, "the previous release knows every record", str(finding))
        await asyncio.to_thread(self._finalize)
        for name in ("coordinator-0", "broker-0"):
            said = await self._cluster.refuses_the_previous_release(name)
            refused = "the cluster was upgraded" in said
            self._expect(refused, "the previous release does not come back", f"{name} of it started, or said: {said}")
        await self._cluster.ready()
        self._report.counts["upgrades finalized"] += 1

    def _finalize(self) -> None:
        """What has just been stopped is announced for a while."""
        with metatxn.connect(self._cluster.urls[0]) as client:
            while True:
                try:
                    client.finalize_upgrade()
                    break
                except metatxn.UpgradePending as pending:
                    (self._report.directory / "upgrade.log").write_text(str(pending))
                    time.sleep(POLL_S)
            client.set_topic_policy(LOG, retention_bytes=1 << 40)

    def _consume(self) -> None:
        """Until there is a bill of every order."""
        worker = LastWorker(self._cluster.urls[0], "last-worker", self._recorder, Random(0))
        while not self._hung.is_set() and self._orders_left(worker.client):
            worker.quietly(worker.turn)
        worker.leave()

    def _orders_left(self, client: metatxn.Client) -> bool:
        return len(self._everything(client, INPUTS)) > len(self._everything(client, OUTPUTS))

    def _transform(self) -> None:
        """Until the group of Kafka's clients has passed all inputs."""
        name = "last-member"
        member = LastMember(self._cluster.listener_addresses, name, self._recorder, Random(0), name)
        done: list[bool] = []
        before = self._read
        while not self._hung.is_set() and not any(done):
            member.quietly(member.turn)
            self._read = before + member.passed
            member.quietly(lambda: done.append(member.is_done()))
        member.leave()

    async def _transform_by_pulsar(self) -> None:
        """Until there are as many outputs of both kinds as inputs."""
        async with self._cluster.last_client("finish"):
            while await asyncio.to_thread(self._inputs_left):
                await asyncio.sleep(POLL_S)

    def _inputs_left(self) -> bool:
        with metatxn.connect(self._cluster.urls[0]) as client:
            counts = [len(self._everything(client, topic)) for topic in PULSAR_TOPICS]
        return counts[0] > min(counts)

    async def _look_by_pulsar(self) -> None:
        """What a client of Pulsar's sees of a topic is what one of ours has seen."""
        final = History.of(read_histories(self._cluster.histories)).final
        wanted = [f"{topic}={len(final[topic])}" for topic in PULSAR_TOPICS]
        async with self._cluster.last_client("look", *wanted) as looking:
            await looking.over()
        history = History.of(read_histories(self._cluster.histories))
        for topic in PULSAR_TOPICS:
            lives: dict[str, Counter[str]] = defaultdict(Counter)
            for (reader, of, _), messages in history.segment_reads.items():
                if of == topic and reader.startswith(f"{OURSELVES}-"):
                    lives[reader].update(name for _, name in messages)
            ours = Counter(name for _, name in final[topic])
            same = any(seen == ours for seen in lives.values()) or not ours
            seen = [each.total() for each in lives.values()]
            self._expect(same, "both protocols", f"{ours.total()} and {seen} messages of {topic}")

    async def _end_holds(self, store: MetadataStore) -> None:
        """A hold whose answer was lost, or its release, would keep headers for a long time. Nobody needs it now."""
        with metatxn.connect(self._cluster.urls[0]) as client:
            broker = (await asyncio.to_thread(client.cluster)).brokers[0].url
        async with httpx.AsyncClient(base_url=broker, timeout=30) as http:
            for held in (await store.scan(paths.READ_HOLDS, keys_only=True)).records:
                topic, _, hold = held.key.removeprefix(paths.READ_HOLDS).partition("/")
                (await http.delete(f"/v1/topics/{topic}/read-holds/{hold}")).raise_for_status()

    async def _drain(self, store: MetadataStore) -> None:
        try:
            await empty(store, *PER_TRANSACTION)
        except asyncio.CancelledError:
            for prefix in PER_TRANSACTION:
                left = (await store.scan(prefix, limit=20, keys_only=True)).records
                self._expect(not left, "nothing is left", f"{prefix}: {[record.key for record in left]}")
            raise

    def _look(self) -> None:
        with metatxn.connect(self._cluster.urls[0]) as client:
            for topic in (*TOPICS, *(PULSAR_TOPICS if self._cluster.mix.listener == "pulsar" else ())):
                call = self._recorder.invoke("last", {"do": "final", "topic": topic})
                self._recorder.answer(call, "last", Outcome.OK, self._everything(client, topic))
            if self._cluster.mix.listener == "kafka":
                for topic in KAFKA_TOPICS:
                    self._look_as_both(client, topic)

    def _look_as_both(self, client: metatxn.Client, topic: str) -> None:
        """What a client of Kafka's sees of a topic is what is there; one of ours sees the same of each partition."""
        reader = Reader(self._cluster.listener_addresses, f"last of {topic}", self._recorder, Random(0), topic)
        call = self._recorder.invoke("last", {"do": "final", "topic": topic})
        seen: list[tuple[str, str]] = []
        while len(reader.ended) < PARTITIONS and not self._hung.is_set():
            found = reader.read()
            seen += found
            self._read += len(found)
        self._recorder.answer(call, "last", Outcome.OK, seen)
        call = self._recorder.invoke("last", {"do": "read", "reader": "ours", "topic": topic})
        ours = self._everything(client, topic)
        self._recorder.answer(call, "last", Outcome.OK, ours)
        self._expect(len(ours) == len(seen), "both protocols", f"{len(ours)} and {len(seen)} messages of {topic}")

    def _everything(self, client: metatxn.Client, topic: str) -> list[tuple[str | None, str]]:
        """As (key, id)."""
        seen: list[tuple[str | None, str]] = []
        for message in client.reader(topic):
            seen.append((message.key, message.value["id"]))
            self._read += 1
        return seen

    def _judge(self) -> None:
        calls = read_histories(self._cluster.histories)
        history = History.of(calls)
        self._report.anomalies |= judge(history)
        self._report.counts += Counter(map(description, calls))
        self._report.counts += Counter(f"errors {name_of(call)}" for call in history.kafka_errors)
        self._report.counts += Counter(f"errors {pulsar_errors.name_of(call)}" for call in history.pulsar_errors)
        for txn in history.ends:
            self._report.counts[f"transactions {fate(history, txn)}"] += 1


def description(call: Call) -> str:
    """What is counted as one."""
    topic = call.action.get("topic")
    return f"{call.action['do']} {f'of {topic} ' if topic in {**KAFKA_TOPICS, **PULSAR_TOPICS} else ''}{call.outcome}"


def fate(history: History, txn: str) -> str:
    """As clients know it."""
    if history.committed(txn):
        return "committed"
    return "aborted" if history.aborted(txn) else "that nobody was told of"


async def empty(store: MetadataStore, *prefixes: str) -> None:
    """Until nothing is below any of them."""
    for prefix in prefixes:
        while (await store.scan(prefix, limit=1, keys_only=True)).records:
            await asyncio.sleep(POLL_S)


def read_histories(directory: Path) -> list[Call]:
    """The last line of one who was killed may be torn."""
    lines: list[bytes] = []
    for path in directory.iterdir():
        lines += [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return read_calls(lines)
