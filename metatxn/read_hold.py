"""Holding a topic at a revision while it is read (DESIGN §5.24): taken, prolonged while the program lives, released."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from types import TracebackType
from typing import Any, Self

from metatxn.answers import parsed
from metatxn.connection import Connection, post
from metatxn.http import Call, path_of
from metatxn.wire.broker import MAX_HOLD_MS, ReadHoldInfo
from metatxn.wire.errors import InvalidArgument, MetatxnError, NotFound

HOLD_S = 60.0
SIGNS_OF_LIFE = 3
"""The number of keep-alives in the time after which a hold is over."""


class AsyncReadHold:
    """A hold of a topic at `revision`, to be passed to reads with `isolation="snapshot"`. `lost` is why it has ended
    without having been released, once that is known; reads at its revision then go on as long as nothing was dropped
    or compacted. Leaving its `async with` releases it."""

    def __init__(self, connection: Connection, topic: str, hold_ms: int, info: ReadHoldInfo) -> None:
        self.topic = topic
        self.revision = info.revision
        self.lost: MetatxnError | None = None
        self._released = False
        self._connection = connection
        self._path = path_of("topics", topic, "read-holds", info.hold_id)
        self._hold_ms = hold_ms
        connection.spawn(_keep(weakref.ref(self), hold_ms / 1000 / SIGNS_OF_LIFE))

    @classmethod
    async def take(cls, connection: Connection, topic: str, seconds: float, revision: int | None) -> AsyncReadHold:
        if not 1 <= seconds <= MAX_HOLD_MS / 1000:
            raise InvalidArgument(f"seconds: {seconds} is not between 1 and {MAX_HOLD_MS // 1000}", field="seconds")
        body: dict[str, Any] = {"hold_id": connection.new_name(), "hold_ms": int(seconds * 1000)}
        if revision is not None:
            body["revision"] = revision
        answer = await connection.broker(post(path_of("topics", topic, "read-holds"), body))
        return cls(connection, topic, body["hold_ms"], parsed(ReadHoldInfo, answer))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.release()

    async def prolong(self) -> None:
        """Prolong the hold. Raises `MetatxnError` if neither that nor the end of the hold is certain. Until
        it is released, this happens by itself."""
        try:
            call = post(f"{self._path}/keep-alive", {"hold_ms": self._hold_ms}, settled_by=(NotFound,))
            await self._connection.broker(call)
        except NotFound as ended:
            if not self._released:
                self.lost = self.lost or ended

    async def release(self) -> None:
        """Release the hold. If this does not reach a broker, the hold expires."""
        if not self._released:
            self._released = True
            with contextlib.suppress(MetatxnError):
                await self._connection.broker(Call("DELETE", self._path))

    @property
    def ended(self) -> bool:
        return self._released or self.lost is not None


async def _keep(reference: weakref.ref[AsyncReadHold], pause_s: float) -> None:
    """Prolong the hold until it is released or lost, or no longer referenced."""
    while True:
        await asyncio.sleep(pause_s)
        hold = reference()
        if hold is None or hold.ended:
            return
        with contextlib.suppress(MetatxnError):
            await hold.prolong()
        del hold
