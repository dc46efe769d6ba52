"""Where the next transactions of a program will write, as far as the last ones tell.

A program that does the same work in each transaction writes to the same segments each time. When its next transactions
are begun ahead (`metatxn.ahead`), the brokers of these segments are told, so that they store the intents of many
transactions at once, and before anybody waits for them (DESIGN §5.1). It is only an expectation: nothing depends on
whether it comes true, or whether a broker hears of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus

from metatxn.http import Call, FixedEndpoint, Http, json_body, path_of
from metatxn.topics import LayoutCache
from metatxn.wire.broker import MAX_ANNOUNCED_SEGMENTS
from metatxn.wire.errors import MetatxnError, TransactionNotFound

ALIKE = 8
"""Only what each of this many transactions has written to is expected of the next ones."""
MOST_WRITING = 1_000
"""The most transactions of which it is remembered where they write, until they end."""
ASK_AGAIN_S = 60.0
"""A broker of an earlier release, which knows no announcements, is asked again after this time."""


class ExpectedWrites:
    """See the module docstring. For one client and one event loop."""

    def __init__(self, http: Http, topics: LayoutCache) -> None:
        self._http = http
        self._topics = topics
        self._writing: dict[str, frozenset[str]] = {}
        self._written: deque[frozenset[str]] = deque(maxlen=ALIKE)
        self._without_announcements: dict[str, float] = {}

    def writes(self, txn_id: str, segment: str) -> None:
        """An entry of the transaction, which names no writer, is about to be sent."""
        known = self._writing.get(txn_id)
        if known is None:
            if len(self._writing) >= MOST_WRITING:
                del self._writing[next(iter(self._writing))]
            self._writing[txn_id] = frozenset((segment,))
        elif segment not in known and len(known) <= MAX_ANNOUNCED_SEGMENTS:
            self._writing[txn_id] = known | {segment}

    def ended(self, txn_id: str) -> None:
        if (written := self._writing.pop(txn_id, None)) is not None:
            self._written.append(written)

    def expected(self) -> frozenset[str]:
        """What each of the last transactions has written to; nothing if that is too much to announce."""
        if len(self._written) < ALIKE:
            return frozenset()
        alike = frozenset.intersection(*self._written)
        return alike if len(alike) <= MAX_ANNOUNCED_SEGMENTS else frozenset()

    async def announce(self, txn_ids: Sequence[str]) -> None:
        """Tell the brokers where these transactions are expected to write."""
        by_broker: dict[str, list[str]] = {}
        for segment in sorted(self.expected()):
            if (url := self._topics.owner(segment)) is not None and self._knows_announcements(url):
                by_broker.setdefault(url, []).append(segment)
        await asyncio.gather(*(self._announce_to(url, txn_ids, segments) for url, segments in by_broker.items()))

    async def _announce_to(self, url: str, txn_ids: Sequence[str], segments: Sequence[str]) -> None:
        call = Call("POST", path_of("intents"), content=json_body({"txn_ids": txn_ids, "segments": segments}))
        try:
            await self._http.request(FixedEndpoint(url), call, patient=False)
        except MetatxnError as error:  # then the first entries store their intents
            if error.members.get("status") == HTTPStatus.NOT_FOUND and not isinstance(error, TransactionNotFound):
                self._without_announcements[url] = asyncio.get_running_loop().time() + ASK_AGAIN_S

    def _knows_announcements(self, url: str) -> bool:
        upgraded_s = self._without_announcements.get(url)
        return upgraded_s is None or asyncio.get_running_loop().time() >= upgraded_s
