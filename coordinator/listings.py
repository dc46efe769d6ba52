"""Pages of transactions, of their operations and of transaction keys, read in slices and never loaded whole.

    filter       the range that is read                         order
    segment      write operations of the segment, by index      transaction id
    state=OPEN   the deadline index                             deadline
    oldest       the last look at all open ones (`ages`)        begin
    other state  the final-state index                          time of the decision
    none         all headers                                    transaction id
    newest       all headers (`newest`)                         begin, descending
      of a state the index of the state                         deadline if open, else time of the decision, descending

The other filters are applied row by row, so one page examines a bounded number of rows and bytes (one transaction may
be as large as a thousand others). It may hold fewer items than requested, even none, and still have a next page.
Transactions that change while the pages are read may be missed or listed twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from typing import TypeVar

from coordinator import answers, paging
from coordinator.ages import OpenAges
from coordinator.metrics import CoordinatorMetrics
from coordinator.newest import PORTIONS, SEARCHED_PORTIONS, NewestFirst, TransactionReading
from coordinator.transaction_keys import describe_key
from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.keys import prefix_end
from metastore.txn import key_records, listing, paths
from metastore.txn.id_blocks import BLOCK_SECONDS
from metastore.txn.listing import Row
from metastore.txn.records.operations import decode_op
from metastore.txn.states import TxnState
from metastore.txn.store import TransactionRecords, read_plain, read_transaction, read_transactions
from metatxn.wire.coordinator import (
    Operation,
    OperationPage,
    State,
    TransactionHeader,
    TransactionKeyPage,
    TransactionPage,
)
from metatxn.wire.errors import invalid_field
from metatxn.wire.ids import TxnId

ROWS_PER_PAGE = 300
"""The number of rows after which a page ends, however few of them it shows: what a reader waits for."""
PAGE_BYTES = 1 << 20
"""A page ends with the transaction whose records exceed this size, whether it is shown or not."""
_SMALLEST_SLICE = 50
_SKEW_MS = 60_000 + BLOCK_SECONDS * 1_000
"""More than the clocks of two coordinators ever differ, and the time for which a block of ids is used."""
T = TypeVar("T")
_ReadSlice = Callable[[str, int], Awaitable[list[Row]]]
_Rows = AsyncGenerator[tuple[str, TransactionRecords | None]]
"""The position after each row, and its records, unless they were removed meanwhile."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The transactions that a list shows; `older_than_ms` and `younger_than_ms` are ages. `newest` is an order, and
    excludes `segment`; `oldest` is an order of open ones."""

    state: State | None = None
    older_than_ms: int | None = None
    segment: str | None = None
    transaction_key: str | None = None
    owner: str | None = None
    younger_than_ms: int | None = None
    newest: bool = False
    oldest: bool = False
    text: str | None = None

    @property
    def leaves_out(self) -> bool:
        """Whether more than the range decides which transactions are shown."""
        others = (self.older_than_ms, self.younger_than_ms, self.transaction_key, self.owner, self.text)
        return any(each is not None for each in others)

    def admits(self, found: TransactionHeader, now_ms: int) -> bool:
        assert found.created_ms is not None
        return (
            (self.state is None or found.state == self.state)
            and (self.older_than_ms is None or found.created_ms <= now_ms - self.older_than_ms)
            and (self.younger_than_ms is None or found.created_ms >= now_ms - self.younger_than_ms)
            and (self.transaction_key is None or found.transaction_key == self.transaction_key)
            and (self.owner is None or found.owner == self.owner)
            and (self.text is None or _contains(found, self.text.casefold()))
        )

    def ends_at(self, at_ms: int, now_ms: int) -> bool:
        """Whether nothing from the row of this time on is wanted, in a list with the latest first. Neither a deadline
        nor a decision is before the begin, except by the difference of two clocks; so what follows a row of that time
        began even earlier, or has an id of a block that was in use then."""
        return self.younger_than_ms is not None and at_ms < now_ms - self.younger_than_ms - _SKEW_MS


class Listings:
    """The methods of this class only read."""

    def __init__(self, store: MetadataStore, clock: Clock, metrics: CoordinatorMetrics | None = None) -> None:
        self.store = store
        self.clock = clock
        self.ages = OpenAges(store, clock)
        self._metrics = metrics or CoordinatorMetrics()
        self._latest_open_ms: dict[int, int] = {}
        """The earliest deadline of the latest open ones when they were last read, by the size of a slice: pages that
        follow the list read it again and again. It only saves work, and is forgotten when they were all there are."""

    async def transactions(
        self, wanted: Filter, limit: int = paging.DEFAULT_LIMIT, page_token: str | None = None
    ) -> TransactionPage:
        """A page of transactions. Raises INVALID_ARGUMENT for a page token of another list, or an order that it cannot
        have."""
        name, read_slice = self._range_of(wanted)
        after = paging.position_of(name, page_token)
        now_ms = self.clock()
        if wanted.leaves_out:
            reading = TransactionReading(partial(self._read_shown, wanted, now_ms), SEARCHED_PORTIONS)
        else:
            reading = TransactionReading(partial(read_transactions, self.store), PORTIONS)
        if read_slice is not None:
            rows = self._by_index(wanted, read_slice, after, limit, reading)
        else:
            rows = self._by_begin(wanted, after, reading)
        items: list[TransactionHeader] = []
        examined = size = 0
        async with aclosing(rows):
            async for position, records in rows:
                if records:
                    found = answers.as_model(records)
                    admitted = wanted.admits(found, now_ms)
                    if (admitted and len(items) == limit) or size > PAGE_BYTES:
                        return TransactionPage(items=items, next_page_token=paging.make_token(name, after))
                    if admitted:
                        items.append(found)
                    size += records.size_bytes
                after = position
                examined += 1
                if examined == ROWS_PER_PAGE:
                    return TransactionPage(items=items, next_page_token=paging.make_token(name, after))
        return TransactionPage(items=items)

    async def _read_shown(
        self, wanted: Filter, now_ms: int, txn_ids: Sequence[TxnId]
    ) -> list[TransactionRecords | None]:
        """What is left out is known by its header: of the four records of a transaction the others are only read of
        what is shown."""
        found: dict[TxnId, TransactionRecords | None] = {**await read_plain(self.store, txn_ids)}
        shown = [
            txn_id for txn_id, records in found.items() if records and wanted.admits(answers.as_model(records), now_ms)
        ]
        for portion in _portions(shown, repeat(PORTIONS[-1])):
            found |= zip(portion, await read_transactions(self.store, portion), strict=True)
        return [found.get(txn_id) for txn_id in txn_ids]

    async def _by_index(
        self, wanted: Filter, read_slice: _ReadSlice, after: str, limit: int, reading: TransactionReading
    ) -> _Rows:
        examined, now_ms = 0, self.clock()
        while True:
            # The first slice is enough unless most of it is left out. For each that is read backwards etcd sorts the
            # whole range, so where rows are left out the first one has all of a page.
            few = not examined and not (wanted.newest and wanted.leaves_out)
            slice_size = max(_SMALLEST_SLICE, limit + 1 if few else ROWS_PER_PAGE - examined)
            with self._metrics.index_query.time():
                rows = await read_slice(after, slice_size)
            for portion in _portions(rows, reading.sizes()):
                if wanted.newest and wanted.ends_at(portion[0].at_ms, now_ms):
                    return
                found = await reading.read([row.txn_id for row in portion])
                for row, records in zip(portion, found, strict=True):
                    yield row.position, records
            if len(rows) < slice_size:
                return
            examined += len(rows)
            after = rows[-1].position

    async def _by_begin(self, wanted: Filter, after: str, reading: TransactionReading) -> _Rows:
        newest, now_ms = NewestFirst(self.store, after, reading), self.clock()
        while (taken := await newest.take()) and not wanted.ends_at(taken.header.created_ms, now_ms):
            yield newest.position, taken

    def _range_of(self, wanted: Filter) -> tuple[str, _ReadSlice | None]:
        """The narrowest range that contains everything wanted: its name in page tokens, and how to read a slice of it,
        unless it is that of `NewestFirst`."""
        store = self.store
        if wanted.newest:
            if wanted.segment is not None:
                raise invalid_field("order", "does not apply to the transactions that write to a segment")
            if wanted.state is None:
                return "newest", None
            state = TxnState(wanted.state)
            return f"latest {state}", partial(self._latest_first, state)
        if wanted.oldest:
            until_ms = self.clock() - (wanted.older_than_ms or 0)
            return "oldest", partial(self.ages.oldest_first, until_ms)
        if wanted.segment is not None:
            segment = wanted.segment
            name = f"segment {segment}"
            return name, lambda after, limit: listing.writing_to_segment(store, segment, after=after, limit=limit)
        if wanted.state is None:
            return "all", lambda after, limit: listing.by_id(store, after=after, limit=limit)
        if wanted.state == "OPEN":
            return "open", lambda after, limit: listing.open_by_deadline(store, after=after, limit=limit)
        state = TxnState(wanted.state)
        name = f"decided {state}"
        return name, lambda after, limit: listing.decided_by_time(store, state, after=after, limit=limit)

    async def _latest_first(self, state: TxnState, after: str, limit: int) -> list[Row]:
        now_ms, begins = self.clock(), not after and state is TxnState.OPEN
        hint = self._latest_open_ms.get(limit) if begins else None
        rows = await listing.latest_first(
            self.store, state, now_ms=now_ms, latest_open_ms=hint, after=after, limit=limit
        )
        if begins and len(rows) == limit and rows[-1].at_ms > now_ms:
            self._latest_open_ms[limit] = rows[-1].at_ms
        elif begins:
            self._latest_open_ms.pop(limit, None)
        return rows

    async def operations(
        self, txn_id: TxnId, limit: int = paging.DEFAULT_LIMIT, page_token: str | None = None
    ) -> OperationPage:
        """Operation records that no broker has cleaned up yet. Raises TXN_NOT_FOUND, INVALID_ARGUMENT."""
        name = f"ops {txn_id}"
        after = paging.position_of(name, page_token)
        if await read_transaction(self.store, txn_id) is None:
            raise answers.unknown_transaction(txn_id)
        root = paths.ops_of_transaction(txn_id)
        found = await self.store.range(f"{root}{after}\0" if after else root, prefix_end(root), limit=limit)
        items = [_operation(record.key, record.value) for record in found.records]
        last = items[-1].key.removeprefix(root) if items else after
        return OperationPage(items=items, next_page_token=paging.make_token(name, last) if found.more else None)

    async def transaction_keys(
        self, owner: str | None = None, limit: int = paging.DEFAULT_LIMIT, page_token: str | None = None
    ) -> TransactionKeyPage:
        """Keys in use, of one `owner` or of all. Deleted keys are left out."""
        after = paging.position_of("keys", page_token)
        found, more = await key_records.list_keys(self.store, owner, after=after, limit=limit)
        return TransactionKeyPage(
            items=[describe_key(key, key.live) for key in found if key.live],
            next_page_token=paging.make_token("keys", key_records.position(found[-1])) if more else None,
        )


def _contains(found: TransactionHeader, text: str) -> bool:
    properties = (found.properties or {}).items()
    texts = (found.txn_id, found.transaction_key, found.owner, found.reason, *chain.from_iterable(properties))
    return any(text in each.casefold() for each in texts if each is not None)


def _portions(rows: Iterable[T], sizes: Iterator[int]) -> Iterator[list[T]]:
    rest = iter(rows)
    while portion := list(islice(rest, next(sizes))):
        yield portion


def _operation(key: str, value: bytes) -> Operation:
    fields = decode_op(value).model_dump(include=set(Operation.model_fields))
    return Operation.model_validate({**fields, "key": key})
