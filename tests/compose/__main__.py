"""`make compose-test`: the images are built, the cluster of docker-compose.yml runs, and this machine uses it.

From the host: README's ten lines, and the Spark job on a part of its flights. Then a coordinator and a broker are
killed: the others go on, and everything is still there once they are back. The Spark job runs in its own image, too. At
the end all services are stopped, in time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import metatxn
from examples.flights import data
from tests.compose import stand_ins
from tests.compose.engine import ENVIRONMENT, ROOT, build, compose, podman, quietly

URL = "http://127.0.0.1:8470"
OTHER_URL = "http://127.0.0.1:8480"
OURS = ("coordinator-1", "coordinator-2", "broker-1", "broker-2")
SERVICES = ("etcd", "zookeeper", *OURS)
IMAGES = {"services": "metatxn:0.3.0", "spark": "metatxn-spark:0.3.0"}
FLIGHTS = 20_000
PATIENCE_S = 300.0


def main() -> None:
    say("stand-ins for the base images")
    stand_ins.make()
    for target, tag in IMAGES.items():
        say(f"image {tag}")
        build(target, tag)
    _look_at_image()
    try:
        say("start")
        compose("up", "--detach", "--no-build", *SERVICES)
        until_healthy()
        confined()
        ten_lines()
        spark_job()
        kill("coordinator-1", "broker-1")
        look_again()
        spark_job_in_its_image()
        stop()
    finally:
        compose("down", "--volumes")
    say("1 passed, 0 failed")


def say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _look_at_image() -> None:
    size = int(podman("image", "inspect", "--format", "{{.Size}}", IMAGES["services"]))
    java = podman("run", "--rm", IMAGES["services"], "sh", "-c", "command -v java || id -u").strip()
    assert java == "10001", f"no Java, and not root: {java}"
    say(f"{IMAGES['services']} has {size >> 20} MiB")


def container(service: str) -> str:
    name = podman("ps", "--all", "--filter", f"label=io.podman.compose.service={service}", "--format", "{{.Names}}")
    return name.strip()


def until_healthy() -> None:
    """As its health checks say."""
    end = time.monotonic() + PATIENCE_S
    for service in SERVICES:
        while (told := _health(service)) != "healthy":
            if time.monotonic() > end:
                raise SystemExit(f"{service} is {told}:\n{podman('logs', container(service))}")
            time.sleep(1)
    say("all services are healthy")


def _health(service: str) -> str:
    command = ["podman", "healthcheck", "run", container(service)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    return "healthy" if done.returncode == 0 else done.stdout.strip() or "unhealthy"


def confined() -> None:
    """Not root, and nothing to write to but what was given."""
    for service in OURS:
        seen = podman(
            "exec", container(service), "sh", "-c", "id -u; touch /opt/x 2>&1 || touch /tmp/x && echo written"
        )
        assert seen.split()[0] == "10001" and "Read-only file system" in seen and seen.endswith("written\n"), seen
    say("the services are confined")


def ten_lines() -> None:
    """Those of README, with the output that it shows."""
    text = (ROOT / "README.md").read_text()
    found = re.search(
        r"<!-- example: python -->\n```python\n(.*?)```\n<!-- output -->\n```text\n(.*?)```", text, re.DOTALL
    )
    assert found is not None, "README has ten lines of Python with their output"
    assert quietly(sys.executable, "-c", found[1]) == found[2]
    say("README's ten lines")


def spark_job() -> None:
    with tempfile.TemporaryDirectory() as directory:
        data.cut(data.flights().slice(0, FLIGHTS), Path(directory) / "flights", files=4)
        job = [sys.executable, "-m", "examples.flights.job", f"--url={URL}", f"--input={directory}/flights"]
        subprocess.run([*job, f"--checkpoint={directory}/checkpoint"], check=True, cwd=ROOT, env=os.environ)
    assert _departures() == FLIGHTS
    say(f"the Spark job wrote {FLIGHTS:,} flights")


def _departures() -> int:
    with metatxn.connect(URL) as client:
        return int(client.read_table("departures").num_rows)


def kill(*services: str) -> None:
    """Meanwhile transactions begin and end at the coordinator that is left."""
    for service in services:
        podman("kill", "--signal=KILL", container(service))
    with metatxn.connect(OTHER_URL) as client:
        client.begin().commit()
    for service in services:
        podman("start", container(service))
    say(f"killed and started again: {', '.join(services)}")


def spark_job_in_its_image() -> None:
    """As the head of docker-compose.yml says. What was committed from the host is not written again."""
    compose("--profile=job", "run", "--rm", "--no-deps", "spark-job")
    written = _departures()
    assert FLIGHTS < written < data.ROWS, written
    say(f"the Spark job in its image has continued to {written:,} flights")


def look_again() -> None:
    until_healthy()
    assert _departures() == FLIGHTS
    status = subprocess.run(
        [sys.executable, "-m", "metatxn", "--url", URL, "status", "-o", "json"], capture_output=True
    )
    told = json.loads(status.stdout)
    assert told["healthy"], told["problems"]
    say("everything is there, and metatxn status says that the cluster is healthy")


def stop() -> None:
    """Every service ends by itself when it is asked to."""
    compose("stop")
    for service in SERVICES:
        code = podman("inspect", "--format", "{{.State.ExitCode}}", container(service)).strip()
        assert code == "0" or (service not in OURS and code == "143"), f"{service} ended with {code}"
    say("every service has stopped in time")


main()
