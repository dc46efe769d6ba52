"""A coordinator with its console, and a broker, on an event loop in a thread, so that a test may drive a browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import metatxn
from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metatxn.console.app import create_console
from metatxn.service.exposure import Exposure
from participants.service import BrokerService

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="services")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class ConsoleCluster:
    """`url` is that of the coordinator. Its broker is the same for all coordinators that come one after another."""

    def __init__(
        self, loop: Loop, data_dir: Path, *, exposure: Exposure | None = None, read_only: bool = False
    ) -> None:
        self._loop = loop
        self._data_dir = data_dir
        self._exposure = exposure
        self._read_only = read_only
        self.store = MemoryStore(INDEXES)

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

    async def _started(self, port: int) -> CoordinatorService:
        service = CoordinatorService(
            self.store,
            port=port,
            exposure=self._exposure,
            console=lambda url, record: create_console(url, record=record, read_only=self._read_only),
        )
        await service.start()
        return service

    async def _with_broker(self) -> BrokerService:
        service = BrokerService(self.store, data_dir=self._data_dir, port=0, exposure=self._exposure)
        await service.start()
        return service
