"""A forked `metatxn` is a process like any other: what it prints, how it ends, who waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
from importlib.metadata import version
from pathlib import Path

from tests.forked import Metatxn


def test_output_and_exit_code_are_those_of_the_command() -> None:
    told = Metatxn(["--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert told.communicate() == (f"metatxn {version('metatxn')}\n", "") and told.returncode == 0
    refused = Metatxn(["no-such-command"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = refused.communicate()
    assert (refused.returncode, output) == (2, "") and "no-such-command" in errors


def test_environment_and_directory_are_those_that_are_given(tmp_path: Path) -> None:
    environment = os.environ | {"METATXN_URL": "http://127.0.0.1:9"}
    done = Metatxn(["topic", "list"], stderr=subprocess.PIPE, env=environment)
    assert "http://127.0.0.1:9" in done.communicate()[1]
    with Metatxn(
        ["dev", "--data-dir", "data", "--port", "0", "--broker-port", "0"], stdout=subprocess.PIPE, cwd=tmp_path
    ) as dev:
        assert dev.stdout is not None and dev.stdout.readline()
        assert (tmp_path / "data" / "metadata.db").exists()
        dev.send_signal(signal.SIGKILL)
        assert dev.wait() == -signal.SIGKILL
