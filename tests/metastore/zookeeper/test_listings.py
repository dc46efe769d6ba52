"""Goal: a kept listing never shows what is not there, and cutting a range out of it loses nothing.

Method: cuts are compared with looking at every child. Then, with every directory taken for a large one, one client
reads ranges while another writes, and what it reads is what a client reads that keeps nothing.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metastore import keys
from metastore.backends import zookeeper_listings
from metastore.backends.zookeeper_listings import LARGE, Child, ZooKeeperListings, within
from metastore.backends.zookeeper_paths import Paths
from metastore.backends.zookeeper_wire import Stat
from tests.metastore.zookeeper.conftest import OpenStore
from tests.servers import ZooKeeperServer

PARTS = st.text("ab-", max_size=3)
BOUNDS = st.text("ab-/", max_size=8)
DIRECTORY = Child("/a/", True, "/records/a+")


def stat(**changes: int) -> Stat:
    return Stat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)._replace(**changes)


@given(st.sets(PARTS), st.sets(PARTS), BOUNDS, BOUNDS)
def test_a_cut_holds_what_every_child_says_of_itself(
    records: set[str], directories: set[str], start: str, end: str
) -> None:
    children = sorted(
        [Child(f"/a/{part}", False, "") for part in records] + [Child(f"/a/{part}/", True, "") for part in directories]
    )
    expected = [
        child
        for child in children
        if child.key < end and (keys.prefix_end(child.key) > start if child.is_directory else child.key >= start)
    ]
    if start < end:
        assert within(children, DIRECTORY, start, end) == expected


def test_only_large_listings_are_kept_and_only_while_the_stamp_is_the_same() -> None:
    listings = ZooKeeperListings(Paths(""))
    listings.learn(DIRECTORY, stat(), [str(number) for number in range(LARGE - 1)])
    assert not listings.keeps(DIRECTORY)
    children = listings.learn(DIRECTORY, stat(), [str(number) for number in range(LARGE)])
    assert listings.keeps(DIRECTORY)
    assert listings.children(DIRECTORY, stat(mzxid=99, version=99, mtime=99)) is children
    for changed in (stat(czxid=99), stat(pzxid=99), stat(cversion=99)):
        assert listings.children(DIRECTORY, changed) is None
    listings.learn(DIRECTORY, stat(), [])
    assert not listings.keeps(DIRECTORY)


def test_no_more_is_kept_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_listings, "_MAX_KEPT_NAMES", 2 * LARGE)
    listings = ZooKeeperListings(Paths(""))
    names = [str(number) for number in range(LARGE)]
    directories = [Child(f"/{name}/", True, f"/records/{name}+") for name in "abc"]
    for directory in directories:
        listings.learn(directory, stat(), names)
    assert [listings.keeps(directory) for directory in directories] == [False, True, True]
    listings.learn(DIRECTORY, stat(), names * 3)
    assert not any(map(listings.keeps, [*directories, DIRECTORY]))


async def test_kept_listings_show_what_others_write(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = await open_store(zookeeper_server, "/kept-listings")
    reading = await open_store(zookeeper_server, "/kept-listings")
    chance = random.Random(7)
    parts = ["", "a", "b", "c"]
    bounds = ["/", *(f"/{one}/{two}" for one in parts for two in parts), "0"]
    for _ in range(150):
        batch = writing.batch()
        for key in {f"/{chance.choice('abc')}/{chance.choice('abc')}" for _ in range(3)}:
            if chance.random() < 0.5:
                batch.put(key, b"")
            else:
                batch.delete(key)
        await writing.apply(batch)
        start, end = sorted(chance.sample(bounds, 2))
        limit, reverse = chance.choice([0, 1, 2, 5]), chance.random() < 0.3
        for _ in range(2):  # the second one finds everything kept
            monkeypatch.setattr(zookeeper_listings, "LARGE", 1)
            kept = await reading.range(start, end, limit=limit, reverse=reverse)
            monkeypatch.setattr(zookeeper_listings, "LARGE", 1_000)
            assert kept == await writing.range(start, end, limit=limit, reverse=reverse)
