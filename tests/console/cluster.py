"""A coordinator with its console, and a broker, on an event loop in a thread, so that a test may drive a browser."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import metatxn
from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.store import INDEXES
from metastore.types import Applied, Batch, RangeResult, Snapshot
from metatxn.console.app import Console
from metatxn.console.site import Recorder, Site
from metatxn.service.exposure import Exposure
from metatxn.transport.pool import HttpTransport
from metatxn.wire.ids import TxnId
from participants.service import BrokerService
from tests.services_thread import Loop

SCHEMA = Path(__file__).parents[2] / "ops" / "audit-log.schema.json"
VERBS = json.loads(SCHEMA.read_text())["properties"]["verb"]["enum"]


class AwayStore(MemoryStore):
    """A store that can be away: then it answers nothing until it is there again."""

    def __init__(self) -> None:
        super().__init__(INDEXES)
        self.there = asyncio.Event()
        self.there.set()

    async def apply(self, batch: Batch) -> Applied:
        await self.there.wait()
        return await super().apply(batch)

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        await self.there.wait()
        return await super().get_many(wanted)

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        await self.there.wait()
        return await super().range(start, end, limit=limit, reverse=reverse, keys_only=keys_only)


class ConsoleCluster:
    """`url` is that of the coordinator. Its broker is the same for all coordinators that come one after another."""

    def __init__(
        self, loop: Loop, data_dir: Path, *, exposure: Exposure | None = None, read_only: bool = False
    ) -> None:
        self._loop = loop
        self._data_dir = data_dir
        self._exposure = exposure
        self._read_only = read_only
        self.recorded: list[tuple[str, dict[str, Any], int]] = []
        """The lines of the console in the audit log: verb, object and status."""
        self.store = AwayStore()
        self.ahead_ms = 0
        """How far its clock is ahead of that of this machine: what is open may become old at once."""

    def __enter__(self) -> Self:
        self._coordinator = self._loop.run(self._started(0))
        self._broker = self._loop.run(self._with_broker())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._coordinator.stop())
        self._loop.run(self._broker.stop())
        self._loop.run(self.store.close())

    @property
    def url(self) -> str:
        return self._coordinator.url

    @property
    def broker_url(self) -> str:
        return self._broker.url

    def client(self, token: str | None = None) -> metatxn.Client:
        return metatxn.connect(self.url, token)

    def stop_coordinator(self) -> None:
        self._loop.run(self._coordinator.stop())

    def start_coordinator(self) -> None:
        """Another one, where the one that was stopped has been."""
        self._coordinator = self._loop.run(self._started(int(self.url.rpartition(":")[2])))

    def write(self, values: Mapping[str, bytes | None]) -> None:
        """Put records into the store, or take them away, as somebody would who is none of the services."""
        batch = self.store.batch()
        for key, value in values.items():
            _ = batch.delete(key) if value is None else batch.put(key, value)
        self._loop.run(self.store.apply(batch))

    def collect(self, txn_id: str) -> None:
        """Remove the header of a transaction, as a coordinator does once it is no longer needed."""

        async def collected() -> None:
            header = await self.store.get(paths.header(TxnId.parse(txn_id)))
            assert header is not None
            await self.store.apply(self.store.batch().remove(header))

        self._loop.run(collected())

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """While its services do nothing, as if they were stopped with SIGSTOP: their connections stay open."""
        thawed = threading.Event()
        self._loop.block(thawed)
        try:
            yield
        finally:
            thawed.set()

    @contextmanager
    def store_away(self) -> Iterator[None]:
        """While nothing gets an answer of the metadata store."""
        self._loop.run(_told(self.store.there.clear))
        try:
            yield
        finally:
            self._loop.run(_told(self.store.there.set))
            self.site.found_away(None)  # as after `AWAY_FOR_S`

    def look(self) -> None:
        """Remember what was counted since the last look, as the services do every ten seconds."""

        async def looked() -> None:
            self._coordinator.throughput.look()
            self._broker._throughput.look()

        self._loop.run(looked())

    def stop_looking(self) -> None:
        """From now on nobody but `look` does."""

        async def stopped() -> None:
            self._coordinator.throughput.stop()
            self._broker._throughput.stop()

        self._loop.run(stopped())

    def count_open(self) -> None:
        """Count what is open, as a coordinator does every fifteen seconds."""
        self._loop.run(self._coordinator.survey.look_once())

    async def _started(self, port: int) -> CoordinatorService:
        service = CoordinatorService(
            self.store, port=port, exposure=self._exposure, clock=self.now_ms, console=self._console
        )
        await service.start()
        return service

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def _console(self, url: str, record: Recorder) -> Console:
        def recorded(verb: str, about: Mapping[str, Any], status: int, **more: Any) -> None:
            record(verb, about, status, **more)
            assert verb in VERBS
            self.recorded.append((verb, dict(about), status))

        self.site = Site(url, HttpTransport(), recorded, self._read_only, clock=lambda: self.now_ms() / 1000)
        return Console(self.site)

    async def _with_broker(self) -> BrokerService:
        service = BrokerService(self.store, data_dir=self._data_dir, port=0, exposure=self._exposure, clock=self.now_ms)
        await service.start()
        return service


async def _told(tell: Callable[[], None]) -> None:
    tell()
