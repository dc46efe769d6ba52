"""Having a topic to oneself (DESIGN §5.23): claim it, keep it while the program lives, and give it back.

A session is used for one claim. So a program that has lost the topic never gets it back by a request that arrives late,
and what it sends later is refused by its epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Any

from metatxn.answers import parsed
from metatxn.connection import Connection, post
from metatxn.http import Call, path_of
from metatxn.wire.broker import MAX_SESSION_TIMEOUT_MS, ExclusiveProducerInfo
from metatxn.wire.errors import InvalidArgument, MetatxnError, NotAllowed

SESSION_TIMEOUT_S = 30.0
SIGNS_OF_LIFE = 3
"""The number of keep-alives in the time after which a hold is over."""
LOOK_AGAIN_S = 1.0
"""The time between two claims of a program that waits for the topic."""


class HeldTopic:
    """The hold that a producer has on its topic. `lost` is why it lost the topic, as soon as that is known."""

    def __init__(self, connection: Connection, topic: str, ttl_ms: int, info: ExclusiveProducerInfo) -> None:
        self.epoch = info.epoch
        self.lost: MetatxnError | None = None
        self._connection = connection
        self._path = path_of("topics", topic, "exclusive-producer")
        self._ttl_ms = ttl_ms
        connection.spawn(_keep(weakref.ref(self), ttl_ms / 1000 / SIGNS_OF_LIFE))

    @classmethod
    async def claim(
        cls, connection: Connection, topic: str, name: str | None, timeout_s: float, *, fence: bool, wait: bool
    ) -> HeldTopic:
        """Claim the topic. Raises `NotAllowed` if another program has it, `NotFound`, and `InvalidArgument`."""
        if not 1 <= timeout_s <= MAX_SESSION_TIMEOUT_MS / 1000:
            raise InvalidArgument(
                f"session_timeout_s: {timeout_s} is not between 1 and {MAX_SESSION_TIMEOUT_MS // 1000}",
                field="session_timeout_s",
            )
        body: dict[str, Any] = {"session": connection.new_name(), "fence": fence, "ttl_ms": int(timeout_s * 1000)}
        if name is not None:
            body["producer"] = name
        call = post(path_of("topics", topic, "exclusive-producer"), body, settled_by=(NotAllowed,))
        while True:
            try:
                info = parsed(ExclusiveProducerInfo, await connection.broker(call))
            except NotAllowed as refused:
                if not wait or "until_ms" not in refused.members:  # a right is missing
                    raise
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            return cls(connection, topic, body["ttl_ms"], info)

    async def prolong(self) -> None:
        """Prolong the hold. Raises `MetatxnError` if neither that nor the end of the hold is certain."""
        body = {"epoch": self.epoch, "ttl_ms": self._ttl_ms}
        try:
            await self._connection.broker(post(f"{self._path}/keep-alive", body, settled_by=(NotAllowed,)))
        except NotAllowed as ended:
            self.lost = self.lost or ended

    async def release(self) -> None:
        """Give the topic back, after the last send. If this does not reach a broker, the hold expires."""
        if self.lost is None:
            self.lost = InvalidArgument("the producer or table writer is closed", action="Open another one.")
            with contextlib.suppress(MetatxnError):
                await self._connection.broker(Call("DELETE", self._path, {"epoch": self.epoch}))


async def _keep(reference: weakref.ref[HeldTopic], pause_s: float) -> None:
    """Prolong the hold until it is released or lost, or its producer is no longer referenced."""
    while True:
        await asyncio.sleep(pause_s)
        hold = reference()
        if hold is None or hold.lost is not None:
            return
        with contextlib.suppress(MetatxnError):
            await hold.prolong()
        del hold
