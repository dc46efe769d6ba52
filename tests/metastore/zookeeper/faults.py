"""What can become of a request on its way, and of its reply. Only the requests of group commit meet faults."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from metastore.backends.zookeeper import ZooKeeperStore
from metastore.backends.zookeeper_connection import LostError
from metastore.backends.zookeeper_wire import Multi, set_data
from metastore.errors import StoreUnavailable
from metastore.types import Applied, Batch

Send = Callable[[Any], Awaitable[Any]]
Fault = Callable[[Any, Send], Awaitable[Any]]


async def request_lost(request: Any, send: Send) -> Any:
    raise LostError("by the test")


async def reply_lost(request: Any, send: Send) -> Any:
    await send(request)
    raise LostError("by the test")


async def delivered_twice(request: Any, send: Send) -> Any:
    await send(request)
    await send(request)
    raise LostError("by the test")


async def refused(request: Any, send: Send) -> Any:
    """Nothing is done, nor will be, as if the process had died."""
    raise StoreUnavailable("by the test")


async def delivered(request: Any, send: Send) -> Any:
    return await send(request)


class Late:
    """Loses a request, and delivers it when the test says so."""

    async def __call__(self, request: Any, send: Send) -> Any:
        self._request, self._send = request, send
        raise LostError("by the test")

    async def deliver(self) -> Any:
        return await self._send(self._request)


def before(action: Callable[[], Awaitable[object]]) -> Fault:
    """Something happens just before the request arrives."""

    async def fault(request: Any, send: Send) -> Any:
        await action()
        return await send(request)

    return fault


def is_fence(request: Multi) -> bool:
    """Whether it sets one znode, the log of a writer, and nothing else."""
    first, *others = request._operations
    return not others and first.startswith(set_data("", b"")[:4]) and b"/log/" in first


def inject(store: ZooKeeperStore, *faults: Fault, on_fences: Fault | None = None) -> None:
    """The next groups of `store` meet `faults`, in order; those behind them none. All fences meet `on_fences`."""
    plan = deque(faults)
    real = store._connection.send

    def send(request: Any) -> asyncio.Future[Any]:
        if not isinstance(request, Multi):
            return real(request)
        if len(request._operations) == 1:
            return asyncio.ensure_future((on_fences or delivered)(request, real))
        return asyncio.ensure_future((plan.popleft() if plan else delivered)(request, real))

    store._connection.send = send  # type: ignore[method-assign]


async def together(store: ZooKeeperStore, batches: Iterable[Batch]) -> list[Applied | BaseException]:
    return await asyncio.gather(*(store.apply(batch) for batch in batches), return_exceptions=True)


async def _nothing() -> None:
    pass


def haunt(store: ZooKeeperStore, dice: random.Random, meanwhile: Callable[[], Awaitable[object]] = _nothing) -> None:
    """Every fourth group of `store`, and every third of its fences, meets a fault; `meanwhile` happens now and then
    between a request that met one and its fence."""
    real = store._connection.send

    async def haunted(request: Any) -> Any:
        fence = is_fence(request)
        if fence and dice.random() < 0.5:
            await meanwhile()
        faulty = dice.random() < (0.33 if fence else 0.25)
        fault = dice.choice((request_lost, reply_lost, delivered_twice)) if faulty else delivered
        return await fault(request, real)

    def send(request: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(haunted(request)) if isinstance(request, Multi) else real(request)

    store._connection.send = send  # type: ignore[method-assign]


_CONNECT = struct.Struct("!iiqiqi16s?")
_CLOSE_SESSION = struct.pack("!iii", 8, 1, -11)


async def session_of(store: ZooKeeperStore) -> int:
    """Waits for one."""
    while (session := store._connection.session) is None:
        await store._connection.wait_connected()
        await asyncio.sleep(0)
    return session


async def end_session(store: ZooKeeperStore) -> None:
    """As if it had expired: somebody else takes the session over, and closes it in the same breath."""
    ending = await session_of(store)
    while await session_of(store) == ending:
        await _take_over_and_close(store)


async def _take_over_and_close(store: ZooKeeperStore) -> None:
    """Returns when the store has noticed. It may have been faster, and have its session back."""
    identity = store._connection._client.client_id
    if identity is None:
        return
    lost = asyncio.Event()
    store._connection.on_state.append(lambda connected: None if connected else lost.set())
    host, port = store._connection.hosts.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    handshake = _CONNECT.pack(_CONNECT.size - 4, 0, 0, 6_000, identity[0], 16, identity[1], False)
    writer.write(handshake + _CLOSE_SESSION)
    with suppress(ConnectionError):
        await reader.read()
    writer.close()
    await lost.wait()
