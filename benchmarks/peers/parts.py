"""The parts of the benchmark. Bars are those of the issue that asked for it; where it names only "Kafka", that is Kafka
as it is when nothing is set."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.peers.measured import Measured, both, each
from benchmarks.peers.servers import KAFKA, KAFKA_FSYNC, NAMES, OURS, Peer, make, running_peers
from benchmarks.peers.work import MESSAGES, TABLES, TOGETHER, Found, Job, done, say, started
from benchmarks.report import Figure
from benchmarks.services import cpu_s

PRODUCERS = (1, 16, 64, 256)
SEGMENTS = {1: (1, 1), 10: (1, 10), 100: (1, 100), 500: (5, 100)}
"""The topics and the segments of each: one topic of ours begins with 100 at most."""
SIZES = {"100 B": 100, "1 KiB": 1024}
BULK_SEGMENTS = 4
FORMS = {MESSAGES: "", TOGETHER: ", together", TABLES: ", tables"}
"""The forms of bulk writes, and what is added to their names."""
WARMING_PRODUCERS = 16
LOADED_PRODUCERS = 64
IDLE_S = 5.0
IDLE_CONNECTIONS = 1_000
JAVAS_BATCH_BYTES = 16_384
CPU = ("client CPU", "server CPU")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done: rounds that count, rounds before them, seconds of the load that warms up, small transactions,
    seconds of a load, wide transactions, transactions that are open when a system is killed."""

    rounds: int
    cold_rounds: int
    warm_up_s: float
    transactions: int
    seconds: float
    wide: int
    held: int


FULL = Size(rounds=5, cold_rounds=1, warm_up_s=60, transactions=300, seconds=8, wide=5, held=1000)
SMALL = Size(rounds=2, cold_rounds=0, warm_up_s=10, transactions=100, seconds=3, wide=2, held=100)

Turn = Callable[[Peer, Size], dict[str, Found]]
"""What one system does in one round, by the names of what it does."""


def rounds(directory: Path, size: Size, turns: dict[str, Turn], listening: bool = False) -> Measured:
    """Each round has all systems do one thing in turn, then the next thing; each begins with another system. Before the
    first one, all are warmed up by concurrent producers: Java has to compile itself. Cold rounds do not count."""
    measured = Measured()
    with running_peers(directory, listening=listening) as peers:
        for peer in peers:
            tell(0, size, "warming up", peer.name, loaded(peer, WARMING_PRODUCERS, size.warm_up_s))
        for number in range(1 - size.cold_rounds, size.rounds + 1):
            for turn in turns.values():
                for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
                    for what, found in turn(peer, size).items():
                        tell(number, size, what, peer.name, found)
                        if number > 0:
                            measured.add(what, peer.name, found)
    return measured


def tell(number: int, size: Size, what: str, peer: str, found: Found) -> None:
    values = ", ".join(f"{key} {value:,.4g}" for key, value in found.items())
    say(f"round {number} of {size.rounds}: {what}, {peer}: {values}")


def job(name: str, peer: Peer, topics: list[str], **fields: int | float | bool | str) -> Job:
    return Job(name, peer.client, peer.address, peer.pids, topics, **fields)  # type: ignore[arg-type]  # by name


def fresh(peer: Peer, topics: int = 1, segments: int = 1) -> list[str]:
    """New topics."""
    names = [f"t-{uuid.uuid4().hex[:8]}" for _ in range(topics)]
    done(job("prepare", peer, names, segments=segments))
    return names


def loaded(peer: Peer, producers: int, seconds: float) -> Found:
    """By this many producers of small transactions at a time."""
    return done(job("concurrent", peer, fresh(peer, 2), count=producers, seconds=seconds))


def small(directory: Path, size: Size) -> Iterator[Figure]:
    what = "small transaction"

    def turn(peer: Peer, size: Size) -> dict[str, Found]:
        return {what: done(job("small", peer, fresh(peer, 2), count=size.transactions))}

    measured = rounds(directory, size, {what: turn})
    for key in CPU:
        yield from measured.figures(what, key, "ms")
    yield from measured.figures(what, "rate", "1/s", "one after the other")
    for key in ("committed", "visible"):
        yield from measured.figures(what, key, "ms", f"begin to {key} p50, paced")
    yield from measured.against(what, "client CPU", at_most=both(KAFKA, 2))
    yield from measured.against(what, "server CPU", at_most=each(KAFKA, 0.6, 1.0))
    for key in ("committed", "visible"):
        title = f"begin to {key} p50, paced"
        yield from measured.against(what, key, title=title, at_most=each(KAFKA_FSYNC, 1.0, 1.2))


