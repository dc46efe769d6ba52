"""What the ledgers of a process in a test lie on: a directory of its own, or an object store, both with faults.

A test that names neither runs on both (`conftest.device`). What only local files can do, be full or torn, is asked of
them alone: `on_local_files`. A module that does not run on both says why: `only`, `usually_on`. `make test` runs each
test of brokers and subscriptions on one of both, unless it says `on_both`.
"""

from __future__ import annotations

import asyncio
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal

import obstore
import pytest
from obstore.store import MemoryStore

from metastore import keys
from participants.ledger.local import LocalStorage
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.objects import START
from participants.ledger.storage import LedgerStorage
from tests.extent import WHOLE
from tests.participants.ledger.faults import FaultyDisk, broken
from tests.participants.ledger.faulty_bucket import FaultyBucket, PutFault

DeviceKind = Literal["local", "objects"]
on_local_files = pytest.mark.parametrize("device", ["local"])
on_objects = pytest.mark.parametrize("device", ["objects"])
on_both = pytest.mark.parametrize("device", ["local", "objects"])
"""What is expected differs, or what happens on the way to it."""


def only(kind: DeviceKind, why: str) -> Any:
    """Instead of the fixture `device`, in a module whose tests cannot run on the other kind. `pytest --fixtures` shows
    `why`."""

    def device() -> DeviceKind:
        return kind

    device.__doc__ = why
    return pytest.fixture(device)


def usually_on(kind: DeviceKind, why: str) -> Any:
    """As `only`, where the other kind tells little more, as `why` says. `make test-all` has both."""
    if not WHOLE:
        return only(kind, why)

    def device(request: pytest.FixtureRequest) -> Any:
        return request.param

    device.__doc__ = why
    return pytest.fixture(params=["local", "objects"])(device)


class Device(ABC):
    """As one process sees it: the faults are its own, and so is what is on its way."""

    @abstractmethod
    async def open(self) -> LedgerStorage: ...

    @abstractmethod
    def copy(self) -> Device:
        """What another process finds after this one has died now."""

    @abstractmethod
    def again(self) -> Device:
        """The same one, for another process, once this one has let it go."""

    @abstractmethod
    def hold(self) -> None:
        """Appends that come do not become durable, until `go`."""

    @abstractmethod
    async def held(self) -> None:
        """Until an append waits for `go`."""

    @abstractmethod
    def go(self) -> None: ...

    @abstractmethod
    def fail(self) -> None:
        """Appends end, until `heal`, with nothing known: those that are held, too. What they wrote is there."""

    @abstractmethod
    def heal(self) -> None: ...

    @abstractmethod
    def ledgers(self) -> set[int]:
        """The numbers of the ledgers that are there, of all segments."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Of no segment there is anything left."""

    @abstractmethod
    def sealed(self) -> set[int]:
        """Of these the ones that have their final length."""

    @abstractmethod
    def lose(self, ledger: int) -> None:
        """All there is of the ledgers of this number is gone."""


class LocalDevice(Device):
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk = FaultyDisk()

    async def open(self) -> LocalStorage:
        return LocalStorage.open(self.directory, disk=self.disk)

    def copy(self) -> LocalDevice:
        directory = self.directory.with_name(self.directory.name + "+")
        shutil.copytree(self.directory, directory)
        return LocalDevice(directory)

    def again(self) -> LocalDevice:
        return LocalDevice(self.directory)

    def hold(self) -> None:
        self.disk.in_sync.clear()
        self.disk.may_sync.clear()

    async def held(self) -> None:
        await asyncio.to_thread(self.disk.in_sync.wait)

    def go(self) -> None:
        self.disk.may_sync.set()

    def fail(self) -> None:
        self.disk.sync_error = broken()

    def heal(self) -> None:
        self.disk.sync_error = None

    def ledgers(self) -> set[int]:
        found = [*self.directory.glob("ledgers/*/*.ledger"), *self.directory.glob("ledgers/*/*.form.*[0-9]")]
        return {int(path.name.partition(".")[0]) for path in found}

    def is_empty(self) -> bool:
        return not list((self.directory / "ledgers").iterdir())

    def sealed(self) -> set[int]:
        return {int(path.stem) for path in self.directory.glob("ledgers/*/*.sealed")}

    def lose(self, ledger: int) -> None:
        self.disk.remembers = False
        for path in self.directory.glob("ledgers/*/*"):
            number = path.name.partition(".")[0]
            if number.isdecimal() and int(number) == ledger:
                path.unlink()


class ObjectsDevice(Device):
    """`store` may be that of other processes, too."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.bucket = FaultyBucket(self.store)
        self._storage: ObjectStorage | None = None

    async def open(self) -> ObjectStorage:
        self._storage = await ObjectStorage.open(self.bucket)
        return self._storage

    def copy(self) -> ObjectsDevice:
        store = MemoryStore()
        for name in self._names():
            obstore.put(store, name, bytes(obstore.get(self.store, name).bytes()))
        return ObjectsDevice(store)

    def again(self) -> ObjectsDevice:
        return ObjectsDevice(self.store)

    def hold(self) -> None:
        self.bucket.holding = PutFault(hold=True)

    async def held(self) -> None:
        assert self.bucket.holding is not None
        await self.bucket.holding.reached.wait()

    def go(self) -> None:
        held, self.bucket.holding = self.bucket.holding, None
        if held is not None:
            held.go.set()

    def fail(self) -> None:
        self.bucket.losing_replies = True

    def heal(self) -> None:
        self.bucket.losing_replies = False

    def ledgers(self) -> set[int]:
        """What has a start: of a ledger that was deleted the fence stays."""
        names = [name.split("/") for name in self._names() if name.startswith("ledgers/")]
        return {int(ledger) for _, _, ledger, number in names if number == keys.number(START)}

    def is_empty(self) -> bool:
        return not any(name.startswith("ledgers/") for name in self._names())

    def sealed(self) -> set[int]:
        return {int(name.split("/")[2]) for name in self._names() if name.endswith("/index")}

    def lose(self, ledger: int) -> None:
        for name in self._names():
            if name.startswith("ledgers/") and int(name.split("/")[2]) == ledger:
                obstore.delete(self.store, name)
        if self._storage is not None:
            self._storage._reach.cache.forget("ledgers/")

    def _names(self) -> list[str]:
        return [each["path"] for chunk in obstore.list(self.store) for each in chunk]


def new_device(kind: DeviceKind, directory: Path) -> Device:
    return LocalDevice(directory) if kind == "local" else ObjectsDevice()


class OnDevice:
    """A process that has one."""

    device: Device

    @property
    def directory(self) -> Path:
        """Of one on local files."""
        assert isinstance(self.device, LocalDevice)
        return self.device.directory

    @property
    def disk(self) -> FaultyDisk:
        """Of one on local files."""
        assert isinstance(self.device, LocalDevice)
        return self.device.disk
