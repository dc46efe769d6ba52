"""Goal: under kill -9 and freezing of the server, every answer is true.

Method: 16 callers write without pause. Each creates records of its own and moves a counter by compare-and-set. Between
rounds the server is killed and started again, or frozen until a request has timed out. Afterwards the store is read:
what was acknowledged is there, what failed definitely is not, and each counter equals the steps of its only writer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from metastore.backends.etcd import EtcdStore
from metastore.errors import CheckFailed, OutcomeUnknown, StoreClosed, StoreUnavailable
from metastore.types import Record
from tests.metastore.etcd.conftest import OpenStore
from tests.metastore.proxies import Proxy
from tests.servers import EtcdServer

CALLERS = 16
ROUNDS = ["kill", "freeze", "kill", "kill", "freeze", "kill"]


@dataclass
class Ledger:
    """What the callers were told."""

    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    written: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def more(self, count: int) -> None:
        """Wait for this many acknowledged applies from now on."""
        while not self.written.locked():
            await self.written.acquire()
        for _ in range(count):
            await self.written.acquire()


async def read(store: EtcdStore, key: str) -> Record | None:
    while True:
        try:
            return await store.get(key)
        except StoreUnavailable:
            continue


async def write_records(store: EtcdStore, caller: int, ledger: Ledger, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        key = f"/records/{caller}/{number}"
        try:
            await store.apply(store.batch().create(key, b"").put(f"/last/{caller}", key.encode()))
        except OutcomeUnknown:
            ledger.unknown.add(key)
        except StoreUnavailable:  # nothing else: nobody else writes these keys
            ledger.refused.add(key)
        else:
            ledger.acknowledged.add(key)
            ledger.written.release()


async def count(store: EtcdStore, caller: int, stop: asyncio.Event) -> int:
    """The number of steps of this caller's counter, by what it was told."""
    key = f"/counters/{caller}"
    steps = 0
    doubt = False
    while not stop.is_set():
        record = await read(store, key)
        if record is not None and int(record.value) != steps:
            assert doubt and int(record.value) == steps + 1, "a step that was refused, or never sent, has landed"
            steps += 1
        value = str(steps + 1).encode()
        try:
            batch = store.batch()
            await store.apply(batch.create(key, value) if record is None else batch.replace(record, value))
            steps += 1
            doubt = False
        except OutcomeUnknown:
            doubt = True
        except CheckFailed:
            continue  # the step in doubt has landed after all: read again, and let the assertion judge it
        except StoreUnavailable:
            continue
    record = await read(store, key)
    if doubt and record is not None:
        steps = int(record.value)
    return steps


async def test_every_answer_is_true(own_server: EtcdServer, open_store: OpenStore) -> None:
    replies_lost = asyncio.Semaphore(0)
    store = await open_store(own_server, on_lost=replies_lost.release, deadline_ms=4_000)
    ledger, stop = Ledger(), asyncio.Event()
    async with asyncio.TaskGroup() as callers:  # an answer that is not true ends the test at once
        counters = [callers.create_task(count(store, n, stop)) for n in range(CALLERS)]
        for n in range(CALLERS):
            callers.create_task(write_records(store, n, ledger, stop))
        for fault in ROUNDS:
            await ledger.more(1_000)
            if fault == "kill":
                await asyncio.to_thread(own_server.kill)
                await asyncio.to_thread(own_server.start)
                continue
            while not replies_lost.locked():
                await replies_lost.acquire()
            own_server.freeze()
            try:
                await replies_lost.acquire()
            finally:
                own_server.thaw()
        await ledger.more(1_000)
        stop.set()
    steps = [counter.result() for counter in counters]
    await store.close()

    later = await open_store(own_server, store._wire._root)
    stored = {record.key for record in (await later.scan("/records/", keys_only=True)).records}
    assert ledger.acknowledged <= stored, "acknowledged, but not there"
    assert not ledger.refused & stored, "definitely failed, but there"
    assert stored <= ledger.acknowledged | ledger.unknown
    assert [
        int(record.value) for record in [await later.get(f"/counters/{n}") for n in range(CALLERS)] if record
    ] == steps
    assert len(stored) >= 1_000 * len(ROUNDS)


async def test_a_question_that_is_under_way_when_the_store_is_closed_is_told_so(
    etcd_server: EtcdServer,
) -> None:
    async with Proxy(etcd_server.port) as proxy:
        store = await EtcdStore.open([proxy.endpoint], "/closing")
        arrived = proxy.hold_from(b"/closing/", forward=True)
        asking = asyncio.create_task(store.takes_operations(1))
        await arrived.wait()
        await store.close()
        with pytest.raises(StoreClosed):
            await asking
