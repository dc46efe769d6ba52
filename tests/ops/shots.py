"""The pictures of Grafana's dashboards in docs/operations.md: `make dashboards-shots`.

A real cluster lives for some minutes under load, and a real Prometheus scrapes it. In between some things are wrong, so
that one sees what the panels are for.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from tests.ops import live_faults
from tests.ops.live_cluster import LOCAL, SHARED, LiveCluster
from tests.ops.live_rules import Prometheus
from tests.ops.plots import draw
from tests.ops.test_dashboards import FILES

SLOWER = 3
STEP_S = 90.0
"""As long as all is well, something is wrong, and all is well again."""
TOPICS = dict(zip(("orders", "invoices", "audit"), (*LOCAL, SHARED[0]), strict=True))
WRONG = (
    live_faults.a_transaction_is_forgotten,
    live_faults.transactions_are_left_to_their_timeout,
    live_faults.a_message_cannot_be_processed,
    live_faults.a_consumer_is_slower_than_the_producers,
    live_faults.a_disk_fills_up,
)


async def buy(cluster: LiveCluster, chance: random.Random) -> None:
    """One transaction over some topics, of which few are aborted."""
    topics = chance.sample([*TOPICS], chance.randint(1, 3))
    async with cluster.client.transaction() as txn:
        for topic in topics:
            for _ in range(chance.randint(1, 8)):
                await cluster.client.producer(topic).send({"order": 1, "note": "x" * 200}, key="k", txn=txn)
        if chance.random() < 0.1:
            await txn.abort("the card was refused")
    await asyncio.sleep(chance.expovariate(4))


async def consume(cluster: LiveCluster, topic: str) -> None:
    async with cluster.client.consumer(topic, "billing") as consumer:
        while True:
            if found := await consumer.receive_many(timeout_s=1):
                await consumer.acknowledge(found)


async def main(into: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="metatxn-shots-") as place:
        cluster = LiveCluster(Path(place) / "cluster", request_timeout_s=30)
        async with cluster.running():
            with Prometheus(Path(place) / "prometheus", cluster.targets, SLOWER) as prometheus:
                while not await prometheus.ready():
                    await asyncio.sleep(0.2)
                for topic, broker in TOPICS.items():
                    await cluster.topic_on(broker, topic, segments=2)
                    await cluster.client.create_subscription(topic, "billing")
                works = [partial(buy, cluster, random.Random(number)) for number in range(2)]
                works += [partial(consume, cluster, topic) for topic in TOPICS]
                async with live_faults.meanwhile(*works):
                    await lived(cluster, prometheus, into)


async def lived(cluster: LiveCluster, prometheus: Prometheus, into: Path) -> None:
    await asyncio.sleep(30)  # until the rates know of it
    start = time.time()
    await asyncio.sleep(STEP_S)
    async with AsyncExitStack() as faults:
        for fault in WRONG:
            await faults.enter_async_context(fault(cluster))
        await asyncio.sleep(STEP_S)
    await asyncio.sleep(STEP_S)
    end = time.time()
    for dashboard in FILES:
        await draw(dashboard, prometheus, start, end, into / f"dashboard-{dashboard.stem}.png")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nobody leaves processes and mounts behind
    asyncio.run(main(Path(sys.argv[1])))
