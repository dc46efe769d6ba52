"""The edge to the disk: files in memory, of which a power cut leaves what was synced and any part of the rest.

    file        what the processes see (the page cache), what is on the device, and the writes in between
    directory   likewise; its entries are made durable by a sync of the directory, in the order in which they were made

`kill -9` loses nothing that was written. A power cut takes each write since the last sync by itself: whole, in part
(sectors of 512 bytes, any of them), or not at all, in any order. After a sync that failed the pages count as clean
although some never reached the device, as on Linux: reads return them, and later syncs do not write them.

Faults on: the above; slow calls; no space, after a part was written; a process that dies within a call; a bit that
flips on its way from the device to a reader. Off: a bit that flips in what is synced, or in
what recovery reads. Damage to the last group of a ledger cannot be told from a torn write (see `ledger.recovery`), so
it would be cut, as the documentation of local ledgers says; a device that loses what it has synced is outside of what
they promise.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from participants.ledger.directory_lock import DirectoryLock
from participants.ledger.disk import Disk
from participants.ledger.storage import StorageLocked
from participants.ledger.watermark import Space
from tests.simulation.processes import CURRENT, Died, Process
from tests.simulation.world import World

_SECTOR = 512


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@dataclass(slots=True)
class _Write:
    offset: int
    content: bytes


@dataclass(slots=True)
class _Truncation:
    size: int


@dataclass(eq=False)
class File:
    """`unsynced` is in the order in which it was done."""

    seen: bytearray = field(default_factory=bytearray)
    device: bytearray = field(default_factory=bytearray)
    unsynced: list[_Write | _Truncation] = field(default_factory=list)

    def write(self, content: bytes, offset: int) -> None:
        _put(self.seen, content, offset)
        self.unsynced.append(_Write(offset, content))

    def truncate(self, size: int) -> None:
        _cut(self.seen, size)
        self.unsynced.append(_Truncation(size))

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.device, change)
        self.unsynced.clear()

    def fail_to_sync(self, random: Random) -> None:
        """Some of it reaches the device; nobody will ever write the rest."""
        self._tear(random)

    def lose_power(self, random: Random) -> None:
        self._tear(random)
        self.seen[:] = self.device

    def _tear(self, random: Random) -> None:
        for change in self.unsynced:
            fate = random.randrange(3)
            if fate == 0:
                continue
            if fate == 1 or isinstance(change, _Truncation):
                _apply(self.device, change)
                continue
            for start in range(0, len(change.content), _SECTOR):
                if random.random() < 0.5:
                    _put(self.device, change.content[start : start + _SECTOR], change.offset + start)
        self.unsynced.clear()


def _apply(image: bytearray, change: _Write | _Truncation) -> None:
    if isinstance(change, _Truncation):
        _cut(image, change.size)
    else:
        _put(image, change.content, change.offset)


def _put(image: bytearray, content: bytes, offset: int) -> None:
    image.extend(bytes(max(0, offset - len(image))))
    image[offset : offset + len(content)] = content


def _cut(image: bytearray, size: int) -> None:
    image.extend(bytes(max(0, size - len(image))))
    del image[size:]


@dataclass(eq=False)
class Directory:
    seen: dict[str, File | Directory] = field(default_factory=dict)
    device: dict[str, File | Directory] = field(default_factory=dict)
    unsynced: list[dict[str, File | Directory | None]] = field(default_factory=list)

    def enter(self, entries: dict[str, File | Directory | None]) -> None:
        """Set or remove (None) entries, all or none of them."""
        _enter(self.seen, entries)
        self.unsynced.append(entries)

    def sync(self) -> None:
        for entries in self.unsynced:
            _enter(self.device, entries)
        self.unsynced.clear()

    def lose_power(self, random: Random) -> None:
        for entries in self.unsynced[: random.randint(0, len(self.unsynced))]:
            _enter(self.device, entries)
        self.unsynced.clear()
        self.seen = dict(self.device)
        for node in self.seen.values():
            node.lose_power(random)


def _enter(directory: dict[str, File | Directory], entries: dict[str, File | Directory | None]) -> None:
    for name, node in entries.items():
        if node is None:
            directory.pop(name, None)
        else:
            directory[name] = node


class Device:
    """The disk of one machine. It outlives the processes, and knows which of them has what open."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = world.generator(f"disk {name}")
        self.root = Directory()
        self.full = False
        self.crowded = False
        """It has space, but no more than what its watermark leaves for other things than messages."""
        self.locked_by: dict[Path, Process] = {}

    def lose_power(self) -> None:
        """Every process of the machine must be dead."""
        self.root.lose_power(self.random)
        self.world.trace.note("disk", f"{self.name} lost power")


@dataclass(slots=True)
class _Open:
    file: File
    read_only: bool


