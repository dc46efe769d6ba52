"""What all parts of one client share: the HTTP layer, the directory of services, the topic layouts, the tasks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from metatxn.carried import CarriedCommit
from metatxn.cluster import AnyOf, Directory
from metatxn.delivery import OrderedDelivery
from metatxn.expected_writes import ExpectedWrites
from metatxn.http import Call, Http, json_body, path_of
from metatxn.publishing import Publishing
from metatxn.topics import Layout, LayoutCache, OwnerOf
from metatxn.transport.api import Answer, Transport
from metatxn.wire.errors import MetatxnError
from metatxn.wire.frames import Entry
from metatxn.wire.ids import TxnId

CLOSING_S = 5.0
"""How long a client that is being closed tries to abort its open transactions. After that their timeouts end them."""
MAX_OPEN = 10_000
"""The most open transactions that are remembered for that."""
LAYOUT_PAUSE_S = 0.05
LAYOUT_PATIENCE_S = 5.0
"""A broker that is not the owner may learn of a seal a little later than the client."""


class Connection:
    """What one client shares, for one event loop. `transport` is the network, and `randomness` is used for shuffles,
    jitter and names. A simulation passes its own, and runs them on a loop with virtual time."""

    def __init__(
        self,
        url: str,
        token: str | None,
        request_timeout_s: float,
        *,
        ca: str | None = None,
        listener: str | None = None,
        transport: Transport | None = None,
        randomness: random.Random | None = None,
    ) -> None:
        self._randomness = randomness or random.SystemRandom()
        self.http = Http(
            token,
            request_timeout_s,
            transport,
            self._randomness,
            ca=ca,
            only_tls=url.startswith("https://"),
            listener=listener,
        )
        self.directory = Directory(self.http, url.rstrip("/"), self._randomness)
        self.topics = LayoutCache(self.http, self.directory)
        self.coordinators = AnyOf(self.directory, "coordinator")
        self.brokers = AnyOf(self.directory, "broker")
        self.request_timeout_s = request_timeout_s
        self._publishing = Publishing(self.http, self.topics, self.directory, self.spawn)
        self.expected_writes = ExpectedWrites(self.http, self.topics)
        self.sending: dict[OrderedDelivery[Any], None] = {}
        self._open: dict[str, None] = {}
        """The transactions that were begun and used here, and that no call has tried to end here. Nobody else is
        expected to end them, except by an abort."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close. What is still being sent is given up. Idempotent."""
        while self._tasks:
            await asyncio.sleep(0)  # a task that is cancelled before it began reports nothing
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.http.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it ends or the client is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- transactions ------------------------------------------------------------------------------------------

    def opened(self, txn_id: str) -> None:
        """Something is about to be done inside a transaction that was begun here."""
        self._open[txn_id] = None
        while len(self._open) > MAX_OPEN:
            del self._open[next(iter(self._open))]

    def ended(self, txn_id: str) -> None:
        """`abort_open` is not to abort this transaction."""
        self._open.pop(txn_id, None)
        self.expected_writes.ended(txn_id)

    def carrying(self, txn_id: str, commit: CarriedCommit) -> AbstractContextManager[None]:
        """Meanwhile `commit` may depart with the last entries of its transaction, if nobody else is expected to commit
        that."""
        if txn_id not in self._open:
            return contextlib.nullcontext()
        return self._publishing.carrying(TxnId.parse(txn_id), commit)

    async def abort_open(self) -> None:
        """Abort the transactions that are open, as far as that is possible in `CLOSING_S`."""
        calls = [post(path_of("txns", txn_id, "abort"), {"reason": "its client was closed"}) for txn_id in self._open]
        self._open.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                await asyncio.gather(*map(self.coordinator, calls), return_exceptions=True)

    def new_name(self) -> str:
        """A unique name of 32 hexadecimal digits."""
        return uuid.UUID(int=self._randomness.getrandbits(128), version=4).hex

    # -- requests ----------------------------------------------------------------------------------------------

    async def coordinator(self, call: Call) -> Answer:
        return await self.http.request(self.coordinators, call)

    async def broker(self, call: Call) -> Answer:
        return await self.http.request(self.brokers, call)

    async def owner_of(self, segment: str, call: Call) -> Answer:
        return await self.http.request(OwnerOf(self.topics, self.directory, segment), call)

    async def home_of(self, topic: str, call: Call) -> Answer:
        """Send a request to the broker that delivers the subscriptions of `topic`: the one that earlier requests were
        redirected to, or any."""
        return await self.http.request(OwnerOf(self.topics, self.directory, f"subscriptions of {topic}"), call)

    # -- delivery ----------------------------------------------------------------------------------------------

    async def layout(self, topic: str) -> Layout:
        return await self.topics.layout(topic)

    async def layout_behind(self, topic: str, segment: str, *, patient: bool) -> Layout:
        now = asyncio.get_running_loop().time
        deadline = now() + (min(LAYOUT_PATIENCE_S, self.request_timeout_s) if patient else 0)
        while True:
            layout = await self.topics.refresh(topic)
            if segment not in layout.names or now() >= deadline:
                return layout
            await asyncio.sleep(LAYOUT_PAUSE_S)

    async def publish(self, segment: str, entry: Entry) -> str:
        if entry.txn_id is not None:
            if entry.writer is None:
                self.expected_writes.writes(entry.txn_id, segment)
            if entry.txn_id in self._open:
                entry = replace(entry, before_commit=True)
        return await self._publishing.publish(segment, entry)


def post(
    path: str,
    body: Mapping[str, Any],
    *,
    idempotent: bool = True,
    settled_by: tuple[type[MetatxnError], ...] = (),
) -> Call:
    return Call("POST", path, content=json_body(body), idempotent=idempotent, settled_by=settled_by)
