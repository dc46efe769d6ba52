"""The compacted view of a topic that is compacted, beside that of a topic that has only what the view shows.

One topic has a message for each of N keys. The other one has 200 for each of them, in a random order, and was compacted
before it was rolled once more. Both views are read to their end over the same broker, in this process, with local files
and the store in memory, in turns; every message is an entry of its own. The ratio of the times is the figure, and so is
the one of the first pages, for which a broker reads the topic to find the view.

    python -m benchmarks.compaction --keys 100000      20,000,000 messages; it takes an hour
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import structlog
import uvloop

from benchmarks.commits import now_ms
from benchmarks.report import Figure, publish
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metatxn.cli.services import tune_interpreter
from metatxn.wire.broker import Message
from metatxn.wire.frames import Entry, PayloadKind
from participants.broker.broker import Broker
from participants.common.metrics import BrokerMetrics
from participants.ledger.local import LocalStorage
from participants.messages.payloads import encode_messages
from participants.segment.segment import Segment
from participants.topic.layout import LayoutUpkeep
from participants.topic.messages import Messages

KEYS = 1_000
VERSIONS = 200
RUNS = 5
AT_ONCE = 2_000
PAGE = 1_000
NEVER_MS = 10**9
VALUE = "v" * 100


async def fill(segment: Segment, keys: list[int]) -> None:
    for first in range(0, len(keys), AT_ONCE):
        entries = [
            Entry(encode_messages([Message(key=f"key-{key}", value=VALUE)]), PayloadKind.MESSAGES, 1)
            for key in keys[first : first + AT_ONCE]
        ]
        await asyncio.gather(*map(segment.publish, entries))


async def view(messages: Messages, topic: str, keys: int) -> tuple[float, float]:
    """The seconds until the first page, and until the last one."""
    messages._compacted._views.clear()  # as a broker that has not been asked for it before
    began = time.perf_counter()
    seen, first, token = 0, 0.0, None
    while seen < keys:
        page = await messages.browse(topic, token, PAGE, "read_committed", None, 0, compacted=token is None)
        first = first or time.perf_counter() - began
        seen += len(page.in_json().messages)
        token = page.next
    assert seen == keys, seen
    return first, time.perf_counter() - began


async def compacted(broker: Broker, segment: Segment) -> float:
    """The seconds that it took."""
    assert segment.on_full is not None
    await segment.on_full()
    began = time.perf_counter()
    while segment.record.compaction is None or segment.record.compaction.through != str(
        segment.ledgers.sealed[-1].last
    ):
        await broker.reconcile()
        while segment._tasks:
            await asyncio.wait(segment._tasks)
    return time.perf_counter() - began


async def measure(keys: int) -> list[Figure]:
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        storage = LocalStorage.open(Path(directory))
        broker = Broker(
            MemoryStore(INDEXES),
            storage,
            "http://here",
            clock=now_ms,
            metrics=BrokerMetrics(),
            reconcile_interval_ms=NEVER_MS,
        )
        LayoutUpkeep(broker)
        await broker.start()
        messages = Messages(broker)
        segments = {}
        for name in ("public/default/small", "public/default/large"):
            topic = await broker.topics.create(name, 1, None, storage.storage_id, now_ms())
            await broker.until_opened(topic.segments)
            segments[name] = await broker.segment(topic.segments[0])
        small, large = segments
        await fill(segments[small], draw.sample(range(keys), keys))
        for version in range(VERSIONS):
            await fill(segments[large], draw.sample(range(keys), keys))
            sys.stdout.write(f"\r{version + 1} of {VERSIONS}")
        await broker.policies.change_topic(large, {"cleanup": "compact"})
        sys.stdout.write("\n")
        before = [await view(messages, large, keys) for _ in range(2)]
        took_s = await compacted(broker, segments[large])
        firsts, wholes = [], []
        for _ in range(RUNS):
            few, many = await view(messages, small, keys), await view(messages, large, keys)
            firsts.append(many[0] / few[0])
            wholes.append(many[1] / few[1])
        few = await view(messages, small, keys)
        await broker.stop()
        await storage.close()
    return [
        Figure(f"view of {keys:,} keys of {keys * VERSIONS:,} messages ÷ of {keys:,}", wholes, "ratio", at_most=1.5),
        Figure("its first page ÷ the same", firsts, "ratio"),
        Figure("before compaction: view ÷ the same", [each[1] / few[1] for each in before], "ratio"),
        Figure("compaction", [took_s], "s"),
        Figure("messages compacted", [keys * VERSIONS / took_s], "1/s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=KEYS)
    keys = parser.parse_args().keys
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    tune_interpreter()
    publish("compaction", "Compacted topics", uvloop.run(measure(keys)))


if __name__ == "__main__":
    main()
