"""Goal: the storage belongs to one process, and what that process acknowledged survives its death.

Method: real processes, killed with SIGKILL, forked, and started side by side.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from participants.ledger import storage_id
from participants.ledger.directory_lock import file_system_type, is_network_type
from participants.ledger.local import LocalStorage
from participants.ledger.storage import StorageLocked, StorageRefused
from tests.participants.ledger.appender import payload
from tests.participants.ledger.ledgers import SEGMENT, payloads

OPEN = """
import sys
from pathlib import Path
from participants.ledger.local import LocalStorage
from participants.ledger.storage import StorageLocked
try:
    print(LocalStorage.open(Path(sys.argv[1])).storage_id)
except StorageLocked:
    print("locked")
"""

FORK = """
import os, signal, sys
from pathlib import Path
from participants.ledger.local import LocalStorage
storage = LocalStorage.open(Path(sys.argv[1]))
if not os.fork():
    print(storage.storage_id, os.getpid(), flush=True)
signal.pause()
"""


def open_elsewhere(data_dir: Path) -> str:
    done = subprocess.run([sys.executable, "-c", OPEN, str(data_dir)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("acknowledged", [1, 40, 400])
async def test_what_was_acknowledged_survives_kill(tmp_path: Path, acknowledged: int) -> None:
    command = [sys.executable, "-m", "tests.participants.ledger.appender", str(tmp_path), "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(acknowledged)]
        process.send_signal(signal.SIGKILL)
        told += process.stdout.readlines()
    entries = {int(line) for line in told if line.endswith(b"\n")}
    assert len(entries) >= acknowledged

    async with LocalStorage.open(tmp_path) as storage:
        sealed = await storage.seal(SEGMENT, 1)
        found = await payloads(sealed)
        assert entries <= set(range(len(found)))
        assert found == [payload(entry) for entry in range(len(found))]
        assert (await storage.open_sealed(SEGMENT, 1, len(found))).size_bytes == sealed.size_bytes


async def test_a_second_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    storage = LocalStorage.open(tmp_path)
    assert open_elsewhere(tmp_path) == "locked"
    with pytest.raises(StorageLocked):
        LocalStorage.open(tmp_path)  # nor twice in one process
    assert open_elsewhere(tmp_path) == "locked"  # and the refused attempt did not loosen the lock
    await storage.close()
    assert open_elsewhere(tmp_path) == storage.storage_id


async def test_a_started_program_does_not_inherit_the_lock(tmp_path: Path) -> None:
    storage = LocalStorage.open(tmp_path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        await storage.close()
        assert open_elsewhere(tmp_path) == storage.storage_id
        assert child.poll() is None


def test_a_forked_child_does_not_hold_the_lock_and_does_not_loosen_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", FORK, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said, child = parent.stdout.readline().split()
        try:
            assert open_elsewhere(tmp_path) == "locked"
            parent.kill()
            parent.wait()
            assert open_elsewhere(tmp_path) == said
        finally:
            parent.kill()
            os.kill(int(child), signal.SIGKILL)


async def test_the_storage_id_stays(tmp_path: Path) -> None:
    async with LocalStorage.open(tmp_path / "new" / "directory") as storage:
        first = storage.storage_id
    async with LocalStorage.open(tmp_path / "new" / "directory") as storage:
        assert storage.storage_id == first
    async with LocalStorage.open(tmp_path / "other") as storage:
        assert storage.storage_id != first


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"format": 2}', b'{"format": 1, "storage_id": "x"}'])
async def test_a_lost_storage_id_is_not_replaced(tmp_path: Path, content: bytes | None) -> None:
    await LocalStorage.open(tmp_path).close()
    path = tmp_path / "storage.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(StorageRefused):
        LocalStorage.open(tmp_path)
    with pytest.raises(StorageRefused):  # and not "locked": the refusal let the lock go
        LocalStorage.open(tmp_path)


def test_a_directory_without_a_storage_id_is_not_opened_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(StorageRefused, match=r"is not the data directory of a broker: there is no storage.json$"):
        LocalStorage.open_to_read(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_a_storage_of_a_later_release_is_not_called_damaged(tmp_path: Path) -> None:
    await LocalStorage.open(tmp_path).close()
    (tmp_path / "storage.json").write_bytes(b'{"format": 2, "name": "x"}')
    with pytest.raises(StorageRefused, match=r"has format 2, and this release knows 1: start a later release$"):
        LocalStorage.open(tmp_path)
    assert (tmp_path / "storage.json").read_bytes() == b'{"format": 2, "name": "x"}'


def test_a_damaged_storage_id_is_not_another_one() -> None:
    """No bit that flips makes another id of it."""
    content = storage_id.describe_new()
    name = storage_id.parse("storage.json", content)
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        with suppress(StorageRefused):
            assert storage_id.parse("storage.json", bytes(damaged)) == name


def test_a_storage_id_without_a_sum_is_of_an_earlier_version() -> None:
    assert storage_id.parse("storage.json", b'{"format": 1, "storage_id": "%s"}' % (b"7" * 32)) == "7" * 32


MOUNTS = r"""21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:40 / /data rw - nfs4 server:/export rw
31 30 0:41 / /data/local rw - xfs /dev/vdb rw
32 21 0:42 / /with\040space rw - cifs //server/share rw
33 21 0:43 / /covered rw - nfs server:/old rw
34 21 0:44 / /covered rw - tmpfs tmpfs rw
35 21 0:45 / /home rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/srv/data", "ext4"),
        ("/data", "nfs4"),
        ("/data/ledgers", "nfs4"),
        ("/database", "ext4"),
        ("/data/local/a", "xfs"),
        ("/with space/a", "cifs"),
        ("/covered", "tmpfs"),
        ("/home/me", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_directory(directory: str, kind: str) -> None:
    assert file_system_type(Path(directory), MOUNTS) == kind


def test_network_file_systems_are_known() -> None:
    assert all(map(is_network_type, ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"]))
    assert not any(
        map(is_network_type, ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs", "fuseblk", "fuse.fuse-overlayfs", ""])
    )


async def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"21 1 254:0 / {tmp_path} rw - nfs4 server:/export rw\n")
    monkeypatch.setattr("participants.ledger.directory_lock._MOUNTS", table)
    with pytest.raises(StorageRefused, match="network file system"):
        LocalStorage.open(tmp_path / "data")
