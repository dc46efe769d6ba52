"""Goal: the commands about topics and subscriptions do what they say whichever of several brokers they are sent to.

Method: real brokers on a shared directory and a real etcd; every command goes to the next broker in turn. A broker as
it is started also commits what comes with the last entries (scenario 171).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import metatxn
from tests.metatxn.command_line import run_here
from tests.participants.processes.cluster import Cluster

NUMBERS = range(30)
COMMITTED = 'metatxn_transactions_ended_total{result="committed"} 1.0'


async def _commit_one(url: str, topic: str) -> None:
    async with metatxn.connect_async(url) as client, client.transaction() as txn:
        await client.producer(topic).send("x", txn=txn)


@pytest.mark.timeout(600)
def test_every_command_at_any_broker(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"file://{tmp_path}/objects") as cluster:
        brokers = [cluster.broker() for _ in range(2)]
        urls = itertools.cycle([broker.url for broker in brokers])

        def ask(*arguments: str, stdin: str = "") -> Any:
            done = run_here(*arguments, "--url", next(urls), "--output", "json", stdin=stdin)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        def values(*more: str) -> list[int]:
            return sorted(message["value"] for message in ask("topic", "consume", "t", *more))

        ask("topic", "create", "u")
        asyncio.run(_commit_one(cluster.url, "u"))
        processes = [*(broker.url for broker in brokers), cluster.url]
        assert [COMMITTED in httpx.get(f"{url}/metrics").text for url in processes].count(True) == 1
        assert COMMITTED not in httpx.get(f"{cluster.url}/metrics").text
        cluster.client.delete_topic("u")
        ask("topic", "create", "t", "--segments", "12")
        cluster.wait(lambda: set(cluster.owners("t").values()) == {broker.url for broker in brokers})
        for name in ("a", "b"):
            created = ask("subscription", "create", "t", name)
            assert [each["segment"] for each in created["segments"]] == list(cluster.owners("t"))
        with cluster.client.producer("t") as producer:
            for number in NUMBERS[2:]:
                producer.send(number, str(number))
        for number in NUMBERS[:2]:
            assert ask("topic", "produce", "t", str(number), "--key", str(number))["sent"] == 1
        assert values() == list(NUMBERS)
        txn = cluster.client.begin(timeout_ms=600_000)
        taken = values("--subscription", "a", "--limit", "20", "--txn", txn.id)
        assert len(taken) == 20
        for _ in brokers:
            shown = ask("subscription", "show", "t", "a")["segments"]
            assert sum(part["pending_acks"].get(txn.id, 0) for part in shown) == 20
            assert sum(part["backlog"] for part in shown) == 30
        assert sorted([*taken, *values("--subscription", "a")]) == list(NUMBERS)
        txn.abort()
        cluster.wait(lambda: values("--subscription", "a") == taken)
        for _ in brokers:
            assert [each["name"] for each in ask("subscription", "list", "t")] == ["a", "b"]
        first, second, *_ = cluster.owners("t")
        children = ask("topic", "split", first)["children"] + ask("topic", "split", second)["children"]
        ask("topic", "merge", children[1], children[2])
        assert values("--subscription", "b") == list(NUMBERS)
        ask("subscription", "drop", "t", "a")
        for _ in brokers:
            assert [each["name"] for each in ask("subscription", "list", "t")] == ["b"]
            assert len(ask("topic", "show", "t")["segments"]) == 17
        ask("topic", "delete", "t")
        for _ in brokers:
            assert ask("topic", "list") == []
