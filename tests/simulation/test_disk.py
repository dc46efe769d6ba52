"""Goal: what local storage has said is durable survives a power cut, also what an earlier life of the process began.

Method: the blocking half of local ledgers over the simulated disk; the power is cut in worlds that lose different parts
of what was not synced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from participants.ledger.local import LocalStorage
from participants.ledger.local_files import LedgerFiles
from tests.simulation.disk import Device, SimulatedDisk
from tests.simulation.world import World

ROOT = Path("/ledgers")
DATA_DIR = Path("/data")


@pytest.fixture(params=range(8))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.loop.close()


def _machine(world: World) -> tuple[Device, SimulatedDisk]:
    device = Device(world, "disk")
    return device, SimulatedDisk(device, world.process("broker"))


def test_a_directory_that_an_earlier_life_made_is_durable_before_a_ledger_lies_in_it(world: World) -> None:
    """It was killed between making the directory and syncing its parent: it is there, until the power goes."""
    device, disk = _machine(world)
    disk.mkdir(ROOT)
    disk.fsync_dir(ROOT.parent)
    files = LedgerFiles(disk, ROOT)
    path = files.path("s", 1)
    disk.mkdir(path.parent)
    fd = files.create("s", 1)
    _write(disk, fd, b"acknowledged")
    device.lose_power()
    assert disk.read(disk.open(path, os.O_RDONLY), 100, 0) == b"acknowledged"


def test_a_storage_id_that_an_earlier_life_wrote_is_durable_before_it_is_used(world: World) -> None:
    """It was killed before the last sync of its first opening. The id is in every record of a segment from now on."""
    device, disk = _machine(world)
    with pytest.MonkeyPatch.context() as killed:
        sync = disk.fsync_dir
        killed.setattr(disk, "fsync_dir", lambda path: sync(path) if path != DATA_DIR else None)
        lock = LocalStorage.open(DATA_DIR, disk=disk)._lock
        assert lock is not None
        lock.close()
    name = LocalStorage.open(DATA_DIR, disk=disk).storage_id
    device.locked_by.clear()
    device.lose_power()
    assert LocalStorage.open(DATA_DIR, disk=disk).storage_id == name


def _write(disk: SimulatedDisk, fd: int, content: bytes) -> None:
    assert disk.write(fd, [content], 0) == len(content)
    disk.fsync(fd)
