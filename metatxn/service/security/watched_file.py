"""A small file whose content is parsed once, and again whenever the file has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from metatxn.service import audit

LOOK_EVERY_S = 1.0
CHANGED, INVALID = 200, 422
"""What a request with this content would have been answered."""

T = TypeVar("T")
log = structlog.get_logger()


class InvalidSecurityFile(ValueError):
    """The message names the file and what is wrong with it, and contains nothing of its content."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


class WatchedFile(Generic[T]):
    """A watched file. `current` is its content, at most a second old. It makes at most one system call per second.

    A file that can no longer be read or parsed changes nothing and is logged once: half a file must neither lock
    everyone out nor let anyone in. To revoke everything, write an empty list.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], T], clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `InvalidSecurityFile`. `parse` raises `ValueError` without the text that it was given."""
        self._path = path
        self._parse = parse
        self._clock = clock
        self._looked_at = clock()
        self._seen = self._state()
        self._value = self._read()
        self.version = 0
        """Increases with every new content, so that anything derived from the old content can be dropped."""

    def current(self) -> T:
        now = self._clock()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._look()
        return self._value

    def _look(self) -> None:
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            self._value = self._read()
        except InvalidSecurityFile as error:
            log.error("security file refused, the old content remains in force", error=str(error))
            audit.record("rights.change", {"file": str(self._path)}, INVALID)
            return
        self.version += 1
        log.info("security file read again", path=str(self._path))
        audit.record("rights.change", {"file": str(self._path)}, CHANGED)

    def _state(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> T:
        try:
            return self._parse(self._path.read_bytes())
        except OSError as error:
            raise InvalidSecurityFile(self._path, error.strerror or "cannot be read") from error
        except ValueError as error:
            raise InvalidSecurityFile(self._path, str(error)) from None
