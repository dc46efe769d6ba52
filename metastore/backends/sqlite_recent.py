"""What a process knows of a store that nobody else writes, without asking it.

    records       those that this process wrote last, also the deletions
    directories   all keys of small directories, so that it is known of a key that there is none

Both are as of the last published change. A directory is what a key begins with, up to its second slash. So
`/txn-prepared/` has a key for each transaction that is prepared, which are few, and is asked about all the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from metastore.types import Record
from metastore.watches import Written

MAX_RECORDS = 10_000
MAX_VALUE_BYTES = 4 * 1024
"""Larger values are not kept."""
MAX_DIRECTORY_KEYS = 1_000
MAX_DIRECTORIES = 100


class RecentRecords:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, Record | None] = OrderedDict()
        self._directories: dict[str, set[str] | None] = {}
        """None: it is too large."""
        self._looked_for: set[str] = set()

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
            if keys is None or key in keys or not key.isascii():
                return None
            found[key] = None
        return found

    def unknown_directory(self, key: str) -> str | None:
        """The directory of a key that there is not, if somebody should look which keys it has. He tells by `learned` or
        `looks_later`, and nobody else is to look before that."""
        directory = directory_of(key)
        if not directory or directory in self._directories or directory in self._looked_for:
            return None
        if len(self._directories) >= MAX_DIRECTORIES:
            return None
        self._looked_for.add(directory)
        return directory

    def looks_later(self, directory: str) -> None:
        self._looked_for.discard(directory)

    def learned(self, directory: str, keys: Iterable[str]) -> None:
        """All keys of a directory as of the last published change, or more of them than are kept."""
        found = set(keys)
        self._looked_for.discard(directory)
        self._directories[directory] = found if len(found) <= MAX_DIRECTORY_KEYS else None

    def forget(self) -> None:
        """It is unknown what was written."""
        self._records.clear()
        self._directories.clear()

    def _keep(self, key: str, record: Record | None) -> None:
        self._records[key] = record
        self._records.move_to_end(key)
        if len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)


def directory_of(key: str) -> str:
    return key[: key.find("/", 1) + 1]
