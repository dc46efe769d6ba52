"""Goal: over Spark Connect the format works as it does without it: batch and stream, reads and writes, SQL,
`batch_transaction` on either side, and the listener.

Method: a Connect server and a client of it, each a process of its own, as a user starts them.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import metatxn
from examples.flights.processes import kill_group
from tests.servers import free_port
from tests.spark_connector.helpers import PATIENCE_S, STREAMS_TOPICS, column, open_transactions, wait_until
from tests.spark_connector.matrix.cluster import CONF, LOCAL, SPARK_HOME, environment
from tests.spark_connector.matrix.connect_client import SUBSCRIPTION

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("connect")
    port = free_port()
    binding = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", SERVER, "--master", LOCAL]
    for name, value in {**CONF, **binding}.items():
        command += ["--conf", f"{name}={value}"]
    log = directory / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            text=True,
            cwd=directory,
            start_new_session=True,
            env=environment(directory),
        )
    try:
        wait_until(lambda: _serves(port) or server.poll() is not None, "the Connect server serves")
        assert server.poll() is None, log.read_text()[-3000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        kill_group(server)


def _serves(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@pytest.mark.timeout(3 * PATIENCE_S)
def test_a_client_does_everything(remote: str, url: str, client: metatxn.Client, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark_connector.matrix.connect_client", remote, url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(tmp_path), timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout)
    everything = list(range(20))
    assert said["read"] == everything
    written = ["source", "first", "second"]
    if STREAMS_TOPICS:
        assert said["told"] == [[0, 20, 160, True]]
        backlog = [segment.backlog for segment in client.subscription("source", SUBSCRIPTION).segments]
        assert sum(backlog) == 0
        written += ["copies", "third", "fourth"]
    assert {topic: column(client, topic) for topic in written} == dict.fromkeys(written, everything)
    assert not open_transactions(client)