def concurrent(directory: Path, size: Size) -> Iterator[Figure]:
    def turn(peer: Peer, size: Size, what: str, producers: int) -> dict[str, Found]:
        return {what: loaded(peer, producers, size.seconds)}

    loads = {f"{producers} producers": producers for producers in PRODUCERS}
    turns: dict[str, Turn] = {what: partial(turn, what=what, producers=count) for what, count in loads.items()}
    measured = rounds(directory, size, turns)
    for what, producers in loads.items():
        yield from measured.figures(what, "rate", "1/s", "transactions")
        for key in (*CPU, "p50", "p99"):
            yield from measured.figures(what, key, "ms")
        bars = {**both(KAFKA_FSYNC, 3), **both(KAFKA, 1)} if producers in (16, 64) else {}
        yield from measured.against(what, "rate", title="transactions", at_least=bars)
        for key in CPU:
            yield from measured.against(what, key)


def wide(directory: Path, size: Size) -> Iterator[Figure]:
    topics: dict[tuple[str, int], list[str]] = {}

    def turn(peer: Peer, size: Size, what: str, segments: int) -> dict[str, Found]:
        count, per_topic = SEGMENTS[segments]
        names = topics.get((peer.name, segments)) or fresh(peer, count, per_topic)
        topics[peer.name, segments] = names
        return {what: done(job("wide", peer, names, segments=per_topic, count=size.wide))}

    widths = {f"{segments} segments": segments for segments in SEGMENTS}
    turns: dict[str, Turn] = {what: partial(turn, what=what, segments=count) for what, count in widths.items()}
    measured = rounds(directory, size, turns)
    for what, segments in widths.items():
        yield from measured.figures(what, "commit", "ms", "the commit alone")
        for key in ("committed", "visible"):
            yield from measured.figures(what, key, "ms", f"begin to {key}")
        for key in CPU:
            yield from measured.figures(what, key, "ms")
            yield from measured.against(what, key)
        bars = {**both(KAFKA_FSYNC, 0.3), **both(KAFKA, 1.5)} if segments == max(SEGMENTS) else {}
        yield from measured.against(what, "visible", title="begin to visible", at_most=bars)
    most, least = f"{max(SEGMENTS)} segments", f"{min(SEGMENTS)} segments"
    yield from measured.within(most, least, "commit", at_most=1.3)


def bulk(directory: Path, size: Size) -> Iterator[Figure]:
    def turn(peer: Peer, size: Size, label: str, width: int) -> dict[str, Found]:
        found: dict[str, Found] = {}
        for form in FORMS if peer.name in OURS else (MESSAGES,):
            for transactional in (False, True):
                topics = fresh(peer, segments=BULK_SEGMENTS)
                written = job(
                    "write", peer, topics, seconds=size.seconds, transactional=transactional, size=width, form=form
                )
                what = f"{label}, {'transactional' if transactional else 'plain'}{FORMS[form]}"
                found[what] = wrote = done(written)
                if form != TOGETHER:  # they are read like others
                    reading = job("read", peer, topics, count=int(wrote["count"]), size=width, form=form)
                    found[f"{what}, read"] = done(reading)
        for figures in found.values():
            figures["MB/s"] = figures["rate"] * width / 1e6
        return found

    turns: dict[str, Turn] = {label: partial(turn, label=label, width=width) for label, width in SIZES.items()}
    measured = rounds(directory, size, turns)
    for label in SIZES:
        plain, transactional = f"{label}, plain", f"{label}, transactional"
        for how in ("", ", read", FORMS[TOGETHER], FORMS[TABLES], f"{FORMS[TABLES]}, read"):
            for kind in (plain, transactional):
                yield from measured.figures(kind + how, "rate", "1/s", "messages")
                yield from measured.figures(kind + how, "MB/s", "MB/s", "bytes")
                for key in CPU:
                    yield from measured.figures(kind + how, key, "µs")
        bar = label == "100 B"
        for kind in (plain, transactional):
            for how, theirs, at_least in (("", "", 0.4), (FORMS[TOGETHER], "", 0.4), (", read", ", read", 0.5)):
                bars = both(KAFKA, at_least) if bar else {}
                what, other = kind + how, kind + theirs
                yield from measured.against(what, "rate", title="messages", their_work=other, at_least=bars)
                for key in CPU:
                    yield from measured.against(what, key, their_work=other)
            for how in ("", ", read"):
                yield from measured.against(
                    f"{kind}{FORMS[TABLES]}{how}", "rate", title="rows", their_work=kind + how, theirs=(KAFKA,)
                )
        for how in ("", FORMS[TOGETHER]):
            yield from measured.within(transactional + how, plain + how, "rate", at_least=0.95 if bar else None)


@contextmanager
def running_alone(directory: Path, name: str) -> Iterator[Peer]:
    """One of the systems, to be started in the block. What it kept is deleted in the end."""
    directory.mkdir()
    peer = make(name, directory)
    try:
        yield peer
    finally:
        peer.stop()
        shutil.rmtree(directory)


def started_from_nothing(peer: Peer, load_s: float) -> Found:
    begun = time.monotonic()
    peer.launch()
    first = done(job("first", peer, ["first"]))
    memory = peer.resident_bytes
    loaded(peer, LOADED_PRODUCERS, load_s)
    memory_loaded = peer.resident_bytes
    cpu = sum(cpu_s(pid) for pid in peer.pids)
    time.sleep(IDLE_S)
    return {
        "committed": first["at"] - begun,
        "memory": memory / 2**20,
        "loaded": memory_loaded / 2**20,
        "idle": (sum(cpu_s(pid) for pid in peer.pids) - cpu) / IDLE_S,
    }


