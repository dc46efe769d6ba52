"""One measurement, in a process of its own, which is the client: `python -m benchmarks.peers.work` reads a `Job` as
JSON in a line of its standard input, and prints what it found as JSON in its last line.

`kafka_work` and `metatxn_work` do each job in the way that the users of that client do it.
"""

from __future__ import annotations

import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Self

from benchmarks.report import percentile
from benchmarks.services import cpu_s
from examples.flights.processes import ROOT

Found = dict[str, float]
PATIENCE_S = 300
WARM_UP = 20
"""Small transactions that do not count."""
PACE_S = 0.05
"""From the beginning of one paced small transaction to that of the next."""
RAMP_S = 1.0
"""Concurrent producers work for so long before they are counted."""
REST_S = 0.3
"""Between transactions over many segments."""
MESSAGES_PER_TRANSACTION = 10_000
MESSAGES, TOGETHER, TABLES = "messages", "messages together", "tables"
"""The forms in which many messages are written: one `send` for each, one for many of them, or as rows."""
ENTRY_OVERHEAD_BYTES = 12
"""Of a message of metatxn in its entry, which is JSON."""


@dataclass(frozen=True, slots=True)
class Job:
    """`name` is a function of the module of the client. The other fields are used by the jobs that need them:
    `messages` are those of a small transaction to each topic, `batch_bytes` is for batches of another size than the
    client's usual ones, and `form` is one of the forms above."""

    name: str
    client: str
    address: str
    pids: list[int]
    topics: list[str] = field(default_factory=list)
    segments: int = 1
    count: int = 0
    messages: int = 1
    seconds: float = 0
    size: int = 100
    batch_bytes: int = 0
    transactional: bool = False
    form: str = MESSAGES

    def dump(self) -> str:
        return json.dumps(asdict(self))


class Running:
    """A client at work. Its errors go to the terminal."""

    def __init__(self, module: str, line: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.say(line)

    def say(self, line: str) -> None:
        _pipe(self.process.stdin).write(line + "\n")
        _pipe(self.process.stdin).flush()

    def hear(self) -> str:
        line = _pipe(self.process.stdout).readline()
        if not line:
            raise SystemExit(f"a client of the benchmark has failed: exit code {self.process.wait()}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _pipe(self.process.stdin).close()
        _pipe(self.process.stdout).close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def started(job: Job) -> Running:
    return Running("benchmarks.peers.work", job.dump())


def done(job: Job) -> Found:
    with started(job) as running:
        found: Found = json.loads(running.hear())
        return found


class Meter:
    """CPU time of the client and of the servers, and wall time, between `begin` and `end`. The client is this process,
    unless it is another one."""

    def __init__(self, pids: Sequence[int], client: int | None = None) -> None:
        self._pids = pids
        self._client = client

    def begin(self) -> None:
        self._begun = self._now()

    def end(self) -> None:
        self.client_s, self.server_s, self.wall_s = (
            now - then for now, then in zip(self._now(), self._begun, strict=True)
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        self.begin()
        yield
        self.end()

    def covers(self, at: float) -> bool:
        return self._begun[2] <= at <= self._begun[2] + self.wall_s

    def each(self, count: int, unit: float = 1e3) -> Found:
        """CPU times of one of so many, in ms or in other parts of a second, and how many there were per second."""
        return {
            "client CPU": self.client_s / count * unit,
            "server CPU": self.server_s / count * unit,
            "rate": count / self.wall_s,
        }

    def _now(self) -> tuple[float, float, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        client_s = used.ru_utime + used.ru_stime if self._client is None else cpu_s(self._client)
        return client_s, sum(cpu_s(pid) for pid in self._pids), time.monotonic()


@dataclass(slots=True)
class Times:
    """When the transactions began and when their commits returned, in the order of their numbers, in seconds."""

    begun: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    """When the commit was called."""
    committed: list[float] = field(default_factory=list)

    def found(self, seen: Sequence[float], first: int = 0) -> Found:
        """Medians in ms; `seen` is when a reader had all of a transaction."""
        spans = {
            "committed": (self.begun, self.committed),
            "commit": (self.ready, self.committed),
            "visible": (self.begun, seen),
        }
        return {
            name: statistics.median(end - begin for begin, end in zip(begins[first:], ends[first:], strict=True)) * 1e3
            for name, (begins, ends) in spans.items()
        }


class Watched:
    """A reader in another process, which waits for this many transactions with this many messages each."""

    def __init__(self, job: Job, transactions: int, messages: int) -> None:
        line = {"client": job.client, "address": job.address, "topics": job.topics}
        self._running = Running(
            "benchmarks.peers.watch", json.dumps({**line, "transactions": transactions, "messages": messages})
        )

    def __enter__(self) -> Self:
        self._running.hear()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__()

    def seen(self) -> list[float]:
        """When it had all messages of each."""
        times: list[float] = json.loads(self._running.hear())
        return times


def numbered(number: int, size: int) -> str:
    """A message of this many letters that begins with its number."""
    return f"{number:08d}".ljust(size, "x")


def number_of(value: str) -> int:
    return int(value[:8])


def counted(meter: Meter, ended: Sequence[tuple[float, float]]) -> Found:
    """Of the transactions that ended while the meter ran: when each did, and how long it took, in seconds."""
    took = [duration for at, duration in ended if meter.covers(at)]
    if len(took) < 2:
        raise SystemExit(f"only {len(took)} transactions were committed in {meter.wall_s:.0f} s")
    return meter.each(len(took)) | {"p50": statistics.median(took) * 1e3, "p99": percentile(took, 99) * 1e3}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def hear() -> str:
    return sys.stdin.readline()


def main() -> None:
    fields: dict[str, Any] = json.loads(hear())
    job = Job(**fields)
    module = importlib.import_module(f"benchmarks.peers.{job.client}_work")
    work: Callable[[Job], Found] = getattr(module, job.name)
    say(json.dumps(work(job)))


if __name__ == "__main__":
    main()
