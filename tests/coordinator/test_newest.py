"""The list of transactions, the latest begin first (`coordinator.newest`): of several coordinator ids, with gaps
between the ids, read in pages while others begin and are removed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from coordinator import newest as module
from coordinator.listings import Filter, Listings
from metastore.backends.memory import MemoryStore
from metastore.txn import listing, paths
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, begin
from metastore.types import RangeResult
from metatxn.wire.coordinator import TransactionPage
from metatxn.wire.ids import TxnId

BEGAN_MS = 1_767_225_600_000


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(INDEXES)


@pytest.fixture
def listings(store: MemoryStore) -> Listings:
    return Listings(store, lambda: BEGAN_MS + 3_600_000)


async def put(store: MemoryStore, txn_id: TxnId, at_ms: int) -> TxnId:
    header = Header(state=TxnState.OPEN, timeout_ms=BEGAN_MS + at_ms + 60_000, created_ms=BEGAN_MS + at_ms)
    await store.apply(begin(store.batch(), txn_id, header))
    return txn_id


async def remove(store: MemoryStore, *removed: TxnId) -> None:
    for txn_id in removed:
        record = await store.get(paths.header(txn_id))
        assert record
        await store.apply(store.batch().remove(record))


async def leased(store: MemoryStore, highest: Iterable[TxnId]) -> None:
    """As if blocks up to these ids had been leased."""
    for txn_id in highest:
        counter = str(txn_id.sequence + 1).encode()
        await store.apply(store.batch().put(paths.id_sequence(txn_id.coordinator), counter))


async def everything(listings: Listings, limit: int, **wanted: Any) -> list[str]:
    found, token = [], None
    while True:
        page = await listings.transactions(Filter(newest=True, **wanted), limit, token)
        found += [str(header.txn_id) for header in page.items]
        token = page.next_page_token
        if token is None:
            return found


@pytest.mark.parametrize("seed", range(20))
async def test_every_transaction_is_there_once_in_the_order_of_the_begins(
    store: MemoryStore, listings: Listings, seed: int
) -> None:
    """Of up to five coordinator ids, some of which have nothing; between the ids of one are gaps of up to a thousand
    blocks, and many begin in the same millisecond."""
    chance = random.Random(seed)
    coordinators = chance.sample(range(1 << 16), chance.randint(1, 5))
    last = {coordinator: chance.choice((0, 1 << 60)) for coordinator in coordinators}
    begun: list[tuple[int, TxnId]] = []
    at_ms = 0
    for _ in range(chance.choice((0, 1, 30, 400))):
        coordinator = chance.choice(coordinators)
        last[coordinator] += 1 if chance.random() < 0.9 else chance.choice((100, 10_000, 10_000_000))
        at_ms += chance.choice((0, 0, 1, 1_000))
        begun.append((at_ms, await put(store, TxnId(coordinator, last[coordinator]), at_ms)))
    await leased(store, (TxnId(coordinator, number + 9_999) for coordinator, number in last.items()))
    expected = [str(txn_id) for _, txn_id in sorted(begun, reverse=True)]
    assert await everything(listings, chance.choice((1, 3, 50, 1_000))) == expected


async def test_pages_go_on_behind_what_was_shown(store: MemoryStore, listings: Listings) -> None:
    """Whatever begins, also under a new coordinator id, or is removed between two pages."""
    begun = [await put(store, TxnId(number % 2, number), number) for number in range(20)]
    await leased(store, begun[-2:])
    first = await listings.transactions(Filter(newest=True), 5)
    assert [header.txn_id for header in first.items] == begun[:-6:-1]
    await put(store, TxnId(0, 100), 100)
    await put(store, TxnId(1, 101), 101)
    await leased(store, (TxnId(0, 100), TxnId(1, 101)))
    await remove(store, begun[14], begun[3])
    second = await listings.transactions(Filter(newest=True), 12, first.next_page_token)
    third = await listings.transactions(Filter(newest=True), 12, second.next_page_token)
    left = [each for number, each in enumerate(begun[:15]) if number not in (3, 14)]
    assert [header.txn_id for header in second.items + third.items] == left[::-1]
    assert third.next_page_token is None


async def test_one_that_is_removed_while_a_page_is_read_is_left_out(
    store: MemoryStore, listings: Listings, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = [await put(store, TxnId(0, number), number) for number in range(1, 121)]
    await leased(store, begun[-1:])
    of_listing = listing.before_id

    async def then_removed(*arguments: Any, **options: Any) -> list[TxnId]:
        found = await of_listing(*arguments, **options)
        await remove(store, *found[:4])
        return found

    monkeypatch.setattr(listing, "before_id", then_removed)
    assert await everything(listings, 1_000) == [*begun[-5:19:-1], *begun[15::-1]]


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_of_many_coordinator_ids_a_bounded_number_is_merged(
    store: MemoryStore, listings: Listings, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The others follow; so a token is short, and nothing is missing."""
    monkeypatch.setattr(module, "MERGED", 3)
    begun = [await put(store, TxnId(number % 7, number + 1), number) for number in range(21)]
    await leased(store, begun[-7:])
    groups = [[each for each in begun if each.coordinator // 3 == group][::-1] for group in range(3)]
    assert await everything(listings, limit) == list(itertools.chain(*groups))
    tokens: list[str | None] = [None]
    while len(tokens) == 1 or tokens[-1]:
        page: TransactionPage = await listings.transactions(Filter(newest=True), limit, tokens[-1])
        tokens.append(page.next_page_token)
    assert max(len(token) for token in tokens if token) < 150


async def test_the_young_ones_end_the_list(store: MemoryStore, listings: Listings) -> None:
    """Also when another process, with a block that it had leased before, has begun one since."""
    old = [await put(store, TxnId(0, number), number) for number in range(1, 1_001)]
    early = await put(store, TxnId(0, 1_001), 3_590_000)
    late = await put(store, TxnId(0, 20_000), 3_540_000)
    await leased(store, [late])
    assert await everything(listings, 10, younger_than_ms=60_000) == [late, early]
    page = await listings.transactions(Filter(newest=True, younger_than_ms=60_000))
    assert [header.txn_id for header in page.items] == [late, early] and page.next_page_token is None, "one page"
    assert len(await everything(listings, 1_000, younger_than_ms=3_600_000)) == len(old) + 2


def rows_read(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each read from now on covers, or, if it is not backwards, asks for."""
    rows: list[int] = []
    of_store = store.range

    async def counted(start: str, end: str, **options: Any) -> RangeResult:
        rows.append(len((await of_store(start, end)).records) if options.get("reverse") else options["limit"])
        return await of_store(start, end, **options)

    monkeypatch.setattr(store, "range", counted)
    return rows


@pytest.mark.parametrize(("gap", "read"), [(1, 1_000), (3, 333), (100, 110), (10_000, 150)])
async def test_few_rows_are_read_for_a_slice(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, gap: int, read: int
) -> None:
    """etcd sorts all that is read backwards, however few are asked for."""
    begun = [await put(store, TxnId(0, gap * number), number) for number in range(1, 5_001)]
    rows = rows_read(store, monkeypatch)
    assert await listing.before_id(store, TxnId(0, gap * 5_001), limit=100) == begun[:-101:-1]
    assert max(rows) <= max(read, 400) and len(rows) <= 16
    rows.clear()
    assert await listing.before_id(store, TxnId(0, gap * 31), limit=100) == begun[29::-1]
    assert len(rows) <= 12, "a few are read at once, wherever they are"


@pytest.mark.parametrize("gap", [1_500, 3_999, 30_000, 1_000_000])
async def test_few_rows_are_read_behind_ids_that_are_not_in_use(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, gap: int
) -> None:
    """As at the end of the block that a coordinator has in use: where it ends says little of how many are in it."""
    begun = [await put(store, TxnId(0, number), number) for number in range(1, 10_001)]
    rows = rows_read(store, monkeypatch)
    assert await listing.before_id(store, TxnId(0, 10_001 + gap), limit=100) == begun[:-101:-1]
    assert max(rows) <= 4_000 and len(rows) <= 22
