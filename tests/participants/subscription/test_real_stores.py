"""Goal: acknowledgements of any number and in any pattern fit into what a real store takes in one request.

Method: a coordinator and a broker on ZooKeeper, which takes the smallest requests, in `make test-all` also on etcd and
on SQLite, used through the client library; the entry holds 10,000 messages of which every second one is acknowledged,
so that the cursor is as fragmented as it can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import metatxn
from coordinator.service import CoordinatorService
from metastore.api import MetadataStore
from metastore.check import StoreCheck
from metastore.txn import paths
from metastore.txn.store import INDEXES
from metastore.urls import open_store
from participants.service import BrokerService
from tests.extent import usually
from tests.servers import EtcdServer, ZooKeeperServer

MESSAGES = 10_000


@pytest.fixture(params=usually(["zookeeper"], ["sqlite", "etcd", "zookeeper"]))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    if request.param == "sqlite":
        opened = await open_store(f"sqlite:///{tmp_path / 'metadata.db'}", INDEXES)
        yield opened
        await opened.close()
        return
    server = EtcdServer(tmp_path / "etcd") if request.param == "etcd" else ZooKeeperServer(tmp_path / "zookeeper")
    with server:
        scheme = "etcd" if request.param == "etcd" else "zk"
        opened = await open_store(f"{scheme}://{server.endpoint}/acks", INDEXES)
        yield opened
        await opened.close()


async def test_a_cursor_as_fragmented_as_can_be(store: MetadataStore, tmp_path: Path) -> None:
    coordinator = CoordinatorService(store, port=0)
    await coordinator.start()
    for commits in (True, False):
        broker = BrokerService(store, data_dir=tmp_path / "data", port=0)
        await broker.start()
        try:
            await asyncio.to_thread(one_life, broker.url, commits)
        finally:
            await broker.stop()
    await coordinator.stop()
    buckets = (await store.scan(paths.CURSORS)).records
    assert max(len(record.value) for record in buckets) <= 16 << 10
    assert [finding async for finding in StoreCheck(store).findings()] == []


def one_life(url: str, first: bool) -> None:
    with metatxn.connect(url) as client:
        if first:
            client.create_topic("t")
            with client.producer("t", max_entry_messages=MESSAGES) as producer:
                futures = [producer.send(number) for number in range(MESSAGES)]
            assert futures[0].result()
        with client.subscribe("t", "s", "failover", "earliest") as consumer:
            found = []
            while (message := consumer.receive(timeout_s=0)) is not None:
                found.append(message)
            if first:
                assert len(found) == MESSAGES
                consumer.acknowledge(found[::2])
                with client.transaction() as txn:
                    consumer.acknowledge(found[1:1000:2], txn)
            else:
                assert [message.value for message in found] == list(range(1001, MESSAGES, 2))
                consumer.acknowledge_cumulative(found[-1])
                assert client.subscription("t", "s").segments[0].backlog == 0
