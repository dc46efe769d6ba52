"""docker-compose.yml: the cluster it describes has all its parts, and its commands are ones that we have."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from examples.flights.etcd import FLAGS
from metatxn.service.server import GRACE_S
from metatxn.wire.listeners import Listeners
from participants.service import DRAIN_TIMEOUT_MS
from tests.servers import ETCD_FLAGS
from tests.test_project import declared, product, third_party, undeclared

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


OURS = ("coordinator-1", "coordinator-2", "broker-1", "broker-2")
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_every_service_says_whether_it_is_healthy() -> None:
    """`depends_on` and people wait for it. The Spark job ends by itself."""
    checks = {name: service.get("healthcheck", {}).get("test") for name, service in services().items()}
    assert [name for name, check in checks.items() if check is None] == ["spark-job"]
    for name in OURS:
        port = services()[name]["ports"][0].rpartition(":")[2]
        assert f"http://127.0.0.1:{port}/readyz" in checks[name][-1]
        compile(checks[name][-1], name, "exec")


def test_our_services_can_do_no_more_than_they_need() -> None:
    for name in (*OURS, "spark-job"):
        service = services()[name]
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"]
        grace_ms = int(service["stop_grace_period"].removesuffix("s")) * 1000
        assert grace_ms > DRAIN_TIMEOUT_MS + GRACE_S * 1000, "a stop must not be cut off"


def test_clients_on_this_machine_are_sent_to_published_ports() -> None:
    """Each service has an address for the containers and one for outside, and the latter leads to it."""
    for name in OURS:
        service = services()[name]
        given = [each.removeprefix("--advertise-url=") for each in service["command"] if "--advertise" in each]
        listeners = Listeners.parse(given)
        address, _, port = service["ports"][0].rpartition(":")
        assert listeners.url == f"http://{name}:{port}"
        assert listeners.named == {"external": f"http://{address}"}


def stages() -> dict[str, str]:
    """The text of each stage of the Dockerfile, by its name."""
    parts = re.split(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)[1:]
    return dict(zip(parts[1::3], parts[2::3], strict=True))


def test_the_image_of_the_services_is_slim_and_not_of_root() -> None:
    """What is needed to build it stays behind, and so does Java."""
    assert {service["build"]["target"] for name, service in services().items() if name in OURS} == {"services"}
    assert services()["spark-job"]["build"]["target"] == "spark"
    slim = stages()["services"]
    assert "pip" not in slim and "apt-get" not in slim and "COPY . ." not in slim
    assert "openjdk" in stages()["spark"]
    for name in ("services", "spark"):
        assert re.search(r"^USER [1-9][0-9]*$", stages()[name], re.MULTILINE), name


def test_the_image_of_the_services_has_what_their_options_can_turn_on() -> None:
    """Gateways and traces are extras, and are imported only where an option asks for them, as `extraArgs` of the chart
    and the commands here may."""
    (extras,) = re.findall(r"pip install --no-cache-dir '\.\[([a-z,]+)\]'", stages()["build"])
    not_of_services = ("spark_connector", "pyspark_metatxn.py")
    paths = [path for path in product() if path.relative_to(ROOT).parts[0] not in not_of_services]
    modules = {module for path in paths for module in third_party(path.read_text())}
    assert {"kio", "opentelemetry", "uvicorn"} <= modules
    assert undeclared(modules, declared(*extras.split(","))) == set()


def test_each_broker_keeps_its_ledgers_in_a_volume_of_its_own() -> None:
    """Local ledgers have one owner: two brokers on one directory would be refused."""
    volumes = [services()[name]["volumes"][0] for name in ("broker-1", "broker-2")]
    assert len(set(volumes)) == 2


def settings(pattern: str) -> dict[str, str]:
    """The settings that docs/stores.md gives a row of its table, with a reason."""
    return dict(re.findall(rf"^\| `({pattern})=([^`]+)` \|", STORES, re.MULTILINE))


def test_etcd_has_the_same_flags_here_in_the_tests_the_examples_and_the_docs() -> None:
    """Debian's etcd 3.4.23 is ten times slower without them, so none may be forgotten anywhere."""
    flags = dict(flag.split("=", 1) for flag in services()["etcd"]["command"][1:])
    assert {flag: value for flag, value in flags.items() if flag not in PLACES} == settings("--[a-z-]+")
    assert {flag: str(value) for flag, value in ETCD_FLAGS.items()} == settings("--[a-z-]+")
    assert dict(flag.split("=", 1) for flag in FLAGS) == settings("--[a-z-]+")


def test_zookeeper_has_the_same_settings_here_and_in_the_docs() -> None:
    """The image takes a setting `some.nameOfIt` as the variable `ZOO_SOME_NAMEOFIT`, with two that differ."""
    names = {"maxClientCnxns": "ZOO_MAX_CLIENT_CNXNS", "tickTime": "ZOO_TICK_TIME"}
    documented = settings("[a-zA-Z.]+")
    expected = {names.get(name, f"ZOO_{name.replace('.', '_').upper()}"): value for name, value in documented.items()}
    assert {name: str(value) for name, value in services()["zookeeper"]["environment"].items()} == expected
