"""The system calls that local ledgers need, in one replaceable place.

Tests and the simulator replace this class to inject faults: short writes, no space, a failed sync, a crash that loses
what was not synced. Nothing else in this package touches a file. All methods block, and raise `OSError`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow

from participants.ledger.directory_lock import DirectoryLock
from participants.ledger.watermark import Space

_MAX_BUFFERS = 512  # below every system's IOV_MAX
WRITE_BYTES = 256 * 1024
"""For a larger write the page cache takes memory in blocks of up to 2 MiB. A virtual machine gives such blocks back to
its host while they are free, and gets them slowly: 64 MiB in entries of 12 MiB took a broker 0.15 s in the kernel, and
0.05 s in small pieces."""


class Disk:
    def lock(self, path: Path) -> DirectoryLock:
        """Acquire the exclusive lock of a storage directory. Raises `StorageLocked`, `StorageRefused`."""
        return DirectoryLock(path)

    def space(self, path: Path) -> Space:
        """The space of the file system of `path`. What only its administrator may use is not counted, as in `df`."""
        found = os.statvfs(path)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return Space(used, used + found.f_bavail * found.f_frsize)

    # -- files -------------------------------------------------------------------------------------------------

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes. Fewer do not mean the end of the file; none do."""
        return os.pread(fd, size, offset)

    def read_at_once(self, fd: int, size: int, offset: int) -> memoryview | None:
        """Read these bytes if they are in the page cache, so that nothing waits for a device. None if they are not, or
        if the file system cannot say so; then `read` tells what is wrong, if anything is."""
        content = memoryview(pyarrow.allocate_buffer(size)).cast("B")  # unlike a bytearray, not zeroed
        try:
            found = os.preadv(fd, [content], offset, os.RWF_NOWAIT)
        except OSError:
            return None
        return content.toreadonly() if found == size else None

    def write(self, fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        """Write some of `buffers` at `offset`. Returns the number of bytes written, which may be fewer than all."""
        return os.pwritev(fd, _beginning(buffers[:_MAX_BUFFERS], WRITE_BYTES), offset)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    # -- directories -------------------------------------------------------------------------------------------

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, path: Path) -> list[str]:
        return sorted(entry.name for entry in path.iterdir())

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def rmdir(self, path: Path) -> None:
        path.rmdir()

    def unlink(self, path: Path) -> None:
        path.unlink()

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def fsync_dir(self, path: Path) -> None:
        """Make the creations, renames and removals in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# -- what is built from them -----------------------------------------------------------------------------------


def write_all(disk: Disk, fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> None:
    """Write all of `buffers` at `offset`, however short the single writes turn out."""
    rest = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    first = 0
    while first < len(rest):
        written = disk.write(fd, rest[first : first + _MAX_BUFFERS], offset)
        assert written > 0, written
        offset += written
        while first < len(rest) and written >= len(rest[first]):
            written -= len(rest[first])
            first += 1
        if written:
            rest[first] = rest[first][written:]


def _beginning(buffers: Sequence[bytes | memoryview], size: int) -> list[bytes | memoryview]:
    taken: list[bytes | memoryview] = []
    for buffer in buffers:
        if len(buffer) >= size:
            return [*taken, memoryview(buffer)[:size]]
        taken.append(buffer)
        size -= len(buffer)
    return taken


def read_all(disk: Disk, fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes at `offset`, or fewer if the file ends before."""
    chunk = disk.read(fd, size, offset)
    if len(chunk) == size:
        return chunk
    parts = [chunk]
    missing = size - len(chunk)
    while missing and chunk:
        chunk = disk.read(fd, missing, offset + size - missing)
        parts.append(chunk)
        missing -= len(chunk)
    return b"".join(parts)


def make_directory(disk: Disk, path: Path) -> None:
    """Create a directory durably, if it does not exist. Its parent must exist.

    An existing one may have been created by a process that died before it had synced it, so it is synced in any case.
    """
    if not disk.exists(path):
        disk.mkdir(path)
    disk.fsync_dir(path.parent)


def replace_file(disk: Disk, path: Path, content: Sequence[bytes]) -> None:
    """Replace a whole file durably. After a crash there is the old one or the new one, never a part."""
    draft = path.with_name(path.name + ".tmp")
    fd = disk.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(disk, fd, content, 0)
        disk.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(draft)
        raise
    finally:
        disk.close(fd)
    disk.rename(draft, path)
    disk.fsync_dir(path.parent)


def read_file(disk: Disk, path: Path) -> bytes:
    fd = disk.open(path, os.O_RDONLY)
    try:
        return read_all(disk, fd, disk.size(fd), 0)
    finally:
        disk.close(fd)
