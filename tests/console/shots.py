"""The screenshots of `docs/console.md`, in both themes: `make console-shots`.

A cluster lives for a quarter of an hour on a clock that jumps, so its plots show what has really been counted.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import pyarrow as pa
from playwright.sync_api import Browser, Page, expect

import metatxn
from metatxn.service.throughput import LOOK_EVERY_MS, REMEMBERED
from metatxn.wire.position import Position
from tests.console.browser import Visitor, running_browser
from tests.console.cluster import ConsoleCluster
from tests.services_thread import Loop

SIZE = {"width": 1180, "height": 760}
PAID_AT = "2026-03-02T09:04:00"
EXPRESSION = 'amount >= 30 and country = "DE"'
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def lived(cluster: ConsoleCluster, client: metatxn.Client, chance: random.Random) -> dict[str, str]:
    """What happens in the quarter of an hour, and the paths of the pages that show it."""
    cluster.stop_looking()
    cluster.ahead_ms -= LOOK_EVERY_MS * REMEMBERED
    for topic in ("orders", "invoices", "audit"):
        client.create_topic(topic, segments=2)
        client.create_subscription(topic, "billing", dead_letter_topic=f"{topic}-dead")
    reader = client.reader("orders")
    left: list[str] = []
    last = ""
    with client.producer("orders") as orders, client.producer("invoices") as invoices:
        for number in range(REMEMBERED):
            for _ in range(chance.randint(2, 7)):
                txn = client.begin(timeout_ms=3_600_000, properties={"job": "billing"})
                for key in range(chance.randint(1, 6)):
                    orders.send({"order": key, "amount": 17.5}, key=str(key), txn=txn)
                invoices.send({"paid": True}, key=str(number), txn=txn)
                if chance.random() < 0.15:
                    txn.abort("the card was refused")
                else:
                    txn.commit()
                    last = txn.id
            list(reader)
            cluster.ahead_ms += LOOK_EVERY_MS
            cluster.look()
            if number in (20, 50):
                active = [each for each in client.topic("orders").segments if each.state == "active"]
                client.split_segment(active[number // 50].segment)
            if number in (30, 70):
                held = client.begin(timeout_ms=3_600_000, properties={"job": "nightly-load"})
                orders.send({"order": number}, key=str(number), txn=held).result()
                held.leave_open()
                left.append(held.id)
    _consumed(client, "orders", "billing")
    _held(client, "nightly-load")
    cluster.count_open()
    return {
        "overview": "/",
        "topic": "/topics/orders",
        "subscription": "/topics/orders/subscriptions/billing",
        "messages": _around_the_horizon(client, "orders"),
        "transaction": f"/transactions/{last}",
        "key": "/keys/nightly-load",
        "hanging": "/hanging",
        "table": _table(client),
        "cluster": "/cluster",
        "store": "/cluster/store?prefix=/txn/",
        "check": "/cluster/store/check",
    }


def _table(client: metatxn.Client) -> str:
    """A topic with columns, of which some messages are looked for."""
    columns: list[pa.Field[Any]] = [pa.field("order", pa.int64()), pa.field("amount", pa.decimal128(9, 2))]
    columns += [pa.field("country", pa.string()), pa.field("paid_at", pa.timestamp("ms"))]
    client.create_topic("payments", schema=pa.schema(columns))
    countries = ("DE", "FR", "PL")
    with client.producer("payments") as producer:
        for number in range(400):
            row = {"order": number, "amount": f"{number % 37}.50", "country": countries[number % 3], "paid_at": PAID_AT}
            producer.send(row, key=str(number % 20), properties={"by": "shop"}).result()
    return f"/topics/payments/messages?{urlencode({'where': EXPRESSION})}"


def _held(client: metatxn.Client, key: str) -> None:
    """A key that was taken over from twice while it had something open."""
    for version in range(3):
        epoch = client.connect_key(key).epoch
        for number in range(3):
            with client.transaction(key=key, epoch=epoch, version=10 * version + number):
                pass
        client.begin(timeout_ms=3_600_000, key=key, epoch=epoch, version=10 * version + 9).leave_open()


def _consumed(client: metatxn.Client, topic: str, subscription: str) -> None:
    """Three consumers have messages, some of them again, and some acknowledged in two transactions. They stay
    connected."""
    for number in range(3):
        consumer = client.consumer(topic, subscription, name=f"{subscription}-{number + 1}")
        held = consumer.receive_many(60)
        consumer.negative_acknowledge(held[40:])
        consumer.receive_many(10)
        if number < 2:
            txn = client.begin(timeout_ms=3_600_000, properties={"job": subscription})
            consumer.acknowledge(held[: 30 - 10 * number], txn)
            txn.leave_open()


def _around_the_horizon(client: metatxn.Client, topic: str) -> str:
    segment = client.topic(topic).segments[1].segment
    horizon = Position.parse(client.segment(segment).max_read_position)
    after = Position(horizon.ledger, max(horizon.entry - 2, -1))
    return f"/topics/{topic}/messages?{urlencode({'show': 'all', 'segment': segment, 'after': str(after)})}"


def taken(browser: Browser, cluster: ConsoleCluster, paths: dict[str, str], into: Path) -> None:
    for theme in THEMES:
        visitor = Visitor(browser, cluster.url, color_scheme=theme)
        visitor.page.set_viewport_size(SIZE)  # type: ignore[arg-type]
        for name, path in paths.items():
            page = visitor.open(path)
            page.wait_for_load_state("load")
            if name == "check":
                expect(page.get_by_role("status")).to_contain_text("nothing is wrong")
            _settled(page)
            page.screenshot(path=into / f"console-{name}-{theme}.png")
        visitor.context.close()


def _settled(page: Page) -> None:
    page.evaluate("document.fonts.ready.then(() => true)")


def main(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        Loop() as loop,
        ConsoleCluster(loop, Path(data)) as cluster,
        cluster.client() as client,
    ):
        paths = lived(cluster, client, random.Random(7))
        with running_browser() as browser:
            taken(browser, cluster, paths, into)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
