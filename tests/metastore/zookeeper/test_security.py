"""Goal: TLS and users of ZooKeeper work, and what is wrong with them is said: by name, in time, without the password.

Method: real servers with certificates made for the test, in Debian's version and in that of pyspark; everything is
opened by URL, as a user would. Users are those of the scheme `digest`: nobody has to be registered, a znode belongs
to the one who made it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL

from metastore.api import MetadataStore
from metastore.backends.credentials import Tls
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.backends.zookeeper_connection import _Handler
from metastore.doctor import examine
from metastore.errors import StoreUnavailable
from metastore.urls import InvalidStoreUrl, open_store
from tests.certificates import Authority
from tests.metastore.small_contract import hold_small_contract
from tests.metastore.zookeeper.faults import end_session
from tests.metatxn.command_line import error_line, run
from tests.servers import ZooKeeperServer, debian_zookeeper, free_port, pyspark_zookeeper

PASSWORD = "correct:horse battery"
# Many times what a call may take.
BOUND_S = 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "another authority")


@pytest.fixture(scope="module", params=[debian_zookeeper, pyspark_zookeeper], ids=["debian", "pyspark"])
def tls_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[ZooKeeperServer]:
    directory = tmp_path_factory.mktemp("tls")
    with ZooKeeperServer(directory, class_path=request.param(), certificate=authority.sign("server")) as server:
        yield server


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[ZooKeeperServer]:
    """Demands certificates of its clients."""
    directory = tmp_path_factory.mktemp("strict")
    with ZooKeeperServer(directory, certificate=authority.sign("strict"), client_ca=authority.ca) as server:
        yield server


async def opened(url: str) -> MetadataStore:
    return await open_store(url, indexes=(), deadline_ms=30_000)


async def refusal(url: str) -> str:
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(StoreUnavailable) as refused:
            await open_store(url, indexes=(), deadline_ms=2_000)
    assert refused.value.definite
    return str(refused.value)


async def hold(url: str) -> None:
    store, other = await opened(url), await opened(url)
    await hold_small_contract(store, other)
    await store.close()
    await other.close()


async def test_everything_works_over_tls(tls_server: ZooKeeperServer, authority: Authority) -> None:
    await hold(f"zk://{tls_server.secure_endpoint}/tls?ca={authority.ca}")


async def test_everything_works_with_a_client_certificate(strict_server: ZooKeeperServer, authority: Authority) -> None:
    client = authority.sign("client")
    await hold(f"zk://{strict_server.secure_endpoint}/strict?ca={authority.ca}&cert={client.cert}&key={client.key}")


async def test_the_doctor_sees_the_settings_with_and_without_tls(
    tls_server: ZooKeeperServer, authority: Authority
) -> None:
    """The server has short ticks, so that sessions may be short: a session of 6 s lasts as long."""
    for url in (f"{tls_server.secure_endpoint}/doctor?ca={authority.ca}", f"{tls_server.endpoint}/doctor"):
        store = await opened(f"zk://{url}")
        found = {each.check: each.what async for each in examine(store)}
        await store.close()
        assert found["zookeeper version"] == f"version {tls_server.version()}"
        assert found["zookeeper mode"] == "standalone" and "MiB" in found["zookeeper log"]
        assert found["zookeeper maxClientCnxns"] == "any number of connections from one address"
        assert found["zookeeper sessions"] == "a session of 6 s lasts 6 s"
        assert found["zookeeper jute.maxbuffer"] == "it takes a request of 1000000 bytes"
    away = f"127.0.0.1:{free_port()}"
    store = await opened(f"zk://{tls_server.endpoint},{away}/doctor")
    wrong = {(each.check, each.about) async for each in examine(store) if each.verdict == "problem"}
    await store.close()
    assert wrong == {("zookeeper mode", f"zookeeper {tls_server.endpoint}"), ("zookeeper", f"zookeeper {away}")}


async def test_large_answers_arrive_whole_over_tls(tls_server: ZooKeeperServer, authority: Authority) -> None:
    """Many records of TLS per answer, and many answers under way: what is decrypted already must be read, too."""
    store = await opened(f"zk://{tls_server.secure_endpoint}/large?ca={authority.ca}")
    values = {f"/n/{number:02d}": bytes([number]) * 50_000 for number in range(20)}
    await asyncio.gather(*(store.apply(store.batch().put(key, value)) for key, value in values.items()))
    for _ in range(10):
        found = await asyncio.gather(*map(store.get, values))
        assert {record.key: record.value for record in found if record} == values
    await store.close()


def test_what_tls_has_decrypted_already_is_readable(authority: Authority) -> None:
    """Two answers in one record of TLS: behind the first, the operating system has nothing more to read."""
    certificate = authority.sign("here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as thread:
        accepting = thread.submit(context.wrap_socket, theirs, server_side=True)
        client = Tls(authority.ca).context().wrap_socket(ours, server_hostname="127.0.0.1")
        with client, accepting.result() as server:
            server.sendall(b"first 2nd")
            assert client.recv(6) == b"first "
            assert _Handler(None, 1).select([client], [], [], 0)[0] == [client]


async def test_a_certificate_that_nobody_trusts_is_named(
    tmp_path: Path, strict_server: ZooKeeperServer, authority: Authority, stranger: Authority
) -> None:
    url = f"zk://{strict_server.secure_endpoint}/wrong"
    assert "CERTIFICATE_VERIFY_FAILED" in await refusal(f"{url}?ca={stranger.ca}")
    assert strict_server.secure_endpoint in await refusal(url)  # without TLS
    for certificate, problem in (
        (authority.sign("old", days=-1), "certificate has expired"),
        (authority.sign("elsewhere", host="zookeeper.example"), "mismatch"),
    ):
        with ZooKeeperServer(tmp_path / problem, certificate=certificate) as server:
            assert problem in await refusal(f"zk://{server.secure_endpoint}/wrong?ca={authority.ca}")


async def test_a_client_that_the_server_does_not_trust_is_told_so(
    strict_server: ZooKeeperServer, authority: Authority, stranger: Authority
) -> None:
    url = f"zk://{strict_server.secure_endpoint}/strict?ca={authority.ca}"
    for client in (stranger.sign("client"), authority.sign("old-client", days=-1)):
        assert "CERTIFICATE" in (await refusal(f"{url}&cert={client.cert}&key={client.key}")).upper()
    assert "CERTIFICATE" in (await refusal(url)).upper()


async def test_the_command_line_takes_the_same_url(strict_server: ZooKeeperServer, authority: Authority) -> None:
    client = authority.sign("client")
    url = f"zk://{strict_server.secure_endpoint}/cli?ca={authority.ca}&cert={client.cert}&key={client.key}"
    store = await opened(url)
    await store.apply(store.batch().put("/greeting", b"hello"))
    await store.close()
    done = await asyncio.to_thread(run, "store", "dump", "--store", url)
    assert (done.stdout, done.stderr) == ("/greeting = hello\n", "")
    done = await asyncio.to_thread(run, "store", "dump", "--store", "zk://127.0.0.1:1/cli?ca=/nowhere.pem")
    assert "/nowhere.pem cannot be read" in error_line(done)


# -- users ----------------------------------------------------------------------------------------------------------


def password_file(directory: Path, password: str = PASSWORD) -> Path:
    file = directory / f"password-{len(list(directory.iterdir()))}"
    file.write_text(password + "\n")
    return file


async def test_the_znodes_of_a_user_are_for_nobody_else(tmp_path: Path, zookeeper_server: ZooKeeperServer) -> None:
    """Below the root there is none that somebody else may see, whatever made it: records, directories, logs."""
    root = f"/{tmp_path.name}"
    url = f"zk://{zookeeper_server.endpoint}{root}/mine"
    owned = f"{url}?user=app&password_file={password_file(tmp_path)}"
    await hold(owned)
    for other in (
        url,
        f"{url}?user=app&password_file={password_file(tmp_path, 'wrong')}",
        f"{url}?user=guest&password_file={password_file(tmp_path)}",
    ):
        assert "belongs to another" in await refusal(other)
    assert "'guest'" in await refusal(f"{url}?user=guest&password_file={password_file(tmp_path)}")
    everyone = await asyncio.to_thread(acls_below, zookeeper_server, f"{root}/mine")
    assert len(everyone) > 256 and set(everyone.values()) == {"digest"}
    # A neighbour may have a store of its own beside it.
    await hold(f"zk://{zookeeper_server.endpoint}{root}/theirs")


def acls_below(server: ZooKeeperServer, path: str) -> dict[str, str]:
    """The scheme of the only entry of each access control list."""
    client = KazooClient(hosts=server.endpoint, auth_data=[("digest", f"app:{PASSWORD}")])
    client.start()
    found: dict[str, str] = {}
    paths = [path]
    while paths:
        path = paths.pop()
        (entry,), _ = client.get_acls(path)
        found[path] = entry.id.scheme
        paths += [f"{path}/{name}" for name in client.get_children(path)]
    client.stop()
    client.close()
    return found


async def test_a_store_that_is_taken_away_is_refused_at_once(tmp_path: Path, zookeeper_server: ZooKeeperServer) -> None:
    """An open client whose znodes come to belong to somebody else: nothing happens, and it is told so in time. So it is
    by a new connection, which cannot be compared any more."""
    root = f"/{tmp_path.name}"
    store = await opened(f"zk://{zookeeper_server.endpoint}{root}")
    assert isinstance(store, ZooKeeperStore)
    await store.apply(store.batch().put("/a", b"1"))
    await asyncio.to_thread(take_away, zookeeper_server, root)
    async with asyncio.timeout(BOUND_S):
        for _ in range(2):
            for call in (store.apply(store.batch().put("/a", b"2")), store.get("/a"), store.scan("/"), store.get("/b")):
                with pytest.raises(StoreUnavailable, match="belongs to another") as refused:
                    await call
                assert refused.value.definite
            await end_session(store)
        await store.close()


def take_away(server: ZooKeeperServer, path: str) -> None:
    client = KazooClient(hosts=server.endpoint, auth_data=[("digest", "thief:x")])
    client.start()
    paths = [path]
    while paths:
        path = paths.pop()
        paths += [f"{path}/{name}" for name in client.get_children(path)]
        client.set_acls(path, CREATOR_ALL_ACL)
    client.stop()
    client.close()


async def test_a_user_with_a_colon_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidStoreUrl, match="must not contain a colon"):
        await open_store(f"zk://127.0.0.1:1/x?user=a:b&password_file={password_file(tmp_path)}")


async def test_the_password_is_nowhere(
    tmp_path: Path, zookeeper_server: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"zk://{zookeeper_server.endpoint}/{tmp_path.name}?user=app&password_file={password_file(tmp_path)}"
    with caplog.at_level(logging.DEBUG):
        store = await opened(url)
        assert isinstance(store, ZooKeeperStore)
        await store.close()
    assert "Auth(" in caplog.text, "kazoo logs what it sends"
    shown = [repr(vars(store._connection)), repr(vars(store._connection._client)), caplog.text]
    assert not any(PASSWORD in text for text in shown)
