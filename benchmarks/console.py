"""The pages of the console of a large cluster: the time that each takes, and its size.

A coordinator and a broker with local files, each a process of its own, serve an etcd with many topics, many open
transactions, and many messages in one topic. Some of the transactions have written there, so its readers wait. Then
every page is loaded over one connection, in turns, as a browser asks for it. The time ends with the last byte of the
page; what a page loads besides (styles, scripts) is the same everywhere and stays in the browser. A page must not know
how large the cluster is.

    python -m benchmarks.console --topics 1000 --transactions 10000 --messages 100000      a first look
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import httpx
import uvloop

import metatxn
from benchmarks.commits import at_once
from benchmarks.report import Figure, percentile, publish
from benchmarks.services import running
from examples.flights.etcd import running_etcd

AT_ONCE = 32
BATCH = 1_000
"""Transactions that are begun in one request, and messages of one entry."""
WRITING = 200
"""The open transactions that have written, and acknowledged."""
TIMEOUT_MS = 86_400_000
WARM_UPS = 2
MOST_MS = 200
SLOWEST_MS = 300
"""Of the slowest percent of a page's loads: nothing else that the services do may keep a page waiting."""
MOST_KB = 64
TOPIC = "public/default/large"
_TOPIC = f"/topics/{quote(TOPIC, safe='')}"
PAGES = {
    "overview": "/",
    "its segments without a broker": "/unserved",
    "topics": "/topics",
    "topics, the part that follows": "/topic-sizes",
    "topics, by a part of their name": "/topics?text=99",
    "how many there are": "/topic-count",
    "one topic": _TOPIC,
    "messages": f"{_TOPIC}/messages?after=0:-1",
    "messages, all that is stored": f"{_TOPIC}/messages?show=all",
    "messages, an older page": f"{_TOPIC}/messages?before=999999:0",
    "messages, by an expression": f"{_TOPIC}/messages?where=number+=+-1&after=0:-1",
    "messages, as CSV": f"{_TOPIC}/messages/download?after=0:-1&as=csv",
    "subscriptions": "/subscriptions",
    "subscriptions of a topic": f"{_TOPIC}/subscriptions",
    "one subscription": f"{_TOPIC}/subscriptions/behind",
    "preview of a seek": f"{_TOPIC}/subscriptions/behind/seek?to=earliest",
    "what a seek would do": f"{_TOPIC}/subscriptions/behind/seek/effect?to=earliest",
    "what a seek to a revision would do": f"{_TOPIC}/subscriptions/behind/seek/effect?to=revision&at={{revision}}",
    "transactions": "/transactions",
    "transactions, by a text": "/transactions?text=nothing+has+this",
    "transactions, by a state": "/transactions?state=OPEN",
    "transactions, of a segment": "/transactions?segment={segment}",
    "one transaction": "/transactions/{txn_id}",
    "hanging": "/hanging",
    "keys": "/keys",
    "one key": "/keys/key-1",
    "cluster": "/cluster",
    "segments of a broker": "/cluster/brokers/{broker_id}",
    "records of the store": "/cluster/store?prefix=/txn/",
    "check of the store": "/cluster/store/check",
    "access": "/access",
    "tokens": "/access/tokens",
    "audit log": "/access/audit",
    "sign in": "/sign-in",
}


async def filled(url: str, topics: int, transactions: int, messages: int) -> Mapping[str, str]:
    """Make what is to be shown. Returns what stands in the paths."""
    async with metatxn.connect_async(url, request_timeout_s=60) as client:
        await client.create_topic(TOPIC, segments=4)
        await client.create_subscription(TOPIC, "behind")

        async def one_topic(number: int) -> float:
            await client.create_topic(f"topic-{number:06}")
            if number < AT_ONCE:
                await client.connect_key(f"key-{number}")
            return 0.0

        await at_once(topics, AT_ONCE, one_topic)
        say(f"{topics:,} topics")
        async with client.producer(TOPIC, max_entry_messages=BATCH) as producer:
            for first in range(0, messages, BATCH):
                for number in range(first, min(messages, first + BATCH)):
                    await producer.send({"number": number, "name": f"name-{number}"}, key=str(number))
                await producer.flush()
        say(f"{messages:,} messages")
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            for first in range(0, transactions - WRITING, BATCH):
                number = min(BATCH, transactions - WRITING - first)
                begin = {"op": "begin", "timeout_ms": TIMEOUT_MS, "properties": {"job": f"job-{first}"}}
                (await http.post("/v1/txns/batch", json={"items": [begin] * number})).raise_for_status()
        txn_id, revision = await written(client)
        (broker,) = (await client.cluster()).brokers
        segment = (await client.topic(TOPIC)).segments[0].segment
        return {"txn_id": txn_id, "revision": str(revision), "broker_id": broker.id, "segment": quote(segment, safe="")}


async def written(client: metatxn.AsyncClient) -> tuple[str, int]:
    """Transactions that hold back the readers of the large topic, and acknowledgements of a subscription. Returns one
    of them, and a revision at which they were open."""
    async with client.consumer(TOPIC, "behind") as consumer, client.producer(TOPIC) as producer:
        for _ in range(WRITING):
            txn = await client.begin(TIMEOUT_MS)
            for number in range(8):
                await producer.send({"number": number}, key=str(number), txn=txn)
            message = await consumer.receive(10)
            assert message is not None
            await consumer.acknowledge(message, txn)
            txn.leave_open()
        say("transactions")
        async with client.transaction() as decided:
            await producer.send({"number": -1}, txn=decided)
        revision = (await decided.refresh()).revision
        assert revision is not None
        return txn.id, revision


def measured(url: str, places: Mapping[str, str], runs: int) -> list[Figure]:
    """Of each page the time of every run, its slowest percent, and its size."""
    times: dict[str, list[float]] = {name: [] for name in PAGES}
    sizes: dict[str, float] = {}
    with httpx.Client(base_url=f"{url}/console", timeout=60) as http:
        for run in range(WARM_UPS + runs):
            for name, path in PAGES.items():
                before = time.perf_counter()
                answer = http.get(path.format(**places))
                took_ms = (time.perf_counter() - before) * 1_000
                assert answer.status_code == 200, (path, answer.text)
                sizes[name] = len(answer.content) / 1_000
                if run >= WARM_UPS:
                    times[name].append(took_ms)
    figures = []
    for name, took in times.items():
        figures += [
            Figure(f"{name}: time", took, "ms", at_most=MOST_MS),
            Figure(f"{name}: the slowest percent", [percentile(took, 99)], "ms", at_most=SLOWEST_MS),
            Figure(f"{name}: size", [sizes[name]], "KB", at_most=None if "/download" in PAGES[name] else MOST_KB),
        ]
    return figures


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {what}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="The pages of the console of a large cluster")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--transactions", type=int, default=100_000, help="that are open")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=20)
    chosen = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = f"etcd://{stack.enter_context(running_etcd(directory / 'etcd'))}"
        coordinator = stack.enter_context(running("coordinator", "--store", store))
        stack.enter_context(running("broker", "--store", store, "--data-dir", str(directory / "data")))
        places = uvloop.run(filled(coordinator.url, chosen.topics, chosen.transactions, chosen.messages))
        size = f"{chosen.topics:,} topics, {chosen.transactions:,} open transactions, {chosen.messages:,} messages"
        figures = measured(coordinator.url, places, chosen.runs)
    publish("console", f"The console: {size}", figures)
    if missed := [figure.name for figure in figures if figure.holds is False]:
        raise SystemExit(f"a bar is not met: {', '.join(missed)}")


if __name__ == "__main__":
    main()
