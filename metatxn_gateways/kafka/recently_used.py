"""What was used last, and whatever is in use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """The `most` values that were used last. One that is dropped while it is still held is found for that long, so
    there are never two of one key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: OrderedDict[K, V] = OrderedDict()
        self._held: WeakValueDictionary[K, V] = WeakValueDictionary()

    def get(self, key: K) -> V | None:
        found = self._held.get(key)
        return None if found is None else self._used(key, found)

    def setdefault(self, key: K, value: V) -> V:
        """The value that is there, which is this one if there was none."""
        return self._used(key, self._held.setdefault(key, value))

    def _used(self, key: K, value: V) -> V:
        self._last[key] = value
        self._last.move_to_end(key)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        return value
