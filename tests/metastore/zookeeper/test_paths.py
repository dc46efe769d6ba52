"""Goal: every key has a znode of its own, in a form that ZooKeeper takes, and can be read back from it.

Method: properties over arbitrary keys (hypothesis), and the paths of our own keys as people see them.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metastore.backends.zookeeper_paths import Paths

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
PATHS = Paths("/root")


def key_of(path: str) -> str:
    """The key of a record's znode, read step by step as a listing does."""
    names = path.removeprefix(PATHS.records + "/").split("/")
    prefix = "/"
    if PATHS.is_special(names[0]):
        prefix, names = "", names[1:]
    parts = [PATHS.child(name) for name in names]
    assert [is_directory for _, is_directory in parts] == [True] * (len(parts) - 1) + [False]
    return prefix + "/".join(part for part, _ in parts)


@given(KEYS)
def test_a_key_comes_back(key: str) -> None:
    path = PATHS.record(key)
    assert key_of(path) == key
    names = path.split("/")[1:]
    assert all(name and name.isascii() and name.isprintable() and name not in (".", "..") for name in names)


@given(KEYS, KEYS)
def test_two_keys_have_two_znodes_and_neither_is_above_the_other(one: str, other: str) -> None:
    assume(one != other)
    first, second = PATHS.record(one), PATHS.record(other)
    assert first != second and not first.startswith(second + "/") and not second.startswith(first + "/")


@given(KEYS, KEYS)
def test_a_directory_holds_the_keys_that_begin_with_its_prefix(prefix: str, key: str) -> None:
    prefix += "/"
    assert (PATHS.record(key).startswith(PATHS.directory(prefix) + "/")) == key.startswith(prefix)
    assert PATHS.record(prefix + key).startswith(PATHS.directory(prefix) + "/")


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("/txn/0001", "/txn+/0001"),
        ("/txn-key/owner&key%20one", "/txn-key+/owner&key%20one"),
        ("/txn", "/txn"),
        ("/a/b", "/a+/b"),
        ("/", "/="),
        ("/a/", "/a+/="),
        ("//a", "/=+/a"),
        ("/.", "/=2E"),
        ("/../x", "/=2E=2E+/x"),
        ("/...", "/..."),
        ("/a+b=c", "/a=2Bb=3Dc"),
        ("/é", "/=C3=A9"),
        ("a/b", "/=_+/a+/b"),
    ],
)
def test_paths_that_people_read(key: str, path: str) -> None:
    assert PATHS.record(key) == PATHS.records + path
