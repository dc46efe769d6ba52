"""An object store with faults, around a real one.

On: a put that is held before its effect, lost on its way, or done without an answer; a put that the library repeats by
itself; a store that ignores the condition of a put. Off: objects seen in part, listings that miss an answered put: the
stores named in `participants.ledger.bucket` promise not to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import obstore
from obstore.store import ObjectStore

from participants.ledger.bucket import Bucket
from participants.ledger.storage import StorageFailed


@dataclass(eq=False)
class PutFault:
    """What happens to the next put of frames or of a fence. `reached` is set once it is held, `go` lets it go on."""

    hold: bool = False
    lost_request: bool = False
    lost_reply: bool = False
    repeated: bool = False
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


class FaultyBucket(Bucket):
    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.store = store
        self.faults: deque[PutFault] = deque()
        self.holding: PutFault | None = None
        """What happens to every put that has no fault of its own."""
        self.losing_replies = False
        self.conditional = True
        self.puts: list[str] = []

    def fault(self, fault: PutFault) -> PutFault:
        self.faults.append(fault)
        return fault

    async def create(self, name: str, content: bytes) -> None:
        self.puts.append(name.rpartition("/")[2].lstrip("0") or "0")
        fault = PutFault()
        if name.startswith("ledgers/"):
            fault = self.faults.popleft() if self.faults else self.holding or fault
        if fault.hold:
            fault.reached.set()
            await fault.go.wait()
        if fault.lost_request:
            raise StorageFailed("the connection was refused")
        if self.losing_replies:
            with suppress(FileExistsError):
                await super().create(name, content)
            raise StorageFailed("the connection was lost")
        if not self.conditional:
            await obstore.put_async(self.store, name, content, mode="overwrite")
            return
        await super().create(name, content)
        if fault.repeated:
            await super().create(name, content)
        if fault.lost_reply:
            raise StorageFailed("the connection was lost")
