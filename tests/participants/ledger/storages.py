"""Every place that ledgers can lie in: a name and a way to open it. No test of the contract names one.

Each is opened in a directory of the test; the object stores keep what they have when they are opened again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from obstore.store import MemoryStore

from participants.ledger.append_queue import LedgerMetrics
from participants.ledger.bucket import Bucket
from participants.ledger.local import LocalStorage
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.storage import LedgerStorage
from tests.servers import S3Server

Factory = Callable[[Path, LedgerMetrics], Awaitable[LedgerStorage]]


@cache
def _memory(_: Path) -> MemoryStore:
    return MemoryStore()


async def local_files(directory: Path, metrics: LedgerMetrics) -> LedgerStorage:
    return LocalStorage.open(directory, metrics=metrics)


async def objects_in_memory(directory: Path, metrics: LedgerMetrics) -> LedgerStorage:
    return await ObjectStorage.open(Bucket(_memory(directory)), metrics=metrics)


async def objects_in_a_directory(directory: Path, metrics: LedgerMetrics) -> LedgerStorage:
    return await ObjectStorage.open(Bucket.open(f"file://{directory}"), metrics=metrics)


async def objects_in_s3(directory: Path, metrics: LedgerMetrics) -> LedgerStorage:
    """The server is found through the environment, see the fixture `s3`."""
    url = f"s3://{S3Server.BUCKET}{directory}"
    return await ObjectStorage.open(Bucket.open(url), metrics=metrics)


STORAGES: dict[str, Factory] = {
    "local-files": local_files,
    "objects-in-memory": objects_in_memory,
    "objects-in-a-directory": objects_in_a_directory,
    "objects-in-s3": objects_in_s3,
}
