"""The records of transaction keys, which are read, written and listed only here.

A key's record serializes connect, begin, commit and delete under one key: each of them reads it, and writes it back at
the version that it read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metastore.api import MetadataStore
from metastore.keys import escape, prefix_end
from metastore.txn import paths
from metastore.txn.records.transactions import TransactionKey
from metastore.types import Batch, Record


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One transaction key as it was read. `record` is None while the key was never used."""

    owner: str | None
    key: str
    record: Record | None

    @property
    def value(self) -> TransactionKey | None:
        return TransactionKey.decode(self.record.value) if self.record else None

    @property
    def live(self) -> TransactionKey | None:
        """The value, unless the key was never used or is deleted."""
        value = self.value
        return None if value is None or value.deleted else value

    def write(self, batch: Batch, value: TransactionKey) -> Batch:
        """Put `value`; the apply fails if the key was written since it was read."""
        if self.record:
            return batch.replace(self.record, value.encode())
        return batch.create(paths.transaction_key(self.owner, self.key), value.encode())


async def read_key(store: MetadataStore, owner: str | None, key: str) -> KeyRecord:
    return KeyRecord(owner, key, await store.get(paths.transaction_key(owner, key)))


async def list_keys(
    store: MetadataStore, owner: str | None, *, after: str = "", limit: int
) -> tuple[Sequence[KeyRecord], bool]:
    """Up to `limit` keys, including deleted ones, and whether there are more. Without `owner`, those of every owner.

    `after` is a key as returned by `position`.
    """
    prefix = paths.TRANSACTION_KEYS + (f"{escape(owner)}&" if owner else "")
    start = paths.TRANSACTION_KEYS + after + "\0" if after else prefix
    found = await store.range(max(start, prefix), prefix_end(prefix), limit=limit)
    return [KeyRecord(*paths.parse_transaction_key(record.key), record) for record in found.records], found.more


def position(key: KeyRecord) -> str:
    """The position at which a listing of keys continues."""
    return paths.transaction_key(key.owner, key.key).removeprefix(paths.TRANSACTION_KEYS)
