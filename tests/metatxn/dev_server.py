"""`metatxn dev` as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.forked import Metatxn

STOP_TIMEOUT_S = 120
COMMAND = [sys.executable, "-c", "from metatxn.cli.main import main; main()"]


class DevServer:
    """Answers on `coordinator_url` and `broker_url` inside its `with`. Port 0 takes a free one."""

    def __init__(self, data_dir: Path, *options: str, port: int = 0, broker_port: int = 0) -> None:
        ports = ["--port", str(port), "--broker-port", str(broker_port)]
        self._command = ["dev", "--data-dir", str(data_dir), *ports, "-o", "json", *options]
        self._process: subprocess.Popen[str] | None = None
        self.coordinator_url = ""
        self.broker_url = ""
        self.kafka_address = ""

    def start(self) -> None:
        assert self._process is None
        self._process = Metatxn(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it did not start: exit code {self._process.wait()}"
        urls = json.loads(line)
        self.coordinator_url, self.broker_url = urls["coordinator"], urls["broker"]
        self.kafka_address = urls.get("kafka", "")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code."""
        process, self._process = self._process, None
        assert process is not None and process.stdout is not None
        process.send_signal(number)
        with process.stdout:
            try:
                return process.wait(STOP_TIMEOUT_S)
            finally:
                process.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()
