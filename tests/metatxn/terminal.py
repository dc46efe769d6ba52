"""A command of `metatxn` at a terminal: what a person sees, types and interrupts."""

from __future__ import annotations

import os
import pty
import select
import signal
from types import TracebackType
from typing import IO, Self

from tests.forked import Metatxn

PATIENCE_S = 10.0


class Terminal:
    """Inside its `with` the command runs. `output` is where its standard output goes instead."""

    def __init__(self, *arguments: str, output: IO[str] | None = None, **environment: str) -> None:
        self._arguments = arguments
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("METATXN_")} | environment
        self._output = output
        self._interrupted = False
        self.shown = ""

    def __enter__(self) -> Self:
        self._here, there = pty.openpty()
        streams = {"stdin": there, "stdout": self._output or there, "stderr": there}
        self._process = Metatxn(self._arguments, env=self._environment, **streams)
        os.close(there)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._here)

    def until(self, text: str) -> None:
        """Returns when the terminal has shown it."""
        while text not in self.shown:
            assert self._read(), f"it has ended without {text!r}: {self.shown!r}"

    def type(self, keys: str) -> None:
        os.write(self._here, keys.encode())

    def press_ctrl_c(self) -> None:
        """What the terminal makes of it."""
        self._interrupted = True
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """The exit code. Who has pressed Ctrl-C does so again if nothing happens: Python, about to wait for keys, does
        not see a signal that comes between its last look and the system call."""
        while True:
            if select.select([self._here], [], [], PATIENCE_S)[0]:
                if not self._read():
                    return self._process.wait()
            elif self._interrupted:
                self._process.send_signal(signal.SIGINT)

    def _read(self) -> bool:
        try:
            found = os.read(self._here, 1 << 16)
        except OSError:  # nobody has the other end any more
            return False
        self.shown += found.decode(errors="replace").replace("\r\n", "\n")
        return bool(found)
