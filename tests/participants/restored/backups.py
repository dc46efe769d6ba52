"""Metadata stores that are backed up and restored as an operator does it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from pathlib import Path

from kazoo.client import KazooClient

from metastore.api import MetadataStore, telling_others
from metastore.errors import StoreUnavailable
from metastore.urls import open_store
from tests.servers import EtcdServer, ZooKeeperServer, free_port, peer_address


class RestorableStore(ABC):
    """`restore` is for a cluster that is stopped; `restore_under` for processes that run."""

    url: str

    async def open(self) -> MetadataStore:
        return await open_store(self.url)

    @abstractmethod
    def back_up(self) -> None:
        """While the cluster is stopped."""

    @abstractmethod
    def back_up_hot(self) -> None:
        """While it runs."""

    @abstractmethod
    def restore(self) -> None: ...

    def restore_under(self) -> None:
        self.restore()


class SqliteFile(RestorableStore):
    def __init__(self, directory: Path) -> None:
        self._file, self._copy = directory / "metadata.db", directory / "metadata.backup"
        self.url = f"sqlite:///{self._file}"

    def back_up(self) -> None:
        shutil.copy(self._file, self._copy)

    def restore(self) -> None:
        for left in self._file.parent.glob(f"{self._file.name}-*"):  # a log of what is no more in the file
            if not left.name.endswith(".lock"):
                left.unlink()
        shutil.copy(self._copy, self._file)

    def back_up_hot(self) -> None:
        self._copied(self._file, self._copy)

    def restore_under(self) -> None:
        """By SQLite, as `.restore` does it."""
        self._copied(self._copy, self._file)

    def move_over(self) -> None:
        """The backup gets the name of the file that is open."""
        self._copy.replace(self._file)

    @staticmethod
    def _copied(source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source)) as read, closing(sqlite3.connect(target)) as written:
            read.backup(written)


class Etcd(RestorableStore):
    """By `etcdctl snapshot`."""

    def __init__(self, server: EtcdServer, directory: Path) -> None:
        self.server = server
        self._data, self._copy = directory / "data", directory / "snapshot.db"
        self.url = f"etcd://{server.endpoint}"

    def back_up(self) -> None:
        self.back_up_hot()

    def back_up_hot(self) -> None:
        self.server._run_etcdctl("snapshot", "save", str(self._copy), port=None)

    def restore(self) -> None:
        self.server.kill()
        shutil.rmtree(self._data)
        command = [self.server.etcdctl_binary, "snapshot", "restore", str(self._copy), "--data-dir", str(self._data)]
        command += ["--name", self.server.name, "--initial-cluster", self.server.cluster]
        command += ["--initial-advertise-peer-urls", self.server.peer]
        subprocess.run(command, check=True, capture_output=True, env={"ETCDCTL_API": "3"})
        self.server.start()


class ZooKeeper(RestorableStore):
    """By a copy of its data directory."""

    def __init__(self, server: ZooKeeperServer, directory: Path) -> None:
        self.server = server
        self._data, self._copy = directory / "data", directory / "copy"
        self.url = f"zk://{server.endpoint}"

    def back_up(self) -> None:
        self.server.kill()
        shutil.copytree(self._data, self._copy)
        self.server.start()

    def back_up_hot(self) -> None:
        self.server.freeze()
        shutil.copytree(self._data, self._copy)
        self.server.thaw()

    def restore(self) -> None:
        self.server.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self.server.start()

    def restore_under(self, seen: int | None = None) -> None:
        """Others use the server, too, until it takes those who have `seen` more of it before."""
        seen = self.server.zxid() if seen is None else seen
        self.restore()
        while self.server.zxid() <= seen:
            client = KazooClient(hosts=self.server.endpoint)
            client.start()
            client.stop()
            client.close()

    @staticmethod
    async def answers(store: MetadataStore) -> None:
        """Wait until the store has a connection again. This asks as those do that tell the others."""
        while True:
            with suppress(StoreUnavailable), telling_others():
                await store.current_revision()
                return


def ensemble_of_one(directory: Path) -> ZooKeeperServer:
    """A server that elects itself, which begins an epoch, as each election of a larger ensemble does."""
    server = ZooKeeperServer(directory)
    peer = peer_address(free_port(), free_port())
    server.settings |= {"standaloneEnabled": "false", "initLimit": 10, "syncLimit": 5}
    server.settings["server.1"] = f"{peer};127.0.0.1:{server.port}"
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "myid").write_text("1")
    return server
