"""Point reads that wait together travel to etcd as one request.

A `Txn` of ranges is linearizable as a whole and reads one revision, so every member gets what it would have got
alone: its keys, all at one revision, not older than its call, because a read only joins a request that has not been
sent. As with writes there is no timer: a lone read leaves at once, and under load the groups grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from metastore.types import Record, Revision

Found = tuple[list[Record | None], Revision]
IN_FLIGHT = 2


@dataclass(slots=True, eq=False)
class _Member:
    keys: Sequence[str]
    answer: asyncio.Future[Found]


class GroupReads:
    """`read` asks the server for up to `keys_per_read` keys and answers their records, in order, and the revision."""

    def __init__(self, read: Callable[[Sequence[str]], Awaitable[Found]], keys_per_read: int) -> None:
        self._read = read
        self._keys_per_read = keys_per_read
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Member] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._pump_scheduled = False

    async def get(self, keys: Sequence[str]) -> Found:
        """At most `keys_per_read` keys. Raises what `read` raises."""
        member = _Member(keys, self._loop.create_future())
        self._queue.append(member)
        self._schedule_pump()
        return await member.answer

    async def close(self) -> None:
        """Wait for the reads under way; each has a deadline."""
        while self._queue or self._requests:
            await asyncio.gather(*self._requests)
            await asyncio.sleep(0)

    def _schedule_pump(self) -> None:
        """In the next round of the event loop, so that what is asked for in this one travels together."""
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

    def _take(self) -> list[_Member]:
        members: list[_Member] = []
        keys = 0
        while self._queue and keys + len(self._queue[0].keys) <= self._keys_per_read:
            member = self._queue.popleft()
            if not member.answer.done():
                members.append(member)
                keys += len(member.keys)
        return members

    async def _carry(self, members: Sequence[_Member]) -> None:
        try:
            records, revision = await self._read([key for member in members for key in member.keys])
        except Exception as error:  # noqa: BLE001  # whatever it is, the members must hear of it
            for member in members:
                if not member.answer.done():
                    member.answer.set_exception(error)
            return
        at = 0
        for member in members:
            if not member.answer.done():
                member.answer.set_result((records[at : at + len(member.keys)], revision))
            at += len(member.keys)
