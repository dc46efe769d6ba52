"""The command line, as a process of its own, and in this process, where a command costs no start of Python."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any
from unittest.mock import patch

import structlog

from metatxn.cli.main import run as run_command
from tests.metatxn.dev_server import COMMAND

TIMEOUT_S = 120

Done = subprocess.CompletedProcess[str]


def run(*arguments: str, stdin: str = "", **environment: str) -> Done:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=_environment(environment),
    )


def run_here(*arguments: str, stdin: str = "", **environment: str) -> Done:
    """For commands that end by themselves: what a process would print, and its exit code."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        logs_as_before(),
        patch.dict(os.environ, _environment(environment), clear=True),
        patch.object(sys, "stdin", io.StringIO(stdin)),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        code = run_command(arguments)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


@contextmanager
def logs_as_before() -> Iterator[None]:
    """What a command sets for its own process is undone at the end."""
    logs = structlog.get_config()
    try:
        with patch.object(structlog, "configure", partial(_configure, structlog.configure)):
            yield
    finally:
        structlog.configure(**logs)


def _configure(configure: Callable[..., None], **given: Any) -> None:
    """No logger keeps what a command has set."""
    configure(**given | {"cache_logger_on_first_use": False})


def error_line(done: Done) -> str:
    """An expected failure is an exit code and one line that ends in what to do."""
    assert done.returncode != 0
    assert done.stderr.startswith("metatxn: ") and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.rstrip().endswith((".", "!"))
    assert done.stdout == ""
    return done.stderr


def _environment(given: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("METATXN_")} | given
