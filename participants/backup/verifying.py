"""Verifying a backup: everything that it names is there and is what was written, every frame matches its own CRC, and
the records follow the laws of the layout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from metastore.backends.memory import MemoryStore
from metastore.check import StoreCheck
from metastore.txn import paths
from metastore.txn.store import INDEXES
from participants.backup.copies import frames_of_copy, read_hidden, read_records
from participants.backup.loading import load_records
from participants.backup.manifest import BackupDamaged, Manifest
from participants.backup.place import BackupPlace

_OF_REVISIONS = (paths.GC_HORIZON,)
"""What names revisions of the store that was backed up."""


async def problems_of(
    place: BackupPlace, manifest: Manifest, progress: Callable[[int, int], None] = lambda done, total: None
) -> AsyncIterator[str]:
    """What is wrong, one sentence each. `progress` is told how many bytes were read, and how many there are. Raises
    `StorageFailed`."""
    read_bytes, total_bytes = 0, manifest.ledger_bytes + manifest.record_bytes
    for copy in manifest.ledgers:
        try:
            async for frames in frames_of_copy(place, copy):
                read_bytes += sum(len(frame.data) for frame in frames)
                progress(read_bytes, total_bytes)
            await read_hidden(place, copy)
        except BackupDamaged as error:
            yield str(error)
    store = MemoryStore(INDEXES)
    try:
        records = [record async for record in read_records(place, manifest) if record[0] not in _OF_REVISIONS]
        await load_records(store, records)
        progress(total_bytes, total_bytes)
        async for finding in StoreCheck(store).findings():
            yield f"{finding.key}: {finding.problem}"
    except BackupDamaged as error:
        yield str(error)
    finally:
        await store.close()
