"""Real servers for tests: on free loopback ports, with their data in a directory of the test, always cleaned up.

A server that is not installed fails the test that needs it: a suite that skips what it cannot start proves nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.certificates import Certificate

START_TIMEOUT_S = 180.0
SHORT_LIVED_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a Java that lives for some minutes: it spends half of its time on compiling what it will not run for long."""
_MODE_S = 0.5
"""For ZooKeeper to say whether it serves. One that has just begun to listen may never answer its first connection."""


def binary(name: str, package: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed; the tests need it: apt-get install {package}"
    return found


# Below what Linux gives to connections (32768 and above): a connection of some test would take a port in the moment
# before its server does, or while its server is down. Each worker of a suite has ports of its own.
_WORKERS = 8
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_PORTS = list(range(10_000 + _WORKER, 32_000, _WORKERS))
random.shuffle(_PORTS)
_NEXT_PORT = itertools.cycle(_PORTS)


def free_port() -> int:
    """One that nobody has, and that is given to nobody else before all others have been."""
    while True:
        port = next(_NEXT_PORT)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


# The reasons are in docs/stores.md.
ETCD_FLAGS: dict[str, object] = {
    "--backend-batch-limit": 500,
    "--quota-backend-bytes": 8 << 30,
    "--auto-compaction-mode": "periodic",
    "--auto-compaction-retention": "2m",
    "--snapshot-count": 5_000,
    "--max-txn-ops": 512,
    "--grpc-keepalive-min-time": "5s",
}


class EtcdServer:
    """One etcd member. fsync stays on: what survives `kill` is part of what the tests show.

    `kill`, `freeze` and `thaw` are the faults; `start` after `kill` goes on with the same data, and on the same port
    unless another one is named (so that a test can change the data while its clients find nobody).
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_txn_ops: int = 512,
        flags: Sequence[str] = (),
        certificate: Certificate | None = None,
        name: str = "test",
    ) -> None:
        self._binary = binary("etcd", "etcd-server")
        self.etcdctl_binary = binary("etcdctl", "etcd-client")
        self._directory = directory
        self._max_txn_ops = max_txn_ops
        self._flags = flags
        self._certificate = certificate
        self._health_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.name = name
        self.port = free_port()
        self.peer_port = free_port()
        self.peer = f"http://127.0.0.1:{self.peer_port}"
        """Where the other members find this one."""
        self.cluster = f"{name}={self.peer}"

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, port: int | None = None) -> None:
        """Start, and return when the server answers its health endpoint."""
        self.launch(port)
        self.wait_healthy()

    def launch(self, port: int | None = None) -> None:
        """Start, and do not wait: a member of a cluster is not healthy alone."""
        assert self._process is None, "it runs already"
        serving = self.endpoint if port is None else f"127.0.0.1:{port}"
        url = f"{'https' if self._certificate else 'http'}://{serving}"
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [
            *(self._binary, "--name", self.name, "--data-dir", str(self._directory / "data")),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            # Health has a port of its own, where nobody asks for certificates.
            *("--listen-metrics-urls", f"http://127.0.0.1:{self._health_port}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{self.peer_port}", "--initial-advertise-peer-urls", self.peer),
            *("--initial-cluster", self.cluster),
            *(f"{flag}={value}" for flag, value in (ETCD_FLAGS | {"--max-txn-ops": self._max_txn_ops}).items()),
            *("--logger", "zap", *self._flags),
        ]
        if self._certificate:
            command += ["--cert-file", str(self._certificate.cert), "--key-file", str(self._certificate.key)]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    def wait_healthy(self) -> None:
        assert self._process is not None, "it does not run"
        give_up = time.monotonic() + START_TIMEOUT_S
        while not self.serves():
            if self.ended or time.monotonic() > give_up:
                self.kill()
                raise AssertionError(f"etcd did not start; the end of its log:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def _log(self) -> Path:
        return self._directory / "etcd.log"

    @property
    def ended(self) -> bool:
        """By itself."""
        return self._process is not None and self._process.poll() is not None

    def leads(self) -> bool:
        """Whether it says so; none does during an election."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health_port}/metrics", timeout=5) as answer:
                return b"\netcd_server_is_leader 1" in answer.read()
        except OSError:
            return False

    def serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health_port}/health", timeout=5) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, ValueError):
            return False

    def kill(self) -> None:
        """As a power failure would, except that the operating system keeps what it was given."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Returns when all its threads stand still: until then they go on answering."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait()
            self._process = None

    def etcdctl(self, *arguments: str, port: int | None = None) -> Any:
        """The JSON answer of a command, asked as an operator would."""
        return json.loads(self._run_etcdctl("--write-out", "json", *arguments, port=port))

    def _run_etcdctl(self, *arguments: str, port: int | None) -> str:
        """What a command prints. It gets more than the 5 s of the default: a busy disk takes longer to compact."""
        serving = self.endpoint if port is None else f"127.0.0.1:{port}"
        command = [self.etcdctl_binary, "--endpoints", serving, "--command-timeout", "60s", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env={"ETCDCTL_API": "3"})
        if done.returncode:
            raise RuntimeError(f"etcdctl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def revision(self, port: int | None = None) -> int:
        return int(self.etcdctl("get", "/", port=port)["header"]["revision"])

    def watches(self) -> int:
        """How many watches the server holds, of all its clients."""
        with urllib.request.urlopen(f"http://{self.endpoint}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("etcd_debugging_mvcc_watcher_total "))

    def compact(self, port: int | None = None) -> None:
        """Make the server forget its history up to now. A compaction whose reply was lost is done all the same."""
        try:
            self._run_etcdctl("compaction", "--physical", str(self.revision(port)), port=port)
        except RuntimeError as error:
            if "has been compacted" not in str(error):
                raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class EtcdCluster:
    """Members of one etcd cluster, each with the faults of `EtcdServer`."""

    def __init__(
        self,
        directory: Path,
        certificates: Sequence[Certificate | None] = (None, None, None),
        *,
        flags: Sequence[str] = (),
    ) -> None:
        self.members = [
            EtcdServer(directory / f"m{number}", name=f"m{number}", certificate=certificate, flags=flags)
            for number, certificate in enumerate(certificates)
        ]
        self.introduce()

    def introduce(self) -> None:
        """Tell each member where the others are. Before they are started."""
        for member in self.members:
            member.cluster = ",".join(f"{other.name}={other.peer}" for other in self.members)

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def leader(self) -> EtcdServer:
        """The member that leads now. All that answer must agree."""
        while True:
            command = [self.members[0].etcdctl_binary, "--endpoints", ",".join(self.endpoints)]
            command += ["--write-out", "json", "endpoint", "status"]
            answer = subprocess.run(command, check=False, capture_output=True, text=True, env={"ETCDCTL_API": "3"})
            found = json.loads(answer.stdout or "[]")
            leaders = {one["Status"].get("leader") for one in found}  # none during an election
            for one in found:
                if leaders == {one["Status"]["header"]["member_id"]}:
                    return self.members[self.endpoints.index(one["Endpoint"])]
            time.sleep(0.1)

    def __enter__(self) -> Self:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_healthy()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.kill()


DEBIAN_ZOOKEEPER = Path("/usr/share/java/zookeeper.jar")


def debian_zookeeper() -> list[Path]:
    """The class path of Debian's ZooKeeper. Its manifest names what it needs besides a logger, Netty's decoders (for
    TLS) and the API of servlets (for its AdminServer)."""
    assert DEBIAN_ZOOKEEPER.exists(), "ZooKeeper is not installed; the tests need it: apt-get install zookeeper"
    besides = ("slf4j-simple.jar", "netty-codec.jar", "servlet-api.jar")
    return [DEBIAN_ZOOKEEPER, *map(DEBIAN_ZOOKEEPER.with_name, besides)]


def pyspark_zookeeper() -> list[Path]:
    """The class path of the ZooKeeper that travels in the wheel of pyspark, a newer one."""
    package = importlib.util.find_spec("pyspark")
    assert package is not None and package.submodule_search_locations, "pyspark is not installed"
    jars = Path(package.submodule_search_locations[0]) / "jars"
    needed = (
        "zookeeper",
        "netty",
        "slf4j-api",
        "log4j-slf4j2",
        "log4j-core",
        "log4j-api",
        "metrics-core",
        "snappy-java",
    )
    found = [jar for name in (*needed, "commons-") for jar in sorted(jars.glob(f"{name}*.jar"))]
    assert any(jar.name.startswith("zookeeper-jute") for jar in found), f"there is no ZooKeeper in {jars}"
    return found


class ZooKeeperServer:
    """One ZooKeeper server that stands alone. fsync stays on: what survives `kill` is part of what the tests show.

    The faults are those of `EtcdServer`. A tick is short, so that sessions may be. With a `certificate` it also
    speaks TLS, at `secure_endpoint`, and with a `client_ca` it demands certificates there.
    """

    def __init__(
        self,
        directory: Path,
        *,
        class_path: Sequence[Path] | None = None,
        tick_ms: int = 500,
        certificate: Certificate | None = None,
        client_ca: Path | None = None,
        settings: Mapping[str, object] | None = None,
        java_options: Sequence[str] = SHORT_LIVED_JAVA,
    ) -> None:
        self._java_options = java_options
        self._java = binary("java", "openjdk-17-jre-headless")
        self._class_path = debian_zookeeper() if class_path is None else class_path
        self._directory = directory
        self._tick_ms = tick_ms
        self.settings: dict[str, object] = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.secure_port = free_port()
        if certificate:
            self.settings |= {
                "secureClientPort": self.secure_port,
                "secureClientPortAddress": "127.0.0.1",
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": certificate.both,
                "ssl.keyStore.type": "PEM",
                "ssl.clientAuth": "need" if client_ca else "none",
            }
        if client_ca:
            self.settings |= {"ssl.trustStore.location": client_ca, "ssl.trustStore.type": "PEM"}

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def secure_endpoint(self) -> str:
        return f"127.0.0.1:{self.secure_port}"

    def start(self) -> None:
        """Start, and return when the server serves."""
        self.launch()
        self.wait_serving()

    def launch(self) -> None:
        """Start, and do not wait: a member of an ensemble does not serve alone."""
        assert self._process is None, "it runs already"
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        for log in data.glob("version-2/log.*"):
            if log.stat().st_size == 0:  # begun on a full disk: ZooKeeper does not start with it (its issue 1621)
                log.unlink()
        settings = {
            "tickTime": self._tick_ms,
            "dataDir": data,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            "4lw.commands.whitelist": "srvr,mntr,conf",
            **self.settings,
        }
        config = self._directory / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [
            *(self._java, "-Xmx768m", *self._java_options, "-Djava.awt.headless=true"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", ":".join(map(str, self._class_path))),
            *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)),
        ]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    @property
    def _log(self) -> Path:
        return self._directory / "zookeeper.log"

    def wait_serving(self) -> None:
        assert self._process is not None, "it does not run"
        give_up = time.monotonic() + START_TIMEOUT_S
        while not self.serves():
            if self.ended or time.monotonic() > give_up:
                self.kill()
                raise AssertionError(f"ZooKeeper did not start; the end of its log:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    @property
    def ended(self) -> bool:
        """By itself."""
        return self._process is not None and self._process.poll() is not None

    def leads(self) -> bool:
        return self.mode() == "leader"

    def serves(self) -> bool:
        return bool(self.mode())

    def version(self) -> str:
        """What the server says it is."""
        return self._ask(b"srvr").partition("version: ")[2].partition("-")[0]

    def zxid(self) -> int:
        """The number of its last transaction."""
        return int(self._ask(b"srvr").partition("Zxid: ")[2].partition("\n")[0], 16)

    def watches(self) -> int:
        """How many watches the server holds, of all its clients."""
        return int(self._ask(b"mntr").partition("zk_watch_count\t")[2].partition("\n")[0])

    def in_process(self) -> int:
        """How many requests the server has taken and not answered."""
        return int(self._ask(b"mntr").partition("zk_outstanding_requests\t")[2].partition("\n")[0])

    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty while it does not serve."""
        try:
            return self._ask(b"srvr", _MODE_S).partition("Mode: ")[2].partition("\n")[0]
        except OSError:
            return ""

    def _ask(self, word: bytes, timeout_s: float = 5.0) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as connection:
            connection.sendall(word)
            with connection.makefile("rb") as answer:
                return answer.read().decode()

    def kill(self) -> None:
        """As a power failure would, except that the operating system keeps what it was given."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Returns when all its threads stand still: until then they go on answering."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def peer_address(leading: int, electing: int) -> str:
    """Of a member, in the file of another."""
    return f"127.0.0.1:{leading}:{electing}"


class ZooKeeperEnsemble:
    """Servers that are one, each with the faults of `ZooKeeperServer`."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        numbers = range(1, size + 1)
        self.peer_ports = [(free_port(), free_port()) for _ in numbers]
        """Of each member: where followers come to when it leads, and where it takes part in elections."""
        peers = {f"server.{number}": peer_address(*self.peer_ports[number - 1]) for number in numbers}
        settings = {"initLimit": 20, "syncLimit": 10, **peers}
        homes = {number: directory / f"m{number - 1}" for number in numbers}
        self.members = [ZooKeeperServer(home, settings=settings) for home in homes.values()]
        for number, home in homes.items():
            data = home / "data"
            data.mkdir(parents=True)
            (data / "myid").write_text(str(number))

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def leader(self) -> ZooKeeperServer:
        while True:
            for member in self.members:
                if member.leads():
                    return member
            time.sleep(0.1)

    def __enter__(self) -> Self:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_serving()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.kill()


