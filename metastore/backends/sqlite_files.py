"""The files of the store in an SQLite file: whether they are the ones that were opened, and who may write them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from metastore.errors import StoreInUse

FilesLook = tuple[int, int, int, int, int, int]
"""The device and inode of the file; the size and the time of the last change of it, and of its write-ahead log."""


def identity_of_file(path: Path, known: tuple[int, int] | None = None) -> tuple[int, int] | None:
    """The file that has this name, or None. It is the `known` one as long as that cannot be determined."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return known
    return found.st_dev, found.st_ino


def look_of_files(path: Path) -> FilesLook | None:
    """How the file and its write-ahead log look, or None if that cannot be determined."""
    try:
        file, log = path.stat(), path.with_name(f"{path.name}-wal").stat()
    except OSError:
        return None
    return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, log.st_size, log.st_mtime_ns


def take_file_lock(path: Path) -> int:
    """An exclusive `flock` on `<path>.lock`, held until the descriptor is closed or the process ends.

    The lock file is never unlinked: a second process could lock the old file while a third one locks a new file of
    the same name. It holds the owner's process id, for the message only.
    """
    lock_path = path.with_name(path.name + ".lock")
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode(errors="replace") or "unknown"
        os.close(lock)
        raise StoreInUse(
            f"{path} is being served by process {owner}: stop that process, or give this one another file; "
            "several processes can share a store on etcd"
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def make_lasting_directory(directory: Path) -> None:
    """Create a directory and its parents so that they survive a power failure."""
    if directory.exists():
        return
    make_lasting_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory_entries(directory.parent)


def sync_directory_entries(directory: Path) -> None:
    """Make the entries of a directory durable: syncing a file does not sync its name."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
