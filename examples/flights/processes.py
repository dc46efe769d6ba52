"""Starting, reading and killing the demo's own processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def python(module: str, *arguments: str, log: Path) -> subprocess.Popen[str]:
    """`python -m module …` in a process group of its own; errors go to `log`."""
    with log.open("a") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        )


def read_lines(process: subprocess.Popen[str], take: Callable[[str], None]) -> threading.Thread:
    """Call `take` for each line of the process's output, in a thread, until it ends."""

    def pump() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                take(line.rstrip("\n"))

    thread = threading.Thread(target=pump, daemon=True)
    thread.start()
    return thread


def kill_group(process: subprocess.Popen[str]) -> None:
    """`kill -9` for the process and everything it started (the driver's Java process too)."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def stop(process: subprocess.Popen[str] | subprocess.Popen[bytes], seconds: float = 10) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
