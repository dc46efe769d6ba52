"""`store.json` is the last state of the metadata store that brokers have seen, stored beside their ledgers.

    {"format": 1, "incarnation": "<32 hex digits>", "revision": 4711, "crc32": "<8 hex digits>"}

A starting broker compares it with the store before it opens any ledger:

    same incarnation, not behind     the store of these ledgers
    same incarnation, behind         the store was restored from a backup: not served before it is recovered
    an earlier incarnation           the store was recovered without these ledgers: recover them, too
    another one                      not the store of these ledgers

Without this comparison a restored store would take unknown ledgers for garbage. The checksum is that of
`<incarnation>@<revision>`.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass

import structlog

from metastore.api import MetadataStore
from metastore.background import in_background
from metastore.errors import StoreWentBack
from metastore.incarnation import IncarnationGuard
from metastore.txn import paths
from metastore.txn.records.processes import Incarnation
from metastore.types import Revision
from metatxn.wire.crc import crc32
from participants.ledger.storage import LedgerError, LedgerStorage, StorageRefused

NOTE = "store.json"
_FORMAT = 1
REMEMBER_EVERY_S = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SeenStore:
    incarnation: str
    revision: Revision

    def encode(self) -> bytes:
        fields = {"incarnation": self.incarnation, "revision": self.revision, "crc32": self._sum}
        return (json.dumps({"format": 1} | fields) + "\n").encode()

    @classmethod
    def decode(cls, content: bytes) -> SeenStore:
        """Parse the file. Raises `StorageRefused`."""
        try:
            match json.loads(content):
                case {"format": int(format)} if format > _FORMAT:
                    raise StorageRefused(f"{NOTE} has format {format}, of a later release: start that one")
                case {"format": 1, "incarnation": str(incarnation), "revision": int(revision), "crc32": str(total)}:
                    seen = cls(incarnation, revision)
                    if re.fullmatch(r"[0-9a-f]{32}", incarnation) and total == seen._sum:
                        return seen
        except (ValueError, RecursionError):
            pass
        raise StorageRefused(f"{NOTE} is damaged; delete it if the metadata store was never restored from a backup")

    @classmethod
    async def read(cls, storage: LedgerStorage) -> SeenStore | None:
        """The content of the file, or None if no broker has ever opened the storage. Raises `StorageRefused`,
        `StorageFailed`."""
        content = await storage.read_note(NOTE)
        return None if content is None else cls.decode(content)

    async def write(self, storage: LedgerStorage) -> None:
        """Write the file. Raises `StorageFull`, `StorageFailed`."""
        await storage.write_note(NOTE, self.encode())

    @property
    def _sum(self) -> str:
        return f"{crc32(f'{self.incarnation}@{self.revision}'.encode()):08x}"


class StoreMemory:
    """The memory of one broker: it compares at the start, and writes the file from then on.

    Brokers that share a storage write one file, so a broker that lags a little may move it back by some seconds.
    """

    def __init__(self, storage: LedgerStorage, store: MetadataStore, guard: IncarnationGuard) -> None:
        self._storage = storage
        self._store = store
        self._guard = guard
        self._written: SeenStore | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Compare the store with the file. Raises `StoreWentBack`, `StorageRefused`, and the errors of the store and
        the storage."""
        await self._compare()
        await self._remember()
        self._task = in_background(self._keep_remembering(), "memory of the store")

    async def stop(self) -> None:
        """Stop writing the file. Idempotent."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._try_to_remember()

    async def _compare(self) -> None:
        seen = await SeenStore.read(self._storage)
        if seen is None:
            return
        if seen.incarnation != self._guard.id:
            raise StorageRefused(await self._other_incarnation(seen))
        await self._guard.look()  # another broker may have changed the store and the file since this one started
        if self._guard.revision < seen.revision:
            how = f"brokers have seen its revision {seen.revision}, and it is at {self._guard.revision} now"
            raise StoreWentBack(await self._guard.went_back(how))

    async def _other_incarnation(self, seen: SeenStore) -> str:
        record = await self._store.get(paths.INCARNATION)
        earlier = Incarnation.decode(record.value).earlier if record is not None else None
        if seen.incarnation in (earlier or ()):
            return (
                "the metadata store was restored from a backup and recovered without these ledgers. "
                "Run `metatxn store recover` once more, and name this --data-dir or --storage"
            )
        return (
            "these ledgers belong to another metadata store: "
            f"they have seen its incarnation {seen.incarnation}, and this one is {self._guard.id}. Check --store"
        )

    async def _keep_remembering(self) -> None:
        while True:
            await asyncio.sleep(REMEMBER_EVERY_S)
            await self._try_to_remember()

    async def _try_to_remember(self) -> None:
        try:
            await self._remember()
        except LedgerError as error:
            log.info("how far the store was seen could not be written", error=str(error))

    async def _remember(self) -> None:
        seen = SeenStore(self._guard.id, self._guard.revision)
        if self._store.refusal is None and seen != self._written:
            await seen.write(self._storage)
            self._written = seen
