"""What can become of a request on its way, and of its reply. Only the requests of group commit meet faults."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from metastore.backends.zookeeper import ZooKeeperStore
from metastore.backends.zookeeper_connection import LostError
from metastore.backends.zookeeper_wire import Multi
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
