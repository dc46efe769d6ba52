"""Metadata stores that are backed up and restored as an operator does it."""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from metastore.api import MetadataStore
from metastore.urls import open_store
from tests.servers import EtcdServer, ZooKeeperServer


class RestorableStore(ABC):
    """`back_up` and `restore` while no process of the cluster has it open."""

    url: str

    async def open(self) -> MetadataStore:
        return await open_store(self.url)

    @abstractmethod
    def back_up(self) -> None: ...

    @abstractmethod
    def restore(self) -> None: ...


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


class Etcd(RestorableStore):
    """By `etcdctl snapshot`."""

    def __init__(self, server: EtcdServer, directory: Path) -> None:
        self.server = server
        self._data, self._copy = directory / "data", directory / "snapshot.db"
        self.url = f"etcd://{server.endpoint}"

    def back_up(self) -> None:
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

    def restore(self) -> None:
        self.server.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self.server.start()
