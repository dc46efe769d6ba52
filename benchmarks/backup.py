"""A first backup of ledgers in local files to a directory, beside `cp -r` of the same files, in turns.

The files are in the page cache, and both sync what they write. A backup also checks the CRC of every frame. Entries are
of 1 KB in one topic and of 64 KB in the other. The ratio of the CPU time counts that of all threads and of the kernel,
so it says less about how busy the machine was. The last figure is a second backup without anything new, beside the
first. The interpreter is as the command has it: not tuned to serve.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog
import uvloop

from benchmarks.commits import now_ms
from benchmarks.report import Figure, publish
from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.records.processes import Incarnation
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metastore.txn.store import INDEXES
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


class Took(NamedTuple):
    wall_s: float
    cpu_s: float


@contextmanager
def timed() -> Iterator[list[Took]]:
    """Afterwards the list has what the block took, with the processes that it has waited for."""
    took: list[Took] = []
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    yield took
    took.append(Took(time.perf_counter() - wall, sum(os.times()[:4]) - cpu))


async def backed_up(store: MemoryStore, data: Path, to: Path) -> Took:
    with timed() as took:
        async with LocalStorage.open_to_read(data) as storage:
            await BackupTaker(store, [storage], BackupPlace(Bucket.open(f"file://{to}")), now_ms, "bench").take()
    return took[0]


def copied(data: Path, to: Path) -> Took:
    with timed() as took:
        subprocess.run(["cp", "-r", str(data), str(to)], check=True)
        subprocess.run(["find", str(to), "-type", "f", "-exec", "sync", "{}", "+"], check=True)
    return took[0]


async def measured(size: int, directory: Path) -> list[Figure]:
    data, to, copy = directory / "data", directory / "backup", directory / "copy"
    store = MemoryStore(INDEXES)
    first = Incarnation(id="a" * 32, begun_ms=1)
    await store.apply(store.batch().create(paths.INCARNATION, first.encode()))
    async with LocalStorage.open(data) as storage:
        await fill(store, storage, size)
    ratios, cpu_ratios, agains = [], [], []
    copied(data, copy)
    await backed_up(store, data, to)
    for _ in range(RUNS):
        # Each writes to the memory that it has just given back: a virtual machine gets other memory slowly.
        shutil.rmtree(copy)
        by_cp = copied(data, copy)
        shutil.rmtree(to)
        by_backup = await backed_up(store, data, to)
        ratios.append(by_cp.wall_s / by_backup.wall_s)
        cpu_ratios.append(by_cp.cpu_s / by_backup.cpu_s)
        agains.append((await backed_up(store, data, to)).wall_s / by_backup.wall_s)
    what = f"{TOTAL_BYTES // 1_000_000} MB in entries of {size // 1_000} KB"
    return [
        Figure(f"{what}: `cp -r` ÷ backup", ratios, "ratio", at_least=0.5),
        Figure(f"{what}: CPU of `cp -r` ÷ CPU of the backup", cpu_ratios, "ratio"),
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
    publish("backup", "Backups", uvloop.run(measure()))


if __name__ == "__main__":
    main()
