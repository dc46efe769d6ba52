"""Keeps the files of the ledgers that were read last open, because opening one costs as much as reading a megabyte of
it.

Any thread may use it. A descriptor that is being read from is never closed, so its number cannot become that of another
file meanwhile: a file that is no longer kept is closed by the last reader that returns it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from participants.ledger.disk import Disk

KEPT_FILES = 64


@dataclass(slots=True)
class _Open:
    fd: int
    readers: int = 0
    kept: bool = True


class OpenFiles:
    def __init__(self, disk: Disk, kept: int) -> None:
        self._disk = disk
        self._limit = kept
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, _Open] = OrderedDict()

    @contextmanager
    def reading(self, path: Path) -> Iterator[int]:
        """A descriptor that stays open to the end of the block. Raises `OSError`."""
        with self._lock:
            file = self._kept.get(path) or self._opened(path)
            self._kept.move_to_end(path)
            file.readers += 1
        try:
            yield file.fd
        finally:
            with self._lock:
                file.readers -= 1
                self._close_if_done(file)

    def read_at_once(self, path: Path, size: int, offset: int) -> memoryview | None:
        """Read these bytes without waiting for anything, see `Disk.read_at_once`. None also if the file is not open, or
        another thread is at work here, which may be opening one."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            file = self._kept.get(path)
            if file is None:
                return None
            self._kept.move_to_end(path)
            return self._disk.read_at_once(file.fd, size, offset)
        finally:
            self._lock.release()

    def forget(self, path: Path) -> None:
        """Stop keeping a file after it was unlinked: while it is open it occupies its space, and could still be
        read."""
        with self._lock:
            self._let_go(path)

    def close(self) -> None:
        """Stop keeping all files."""
        with self._lock:
            for path in list(self._kept):
                self._let_go(path)

    def _opened(self, path: Path) -> _Open:
        file = self._kept[path] = _Open(self._disk.open(path, os.O_RDONLY))
        if len(self._kept) > self._limit:
            self._let_go(next(iter(self._kept)))
        return file

    def _let_go(self, path: Path) -> None:
        file = self._kept.pop(path, None)
        if file is not None:
            file.kept = False
            self._close_if_done(file)

    def _close_if_done(self, file: _Open) -> None:
        if not file.kept and not file.readers:
            self._disk.close(file.fd)
