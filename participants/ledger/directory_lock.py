"""The exclusive lock that fences a local storage: only its holder may append.

It is a BSD lock (`flock`) on a file that is never unlinked. The choices, each of which closes a hole:

* not a POSIX lock (`fcntl`): that one is lost as soon as any code of the process closes any descriptor of the file;
* never unlinked: two processes could otherwise each lock a file of that name;
* inherited by no child: a child that outlives its parent would keep the storage locked, or, worse, a restarted
  parent would be locked out by its own leftovers. Programs started by `exec` are covered by close-on-exec, plain
  forks by closing the descriptor in the child. The child must close it and never unlock it: the lock belongs to
  the description which both share;
* no network file system: there `flock` may be local to each machine, or be lost when a server restarts.

A copy of a storage directory carries the same storage id. No lock sees that; never run a copy beside its original.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from participants.ledger.storage import StorageLocked, StorageRefused

_NETWORK_TYPES = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ncpfs",
        "ceph",
        "lustre",
        "beegfs",
        "gpfs",
        "ocfs2",
        "gfs2",
        "glusterfs",
        "davfs",
        "vboxsf",
        "virtiofs",
    ]
)
_NETWORK_FUSE_TYPES = frozenset(
    [
        "sshfs",
        "glusterfs",
        "ceph",
        "ceph-fuse",
        "s3fs",
        "goofys",
        "mountpoint-s3",
        "gcsfuse",
        "blobfuse",
        "blobfuse2",
        "rclone",
        "juicefs",
        "davfs",
        "davfs2",
        "seaweedfs",
        "mfs",
        "moosefs",
        "lizardfs",
        "hdfs",
        "curlftpfs",
        "smbnetfs",
        "vmhgfs-fuse",
    ]
)
_MOUNTS = Path("/proc/self/mountinfo")

_held: set[int] = set()


def _forget_in_child() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class DirectoryLock:
    """The lock is held from construction to `close`, or to the end of the process."""

    def __init__(self, path: Path) -> None:
        """Lock `path`, and create it if it does not exist. Raises `StorageLocked`, `StorageRefused`, `OSError`."""
        self._fd = -1
        refuse_network_file_system(path.parent)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        _held.add(fd)
        self._fd = fd
        try:
            self._lock(path)
        except BaseException:
            self.close()
            raise

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageLocked(f"{path.parent} is open in another process (or twice in this one)") from error
        except OSError as error:
            raise StorageRefused(f"{path.parent} cannot be locked: {error}") from error
        # The file may have been replaced between the open and the lock; then this locks nothing.
        if not path.exists() or not os.path.samestat(os.fstat(self._fd), path.stat()):
            raise StorageLocked(f"{path} was replaced while it was being locked")

    def close(self) -> None:
        """Release the lock. Idempotent; does nothing in a forked child."""
        fd, self._fd = self._fd, -1
        if fd in _held:
            _held.remove(fd)
            os.close(fd)


def refuse_network_file_system(directory: Path) -> None:
    """Raises `StorageRefused` if `directory` is on a file system that other machines can reach."""
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return  # this system has no such table; only flock remains
    kind = file_system_type(directory.resolve(), mounts)
    if is_network_type(kind):
        raise StorageRefused(f"{directory} is on a network file system ({kind}); ledgers need a local one")


def is_network_type(kind: str) -> bool:
    family, _, driver = kind.partition(".")
    return kind in _NETWORK_TYPES or (family == "fuse" and driver in _NETWORK_FUSE_TYPES)


def file_system_type(directory: Path, mounts: str) -> str:
    """The type of the file system that holds `directory`, from the text of a mountinfo table.

    A line is `id parent major:minor root mount-point options… - type source options`. The deepest mount point wins,
    and of equal ones the last, which covers those before it.
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        front, separator, back = line.partition(" - ")
        fields = front.split(" ")
        if not separator or len(fields) < 5:
            continue
        mount_point = Path(_unescape(fields[4]))
        depth = len(mount_point.parts)
        if depth >= best and directory.is_relative_to(mount_point):
            best, kind = depth, back.split(" ")[0]
    return kind


def _unescape(field: str) -> str:
    """Decode a mount point, in which space, tab, newline and backslash are written as three octal digits."""
    for code in ("040", "011", "012", "134"):
        field = field.replace("\\" + code, chr(int(code, 8)))
    return field
