"""The announcement of this broker in the store: where it is, which storage it has open, whether it drains, and where
clients of Kafka and of Pulsar reach it.

A broker that is being drained says so in its announcement, and that is all: `placement`, here and in every other broker
of its storage, sends its segments elsewhere. With an object store a process has an id of its own, and its drain ends
with it. With local files the segments cannot leave; the drain means that no new topics come, and a record in the store
makes it last over a restart.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from metastore.api import Ephemeral, MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed, MetastoreError
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord, DrainRecord
from metatxn.service.lifecycle import Lifecycle, tell
from metatxn.service.quotas.peers import hash_of_proof
from participants.ledger.storage import LedgerStorage

TTL_MS = 10_000


class Announcement:
    """The announcement of a broker. Use `start` and `stop`."""

    def __init__(
        self,
        store: MetadataStore,
        broker: str,
        url: str,
        storage: LedgerStorage,
        clock: Clock,
        listeners: Mapping[str, str],
    ) -> None:
        self._store = store
        self._broker = broker
        self._key = paths.broker_process(broker)
        self._url = url
        self._listeners = dict(listeners)
        self._storage = storage
        self._clock = clock
        self._record: Ephemeral | None = None
        self._announced: bool | None = None
        """What the record says about a drain; None if that is not known."""
        self._kafka: str | None = None
        self._pulsar: str | None = None
        self._turn = asyncio.Lock()
        self._changing: set[asyncio.Task[None]] = set()
        self.proof = secrets.token_hex(16)
        """What this broker shows to other brokers."""
        self.draining = False
        """Whether it takes part in a drain, as far as it knows that the others may know it."""

    async def start(self) -> None:
        """Announce this broker. Raises the store's errors."""
        async with self._turn:
            if self._storage.exclusive:
                self.draining |= await self._store.get(self._drain_key) is not None
            await self._announce(self.draining)

    async def drain(self) -> None:
        """Begin a drain. Idempotent. Raises the store's errors: then the others may see it or not."""
        await self._change(draining=True)

    async def undrain(self) -> None:
        """End a drain. Raises as `drain` does."""
        await self._change(draining=False)

    async def name_kafka(self, address: str | None) -> None:
        """Tell where Kafka's clients reach this broker, or that they do not. Raises as `drain` does."""
        self._kafka = address
        await self._to_its_end(self._again())

    async def name_pulsar(self, url: str | None) -> None:
        """Tell where Pulsar's clients reach this broker, or that they do not. Raises as `drain` does."""
        self._pulsar = url
        await self._to_its_end(self._again())

    async def stop(self) -> None:
        """Withdraw the announcement. If the store does not answer, it ends by itself."""
        async with self._turn:
            record, self._record = self._record, None
            if record is not None:
                with suppress(MetastoreError):
                    await record.close()

    async def _change(self, draining: bool) -> None:
        await self._to_its_end(self._changed(draining))

    async def _to_its_end(self, change: Coroutine[Any, Any, None]) -> None:
        """Put the announcement, also if the caller does not wait for it: an unknown record could not be replaced."""
        task = asyncio.create_task(change, name="announcement")
        self._changing.add(task)
        task.add_done_callback(self._looked_at)
        await asyncio.shield(task)

    def _looked_at(self, task: asyncio.Task[None]) -> None:
        self._changing.discard(task)
        if not task.cancelled():
            task.exception()

    async def _changed(self, draining: bool) -> None:
        async with self._turn:
            if self._storage.exclusive:
                await (self._remember() if draining else self._forget())
            if self._record is not None and draining != self._announced:
                await self._announce(draining)
            if draining != self.draining:
                tell(Lifecycle.DRAIN_BEGUN if draining else Lifecycle.DRAIN_ENDED, broker=self._broker)
            self.draining = draining

    async def _again(self) -> None:
        async with self._turn:
            if self._record is not None:
                await self._announce(self.draining)

    async def _announce(self, draining: bool) -> None:
        """Put the announcement over the one before, so that there is one at every moment."""
        before, self._announced = self._record, None
        record = BrokerRecord(
            url=self._url,
            storage=self._storage.storage_id,
            draining=draining or None,
            listeners=self._listeners or None,
            peer=hash_of_proof(self.proof),
            kafka=self._kafka,
            pulsar=self._pulsar,
        )
        self._record = await self._store.ephemeral(self._key, record.encode(), TTL_MS)
        self._announced = draining
        if before is not None:
            with suppress(MetastoreError):  # the later one has replaced it
                await before.close()

    @property
    def _drain_key(self) -> str:
        return paths.drain_of_storage(self._storage.storage_id)

    async def _remember(self) -> None:
        value = DrainRecord(since_ms=self._clock()).encode()
        with suppress(CheckFailed):  # it is remembered already
            await self._store.apply(self._store.batch().create(self._drain_key, value))

    async def _forget(self) -> None:
        if (record := await self._store.get(self._drain_key)) is not None:
            with suppress(CheckFailed):
                await self._store.apply(self._store.batch().remove(record))
