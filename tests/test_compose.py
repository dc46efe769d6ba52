"""docker-compose.yml: the cluster it describes has all its parts, and its commands are ones that we have."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docker-compose.yml"


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return found


def test_compose_accepts_the_file() -> None:
    """`docker compose config` needs no engine; where the command does not exist, the parser of the tests has to do."""
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0:
        done = subprocess.run([docker, "compose", "-f", str(FILE), "config", "-q"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert services()


def test_all_parts_are_there() -> None:
    expected = {"etcd", "zookeeper", "coordinator-1", "coordinator-2", "broker-1", "broker-2", "spark-job"}
    assert set(services()) == expected


def test_every_metatxn_command_parses() -> None:
    """The options are ones the command line knows: `--help` behind them succeeds."""
    for name, service in services().items():
        command = service.get("command", [])
        if command and command[0] == "metatxn":
            ours = [sys.executable, "-m", *command, "--help"]
            done = subprocess.run(ours, capture_output=True, text=True)
            assert done.returncode == 0, f"{name}: {done.stderr}"


def test_each_broker_keeps_its_ledgers_in_a_volume_of_its_own() -> None:
    """Local ledgers have one owner: two brokers on one directory would be refused."""
    volumes = [services()[name]["volumes"][0] for name in ("broker-1", "broker-2")]
    assert len(set(volumes)) == 2
