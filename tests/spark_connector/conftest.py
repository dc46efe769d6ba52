"""A real Spark and a real `metatxn dev`, one of each per test session; every test has topics of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import metatxn
from tests.extent import WHOLE
from tests.servers import START_TIMEOUT_S, free_port
from tests.spark_connector.helpers import FULL, JAVA_OPTIONS

collect_ignore = [] if FULL else ["test_connect.py", "test_shipping.py"]
"""These take long: `make spark-matrix` runs them."""
if not (WHOLE or FULL):
    collect_ignore.append("test_tracing.py")  # which starts a cluster of Spark for itself
PRELOADED = Path(__file__).parent / "preloaded"
TopicFactory = Callable[..., str]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2,3]`: two cores, and a task may fail twice before its job does."""
    # Where nothing knows the machine's own name, Java finds no address for it, and Spark does not start.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Workers start as `python3` from PATH otherwise, which is not the environment of these tests.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Functions of these tests run in the workers too, which must be able to import their modules.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(PRELOADED), str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.session.timeZone", "Europe/Berlin")
        # Writers get their rows in pieces, so that a task that fails late has sent some before.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()


@dataclass(frozen=True, slots=True)
class Dev:
    """A `metatxn dev` that runs as it does for users: the coordinator's URL, and the address for Kafka clients."""

    url: str
    kafka: str


@pytest.fixture(scope="session")
def url(dev: Dev) -> str:
    return dev.url


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    directory = tmp_path_factory.mktemp("metatxn")
    port, broker_port, kafka_port = free_port(), free_port(), free_port()
    command = [str(Path(sys.executable).with_name("metatxn")), "dev", "--data-dir", str(directory / "data")]
    command += ["--port", str(port), "--broker-port", str(broker_port), "--kafka-port", str(kafka_port)]
    log = directory / "dev.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait_until_ready(process, [port, broker_port], log)
        yield Dev(f"http://127.0.0.1:{port}", f"127.0.0.1:{kafka_port}")
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], ports: list[int], log: Path) -> None:
    give_up = time.monotonic() + START_TIMEOUT_S
    while not all(_ready(port) for port in ports):
        if process.poll() is not None or time.monotonic() > give_up:
            raise AssertionError(f"metatxn dev did not start; the end of its log:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def client(url: str) -> Iterator[metatxn.Client]:
    with metatxn.connect(url) as connected:
        yield connected


@pytest.fixture
def topic(client: metatxn.Client) -> TopicFactory:
    """Makes a topic with a name of its own."""

    def make(prefix: str = "t", segments: int = 2) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        client.create_topic(name, segments=segments)
        return name

    return make
