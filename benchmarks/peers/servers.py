"""What is compared: Kafka in two configurations and metatxn on two stores, each with one node on fixed ports, so that
it can be killed and started again.

Kafka is started as its own scripts do: 1 GiB of heap, the collector's settings, broker and controller in one process;
without a file for its logs. "Kafka with fsync" syncs every message before it acknowledges it, as metatxn always does.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from benchmarks.services import METATXN, resident_bytes
from examples.flights.etcd import await_health, etcd_command
from examples.flights.processes import ROOT, free_port, stop

JARS = ROOT / "build" / "kafka"
CLUSTER = "bWV0YXR4bi1iZW5jaG1hcg"
"""The id of the cluster: 16 bytes in base64."""
JAVA = (
    "java",
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
LISTEN_SECONDS = 120
MOST_CONNECTIONS = 2_000
"""Of Kafka clients with ours."""


class Peer(ABC):
    """A system with one node. `client` names the library that works with it, `address` is where that connects."""

    name: str
    client: ClassVar[str]

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory / name.replace(" ", "-")
        self.directory.mkdir()
        self.port, self.other_port = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    @abstractmethod
    def address(self) -> str: ...

    @abstractmethod
    def launch(self) -> None:
        """Start every process, in the state that the last ones have left."""

    def start(self) -> None:
        """Until it accepts connections."""
        self.launch()
        deadline = time.monotonic() + LISTEN_SECONDS
        while not _accepts(self.port):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise SystemExit(f"{self.name} did not start; see {self.directory}")
            time.sleep(0.02)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def resident_bytes(self) -> int:
        return sum(resident_bytes(pid) for pid in self.pids)

    def kill(self) -> None:
        """`kill -9` for all of its processes."""
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def stop(self) -> None:
        for process in reversed(self._processes):
            stop(process)
        self._processes.clear()

    def _run(self, *command: str) -> None:
        with (self.directory / "output.log").open("a") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT))


class Kafka(Peer):
    client = "kafka"

    def __init__(self, name: str, directory: Path, **settings: str) -> None:
        super().__init__(name, directory)
        listeners = f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{self.other_port}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.other_port}",
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            **settings,
        }
        self._properties = self.directory / "server.properties"
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        _kafka_java("kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER, "-c", str(self._properties))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        self._run(*JAVA, "-cp", f"{JARS}/*", "kafka.Kafka", str(self._properties))


def _kafka_java(*arguments: str) -> None:
    if not (JARS.is_dir() and shutil.which("java")):
        raise SystemExit(f"Kafka is not in {JARS}, or there is no Java: use `make bench-peers`")
    subprocess.run(["java", "-cp", f"{JARS}/*", *arguments], check=True, capture_output=True)


class Metatxn(Peer):
    """`metatxn dev`: coordinator and broker in one process, and etcd as another one, where it is the store."""

    client = "metatxn"

    def __init__(self, name: str, directory: Path, etcd: bool) -> None:
        super().__init__(name, directory)
        self._etcd = (free_port(), free_port()) if etcd else None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def _options(self) -> tuple[str, ...]:
        return ()

    def launch(self) -> None:
        options = ["--port", str(self.port), "--broker-port", str(self.other_port)]
        options += ["--data-dir", str(self.directory / "data"), *self._options]
        if self._etcd is not None:
            self._run(*etcd_command(self.directory / "etcd", *self._etcd))
            await_health(f"http://127.0.0.1:{self._etcd[0]}")
            options += ["--store", f"etcd://127.0.0.1:{self._etcd[0]}"]
        self._run(*METATXN, "dev", *options)


class Listening(Metatxn):
    """The same, used by Kafka's client."""

    client = "kafka"

    def __init__(self, name: str, directory: Path, etcd: bool) -> None:
        super().__init__(name, directory, etcd)
        self._kafka_port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._kafka_port}"

    @property
    def _options(self) -> tuple[str, ...]:
        return "--kafka-port", str(self._kafka_port), "--kafka-max-connections", str(MOST_CONNECTIONS)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


KAFKA, KAFKA_FSYNC, SQLITE, ETCD = NAMES = ("Kafka", "Kafka with fsync", "SQLite", "etcd")
OURS = (SQLITE, ETCD)


def make(name: str, directory: Path, listening: bool = False) -> Peer:
    """One of `NAMES`, not started yet. With `listening`, ours for Kafka's client."""
    if name in OURS:
        return (Listening if listening else Metatxn)(name, directory, etcd=name == ETCD)
    settings = {"log.flush.interval.messages": "1"} if name == KAFKA_FSYNC else {}
    return Kafka(name, directory, **settings)


@contextmanager
def running_peers(directory: Path, names: Sequence[str] = NAMES, listening: bool = False) -> Iterator[list[Peer]]:
    """All of them side by side; those whose turn it is not are idle. What they kept is deleted in the end."""
    directory.mkdir()
    peers: list[Peer] = []
    try:
        for name in names:
            peers.append(make(name, directory, listening))
            peers[-1].start()
        yield peers
    finally:
        for peer in peers:
            peer.stop()
        shutil.rmtree(directory, ignore_errors=True)