class SimulatedDisk(Disk):
    """The device as one process sees it."""

    def __init__(self, device: Device, process: Process) -> None:
        self._device = device
        self._process = process
        self._faults = device.world.faults
        self._open: dict[int, _Open] = {}
        self._next_fd = 3

    def lock(self, path: Path) -> DirectoryLock:
        self._call()
        return SimulatedLock(self._device, path, self._process)

    # -- files -------------------------------------------------------------------------------------------------

    def open(self, path: Path, flags: int) -> int:
        self._call()
        directory = self._directory(path.parent)
        node = directory.seen.get(path.name)
        if node is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self._refuse_when_full()
            node = File()
            directory.enter({path.name: node})
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        assert isinstance(node, File), path
        if flags & os.O_TRUNC:
            node.truncate(0)
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = _Open(node, read_only=not flags & (os.O_RDWR | os.O_WRONLY))
        return fd

    def space(self, path: Path) -> Space:
        self._call()
        return Space(95 if self._device.crowded else 10, 100)

    def close(self, fd: int) -> None:
        del self._open[fd]

    def size(self, fd: int) -> int:
        self._call()
        return len(self._open[fd].file.seen)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self._call()
        opened = self._open[fd]
        content = bytes(opened.file.seen[offset : offset + size])
        if content and opened.read_only and self._faults.happens("disk_bit_flipped"):
            at = self._device.random.randrange(len(content))
            flipped = content[at] ^ 1 << self._device.random.randrange(8)
            content = content[:at] + bytes([flipped]) + content[at + 1 :]
            self._note(f"bit flipped in byte {offset + at}")
        return content

    def read_at_once(self, fd: int, size: int, offset: int) -> memoryview | None:
        """Half of what is read is not in memory any more. This is no call that could fail: it is made on the loop."""
        content = memoryview(bytes(self._open[fd].file.seen[offset : offset + size]))
        return content if len(content) == size and offset % 2 else None

    def write(self, fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        self._call()
        content = b"".join(buffers)
        if self._device.full:
            content = content[: self._device.random.randrange(len(content) + 1)]
            if content:
                self._open[fd].file.write(content, offset)
            self._note(f"no space after {len(content)} bytes")
            if not content:
                raise _error(errno.ENOSPC)
            return len(content)
        self._open[fd].file.write(content, offset)
        return len(content)

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fsync(self, fd: int) -> None:
        self._call()
        file = self._open[fd].file
        if self._faults.happens("disk_sync_failed"):
            self._note("sync failed")
            file.fail_to_sync(self._device.random)
            raise _error(errno.EIO)
        file.sync()

    def truncate(self, fd: int, size: int) -> None:
        self._call()
        self._open[fd].file.truncate(size)

    # -- directories -------------------------------------------------------------------------------------------

    def exists(self, path: Path) -> bool:
        self._call()
        try:
            return path == Path("/") or path.name in self._directory(path.parent).seen
        except FileNotFoundError:
            return False

    def names(self, path: Path) -> list[str]:
        self._call()
        return sorted(self._directory(path).seen)

    def mkdir(self, path: Path) -> None:
        self._call()
        self._refuse_when_full()
        self._directory(path.parent).enter({path.name: Directory()})

    def rmdir(self, path: Path) -> None:
        self._call()
        if self._directory(path).seen:
            raise _error(errno.ENOTEMPTY)
        self._directory(path.parent).enter({path.name: None})

    def unlink(self, path: Path) -> None:
        self._call()
        directory = self._directory(path.parent)
        if path.name not in directory.seen:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        directory.enter({path.name: None})

    def rename(self, source: Path, target: Path) -> None:
        """Within one directory, in one piece."""
        self._call()
        assert source.parent == target.parent
        directory = self._directory(source.parent)
        directory.enter({target.name: directory.seen[source.name], source.name: None})

    def fsync_dir(self, path: Path) -> None:
        self._call()
        self._directory(path).sync()

    # -- what happens in every call ----------------------------------------------------------------------------

    def _call(self) -> None:
        self._process.assert_alive()
        if CURRENT.get() is self._process and self._faults.happens("disk_died_within"):
            self._device.world.kill(self._process, "in a system call")
            raise Died

    def _directory(self, path: Path) -> Directory:
        node: Directory = self._device.root
        for part in path.parts[1:]:
            found = node.seen.get(part)
            if not isinstance(found, Directory):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = found
        return node

    def _refuse_when_full(self) -> None:
        if self._device.full:
            raise _error(errno.ENOSPC)

    def _note(self, what: str) -> None:
        self._device.world.trace.note("disk", what)


class SimulatedLock(DirectoryLock):
    """Of one process, and gone with it."""

    def __init__(self, device: Device, path: Path, process: Process) -> None:
        holder = device.locked_by.get(path)
        if holder is not None and holder.alive:
            raise StorageLocked(f"{path.parent} is open in {holder.name}")
        device.locked_by[path] = process
        self._device = device
        self._path = path
        self._process = process

    def close(self) -> None:
        if self._device.locked_by.get(self._path) is self._process:
            del self._device.locked_by[self._path]