class S3Server:
    """A server that speaks S3, conditional puts included, with one bucket. It is moto, which keeps everything in
    memory, unless S3_SERVER names the program of Versity's gateway, which keeps it in files: `make object-store-test`.

    `environment` is what a client needs to find it.
    """

    BUCKET = "test-bucket"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    @property
    def command(self) -> list[str]:
        program = os.environ.get("S3_SERVER")
        if program is None:
            return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        access, secret = self.environment["AWS_ACCESS_KEY_ID"], self.environment["AWS_SECRET_ACCESS_KEY"]
        options = ["--quiet", "--port", f"127.0.0.1:{self.port}", "--access", access, "--secret", secret]
        return [program, *options, "posix", str(self._directory / "s3")]

    def start(self) -> None:
        (self._directory / "s3" / self.BUCKET).mkdir(parents=True, exist_ok=True)  # which is a bucket of the gateway's
        with (self._directory / "s3.log").open("ab") as output:
            self._process = subprocess.Popen(self.command, stdout=output, stderr=output)
        give_up = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError):
                request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{self.BUCKET}", method="PUT")
                try:
                    urllib.request.urlopen(request, timeout=5).close()
                except urllib.error.HTTPError as answer:
                    answer.close()
                    if answer.code != HTTPStatus.FORBIDDEN:  # so the gateway answers a request without a signature
                        raise
                return
            assert self._process.poll() is None and time.monotonic() < give_up, "the S3 server did not start"
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
