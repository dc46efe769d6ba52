"""Goal: an object store that is slow, throttles or loses replies costs time, and nothing else: what was acknowledged is
there, once and at its place; what was definitely refused is not; and a former owner is fenced off.

Method: a server that speaks S3, with faults in between that a seed draws. Two owners append to three segments; the
second one takes them over from the first, which still appends. At the end the ledgers are read without faults.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metastore.background import Backoff
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.position import Position
from participants.ledger.bucket import Bucket
from participants.ledger.directories import segment_directory
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.storage import LedgerError, OpenLedger, SealedLedger, StorageFailed
from tests.extent import usually
from tests.participants.ledger.faulty_s3 import FaultyS3
from tests.servers import S3Server

SEGMENTS = [f"segment://public/default/t/{number:04x}-ffff-{number}" for number in range(3)]
APPENDS = 15
OF_HUNDRED = {"slow": 1, "throttled": 6, "lost": 6, "refused": 4}


class Owner:
    """Appends to the ledgers of one number, and remembers what it was told."""

    def __init__(self, storage: ObjectStorage, name: str, ledger: int) -> None:
        self._storage = storage
        self._name = name
        self.ledger = ledger
        self.acknowledged: dict[tuple[str, Position], bytes] = {}
        self.refused: set[bytes] = set()

    async def run(self, segment: str) -> None:
        ledger = await created(self._storage, segment, self.ledger)
        for number in range(APPENDS):
            payload = f"{self._name} {segment} {number}".encode()
            try:
                append = ledger.append(Entry(payload, PayloadKind.BYTES, 1), 1)
                await asyncio.shield(append.durable)
            except LedgerError as error:
                if error.definite:
                    self.refused.add(payload)
                return  # the owner of the segment would seal the ledger, and read it
            self.acknowledged[segment, append.position] = payload


async def created(storage: ObjectStorage, segment: str, ledger: int) -> OpenLedger:
    while True:
        try:
            return await storage.create(segment, ledger)
        except LedgerError:
            ledger += 1_000  # it may exist: the number is never used again


async def sealed(storage: ObjectStorage, segment: str, ledger: int) -> SealedLedger:
    while True:
        try:
            return await storage.seal(segment, ledger)
        except StorageFailed:
            continue


async def content(ledger: SealedLedger) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < ledger.entries:
        found += [bytes(frame.payload) for frame in await ledger.read(len(found), 1 << 20)]
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", usually(range(1), range(20)))
async def test_a_store_that_is_slow_throttles_and_loses_replies_costs_only_time(
    s3: S3Server, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metatxn.service.retry.backoff", lambda: Backoff(first_s=0.005, longest_s=0.05))
    url = f"s3://{S3Server.BUCKET}{tmp_path}"
    async with await ObjectStorage.open(Bucket.open(url)) as direct, FaultyS3(s3.port, seed, **OF_HUNDRED) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        async with (
            await ObjectStorage.open_to_read(Bucket.open(url)) as first,
            await ObjectStorage.open_to_read(Bucket.open(url)) as second,
        ):
            former, owner = Owner(first, "former", 1), Owner(second, "owner", 2)
            appending = [asyncio.create_task(former.run(segment)) for segment in SEGMENTS]
            while len(former.acknowledged) < APPENDS:
                await asyncio.wait(appending, timeout=0.01)
                if all(task.done() for task in appending):
                    break
            known = [number for segment in SEGMENTS for number in await numbers(direct, segment)]
            assert known
            for segment in SEGMENTS:
                for number in await numbers(direct, segment):
                    await sealed(second, segment, number)
            await asyncio.gather(*(owner.run(segment) for segment in SEGMENTS))
            await asyncio.gather(*appending)
        for told in (former, owner):
            assert told.acknowledged
        found: dict[tuple[str, Position], bytes] = {}
        for segment in SEGMENTS:
            for number in await numbers(direct, segment):
                entries = await content(await sealed(direct, segment, number))
                found |= {(segment, Position(number, entry)): payload for entry, payload in enumerate(entries)}
    assert former.acknowledged.items() | owner.acknowledged.items() <= found.items()
    assert len(set(found.values())) == len(found), "nothing is there twice"
    assert not (former.refused | owner.refused) & set(found.values())
    assert proxy.made.keys() >= OF_HUNDRED.keys(), proxy.made


async def numbers(storage: ObjectStorage, segment: str) -> list[int]:
    return await storage.numbers(segment_directory(segment))
