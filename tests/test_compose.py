"""docker-compose.yml: the cluster it describes has all its parts, and its commands are ones that we have."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.servers import ETCD_FLAGS

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docker-compose.yml"
STORES = (ROOT / "docs" / "stores.md").read_text()
# What each member has for itself.
PLACES = {"--name", "--data-dir", "--listen-client-urls", "--advertise-client-urls"}


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


def settings(pattern: str) -> dict[str, str]:
    """The settings that docs/stores.md gives a row of its table, with a reason."""
    return dict(re.findall(rf"^\| `({pattern})=([^`]+)` \|", STORES, re.MULTILINE))


def test_etcd_has_the_same_flags_here_in_the_tests_and_in_the_docs() -> None:
    """Debian's etcd 3.4.23 is ten times slower without them, so none may be forgotten anywhere."""
    flags = dict(flag.split("=", 1) for flag in services()["etcd"]["command"][1:])
    assert {flag: value for flag, value in flags.items() if flag not in PLACES} == settings("--[a-z-]+")
    assert {flag: str(value) for flag, value in ETCD_FLAGS.items()} == settings("--[a-z-]+")


def test_zookeeper_has_the_same_settings_here_and_in_the_docs() -> None:
    """The image takes a setting `some.nameOfIt` as the variable `ZOO_SOME_NAMEOFIT`, with two that differ."""
    names = {"maxClientCnxns": "ZOO_MAX_CLIENT_CNXNS", "tickTime": "ZOO_TICK_TIME"}
    documented = settings("[a-zA-Z.]+")
    expected = {names.get(name, f"ZOO_{name.replace('.', '_').upper()}"): value for name, value in documented.items()}
    assert {name: str(value) for name, value in services()["zookeeper"]["environment"].items()} == expected
