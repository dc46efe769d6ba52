"""The services that rows of the matrix kill: on etcd a process for each of them, on SQLite one process for all."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tests.forked import Metatxn
from tests.servers import EtcdServer, free_port

Store = Literal["sqlite", "etcd"]
PARTS: dict[Store, tuple[str, ...]] = {"sqlite": ("dev",), "etcd": ("coordinator", "broker", "store")}


class Service:
    """`metatxn dev`, `coordinator` or `broker`: `start` after `kill` goes on with the same data at the same place."""

    def __init__(self, kind: str, log: Path, *options: str) -> None:
        self._command = [kind, "-o", "json", *options]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when it serves."""
        with self._log.open("a") as errors:
            self._process = Metatxn(self._command, stdout=subprocess.PIPE, stderr=errors)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line and json.loads(line), f"it did not start: {self._log.read_text()[-2000:]}"

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class Services:
    def __init__(self, store: Store, directory: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.parts: dict[str, Service | EtcdServer] = {}
        data = ("--data-dir", str(directory / "data"))
        if store == "sqlite":
            ports = ("--port", str(port), "--broker-port", str(free_port()))
            self.parts["dev"] = Service("dev", directory / "dev.log", *ports, *data)
        else:
            etcd = self.parts["store"] = EtcdServer(directory / "etcd")
            at = ("--store", f"etcd://{etcd.endpoint}", "--port")
            self.parts["coordinator"] = Service("coordinator", directory / "coordinator.log", *at, str(port))
            self.parts["broker"] = Service("broker", directory / "broker.log", *at, str(free_port()), *data)

    def __enter__(self) -> Self:
        try:
            for part in self.parts.values():
                part.start()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def _kill(self) -> None:
        for part in self.parts.values():
            part.kill()
