"""A first backup of ledgers in local files to a directory, beside `cp -r` of the same files, in turns.

The files are in the page cache and neither of both syncs what it writes, so the ratio says what the backup does besides
copying: it checks the CRC of every frame. Entries are of 1 KB in one topic and of 64 KB in the other. The last figure
is a second backup after one more entry, beside the first.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import structlog
import uvloop

from benchmarks.commits import now_ms
from benchmarks.report import Figure, publish
from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.records.processes import Incarnation
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metastore.txn.store import INDEXES
from metatxn.cli.services import tune_interpreter
from metatxn.wire.frames import Entry, PayloadKind
from participants.backup.place import BackupPlace
from participants.backup.taking import BackupTaker
from participants.ledger.bucket import Bucket
from participants.ledger.local import LocalStorage

SIZES = (1_000, 64_000)
TOTAL_BYTES = 400_000_000
LEDGER_BYTES = 100_000_000
AT_ONCE = 500
RUNS = 5


async def fill(store: MemoryStore, storage: LocalStorage, size: int) -> None:
    segment = f"segment://public/default/of-{size}/0000-ffff-0"
    ledgers = []
    for number in range(1, TOTAL_BYTES // LEDGER_BYTES + 1):
        ledger = await storage.create(segment, number)
        for _ in range(LEDGER_BYTES // size // AT_ONCE or 1):
            entries = [Entry(os.urandom(size), PayloadKind.BYTES, 1) for _ in range(min(AT_ONCE, LEDGER_BYTES // size))]
            appends = [ledger.append(entry, now_ms()) for entry in entries]
            await asyncio.gather(*(append.durable for append in appends))
        sealed = await ledger.seal()
        ledgers.append(LedgerRecord(id=number, storage=storage.storage_id, entries=sealed.entries))
    record = SegmentRecord(
        topic=f"public/default/of-{size}", range=(0, 0xFFFF), storage=storage.storage_id, ledgers=tuple(ledgers)
    )
    await store.apply(store.batch().create(paths.segment(segment), record.encode()))


async def backed_up(store: MemoryStore, data: Path, to: Path) -> float:
    began = time.perf_counter()
    async with LocalStorage.open_to_read(data) as storage:
        await BackupTaker(store, [storage], BackupPlace(Bucket.open(f"file://{to}")), now_ms, "bench").take()
    return time.perf_counter() - began


def copied(data: Path, to: Path) -> float:
    began = time.perf_counter()
    subprocess.run(["cp", "-r", str(data), str(to)], check=True)
    return time.perf_counter() - began


async def measured(size: int, directory: Path) -> list[Figure]:
    data, to, copy = directory / "data", directory / "backup", directory / "copy"
    store = MemoryStore(INDEXES)
    first = Incarnation(id="a" * 32, begun_ms=1)
    await store.apply(store.batch().create(paths.INCARNATION, first.encode()))
    async with LocalStorage.open(data) as storage:
        await fill(store, storage, size)
    ratios, agains = [], []
    copied(data, copy)
    await backed_up(store, data, to)
    for _ in range(RUNS):
        # Each writes to the memory that it has just given back: a virtual machine gets other memory slowly.
        shutil.rmtree(copy)
        by_cp = copied(data, copy)
        shutil.rmtree(to)
        by_backup = await backed_up(store, data, to)
        ratios.append(by_cp / by_backup)
        agains.append(await backed_up(store, data, to) / by_backup)
    what = f"{TOTAL_BYTES // 1_000_000} MB in entries of {size // 1_000} KB"
    return [
        Figure(f"{what}: `cp -r` ÷ backup", ratios, "ratio", at_least=0.5),
        Figure("a second backup without anything new ÷ the first", agains, "ratio"),
    ]


async def measure() -> list[Figure]:
    figures = []
    for size in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            figures += await measured(size, Path(directory))
    return figures


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    tune_interpreter()
    publish("backup", "Backups", uvloop.run(measure()))


if __name__ == "__main__":
    main()
