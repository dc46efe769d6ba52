"""Transactions that are begun before the program asks for them.

A begin waits for nothing except its answer. So while a program begins one transaction after another, the client
begins the next ones in the background, several in one request, and hands them out. A transaction that is handed out is
as good as one that was begun at that moment (DESIGN §5.1): it is open for at least its timeout, because it was begun
with a longer one, and it is handed out only until that is used up. Those that are not needed are aborted then.

Transactions under a key are never begun ahead: such a begin may end another transaction. Nor are those with an owner or
with properties, which are rare.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from metatxn.answers import parsed
from metatxn.connection import CLOSING_S, Connection, post
from metatxn.http import path_of
from metatxn.wire.coordinator import MAX_TIMEOUT_MS, BatchAnswer, TransactionHeader
from metatxn.wire.errors import MetatxnError

AHEAD_S = 1.0
"""The longest time for which a transaction is kept ready."""
PACE_S = AHEAD_S / 2
"""The time in which a program begins as many transactions as are begun ahead for it."""
FEWEST = 4
"""For a program that begins fewer in this time, none are begun ahead."""
MOST = 64
LEAST_TIMEOUT_MS = int(10_000 * AHEAD_S)
"""With a shorter timeout none are begun ahead."""


class BegunAhead:
    """The transactions begun ahead of one client, for one timeout: that of the last begin."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._timeout_ms = 0
        self._ready: deque[tuple[float, TransactionHeader]] = deque()
        """The transactions, each with the time up to which it may be handed out, in the order of these times."""
        self._request: asyncio.Future[None] | None = None
        """Done when the answer of the request that is under way has arrived."""
        self._coming = 0
        """The number of transactions that the answer brings, without those that are waited for."""
        self._since, self._begun, self._pace = 0.0, 0, 0
        """When the present `PACE_S` has begun, the number of transactions since, and that in those before."""

    async def take(self, timeout_ms: int) -> TransactionHeader | None:
        """A transaction that is open for at least `timeout_ms` from now, or None if there is none: then begin one."""
        if timeout_ms != self._timeout_ms:
            self._timeout_ms, self._begun, self._pace = timeout_ms, 0, 0
            self._abort([self._ready.popleft() for _ in range(len(self._ready))])
        self._count()
        found = self._next()
        self._ask()
        if found is None and self._request is not None and self._coming > 0:
            self._coming -= 1
            await asyncio.shield(self._request)
            found = self._next() if timeout_ms == self._timeout_ms else None
        return found

    async def close(self) -> None:
        """Abort those that were not needed, as far as that is possible in `CLOSING_S`."""
        with contextlib.suppress(TimeoutError, MetatxnError):
            async with asyncio.timeout(CLOSING_S):
                if self._request is not None:
                    await asyncio.shield(self._request)
                left = [self._ready.popleft() for _ in range(len(self._ready))]
                if left:
                    await self._post_aborts(left)

    def _count(self) -> None:
        now = asyncio.get_running_loop().time()
        if (passed := now - self._since) >= PACE_S:
            self._pace = self._begun if passed < AHEAD_S else 0
            self._since, self._begun = now, 0
        self._begun += 1

    def _next(self) -> TransactionHeader | None:
        self._drop_old()
        return self._ready.popleft()[1] if self._ready else None

    def _ask(self) -> None:
        """Begin more if half of them are gone."""
        wanted = min(MOST, max(self._pace, self._begun))
        missing = wanted - len(self._ready)
        if wanted >= FEWEST and missing * 2 >= wanted and self._request is None and self._fits():
            self._request = asyncio.get_running_loop().create_future()
            self._coming = missing
            self._connection.spawn(self._begin(missing, self._timeout_ms, self._request))

    def _fits(self) -> bool:
        """Whether a slightly longer timeout makes no difference."""
        return LEAST_TIMEOUT_MS <= self._timeout_ms <= MAX_TIMEOUT_MS - 1000 * AHEAD_S

    async def _begin(self, count: int, timeout_ms: int, request: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        keep_until = loop.time() + AHEAD_S
        begin = {"op": "begin", "timeout_ms": timeout_ms + int(1000 * AHEAD_S)}
        try:
            answer = await self._connection.coordinator(post(path_of("txns", "batch"), {"items": [begin] * count}))
            begun = [(keep_until, each.txn) for each in parsed(BatchAnswer, answer).items if each.txn is not None]
            if timeout_ms == self._timeout_ms:
                self._ready.extend(begun)
                self._announce(begun)
                loop.call_at(keep_until, self._drop_old)
            else:
                self._abort(begun)
        except MetatxnError:
            self._begun = self._pace = 0  # the program learns what is wrong from a begin of its own
        finally:
            self._request = None
            request.set_result(None)

    def _announce(self, begun: list[tuple[float, TransactionHeader]]) -> None:
        """Have their intents stored where they are expected to write."""
        expected_writes = self._connection.expected_writes
        if begun and expected_writes.expected():
            txn_ids = [header.txn_id for _, header in begun if header.txn_id is not None]
            self._connection.spawn(expected_writes.announce(txn_ids))

    def _drop_old(self) -> None:
        now, old = asyncio.get_running_loop().time(), []
        while self._ready and self._ready[0][0] <= now:
            old.append(self._ready.popleft())
        self._abort(old)

    def _abort(self, unused: list[tuple[float, TransactionHeader]]) -> None:
        if unused:
            self._connection.spawn(self._abort_quietly(unused))

    async def _abort_quietly(self, unused: list[tuple[float, TransactionHeader]]) -> None:
        with contextlib.suppress(MetatxnError):  # then their timeout ends them
            await self._post_aborts(unused)

    async def _post_aborts(self, unused: list[tuple[float, TransactionHeader]]) -> None:
        items: list[dict[str, Any]] = [
            {"op": "abort", "txn_id": header.txn_id, "reason": "begun ahead, and not needed"} for _, header in unused
        ]
        await self._connection.coordinator(post(path_of("txns", "batch"), {"items": items}))
