"""A segment is sealed while a producer writes to it: every message arrives once, and the order of a key is kept.

Method: splits at every possible moment in front of a fake cluster that checks where keys go.
"""

from __future__ import annotations

from collections import defaultdict

import httpx
import pytest

import metatxn
from tests.metatxn.fake_cluster import FakeCluster, lost

KEYS = 20
MESSAGES = 400


def splitting(cluster: FakeCluster, segment: str) -> None:
    def split(request: httpx.Request) -> None:
        cluster.split(segment)

    cluster.before.append((f"{segment}/entries", split))


def orders(values: list[list[int]]) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for key, number in values:
        found[key].append(number)
    return dict(found)


def expected() -> dict[int, list[int]]:
    return {key: list(range(key, MESSAGES, KEYS)) for key in range(KEYS)}


@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize("quiet_posts", range(4))
def test_split_under_a_producer(batch: int, quiet_posts: int) -> None:
    """Scenario 89: after a few posts the segment is split, and its child soon after."""
    cluster = FakeCluster()
    cluster.before = [("s-0/entries", lambda _: None)] * quiet_posts
    splitting(cluster, "s-0")
    splitting(cluster, "s-0.a")
    with cluster.client() as client:
        with client.transaction() as txn:
            producer = client.producer("t", max_entry_messages=batch)
            for number in range(MESSAGES):
                producer.send([number % KEYS, number], key=str(number % KEYS), txn=txn)
        assert orders(cluster.visible()) == expected()


def test_reply_lost_and_then_sealed() -> None:
    """The entry is in the sealed parent: its retry is answered there, not written to a child again."""
    cluster = FakeCluster()

    def lose_and_split(request: httpx.Request) -> httpx.Response | None:
        cluster.split("s-0")
        return lost(request)

    cluster.after = [("s-0/entries", lose_and_split)]
    with cluster.client() as client:
        client.producer("t").send("x", key="k").result(60)
    assert cluster.visible() == ["x"]


def test_sealed_for_good() -> None:
    """A segment without children takes nothing, and the sends say so."""
    cluster = FakeCluster()
    with cluster.client() as client:
        producer = client.producer("t")
        producer.send("x", key="k").result(60)
        cluster.split("s-0")
        for child in ("s-0.a", "s-0.b"):
            cluster.segments[child].children = ["gone"]
        sent = producer.send("y", key="k")
        with pytest.raises(metatxn.NotFound, match="no active segment"):
            sent.result(60)
        with pytest.raises(metatxn.NotFound):
            producer.flush()
    assert cluster.visible() == ["x"]