def killed(peer: Peer, held: int) -> Found:
    with started(job("held", peer, fresh(peer), count=held)) as client:
        client.hear()
        peer.kill()
        client.say("killed")
        peer.launch()
        found: Found = json.loads(client.hear())
        return found


def start(directory: Path, size: Size) -> Iterator[Figure]:
    """Each system alone, from nothing."""
    what, measured = "from nothing", Measured()
    for number in range(1, size.rounds + 1):
        for name in NAMES:
            with running_alone(directory, name) as peer:
                found = started_from_nothing(peer, size.seconds)
            tell(number, size, what, name, found)
            measured.add(what, name, found)
    yield from measured.figures(what, "committed", "s", "start to first commit")
    yield from measured.figures(what, "memory", "MiB", "memory after the first commit")
    yield from measured.figures(what, "loaded", "MiB", f"memory after {LOADED_PRODUCERS} producers")
    yield from measured.figures(what, "idle", "cores", "CPU when idle")
    for key in ("committed", "memory", "loaded"):
        yield from measured.against(what, key)


def restart(directory: Path, size: Size) -> Iterator[Figure]:
    """Each system alone is killed with open transactions, and started again at once."""
    what, measured = f"kill -9 with {size.held:,} open transactions", Measured()
    for number in range(1, size.rounds + 1):
        for name in NAMES:
            with running_alone(directory, name) as peer:
                peer.start()
                found = killed(peer, size.held)
            tell(number, size, what, name, found)
            measured.add(what, name, found)
    yield from measured.figures(what, "committed", "s", "until they are committed")
    yield from measured.figures(what, "read", "s", "until they are read")
    yield from measured.figures(what, "lost", "transactions", "that could not be committed")
    for key in ("committed", "read"):
        yield from measured.against(what, key)


def listener(directory: Path, size: Size) -> Iterator[Figure]:
    """Kafka's clients with all of them. librdkafka has one batch of an idempotent producer on its way, Java's client
    has five."""
    ten, connections = "transaction of ten messages", "1,000 idle connections"
    big = {"large": "one large transaction", "large_java": "one large transaction, Java"}

    def bulk_turn(peer: Peer, size: Size, label: str, width: int) -> dict[str, Found]:
        topics = fresh(peer, segments=BULK_SEGMENTS)
        written = done(job("write", peer, topics, seconds=size.seconds, size=width))
        return {
            f"{label}, written": written,
            f"{label}, read": done(job("read", peer, topics, count=int(written["count"]), size=width)),
        }

    def ten_turn(peer: Peer, size: Size) -> dict[str, Found]:
        return {ten: done(job("small", peer, fresh(peer), count=size.transactions, messages=10))}

    def big_turn(peer: Peer, size: Size) -> dict[str, Found]:
        way = {"seconds": size.seconds, "batch_bytes": JAVAS_BATCH_BYTES}
        return {what: done(job(name, peer, fresh(peer), **way)) for name, what in big.items()}

    def idle_turn(peer: Peer, size: Size) -> dict[str, Found]:
        before = peer.resident_bytes
        with started(job("idle", peer, [], count=IDLE_CONNECTIONS)) as client:
            client.hear()
            return {connections: {"memory": (peer.resident_bytes - before) / 2**20}}

    turns: dict[str, Turn] = {label: partial(bulk_turn, label=label, width=width) for label, width in SIZES.items()}
    measured = rounds(
        directory,
        size,
        {**turns, ten: ten_turn, "one large transaction": big_turn, connections: idle_turn},
        listening=True,
    )
    for label in SIZES:
        for what in (f"{label}, written", f"{label}, read"):
            yield from measured.figures(what, "rate", "1/s", "messages")
            for key in CPU:
                yield from measured.figures(what, key, "µs")
            yield from measured.against(what, "rate", title="messages")
            yield from measured.against(what, "server CPU", at_most=both(KAFKA, 1))
    for key in ("committed", "visible"):
        yield from measured.figures(ten, key, "ms", f"begin to {key} p50, paced")
    for key in CPU:
        yield from measured.figures(ten, key, "ms")
    title = "begin to committed p50, paced"
    yield from measured.against(ten, "committed", title=title, at_most=both(KAFKA_FSYNC, 1))
    for what in big.values():
        yield from measured.figures(what, "rate", "1/s", "messages")
        for key in CPU:
            yield from measured.figures(what, key, "µs")
        yield from measured.against(what, "rate", title="messages", at_least=both(KAFKA, 0.7))
    yield from measured.figures(connections, "memory", "MiB", at_most=dict.fromkeys(OURS, 200))


PARTS: dict[str, Callable[[Path, Size], Iterator[Figure]]] = {
    "small": small,
    "concurrent": concurrent,
    "wide": wide,
    "bulk": bulk,
    "start": start,
    "restart": restart,
    "listener": listener,
}
