"""Goal: what the example's job has acknowledged of its input is exactly what it has made something of, no matter who
dies.

Method: the example as its user starts it. In `make test-all` its driver is killed with SIGKILL in the middle of a
batch, and another one right behind a commit. The demo (`tests/test_demo.py`) always has both, and the failure matrix
always has one whose input is acknowledged.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import metatxn
from examples.flights.processes import kill_group, python
from tests.extent import usually
from tests.metatxn.dev_server import DevServer
from tests.spark_connector.helpers import JAVA_OPTIONS, PATIENCE_S, column, open_transactions, wait_until

ORDERS = usually(600, 2_000)
ORDERS_PER_BATCH = usually(200, 400)


@pytest.mark.timeout(900)
def test_the_example_survives_kill_9_of_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consume, transform, produce. The last driver comes to the end."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
    with DevServer(tmp_path) as dev, metatxn.connect(dev.coordinator_url) as client:
        client.create_topic("orders", segments=2)
        for start in range(0, ORDERS, 100):
            with client.transaction() as txn, client.table_writer("orders", txn, key_column="customer") as writer:
                ids = range(start, start + 100)
                customers = [f"c{number % 7}" for number in ids]
                writer.write(pa.table({"id": list(ids), "customer": customers, "amount": [1.0] * len(ids)}))

        def start_job() -> subprocess.Popen[str]:
            arguments = ["--url", dev.coordinator_url, "--checkpoint", str(tmp_path / "checkpoint")]
            arguments += ["--rows-per-batch", str(ORDERS_PER_BATCH)]
            return python("examples.consume_transform_produce.job", *arguments, log=tmp_path / "job.log")

        def kill_once(seen: Callable[[], bool], what: str) -> None:
            with start_job() as job:
                try:
                    wait_until(lambda: seen() or job.poll() is not None, what)
                    assert job.poll() is None, (tmp_path / "job.log").read_text()[-3000:]
                finally:
                    kill_group(job)

        if usually(False, True):
            kill_once(lambda: committed(client) >= 1 and bool(open_transactions(client)), "a later batch is under way")
            before = committed(client)
            kill_once(lambda: committed(client) > before, "another batch is committed")
        with start_job() as last:
            assert last.wait(PATIENCE_S) == 0, (tmp_path / "job.log").read_text()[-3000:]

        assert column(client, "invoices") == list(range(ORDERS)), "one invoice for each order"
        assert sum(column(client, "totals", "invoices")) == ORDERS
        assert sum(column(client, "totals", "gross")) == pytest.approx(1.2 * ORDERS)
        left = [segment.backlog for segment in client.subscription("orders", "billing").segments]
        assert sum(left) == 0, "and every order is acknowledged"
        assert not open_transactions(client)


def committed(client: metatxn.Client) -> int:
    return sum(1 for header in client.transactions(state="COMMITTED") if header.transaction_key == "billing-job")
