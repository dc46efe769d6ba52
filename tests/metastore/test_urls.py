"""Goal: a URL opens the store it names, and a wrong one is answered by one line that says what is right."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import pytest

from metastore.api import MetadataStore
from metastore.backends.credentials import InvalidCredentials, Login, Tls
from metastore.backends.memory import MemoryStore
from metastore.backends.options import EtcdOptions, ZooKeeperOptions
from metastore.backends.sqlite import SqliteStore
from metastore.txn.store import INDEXES
from metastore.urls import InvalidStoreUrl, open_store
from tests.certificates import Authority


async def test_memory() -> None:
    store = await open_store("memory://")
    assert isinstance(store, MemoryStore)
    assert store.indexes == INDEXES
    await store.close()


async def test_sqlite_with_an_absolute_path(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/new/dir%20/x.db", indexes=(), deadline_ms=5_000)
    assert isinstance(store, SqliteStore)
    assert store.indexes == ()
    await store.close()
    assert (tmp_path / "new" / "dir%20" / "x.db").is_file()


async def test_sqlite_with_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await (await open_store("sqlite:///x.db")).close()
    assert (tmp_path / "x.db").is_file()


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls that opening an etcd store makes; nothing is connected."""
    calls: list[tuple[Any, ...]] = []

    class Fake:
        @staticmethod
        async def open(
            endpoints: list[str], root: str, indexes: Any, options: Any, **credentials: Any
        ) -> MetadataStore:
            calls.append((endpoints, root, indexes, options, credentials))
            return MemoryStore(indexes)

    module = ModuleType("metastore.backends.etcd")
    module.EtcdStore = Fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


async def test_etcd(etcd: list[tuple[Any, ...]], tmp_path: Path) -> None:
    password = tmp_path / "pass word"
    password.write_text("secret\n")
    ca = str(shutil.copy(Authority(tmp_path).ca, tmp_path / "a b.pem"))
    await open_store("etcd://one:2379")
    await open_store(
        f"etcd://one:2379,[::1]:2380/my/root/?ca={quote(ca)}&user=u&password_file={quote(str(password))}", deadline_ms=1
    )
    tls, login = Tls(ca), Login("u", "secret")
    assert etcd == [
        (["one:2379"], "", INDEXES, EtcdOptions(), {"tls": None, "login": None}),
        (
            ["one:2379", "[::1]:2380"],
            "/my/root",
            INDEXES,
            EtcdOptions(deadline_ms=1),
            {"tls": tls, "login": login},
        ),
    ]


async def test_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    async def fake(hosts: list[str], root: str, indexes: Any, options: Any, **credentials: Any) -> MetadataStore:
        calls.append((hosts, root, indexes, options, credentials))
        return MemoryStore(indexes)

    monkeypatch.setattr("metastore.backends.zookeeper.ZooKeeperStore.open", fake)
    await open_store("zk://one:2181")
    await open_store("zk://one:2181,[::1]:2182/my/root/", indexes=(), deadline_ms=1)
    assert calls == [
        (["one:2181"], "", INDEXES, ZooKeeperOptions(), {"tls": None, "login": None}),
        (["one:2181", "[::1]:2182"], "/my/root", (), ZooKeeperOptions(deadline_ms=1), {"tls": None, "login": None}),
    ]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "scheme"),
        ("x.db", "scheme"),
        ("sqlite:/x.db", "scheme"),
        ("redis://one:1", "'redis'"),
        ("memory://x", "nothing may follow"),
        ("memory://?ca=x", "'ca'"),
        ("sqlite://x.db", "three slashes"),
        ("sqlite:///", "name of the file"),
        ("sqlite:////", "name of the file"),
        ("sqlite:///dir/", "name of the file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///x.db?user=me", "'user'"),
        ("etcd://", "''"),
        ("etcd://one", "'one'"),
        ("etcd://one:", "'one:'"),
        ("etcd://one:70000", "'one:70000'"),
        ("etcd://one:0", "'one:0'"),
        ("etcd://one:1,,two:2", "''"),
        ("etcd://one:1/root?tls=1", "'tls'"),
        ("etcd://one:1?ca=a&ca=b", "twice"),
        ("etcd://one:1?ca", "name=value"),
        ("etcd://one:1?ca=", "'ca' is empty"),
        ("etcd://one:1?user=me", "'me' needs a password_file"),
        ("etcd://one:1?password_file=/nowhere", "needs a user"),
        ("etcd://one:1?user=me&password_file=/nowhere/pw", "/nowhere/pw cannot be read: No such file"),
        ("etcd://one:1?ca=/nowhere/ca.pem", "/nowhere/ca.pem cannot be read"),
        ("etcd://one:1?cert=/nowhere/cert.pem", "both files"),
        ("etcd://one:1?key=/nowhere/key.pem", "both files"),
        ("zk://one", "'one'"),
        ("zk://one:1?tls=1", "'tls'"),
        ("zk://one:1?user=me", "'me' needs a password_file"),
        ("zk://one:1?user=me&password_file=/dev/null", "/dev/null is empty"),
        ("zk://one:1?ca=/nowhere/ca.pem", "/nowhere/ca.pem cannot be read"),
        ("zk://one:1/a/../b", "plain names"),
        ("zk://one:1/a//b", "plain names"),
        ("zk://one:1/a%20b", "plain names"),
    ],
)
async def test_a_malformed_url_is_refused_in_one_line(url: str, problem: str) -> None:
    with pytest.raises(InvalidStoreUrl) as refused:
        await open_store(url)
    message = str(refused.value)
    assert isinstance(refused.value, ValueError)
    assert problem in message
    assert "sqlite:////absolute" in message and "\n" not in message


@pytest.mark.parametrize(
    "url",
    [
        "etcd://me:hunter2@one:2379",
        "zk://me:hunter2@one:2181/root",
        "etcd://one:2379?user=me&password=hunter2",
        "etcd://one:2379?password=hunter2&ca=/x",
    ],
)
async def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidStoreUrl, match="password_file") as refused:
        await open_store(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["etcd", "zk"])
async def test_files_that_are_no_certificates_are_named(tmp_path: Path, scheme: str) -> None:
    """gRPC would say of some that the server does not answer, and would end the process for others."""
    good, other = (Authority(tmp_path / name) for name in ("good", "other"))
    client, stranger = good.sign("client"), other.sign("client")
    for query, problem in (
        (f"ca={client.key}", f"{client.key} contains no certificate"),
        (f"cert={client.cert}&key={stranger.key}", f"{stranger.key} are not a pair"),
        (f"cert={client.key}&key={client.cert}", f"{client.key} and the key file {client.cert}"),
    ):
        with pytest.raises(InvalidStoreUrl, match=re.escape(problem)):
            await open_store(f"{scheme}://one:1?{query}")


def test_the_password_is_the_line_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for content, password in ((b"a b \n", "a b "), (b"x\r\n", "x"), ("ü".encode(), "ü")):
        file.write_bytes(content)
        login = Login.of("me", file)
        assert login == Login("me", password)
        assert password not in repr(login).replace("Login", "")
    file.write_bytes(b"\xffsecret")
    with pytest.raises(InvalidCredentials, match="not UTF-8") as refused:
        Login.of("me", file)
    assert "secret" not in str(refused.value)
