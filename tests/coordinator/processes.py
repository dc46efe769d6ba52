"""`metatxn coordinator` as a process of its own, killed and stopped as an operator would."""

from __future__ import annotations

import json
import signal
import subprocess
from types import TracebackType
from typing import Self

from tests.forked import Metatxn

STOP_TIMEOUT_S = 120


class CoordinatorProcess:
    """Answers on `url` inside its `with`; what is still running at the end of it is killed."""

    def __init__(self, store_url: str, *options: str) -> None:
        self._command = ["coordinator", "--store", store_url, "--port", "0", "-o", "json"]
        self._command += ["--log-level", "info", *options]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._process = Metatxn(self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it did not start: exit code {self._process.wait()}"
        self.url = json.loads(line)["coordinator"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait_for_log(self, text: str) -> str:
        """The line that holds `text`; blocks until it is written."""
        assert self._process is not None and self._process.stderr is not None
        for line in self._process.stderr:
            if text in line:
                return line
        raise AssertionError(f"it ended without writing {text!r}")

    def rest_of_log(self) -> str:
        """What was not waited for; blocks until it has ended."""
        assert self._process is not None and self._process.stderr is not None
        return self._process.stderr.read()

    def wait(self) -> int:
        """The exit code."""
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)
