"""A disk with faults.

On: short writes, no space (after a part was written), failing write, sync and truncation, a sync that is held back,
and a page cache that lies after a failed sync, as Linux's does. Off: reordered writes within one sync and lost
directory entries; the simulator has those.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from participants.ledger.disk import Disk
from participants.ledger.watermark import Space


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class FaultyDisk(Disk):
    def __init__(self) -> None:
        self.syncs = 0
        self.capacity: int | None = None  # a ledger file cannot grow beyond this
        self.max_write: int | None = None
        self.write_error: OSError | None = None
        self.sync_error: OSError | None = None
        self.truncate_error: OSError | None = None
        self.open_error: OSError | None = None  # of a file that is to be created
        self.remembers = True  # what was read or written, if the file system does
        self.measured: Space | None = None  # instead of the real one
        self.space_error: OSError | None = None
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.in_sync = threading.Event()
        self.may_truncate = threading.Event()
        self.may_truncate.set()
        self.in_truncate = threading.Event()

    def space(self, path: Path) -> Space:
        if self.space_error is not None:
            raise self.space_error
        return self.measured or super().space(path)

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_EXCL and self.open_error is not None:
            raise self.open_error
        return super().open(path, flags)

    def read_at_once(self, fd: int, size: int, offset: int) -> memoryview | None:
        return super().read_at_once(fd, size, offset) if self.remembers else None

    def write(self, fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        if self.write_error is not None:
            raise self.write_error
        content = b"".join(buffers)
        if self.max_write is not None:
            content = content[: self.max_write]
        if self.capacity is not None:
            content = content[: max(0, self.capacity - offset)]
            if not content:
                raise no_space()
        return super().write(fd, [content], offset)

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        self.in_sync.set()
        assert self.may_sync.wait(60)
        if self.sync_error is not None:
            raise self.sync_error
        super().fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self.in_truncate.set()
        assert self.may_truncate.wait(60)
        if self.truncate_error is not None:
            raise self.truncate_error
        super().truncate(fd, size)


class LyingDisk(FaultyDisk):
    """After a failed sync what was changed counts as clean: reads show it, later syncs do not write it. Nothing of it
    is on the device; after a failed `fsync` what was written is, and no truncation.

    `device` is what really is on the device, by inode.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fsync_error: OSError | None = None
        self.device: dict[int, bytearray] = {}
        self._dirty: dict[int, list[tuple[int, bytes | None]]] = {}  # offset and content, or size and None

    def on_device(self, path: Path) -> bytes:
        return bytes(self.device.get(path.stat().st_ino, b""))

    def write(self, fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        written = super().write(fd, buffers, offset)
        self._changed(fd, offset, os.pread(fd, written, offset))
        return written

    def truncate(self, fd: int, size: int) -> None:
        had = os.fstat(fd).st_size
        super().truncate(fd, size)
        if size != had:
            self._changed(fd, size, None)

    def fdatasync(self, fd: int) -> None:
        try:
            super().fdatasync(fd)
        except OSError:
            self._dirty.pop(os.fstat(fd).st_ino, None)
            raise
        self._flush(fd)

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self._flush(fd, truncations=self.fsync_error is None)
        if self.fsync_error is not None:
            raise self.fsync_error

    def _changed(self, fd: int, at: int, content: bytes | None) -> None:
        self._dirty.setdefault(os.fstat(fd).st_ino, []).append((at, content))

    def _flush(self, fd: int, *, truncations: bool = True) -> None:
        inode = os.fstat(fd).st_ino
        image = self.device.setdefault(inode, bytearray())
        for at, content in self._dirty.pop(inode, []):
            end = at if content is None else at + len(content)
            if content is not None or truncations:
                image.extend(bytes(max(0, end - len(image))))
            if content is not None:
                image[at:end] = content
            elif truncations:
                del image[at:]
