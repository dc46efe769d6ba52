"""One mirror of the transaction headers per process (DESIGN §5.8). It carries every decision to those that wait for it.

The mirror is fast, but not authoritative. If a header is final in it, then it is final. If it is open or absent in it,
that says nothing: use `read`, which is linearizable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

from metastore.api import MetadataStore
from metastore.txn import paths
from metastore.txn.records.transactions import Header
from metastore.types import Event, Record, Revision
from metastore.watches import Mirror
from metatxn.wire.ids import TxnId
from participants.txn.shared_reads import SharedReads, Standing

Listener = Callable[[TxnId, Header], None]
KEPT_DECISIONS = 10_000
"""The number of final headers that are remembered, the latest ones. All headers that wait for garbage collection would
be an hour's worth."""
LISTENERS_AT_ONCE = 16
"""The number of listeners that one turn of the event loop tells about a decision. If there are more, the first of them
wait for the next turn: the answer to the commit of a large transaction may be ready, and should wait for none."""


class HeaderMirror:
    """The mirror. Each listener is called once for each final header that it follows, on the event loop and in the
    order of the store, some listeners in each turn of the loop."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._mirror = Mirror(store, paths.HEADERS, self._on_change)
        self._shared_reads = SharedReads(store)
        self._listeners: dict[str, dict[Listener, None]] = {}
        """Keyed by the key of the header, so that foreign keys below the prefix need not be parsed."""
        self._decided: deque[str] = deque()
        self._untold: deque[_Decided | asyncio.Future[None]] = deque()
        """The decisions of which listeners are still to be told, and futures that complete once all before them are."""
        self._telling: asyncio.Handle | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._mirror.running():
            try:
                yield
            finally:
                self._stop_telling()
                await self._shared_reads.close()

    @property
    def revision(self) -> Revision:
        """The store is at least at this revision."""
        return self._mirror.revision

    @property
    def resyncs(self) -> int:
        return self._mirror.resyncs

    def follow(self, txn_id: TxnId, listener: Listener) -> None:
        """Call `listener` when the header of `txn_id` becomes final. Follow a transaction *before* anything is stored
        for it."""
        self._listeners.setdefault(paths.header(txn_id), {})[listener] = None

    def unfollow(self, txn_id: TxnId, listener: Listener) -> None:
        listeners = self._listeners.get(paths.header(txn_id), {})
        listeners.pop(listener, None)
        if not listeners:
            self._listeners.pop(paths.header(txn_id), None)

    def final(self, txn_id: TxnId) -> tuple[Header, Revision] | None:
        """The final header and the revision of its decision, if the mirror knows them."""
        record = self.seen(txn_id)
        if record is None or record.first:
            return None
        return Header.decode(record.value), record.version

    def seen(self, txn_id: TxnId) -> Record | None:
        """The header as the mirror last saw it. It may have been decided or deleted since."""
        return self._mirror.records.get(paths.header(txn_id))

    async def read(self, txn_ids: Iterable[TxnId]) -> dict[TxnId, Record | None]:
        """The current headers, by linearizable reads."""
        keys = {txn_id: paths.header(txn_id) for txn_id in txn_ids}
        found = await self._store.get_each(keys.values())
        return {txn_id: found[key] for txn_id, key in keys.items()}

    async def ask(self, txn_id: TxnId) -> Standing:
        """See `SharedReads.ask`."""
        return await self._shared_reads.ask(txn_id)

    async def told(self) -> None:
        """Wait until every listener knows the decisions that the mirror knows now. A reader of many segments that waits
        for this finds a transaction on all of them at once."""
        if self._untold:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._untold.append(told)
            await told

    def _on_change(self, event: Event) -> None:
        if event.record is None or event.record.first:
            return
        self._decided.append(event.key)
        if len(self._decided) > KEPT_DECISIONS:
            self._mirror.forget(self._decided.popleft())
        listeners = self._listeners.get(event.key)
        if listeners is None:
            return
        txn_id, header = paths.txn_id_of_header(event.key), Header.decode(event.record.value)
        self._untold.append(_Decided(event.key, txn_id, header, deque(listeners)))
        if self._telling is None:
            if len(listeners) <= LISTENERS_AT_ONCE:
                self._tell()
            else:
                self._telling = asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        """Tell some, in order, and let the event loop do other work before the next ones. Those who do not follow the
        header any more are passed over."""
        self._telling = None
        left = LISTENERS_AT_ONCE
        try:
            while self._untold and left:
                first = self._untold[0]
                if isinstance(first, asyncio.Future):
                    _complete(first)
                    self._untold.popleft()
                    continue
                listener = first.listeners.popleft()
                if not first.listeners:
                    self._untold.popleft()
                if listener in self._listeners.get(first.key, ()):
                    left -= 1
                    listener(first.txn_id, first.header)
        finally:
            if self._untold:
                self._telling = asyncio.get_running_loop().call_soon(self._tell)

    def _stop_telling(self) -> None:
        """There are no followers left, but some may still wait. A turn that is still to come finds nothing to tell."""
        while self._untold:
            untold = self._untold.popleft()
            if isinstance(untold, asyncio.Future):
                _complete(untold)


class _Decided(NamedTuple):
    key: str
    txn_id: TxnId
    header: Header
    listeners: deque[Listener]
    """Those that are still to be told; never none."""


def _complete(waited_for: asyncio.Future[None]) -> None:
    if not waited_for.done():
        waited_for.set_result(None)


class Follower:
    """The transactions that one listener follows. After `close` nothing is followed any more, not even by work that was
    waiting for the store meanwhile: the mirror outlives the segment, and would otherwise keep it in memory forever."""

    def __init__(self, mirror: HeaderMirror, listener: Listener) -> None:
        self._mirror = mirror
        self._listener = listener
        self._followed: set[TxnId] = set()
        self._closed = False

    def follow(self, txn_id: TxnId) -> None:
        """See `HeaderMirror.follow`."""
        if not self._closed:
            self._followed.add(txn_id)
            self._mirror.follow(txn_id, self._listener)

    def unfollow(self, txn_id: TxnId) -> None:
        self._followed.discard(txn_id)
        self._mirror.unfollow(txn_id, self._listener)

    def close(self) -> None:
        self._closed = True
        for txn_id in list(self._followed):
            self.unfollow(txn_id)
