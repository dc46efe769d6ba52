"""Goal: a cluster whose ledgers are in a real S3 server is backed up to it while it serves, also while the server is
slow, throttles and loses replies, and is restored into it: readers of the backup see each transaction that had ended
before as a whole, and none that began later.

Method: `make object-store-test` starts the server that S3_SERVER names. Brokers are processes of their own, and so are
the commands, which reach the server through a proxy with faults. One that fails is repeated, as it says itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import metatxn
from tests.coordinator.processes import CoordinatorProcess
from tests.metatxn.command_line import run
from tests.participants.ledger.faulty_s3 import FaultyS3
from tests.participants.processes.cluster import BrokerProcess, Cluster, visible
from tests.servers import S3Server

OF_HUNDRED = {"slow": 2, "throttled": 6, "lost": 6, "refused": 4}
TOPICS = ("orders", "bills")
BEFORE, MORE = 20, 10
MEANWHILE = 100
"""The most transactions while a backup is taken. Each is an object of every topic, and the backup reads all of them."""
AT = f"s3://{S3Server.BUCKET}"
PLACE = f"{AT}/backups"
TRIES = 10


class Writer:
    """Ends one transaction after another, each with a message in every topic: the number of the transaction."""

    def __init__(self, client: metatxn.Client) -> None:
        self._client = client
        self._number = 0
        self._stopped = False
        self.committed: list[int] = []

    async def write(self, transactions: int) -> None:
        for _ in range(transactions):
            await asyncio.to_thread(self._one)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        self._stopped = False
        working = asyncio.create_task(self._keep_on())
        try:
            yield
        finally:
            self._stopped = True
            await working

    async def _keep_on(self) -> None:
        for _ in range(MEANWHILE):
            if self._stopped:
                return
            await self.write(1)

    def _one(self) -> None:
        self._number += 1
        txn = self._client.begin(timeout_ms=600_000)
        for topic in TOPICS:
            self._client.producer(topic).send(self._number, txn=txn).result()
        if self._number % 4:
            txn.commit()
            self.committed.append(self._number)
        else:
            txn.abort()


async def done(*arguments: str, environment: Mapping[str, str]) -> str:
    for _ in range(TRIES):
        command = await asyncio.to_thread(run, *arguments, **environment)
        if command.returncode == 0:
            return command.stdout
        assert "The command can be repeated." in command.stderr, command.stderr
    raise AssertionError(command.stderr)


async def taken(cluster: Cluster, environment: Mapping[str, str]) -> dict[str, Any]:
    backup = ("backup", "--store", cluster.store_url, "--storage", f"{AT}/ledgers", "--to", PLACE, "-o", "json")
    made: dict[str, Any] = json.loads(await done(*backup, environment=environment))
    return made


def shown_after_the_restore(directory: Path, store_url: str, environment: Mapping[str, str]) -> dict[str, list[Any]]:
    with ExitStack() as stack:
        coordinator = stack.enter_context(CoordinatorProcess(store_url))
        broker = BrokerProcess(store_url, directory / "restored.log", environment, "--storage", f"{AT}/restored")
        stack.callback(broker.kill)
        broker.start()
        client = stack.enter_context(metatxn.connect(coordinator.url))
        return {topic: sorted(visible(client, topic)) for topic in TOPICS}


@pytest.mark.timeout(900)
async def test_a_cluster_is_backed_up_to_a_real_server_with_faults_and_restored(tmp_path: Path) -> None:
    with S3Server(tmp_path) as s3, Cluster(tmp_path, f"{AT}/ledgers", s3.environment) as cluster:
        for _ in range(2):
            cluster.broker()
        for topic in TOPICS:
            cluster.client.create_topic(topic, segments=3)
        writer = Writer(cluster.client)
        await writer.write(BEFORE)
        opened = cluster.client.begin(timeout_ms=600_000)
        cluster.client.producer("orders").send("open", txn=opened).result()
        async with FaultyS3(s3.port, 1, **OF_HUNDRED) as proxy:
            through = {**s3.environment, "AWS_ENDPOINT_URL": proxy.url}
            first = await taken(cluster, through)
            await writer.write(MORE)
            at_least = list(writer.committed)
            async with writer.at_work():
                second = await taken(cluster, through)
            at_most = list(writer.committed)
            opened.commit()
            await writer.write(MORE)
            assert (
                await done("backup", "verify", "--from", PLACE, environment=through) == "nothing wrong in the backup\n"
            )
            url = f"{cluster.store_url}/restored"
            restore = ("restore", "--from", PLACE, "--store", url, "--storage", f"{AT}/restored", "-o", "json")
            restored = json.loads(await done(*restore, environment=through))
        assert second["copied_bytes"] < second["bytes"] and first["backup"] < second["backup"] == restored["backup"]
        assert restored["transactions_aborted"] >= 1
        shown = await asyncio.to_thread(shown_after_the_restore, tmp_path, url, s3.environment)
    assert shown["orders"] == shown["bills"], "no transaction is torn"
    assert at_least == shown["orders"][: len(at_least)] and shown["orders"] == at_most[: len(shown["orders"])]
    assert len(at_most) > len(at_least), "nothing was committed meanwhile"
    assert proxy.made.keys() >= OF_HUNDRED.keys(), proxy.made
