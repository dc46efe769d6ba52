"""Waits for news for an idle query: Spark asks every 10 ms, but the brokers are asked only once in half a minute.

There is one long poll for each broker, in a thread of its own. The answer of a poll only means "there may be news": the
query then looks itself, in its own thread, where errors are reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import metatxn
from metatxn.horizons import HorizonPlace
from spark_connector.horizons import HorizonPlaces, Looked

WAIT_MS = 30_000

_Key = frozenset[tuple[str, str | None, str | None]]


class NewsWatch:
    def __init__(self, ask: Callable[[HorizonPlaces, int], Looked]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._armed: set[_Key] = set()
        self._pending: set[_Key] = set()
        self.news = True

    def arm(self, groups: Iterable[dict[str, HorizonPlace]]) -> None:
        """Wait for news after these places from now on; polls for the same places continue."""
        wanted = {_key(group): group for group in groups}
        with self._lock:
            self.news = False
            self._armed = set(wanted)
            missing = self._armed - self._pending
            self._pending |= missing
        for key in missing:
            threading.Thread(target=self._poll, args=(key, wanted[key]), name="metatxn watch", daemon=True).start()

    def stop(self) -> None:
        """Stop. Polls in progress end by themselves."""
        with self._lock:
            self._armed = set()

    def _poll(self, key: _Key, group: dict[str, HorizonPlace]) -> None:
        news = False
        while not news and self._wanted(key):
            try:
                news = _says_more(self._ask(group, WAIT_MS), group)
            except metatxn.MetatxnError:
                news = True  # the next look sees it
        with self._lock:
            self._pending.discard(key)
            self.news = self.news or key in self._armed

    def _wanted(self, key: _Key) -> bool:
        with self._lock:
            return key in self._armed


def _says_more(looked: Looked, group: dict[str, HorizonPlace]) -> bool:
    if looked.segments.keys() != group.keys():
        return True
    return any(horizon.ended or horizon.end != group[each].after for each, horizon in looked.segments.items())


def _key(group: dict[str, HorizonPlace]) -> _Key:
    return frozenset((segment, place.after, place.up_to) for segment, place in group.items())
