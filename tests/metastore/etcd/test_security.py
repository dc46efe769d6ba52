"""Goal: TLS and users of etcd work, and what is wrong with them is said: by name, in time, and without the password.

Method: real servers with certificates made for the test, and with etcd's own authentication switched on; everything
is opened by URL, as a user would.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from metastore.api import MetadataStore
from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_connection import EtcdConnection
from metastore.doctor import examine
from metastore.errors import StoreUnavailable
from metastore.types import Changes
from metastore.urls import open_store
from tests.certificates import Authority
from tests.metastore.small_contract import hold_small_contract
from tests.metatxn.command_line import error_line, run
from tests.servers import EtcdServer

PASSWORD = "correct-horse"
ROOT_PASSWORD = "battery-staple"
# Many times what a call may take.
BOUND_S = 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "another authority")


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("tls"), certificate=authority.sign("server")) as server:
        yield server


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[EtcdServer]:
    """Demands certificates of its clients."""
    flags = ["--client-cert-auth", "--trusted-ca-file", str(authority.ca)]
    directory = tmp_path_factory.mktemp("strict")
    with EtcdServer(directory, certificate=authority.sign("strict"), flags=flags) as server:
        yield server


async def opened(url: str) -> MetadataStore:
    return await open_store(url, indexes=(), deadline_ms=30_000)


async def refusal(url: str) -> str:
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(StoreUnavailable) as refused:
            await open_store(url, indexes=(), deadline_ms=3_000)
    assert refused.value.definite
    return str(refused.value)


async def test_everything_works_over_tls(tls_server: EtcdServer, authority: Authority) -> None:
    url = f"etcd://{tls_server.endpoint}/tls?ca={authority.ca}"
    store, other = await opened(url), await opened(url)
    await hold_small_contract(store, other)
    await store.close()
    await other.close()


async def test_everything_works_with_a_client_certificate(strict_server: EtcdServer, authority: Authority) -> None:
    client = authority.sign("client")
    url = f"etcd://{strict_server.endpoint}/strict?ca={authority.ca}&cert={client.cert}&key={client.key}"
    store, other = await opened(url), await opened(url)
    await hold_small_contract(store, other)
    await store.close()
    await other.close()


async def test_the_doctor_reads_the_quota_over_tls(strict_server: EtcdServer, authority: Authority) -> None:
    client = authority.sign("doctor")
    url = f"etcd://{strict_server.endpoint}/doctor?ca={authority.ca}&cert={client.cert}&key={client.key}"
    store = await opened(url)
    found = {each.check: each.verdict async for each in examine(store)}
    await store.close()
    assert found["etcd quota"] == found["etcd version"] == "ok", found


async def test_a_certificate_that_nobody_trusts_is_named(
    tmp_path: Path, tls_server: EtcdServer, authority: Authority, stranger: Authority
) -> None:
    url = f"etcd://{tls_server.endpoint}/wrong"
    assert "CERTIFICATE_VERIFY_FAILED" in await refusal(f"{url}?ca={stranger.ca}")
    assert tls_server.endpoint in await refusal(url)  # without TLS
    for certificate, problem in (
        (authority.sign("old", days=-1), "certificate has expired"),
        (authority.sign("elsewhere", host="etcd.example"), "Hostname Verification Check failed"),
    ):
        with EtcdServer(tmp_path / problem, certificate=certificate) as server:
            assert problem in await refusal(f"etcd://{server.endpoint}/wrong?ca={authority.ca}")


async def test_an_https_endpoint_needs_no_further_setting_for_tls() -> None:
    """Its server may have a certificate that the machine trusts anyway."""
    hello: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(1)
        if not hello.done():
            hello.set_result(first)
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = await EtcdConnection.open([f"https://127.0.0.1:{port}"])
        assert not connection.ready  # and so it begins to connect
        async with asyncio.timeout(BOUND_S):
            assert await hello == b"\x16", "the first byte of a TLS handshake"
        await connection.close()


async def test_a_client_that_the_server_does_not_trust_is_told_so(
    strict_server: EtcdServer, authority: Authority, stranger: Authority
) -> None:
    url = f"etcd://{strict_server.endpoint}/strict?ca={authority.ca}"
    for client in (stranger.sign("client"), authority.sign("old-client", days=-1)):
        assert "client certificate" in await refusal(f"{url}&cert={client.cert}&key={client.key}")
    assert "client certificate" in await refusal(url)


async def test_the_command_line_takes_the_same_url(
    tls_server: EtcdServer, authority: Authority, stranger: Authority
) -> None:
    url = f"etcd://{tls_server.endpoint}/cli"
    store = await opened(f"{url}?ca={authority.ca}")
    await store.apply(store.batch().put("/greeting", b"hello"))
    await store.close()
    done = await asyncio.to_thread(run, "store", "dump", "--store", f"{url}?ca={authority.ca}")
    assert (done.stdout, done.stderr) == ("/greeting = hello\n", "")
    for ca, problem in ((stranger.ca, "CERTIFICATE_VERIFY_FAILED"), ("/nowhere.pem", "/nowhere.pem cannot be read")):
        done = await asyncio.to_thread(run, "store", "dump", "--store", f"{url}?ca={ca}")
        assert problem in error_line(done)


# -- users ----------------------------------------------------------------------------------------------------------


class Guarded:
    """A server with authentication on. The user `app` may read and write below `/app`, `guest` nothing."""

    def __init__(self, directory: Path) -> None:
        self.server = EtcdServer(directory / "etcd")
        self._directory = directory

    def lock(self) -> None:
        for user, password in (("root", ROOT_PASSWORD), ("app", PASSWORD), ("guest", PASSWORD)):
            self.ctl("user", "add", f"{user}:{password}")
        self.ctl("user", "grant-role", "root", "root")
        self.ctl("role", "add", "app")
        self.ctl("role", "grant-permission", "app", "--prefix=true", "readwrite", "/app/")
        self.ctl("user", "grant-role", "app", "app")
        self.ctl("auth", "enable")

    def ctl(self, *arguments: str, typed: str = "") -> None:
        command = [self.server.etcdctl_binary, "--endpoints", self.server.endpoint, *arguments]
        subprocess.run(command, check=True, capture_output=True, env={"ETCDCTL_API": "3"}, input=typed, text=True)

    def root_ctl(self, *arguments: str, typed: str = "") -> None:
        self.ctl("--user", f"root:{ROOT_PASSWORD}", *arguments, typed=typed)

    def set_password_again(self) -> None:
        self.root_ctl("user", "passwd", "app", "--interactive=false", typed=f"{PASSWORD}\n")

    def url(self, user: str = "app", password: str = PASSWORD, root: str = "/app") -> str:
        file = self._directory / f"password-{len(list(self._directory.iterdir()))}"
        file.write_text(password + "\n")
        return f"etcd://{self.server.endpoint}{root}?user={user}&password_file={file}"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path)
    with guarded.server:
        guarded.lock()
        yield guarded


async def test_a_user_with_a_role_for_the_root_has_all_that_a_store_needs(guarded: Guarded) -> None:
    store, other = await opened(guarded.url()), await opened(guarded.url())
    await hold_small_contract(store, other)
    await store.close()
    await other.close()


async def test_a_user_who_may_not_is_refused_by_name(guarded: Guarded) -> None:
    for url, problems in (
        (guarded.url(password="wrong"), ("'app'", "authentication failed")),
        (guarded.url(user="nobody"), ("'nobody'", "authentication failed")),
        (guarded.url(user="guest"), ("'guest'", "permission denied", "'/app/'")),
        (guarded.url(root="/other"), ("'app'", "permission denied", "'/other/'")),
        (f"etcd://{guarded.server.endpoint}/app", ("without a user", "user name is empty")),
    ):
        said = await refusal(url)
        assert all(problem in said for problem in problems), said


async def test_a_user_who_loses_the_right_to_write_is_told_so_and_nothing_is_written(guarded: Guarded) -> None:
    store = await opened(guarded.url())
    await store.apply(store.batch().put("/a", b"1"))
    await asyncio.to_thread(guarded.root_ctl, "role", "grant-permission", "app", "--prefix=true", "read", "/app/")
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(StoreUnavailable, match=r"'app'.*permission denied") as refused:
            await store.apply(store.batch().put("/a", b"2"))
    assert refused.value.definite
    record = await store.get("/a")
    assert record is not None and record.value == b"1"
    await store.close()


async def test_a_token_that_ends_is_renewed_without_a_lost_or_a_repeated_write(guarded: Guarded) -> None:
    """A new password ends all tokens of the user, also when it is the old one. A new life of the server may or may
    not: they live in its memory, but those of its log that come after its last snapshot are made again."""
    store, other = await opened(guarded.url()), await opened(guarded.url())
    start = await store.current_revision()
    held = await store.ephemeral("/live", b"", 60_000)
    applied = []
    async with asyncio.timeout(BOUND_S), other.watch("/n/", start + 1) as watch:
        for number in range(4):
            assert isinstance(store, EtcdStore)
            token = store._connection.metadata
            if number == 2:
                guarded.server.kill()
                await asyncio.to_thread(guarded.server.start)
            await asyncio.to_thread(guarded.set_password_again)
            await store._connection.wait_ready()  # the writes are the first to meet the end of the token
            batches = [store.batch().create(f"/n/{number}/{name}", b"") for name in range(20)]
            applied += [one.revision for one in await asyncio.gather(*map(store.apply, batches))]
            assert store._connection.metadata != token
        seen = 0
        while seen < len(applied):
            item = await anext(watch)
            assert isinstance(item, Changes) and item.revision in applied
            seen += len(item.events)
    records = (await other.scan("/n/")).records
    assert [record.version for record in records] == applied and all(record.first for record in records)
    await held.close()
    assert await other.get("/live") is None
    await store.close()
    await other.close()


async def test_a_write_with_a_stale_token_is_sent_once_more_and_only_once(guarded: Guarded) -> None:
    store = await opened(guarded.url())
    assert isinstance(store, EtcdStore)
    store._connection.metadata = [("token", "gone.1")]
    applied = await store.apply(store.batch().create("/once", b""))
    record = await store.get("/once")
    assert record is not None and record.first and record.version == applied.revision
    await store.close()


async def test_the_password_is_nowhere(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        store = await opened(guarded.url())
        assert isinstance(store, EtcdStore)
        said = await refusal(guarded.url(user="nobody"))
        await store.close()
    shown = [said, repr(store), repr(vars(store._connection)), repr(store._connection._login), caplog.text]
    assert not any(PASSWORD in text for text in shown)
