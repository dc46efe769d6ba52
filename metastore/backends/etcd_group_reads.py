"""Reads that wait together travel to etcd as one request.

A `Txn` of ranges is linearizable as a whole and reads one revision, so every member gets what it would have got
alone: its keys or its range, all at one revision, not older than its call, because a read only joins a request that
has not been sent. As with writes there is no timer: a lone read leaves at once, and under load the groups grow by
themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from metastore.types import Revision

Read = TypeVar("Read")
Found = TypeVar("Found")
IN_FLIGHT = 2


@dataclass(slots=True, eq=False)
class _Member(Generic[Read, Found]):
    reads: Sequence[Read]
    answer: asyncio.Future[tuple[list[Found], Revision]]


class GroupReads(Generic[Read, Found]):
    """Group reads. `ask` sends up to `reads_per_request` reads, and returns the result of each, in order, and the
    revision."""

    def __init__(
        self, ask: Callable[[Sequence[Read]], Awaitable[tuple[list[Found], Revision]]], reads_per_request: int
    ) -> None:
        self._ask = ask
        self._reads_per_request = reads_per_request
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Member[Read, Found]] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._pump_scheduled = False

    async def read(self, reads: Sequence[Read]) -> tuple[list[Found], Revision]:
        """Send at most `reads_per_request` reads. Raises the errors of `ask`."""
        member: _Member[Read, Found] = _Member(reads, self._loop.create_future())
        self._queue.append(member)
        self._schedule_pump()
        return await member.answer

    async def close(self) -> None:
        """Wait for the reads in flight; each has a deadline."""
        while self._queue or self._requests:
            await asyncio.gather(*self._requests)
            await asyncio.sleep(0)

    def _schedule_pump(self) -> None:
        """Send in the next round of the event loop, so that reads requested in this round are sent together."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        while self._queue and len(self._requests) < IN_FLIGHT:
            members = self._take()
            if members:
                task = self._loop.create_task(self._carry(members), name="etcd group read")
                self._requests.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if self._queue:
            self._schedule_pump()

    def _take(self) -> list[_Member[Read, Found]]:
        members: list[_Member[Read, Found]] = []
        reads = 0
        while self._queue and reads + len(self._queue[0].reads) <= self._reads_per_request:
            member = self._queue.popleft()
            if not member.answer.done():
                members.append(member)
                reads += len(member.reads)
        return members

    async def _carry(self, members: Sequence[_Member[Read, Found]]) -> None:
        try:
            found, revision = await self._ask([read for member in members for read in member.reads])
        except Exception as error:  # noqa: BLE001  # whatever it is, the members must hear of it
            for member in members:
                if not member.answer.done():
                    member.answer.set_exception(error)
            return
        at = 0
        for member in members:
            if not member.answer.done():
                member.answer.set_result((found[at : at + len(member.reads)], revision))
            at += len(member.reads)
