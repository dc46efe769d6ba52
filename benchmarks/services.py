"""The services as users start them, each a process of its own, and what the kernel knows about each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.flights.processes import stop

METATXN = (sys.executable, "-c", "from metatxn.cli.main import main; main()")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Service:
    """A process that has said that it serves."""

    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def anonymous_bytes(pid: int) -> int:
    """What a process has allocated, of that which is resident. Pages of files, such as its program, come and go with
    what else the machine does."""
    status = Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1]
    return int(status.split()[0]) * 1024


def cpu_s(pid: int) -> float:
    """Of all threads of a process, in user and system mode, so far."""
    fields = process_stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def exact_cpu_s(pid: int) -> float:
    """Of the threads that a process has now: to the nanosecond, where `cpu_s` counts ticks of 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def process_stat(pid: int) -> list[str]:
    """What `/proc` tells, from the state on; the second field is the parent."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name before it may hold spaces


@contextmanager
def running(kind: str, *options: str) -> Iterator[Service]:
    """`metatxn coordinator` or `metatxn broker`, on a free port, from when it serves to the end of the block."""
    with spawned([*METATXN, kind, "--port", "0", "-o", "json", *options]) as (process, line):
        yield Service(process, json.loads(line)[kind])


@contextmanager
def spawned(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that prints one line when it is ready, and that line. It is stopped in the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"{command[-1]} did not start: exit code {process.wait()}")
            yield process, line
        finally:
            stop(process)
