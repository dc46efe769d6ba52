"""A segment is sealed while a producer writes to it: every message arrives once, and the order of a key is kept. What
is seen of a topic while its segments change is a moment, and nobody is left with it.

Method: splits and merges at every possible moment in front of a fake cluster that checks where keys go.
"""

from __future__ import annotations

from collections import defaultdict

import httpx
import pyarrow as pa
import pytest

import metatxn
from metatxn.wire.broker import HASH_RANGE_END, hash_of_key
from metatxn.wire.errors import ErrorCode
from tests.metatxn.fake_cluster import FakeCluster, Segment, answering, lost, problem

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
            cluster.segments[child].ended = True
        sent = producer.send("y", key="k")
        with pytest.raises(metatxn.NotFound, match="no active segment"):
            sent.result(60)
        with pytest.raises(metatxn.NotFound):
            producer.flush()
    assert cluster.visible() == ["x"]


LOW, HIGH = (next(key for key in map(str, range(100)) if (hash_of_key(key) > 0x7FFF) == half) for half in (False, True))


def merging(sealed: str) -> FakeCluster:
    """Of two segments one is sealed, and the other not yet. The merge goes on when somebody has asked in vain."""
    cluster = FakeCluster()
    cluster.split("s-0")
    cluster.begin_merge(sealed)

    def go_on(request: httpx.Request) -> httpx.Response:
        cluster.end_merge("s-0.a", "s-0.b")
        return problem(ErrorCode.STORE_UNAVAILABLE, "it is being merged")

    cluster.before = [(f"{sealed}/entries", go_on)]
    return cluster


@pytest.mark.parametrize("sealed", ["s-0.a", "s-0.b"])
@pytest.mark.parametrize("keys", [[LOW], [HIGH], [LOW, HIGH, LOW, HIGH]], ids=["low", "high", "both"])
@pytest.mark.parametrize("inside", [False, True], ids=["plain", "in a transaction"])
def test_newcomer_looks_at_a_topic_during_a_merge(sealed: str, keys: list[str], inside: bool) -> None:
    """One parent is sealed, the other not, and there is no child: a part of the keys seems to have nobody. It has."""
    cluster = merging(sealed)
    with cluster.client() as client:
        producer = client.producer("t")
        txn = client.begin() if inside else None
        for number, key in enumerate(keys):
            producer.send([key, number], key=key, txn=txn)
        producer.flush()
        if txn is not None:
            txn.commit()
        producer.send([LOW, 9], key=LOW).result(60)
    assert sorted(cluster.visible()) == sorted([*([key, number] for number, key in enumerate(keys)), [LOW, 9]])


def test_merge_under_a_producer_that_knows_the_segments() -> None:
    cluster = FakeCluster()
    cluster.split("s-0")
    with cluster.client() as client:
        producer = client.producer("t", max_entry_messages=2)
        for number in range(4):
            producer.send([LOW, number], key=LOW).result(60)
        cluster.begin_merge("s-0.a")
        cluster.before = [("s-0.a/entries", lambda _: cluster.end_merge("s-0.a", "s-0.b"))]
        for number in range(4, 40):
            producer.send([LOW, number], key=LOW)
            producer.send([HIGH, number], key=HIGH)
    for key, first in ((LOW, 0), (HIGH, 4)):
        assert [number for sent, number in cluster.visible() if sent == key] == list(range(first, 40))


def test_message_without_a_key_does_not_wait_for_a_merge() -> None:
    cluster = FakeCluster()
    cluster.split("s-0")
    cluster.begin_merge("s-0.a")
    with cluster.client() as client:
        for number in range(3):
            client.producer("t").send(number).result(60)
    assert sorted(cluster.visible()) == [0, 1, 2]
    assert not any("s-0.a/entries" in request for request in cluster.requests)


def test_message_without_a_key_waits_when_all_segments_are_merged() -> None:
    cluster = merging("s-0.a")
    cluster.begin_merge("s-0.b")
    with cluster.client() as client:
        client.producer("t").send("x").result(60)
    assert cluster.visible() == ["x"]


def test_children_that_are_not_listed_yet() -> None:
    """The topic was read before a split, and its segments behind it."""
    cluster = FakeCluster()
    whole = cluster._segments
    cluster.split("s-0")
    torn = [segment for segment in whole() if segment["segment"] == "s-0"]
    cluster.before = [("GET /v1/topics/t", lambda _: httpx.Response(200, json={"name": "t", "segments": torn}))]
    with cluster.client() as client:
        producer = client.producer("t")
        for key in (LOW, HIGH):
            producer.send(key, key=key).result(60)
    assert sorted(cluster.visible()) == sorted([LOW, HIGH])


def test_table_written_during_a_merge() -> None:
    cluster = merging("s-0.b")
    with (
        cluster.client() as client,
        client.transaction() as txn,
        client.table_writer("t", txn, key_column="k") as writer,
    ):
        writer.write(pa.table({"k": [LOW, HIGH, LOW, HIGH]}))
    assert sorted(row["k"] for row in cluster.visible()) == sorted([LOW, HIGH] * 2)


def test_sealed_for_good_and_made_again() -> None:
    """What a producer has learned of segments that have ended is not believed forever: the topic may be another."""
    cluster = FakeCluster()
    cluster.segments["s-0"].ended = True
    with cluster.client() as client:
        producer = client.producer("t")
        for key in (None, LOW):
            with pytest.raises(metatxn.NotFound):
                producer.send("x", key=key).result(60)
        with pytest.raises(metatxn.NotFound):
            producer.flush()
        cluster.segments = {"s-1": Segment(0, HASH_RANGE_END)}
        cluster.before = [("s-0/entries", answering(ErrorCode.NOT_FOUND))]
        producer.send("y", key=LOW).result(60)
    assert cluster.visible() == ["y"]


def test_one_of_two_is_sealed_for_good() -> None:
    """Its keys have nobody; what has no key goes to the other one."""
    cluster = FakeCluster()
    cluster.split("s-0")
    with cluster.client() as client:
        producer = client.producer("t")
        producer.send("first", key=LOW).result(60)
        cluster.segments["s-0.a"].ended = True
        with pytest.raises(metatxn.NotFound, match="no active segment"):
            producer.send("never", key=LOW).result(60)
        for number in range(3):
            producer.send(number).result(60)
        producer.send("high", key=HIGH).result(60)
        with pytest.raises(metatxn.NotFound):
            producer.flush()
    assert sorted(map(str, cluster.visible())) == ["0", "1", "2", "first", "high"]
