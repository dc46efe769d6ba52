"""The order in which the batches of one connection came."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Turns:
    """The partitions of one connection. Each one's lock is held from the arrival of a batch until its publish has
    begun, or it is judged; it is fair, so that happens in the order in which the requests came."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()
        self.is_over = False
        """Whether the connection is closed, so that nothing comes on it any more."""

    def of(self, topic: str, partition: int) -> asyncio.Lock:
        return self._locks.get((topic, partition)) or self._locks.setdefault((topic, partition), asyncio.Lock())

    def end(self) -> None:
        self.is_over = True
