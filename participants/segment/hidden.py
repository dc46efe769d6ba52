"""What the indexes of a segment's ledgers hide (DESIGN §5.6).

The record of the segment says which index of a ledger counts. An index never changes, so the ones that were used last
are kept in memory, and any other is read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from metastore.txn.records.segments import SegmentRecord
from participants.ledger.hidden_index import HiddenRanges
from participants.ledger.storage import LedgerStorage

KEPT_INDEX_BYTES = 16 << 20
_Key = tuple[str, int, int]
"""A segment, a ledger and a generation."""
_NOTHING = HiddenRanges()


class HiddenCache:
    """The most recently used indexes of all segments of a broker. They are kept only for speed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, HiddenRanges] = OrderedDict()
        self._bytes = 0

    def get(self, key: _Key) -> HiddenRanges | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: _Key, index: HiddenRanges) -> None:
        self.forget(key)
        self._kept[key] = index
        self._bytes += index.size_bytes
        while self._bytes > KEPT_INDEX_BYTES:
            self._bytes -= self._kept.popitem(last=False)[1].size_bytes

    def forget(self, key: _Key) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._bytes -= found.size_bytes


class HiddenEntries:
    """The indexes of one segment. Used only from the event loop of its process."""

    def __init__(self, segment: str, storage: LedgerStorage, cache: HiddenCache) -> None:
        self._segment = segment
        self._storage = storage
        self._cache = cache
        self._ledgers: dict[int, tuple[int, int]] = {}
        """The generation of the index of each indexed ledger, and the number of entries of the ledger."""

    def learn(self, record: SegmentRecord) -> None:
        """The store has had this record. A later record may be known already, so nothing is unlearned: once an index
        counts, it counts for as long as the ledger is read."""
        for ledger in record.ledgers:
            if ledger.hidden is not None and ledger.entries is not None:
                self._ledgers[ledger.id] = (ledger.hidden, ledger.entries)

    def keep_only(self, ledgers: Collection[int]) -> None:
        """Other ledgers than these are no longer read."""
        for number in [number for number in self._ledgers if number not in ledgers]:
            generation, _ = self._ledgers.pop(number)
            self._cache.forget((self._segment, number, generation))

    def is_indexed(self, ledger: int) -> bool:
        return ledger in self._ledgers

    def within(self, ledger: int) -> HiddenRanges | None:
        """What is hidden in the ledger by its index, nothing if it is not indexed, or None if the index must be loaded
        first."""
        generation, _ = self._ledgers.get(ledger, (0, 0))
        return _NOTHING if generation == 0 else self._cache.get((self._segment, ledger, generation))

    async def load(self, ledger: int) -> HiddenRanges:
        """The index of a ledger that has one. Raises `LedgerMissing`, `LedgerCorrupt`, `StorageFailed`."""
        generation, entries = self._ledgers[ledger]
        index = await self._storage.read_hidden(self._segment, ledger, generation, entries)
        self._cache.put((self._segment, ledger, generation), index)
        return index
