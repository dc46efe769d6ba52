"""etcd, a coordinator and brokers that share object storage, each a process of its own, as an operator starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import metatxn
from metatxn.frames import values_of
from metatxn.wire.broker import Isolation
from tests.coordinator.processes import CoordinatorProcess
from tests.forked import Metatxn
from tests.metatxn.waiting import eventually
from tests.servers import EtcdServer

PATIENCE_S = 120.0
"""Longer than a lease, on a machine that has other things to do."""


class BrokerProcess:
    def __init__(self, store_url: str, log: Path, environment: Mapping[str, str], *options: str) -> None:
        self._command = ["broker", "--store", store_url, "--port", "0", "-o", "json", *options]
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> Self:
        with self._log.open("a") as errors:
            self._process = Metatxn(self._command, stdout=subprocess.PIPE, stderr=errors, env=self._environment)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it did not start: {self._log.read_text()[-2000:]}"
        self.url = json.loads(line)["broker"]
        return self

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def stop(self) -> None:
        """As an operator does, in order."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, self._log.read_text()[-2000:]
        self._process = None


class Cluster:
    """Inside its `with`: `client` talks to anyone who is there."""

    def __init__(self, directory: Path, storage_url: str, environment: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._storage = storage_url
        self._environment = environment or {}
        self._stack = ExitStack()
        self.brokers: list[BrokerProcess] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            etcd = stack.enter_context(EtcdServer(self._directory / "etcd"))
            self.store_url = f"etcd://{etcd.endpoint}"
            coordinator = stack.enter_context(CoordinatorProcess(self.store_url, "--log-level", "error"))
            self.url = coordinator.url
            self.client = metatxn.connect(self.url, request_timeout_s=PATIENCE_S)
            stack.callback(self._kill_all)
            stack.callback(self.client.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _kill_all(self) -> None:
        for broker in self.brokers:
            broker.kill()

    def broker(self, *options: str) -> BrokerProcess:
        log = self._directory / f"broker-{len(self.brokers)}.log"
        where = options or ("--storage", self._storage)
        broker = BrokerProcess(self.store_url, log, self._environment, *where).start()
        self.brokers.append(broker)
        return broker

    def owners(self, topic: str) -> dict[str, str | None]:
        return {segment.segment: segment.owner for segment in self.client.topic(topic).segments}

    def wait(self, holds: Callable[[], bool]) -> None:
        eventually(holds, True, PATIENCE_S)


def values(client: metatxn.Client, segment: str, isolation: Isolation = "read_committed") -> list[Any]:
    """What a segment shows, in order."""
    return [value for frame in client.read_segment(segment, isolation) for value in values_of(frame)]


def visible(client: metatxn.Client, topic: str) -> list[Any]:
    """What the segments of a topic show, one after another."""
    return [value for segment in client.topic(topic).segments for value in values(client, segment.segment)]
