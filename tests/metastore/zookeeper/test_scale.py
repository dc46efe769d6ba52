"""Goal: a directory with tens of thousands of operations of one transaction stops neither a restart nor the tools of
operators.

Method: the records have the names that brokers give them. ZooKeeper's own `zkCli.sh` lists them with the flag that
the documentation names, and fails without it; the server is killed twice, so that it starts once from its log and
once from the snapshot which it has taken then.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from metastore.backends.zookeeper import ZooKeeperStore
from metastore.txn import paths
from metatxn.wire.ids import TxnId
from tests.extent import usually
from tests.metastore.zookeeper.conftest import OpenStore
from tests.servers import ZooKeeperServer
from tests.test_source import ROOT

OPERATIONS = usually(30_000, 100_000)
"""Their names are more than what one answer of ZooKeeper holds, unless it is told otherwise."""
CALLERS = 500
SEGMENT = "segment://public/default/orders/0-7fff-0"
TXN = TxnId(0, 1)
KEYS = [paths.write_op(TXN, SEGMENT, 3, number) for number in range(OPERATIONS)]
DIRECTORY = f"/root/records/txn-op+/{TXN}+"
ZKCLI = Path("/usr/share/zookeeper/bin/zkCli.sh")


def zkcli_ls(server: ZooKeeperServer, flags: str) -> subprocess.CompletedProcess[str]:
    assert ZKCLI.exists(), "ZooKeeper is not installed; the tests need it: apt-get install zookeeper"
    command = [str(ZKCLI), "-server", server.endpoint, "ls", DIRECTORY]
    return subprocess.run(command, capture_output=True, text=True, env={"CLIENT_JVMFLAGS": flags})


async def create_all(store: ZooKeeperStore) -> None:
    numbers = iter(range(OPERATIONS))

    async def create() -> None:
        for number in numbers:
            await store.apply(store.batch().create(KEYS[number], b"{}"))

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(create())


@pytest.mark.timeout(600)
async def test_so_many_operations_survive_restarts_and_can_be_listed_by_hand(
    own_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    """Scenario 120."""
    store = await open_store(own_server, "/root", deadline_ms=60_000)
    await create_all(store)
    (flag,) = set(re.findall(r"-Djute\.maxbuffer=\d+", (ROOT / "docs" / "stores.md").read_text()))
    refused = await asyncio.to_thread(zkcli_ls, own_server, "")
    assert refused.returncode != 0 and "ConnectionLoss" in refused.stderr
    for _ in range(2):
        listed = await asyncio.to_thread(zkcli_ls, own_server, flag)
        assert listed.returncode == 0 and listed.stdout.count(":w:") == OPERATIONS
        own_server.kill()
        await asyncio.to_thread(own_server.start)
        found = await store.scan(paths.ops_of_transaction(TXN), keys_only=True)
        assert [record.key for record in found.records] == KEYS
    await store.apply(store.batch().remove(found.records[0]))
    first = await store.scan(paths.ops_of_transaction(TXN), limit=1, keys_only=True)
    assert [record.key for record in first.records] == KEYS[1:2]
