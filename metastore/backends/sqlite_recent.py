"""What a process knows of a store that nobody else writes, without asking it.

    records       those that this process has written last, also the deletions
    directories   all keys of small directories, so that it is known of a key that there is none

A directory is what a key begins with, up to its second slash. So `/txn-prepared/` has a key for each transaction that
is prepared, which are few, and is asked about all the others. Directories are read once, and then followed.

Everything is as of the last change that was told by `published`, or unknown. `forget` is for whatever else may have
happened; a look at a directory that began before it proves nothing afterwards.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from metastore.types import Record
from metastore.watches import Written

MAX_RECORDS = 10_000
MAX_VALUE_BYTES = 4 * 1024
"""Larger values are not kept."""
MAX_DIRECTORY_KEYS = 1_000
MAX_DIRECTORIES = 100
ALWAYS_READ = "/cluster/"
"""By these records processes find out whether the store is there, and still the same one."""


class DirectoryLook(NamedTuple):
    """Somebody is to look which keys this directory has. Nobody else does before he has told."""

    directory: str
    life: int


class RecentRecords:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, Record | None] = OrderedDict()
        self._directories: dict[str, set[str] | None] = {}
        """None: it is too large."""
        self._looked_for: set[str] = set()
        self._life = 0
        """How often everything was forgotten."""

    def published(self, written: Written) -> None:
        """Something was written, in the order of the revisions."""
        for key in written.deleted:
            self._keep(key, None)
            if keys := self._directories.get(directory_of(key)):
                keys.discard(key)
        for key, value in written.puts.items():
            if len(value) > MAX_VALUE_BYTES:
                self._records.pop(key, None)
            else:
                self._keep(key, Record(key, value, written.revision, key not in written.known))
            directory = directory_of(key)
            if (keys := self._directories.get(directory)) is not None:
                keys.add(key)
                if len(keys) > MAX_DIRECTORY_KEYS:
                    self._directories[directory] = None

    def find(self, wanted: Sequence[str]) -> dict[str, Record | None] | None:
        """The records with these keys, or None if it is not known of all of them."""
        found: dict[str, Record | None] = {}
        for key in wanted:
            if key in self._records:
                found[key] = self._records[key]
                continue
            keys = self._directories.get(directory_of(key))
            if keys is None or key in keys or not key.isascii():  # a key that UTF-8 cannot express is an error
                return None
            found[key] = None
        return found

    def look_at(self, key: str) -> DirectoryLook | None:
        """The look at the directory of a key that there is not, unless that is known, or looked at already."""
        directory = directory_of(key)
        if not directory or directory == ALWAYS_READ:
            return None
        if directory in self._directories or directory in self._looked_for:
            return None
        if len(self._directories) + len(self._looked_for) >= MAX_DIRECTORIES:
            return None
        self._looked_for.add(directory)
        return DirectoryLook(directory, self._life)

    def looked(self, look: DirectoryLook, keys: Sequence[str] | None) -> None:
        """All keys of a directory as of the last published change, or more than `MAX_DIRECTORY_KEYS`; None if that is
        not known."""
        if look.life != self._life:
            return
        self._looked_for.discard(look.directory)
        if keys is not None:
            self._directories[look.directory] = set(keys) if len(keys) <= MAX_DIRECTORY_KEYS else None

    def forget(self) -> None:
        """It is unknown what was written."""
        self._records.clear()
        self._directories.clear()
        self._looked_for.clear()
        self._life += 1

    def _keep(self, key: str, record: Record | None) -> None:
        if key.startswith(ALWAYS_READ):
            return
        self._records[key] = record
        self._records.move_to_end(key)
        if len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)


def directory_of(key: str) -> str:
    return key[: key.find("/", 1) + 1]
