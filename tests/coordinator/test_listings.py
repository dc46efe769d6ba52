"""Lists: filters, pages and tokens (CONTRACT, scenario X117). Method: small pages, put together again."""

from __future__ import annotations

import base64
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from coordinator import listings as module
from coordinator.listings import Filter, Listings
from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.txn import listing, paths
from metastore.txn.listing import Row
from metastore.txn.records.operations import WriteOp
from metastore.txn.states import TxnState
from metastore.txn.store import TransactionRecords, put_write_op, read_transactions
from metastore.types import RangeResult
from metatxn.wire.coordinator import BeginRequest, ConnectRequest, TransactionHeader
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.conftest import FakeClock, id_of, refusal, under_key
from tests.coordinator.stores import FaultyStore
from tests.coordinator.test_transactions import begin


@pytest.fixture
def listings(store: FaultyStore, clock: FakeClock) -> Listings:
    return Listings(store, clock)


async def pages(listings: Listings, wanted: Filter, limit: int) -> AsyncIterator[list[TransactionHeader]]:
    token = None
    while True:
        page = await listings.transactions(wanted, limit, token)
        assert len(page.items) <= limit
        yield page.items
        token = page.next_page_token
        if token is None:
            return


async def test_a_text_is_looked_for_wherever_people_put_names(transactions: Transactions, listings: Listings) -> None:
    """In any case, as a part; and what nothing contains is an empty page, not an error."""
    fields: list[dict[str, object]] = [
        {"owner": "Billing"},
        {"properties": {"job": "nightly-BILLING-run"}},
        {"properties": {"billing": "x"}},
        {"owner": "other"},
        {"owner": "other"},
    ]
    begun = [id_of((await transactions.begin(BeginRequest.model_validate(each))).txn) for each in fields]
    await transactions.abort(begun[4], "no billing today")
    assert await ids(listings, text="billing") == [str(begun[number]) for number in (0, 1, 2, 4)]
    assert await ids(listings, text=str(begun[3])[-6:]) == [str(begun[3])]
    assert await ids(listings, text="billing", owner="other") == [str(begun[4])]
    assert await ids(listings, text="shipping") == []


async def ids(listings: Listings, limit: int = 100, **wanted: object) -> list[str]:
    found = [header async for page in pages(listings, Filter(**wanted), limit) for header in page]  # type: ignore[arg-type]
    return [str(header.txn_id) for header in found]


@pytest.fixture
async def population(transactions: Transactions, clock: FakeClock) -> dict[str, list[str]]:
    """Twelve transactions, four in each state, 100 ms apart, of two owners; every third under a key."""
    states: dict[str, list[str]] = {"OPEN": [], "COMMITTED": [], "ABORTED": []}
    for number in range(12):
        key = f"k{number}" if number % 3 == 0 else None
        owner = "alice" if number % 2 else "bob"
        fields: dict[str, object] = {"owner": owner, "timeout_ms": 60_000 - number}
        begun = await (
            under_key(transactions, key, **fields) if key else transactions.begin(BeginRequest.model_validate(fields))
        )
        txn_id = id_of(begun.txn)
        state = ("OPEN", "COMMITTED", "ABORTED")[number % 3]
        if state != "OPEN":
            await (transactions.commit(txn_id) if state == "COMMITTED" else transactions.abort(txn_id))
        states[state].append(str(txn_id))
        clock.now_ms += 100
    return states


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 12, 100])
async def test_pages_put_together_are_everything_once(
    listings: Listings, population: dict[str, list[str]], limit: int
) -> None:
    """By every range that can be read, whatever the size of a page; and the last page has no token."""
    assert await ids(listings, limit) == sorted(itertools.chain(*population.values()))
    for state, expected in population.items():
        assert await ids(listings, limit, state=state) == sorted(expected)


async def test_a_full_last_page_says_that_it_is_the_last(listings: Listings, population: dict[str, list[str]]) -> None:
    assert [len(page) async for page in pages(listings, Filter(state="OPEN"), 2)] == [2, 2]


async def test_filters_are_joined_by_and(listings: Listings, population: dict[str, list[str]]) -> None:
    alice, bob = [await ids(listings, 1, owner=owner) for owner in ("alice", "bob")]
    assert len(alice) == len(bob) == 6 and not set(alice) & set(bob)
    assert await ids(listings, 1, owner="bob", state="OPEN") == sorted(set(bob) & set(population["OPEN"]))
    assert await ids(listings, transaction_key="k3") == [population["OPEN"][1]]
    assert await ids(listings, transaction_key="k3", owner="bob") == []


async def test_slow_transactions(listings: Listings, population: dict[str, list[str]]) -> None:
    """X117: begun at least so long ago. The last one began 100 ms ago, the first 1,200 ms."""
    assert await ids(listings, older_than_ms=1_200) == population["OPEN"][:1]
    assert await ids(listings, state="OPEN", older_than_ms=900) == population["OPEN"][:2]
    assert await ids(listings, older_than_ms=1_201) == []
    assert len(await ids(listings, older_than_ms=0)) == 12


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 12, 100])
async def test_the_newest_first(listings: Listings, population: dict[str, list[str]], limit: int) -> None:
    """By their begin, whatever the state; those of a state by their deadline, which here is that of their begin, or by
    their decision."""
    newest = [each for three in zip(*population.values(), strict=True) for each in three][::-1]
    assert await ids(listings, limit, newest=True) == newest
    for state in ("OPEN", "COMMITTED", "ABORTED"):
        assert await ids(listings, limit, newest=True, state=state) == population[state][::-1]
    assert await ids(listings, limit, newest=True, owner="bob") == [
        each for each in newest if each in await ids(listings, owner="bob")
    ]


async def test_the_latest_open_ones_are_read_by_themselves_once_it_is_known_where_they_are(
    listings: Listings, transactions: Transactions, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd sorts all that is read backwards. What has begun or ended since is not missed."""
    begun = []
    for _ in range(120):
        begun.append(str(id_of((await transactions.begin(BeginRequest(timeout_ms=600_000))).txn)))
        clock.now_ms += 1_000
    read: list[int] = []
    of_store = listings.store.range

    async def counted(start: str, end: str, **options: Any) -> RangeResult:
        if start.startswith(paths.DEADLINE_INDEX):
            read.append(len((await of_store(start, end)).records))
        return await of_store(start, end, **options)

    monkeypatch.setattr(listings.store, "range", counted)

    async def first_page() -> list[str]:
        read.clear()
        return [str(each.txn_id) for each in (await listings.transactions(Filter(newest=True, state="OPEN"), 5)).items]

    assert await first_page() == begun[:-6:-1] and read == [120]
    assert await first_page() == begun[:-6:-1] and read == [50]
    for txn_id in begun[-3:]:
        await transactions.abort(TxnId.parse(txn_id))
    later = str(id_of((await transactions.begin(BeginRequest(timeout_ms=600_000))).txn))
    assert await first_page() == [later, *begun[-4:-8:-1]] and read == [48, 49, 58], "those of ten seconds before, too"
    for txn_id in begun[20:-3]:
        await transactions.abort(TxnId.parse(txn_id))
    assert await first_page() == [later, *begun[19:15:-1]]
    assert await first_page() == [later, *begun[19:15:-1]] and read == [21], "they are all that are left"


@pytest.mark.parametrize("newest", [False, True])
async def test_of_what_a_search_leaves_out_only_headers_are_read(
    transactions: Transactions, listings: Listings, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, newest: bool
) -> None:
    """What is shown is shown whole: its deadline may be in another record."""
    begun = [id_of((await transactions.begin(BeginRequest())).txn) for _ in range(20)]
    clock.now_ms += 1_000
    kept = await transactions.keep_alive(begun[7], 90_000)
    read: list[str] = []
    get_many = listings.store.get_many

    async def counted(keys: Sequence[str]) -> Any:
        read.extend(keys)
        return await get_many(keys)

    monkeypatch.setattr(listings.store, "get_many", counted)
    (found,) = (await listings.transactions(Filter(text=str(begun[7]), newest=newest))).items
    assert found.deadline_ms == kept["deadline_ms"]
    others = [key for key in read if not key.startswith(paths.HEADERS)]
    assert others == [paths.lease(begun[7]), paths.prepared(begun[7]), paths.remembered_writers(begun[7])]


async def test_young_transactions(
    listings: Listings, population: dict[str, list[str]], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one began 100 ms ago. In the newest order nothing is read behind the last that can be young enough."""
    everything = set(itertools.chain(*population.values()))
    assert len(await ids(listings, younger_than_ms=1_199)) == 11
    assert await ids(listings, younger_than_ms=100) == population["ABORTED"][-1:]
    assert set(await ids(listings, newest=True, younger_than_ms=1_200)) == everything
    assert await ids(listings, newest=True, younger_than_ms=100) == population["ABORTED"][-1:]
    assert await ids(listings, newest=True, younger_than_ms=99) == []
    monkeypatch.setattr(module, "_SKEW_MS", 0)
    assert await ids(listings, newest=True, younger_than_ms=100) == population["ABORTED"][-1:]
    read: list[int] = []

    async def counted(store: MetadataStore, txn_ids: Sequence[TxnId]) -> list[TransactionRecords | None]:
        read.append(len(txn_ids))
        return await read_transactions(store, txn_ids)

    monkeypatch.setattr(module, "read_transactions", counted)
    clock.now_ms += 10_000_000
    assert await ids(listings, newest=True, younger_than_ms=0, state="COMMITTED") == [] and read == []


async def test_an_order_that_a_list_cannot_have_is_refused(
    listings: Listings, population: dict[str, list[str]]
) -> None:
    error = await refusal(listings.transactions(Filter(newest=True, segment="t/1")), ErrorCode.INVALID_ARGUMENT)
    assert error.members["field"] == "order"
    token = (await listings.transactions(Filter(newest=True), 1)).next_page_token
    await refusal(listings.transactions(Filter(newest=True, state="OPEN"), 1, token), ErrorCode.INVALID_ARGUMENT)
    await refusal(listings.transactions(Filter(), 1, token), ErrorCode.INVALID_ARGUMENT)


async def test_a_listed_transaction_is_as_it_is_read(transactions: Transactions, listings: Listings) -> None:
    """Deadlines that have moved and prepared transactions too."""
    moved, prepared = await begin(transactions), await begin(transactions)
    await transactions.keep_alive(moved, 99_000)
    await transactions.prepare(prepared)
    page = await listings.transactions(Filter(state="OPEN"))
    assert page.items == [TransactionHeader(**await transactions.get(txn_id)) for txn_id in (moved, prepared)]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_transactions_that_write_to_a_segment(
    transactions: Transactions, listings: Listings, store: FaultyStore, limit: int
) -> None:
    """X117: each once, however much it wrote; a segment's name is no prefix of another's."""
    writing = [await begin(transactions) for _ in range(4)]
    for txn_id, counter in itertools.product(writing[:3], range(120)):
        op = WriteOp(segment="t/1", after="0:0", count=1)
        await store.apply(put_write_op(store.batch(), txn_id, 1, counter, op))
    other = WriteOp(segment="t/10", after="0:0", count=1)
    await store.apply(put_write_op(store.batch(), writing[3], 1, 0, other))
    await transactions.commit(writing[1])
    assert await ids(listings, limit, segment="t/1") == [str(txn_id) for txn_id in writing[:3]]
    assert await ids(listings, limit, segment="t/1", state="OPEN") == [str(writing[0]), str(writing[2])]
    assert await ids(listings, limit, segment="t") == []


async def test_one_page_looks_at_a_bounded_number_of_rows(
    transactions: Transactions, listings: Listings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never everything: an empty page that has a next one is the price."""
    monkeypatch.setattr(module, "ROWS_PER_PAGE", 100)
    for _ in range(249):
        await begin(transactions)
    await begin(transactions, owner="rare")
    found = [len(page) async for page in pages(listings, Filter(owner="rare"), 10)]
    assert found == [0, 0, 1]


async def test_a_page_reads_the_index_once(
    transactions: Transactions, listings: Listings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each read backwards etcd sorts the whole index: with 100,000 open transactions that is what a page costs."""
    for _ in range(250):
        await begin(transactions)
    limits = []
    read = listing.latest_first

    async def counted(store: MetadataStore, state: TxnState, *, limit: int, **options: Any) -> list[Row]:
        limits.append(limit)
        return await read(store, state, limit=limit, **options)

    monkeypatch.setattr(module, "ROWS_PER_PAGE", 200)
    monkeypatch.setattr(listing, "latest_first", counted)
    page = await listings.transactions(Filter(state="OPEN", owner="nobody", newest=True), 50)
    assert (page.items, page.next_page_token is None, limits) == ([], False, [200])


@pytest.mark.parametrize(("every_ms", "most"), [(100, [2, 11]), (30_000, [1, 1, 1, 21]), (90_000, [1, 1, 1, 7, 600])])
async def test_what_was_decided_last_is_found_without_what_was_decided_before(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, every_ms: int, most: list[int]
) -> None:
    """As long as this many are decided in some minutes; and whatever the clocks say, all of them come in their
    order."""
    store = MemoryStore()
    times = [clock() - number * every_ms for number in range(600)]
    keys = [paths.final_state_entry(TxnState.COMMITTED, at_ms, str(TxnId(0, at_ms))) for at_ms in times]
    batch = store.batch()
    for key in keys:
        batch.put(key, b"")
    await store.apply(batch)
    read = store.range
    covered: list[int] = []

    async def counting(start: str, end: str, **options: Any) -> RangeResult:
        covered.append(sum(start <= key < end for key in keys))
        return await read(start, end, **options)

    monkeypatch.setattr(store, "range", counting)
    for now_ms in (clock(), clock() - 10**6, clock() + 10**9):
        seen: list[int] = []
        after = ""
        while rows := await listing.latest_first(store, TxnState.COMMITTED, now_ms=now_ms, after=after, limit=10):
            seen += [row.at_ms for row in rows]
            after = rows[-1].position
        assert seen == times
    covered.clear()
    await listing.latest_first(store, TxnState.COMMITTED, now_ms=clock(), limit=10)
    assert covered == most


async def test_operations_of_a_transaction(transactions: Transactions, listings: Listings, store: FaultyStore) -> None:
    txn_id = await begin(transactions)
    for counter in range(5):
        op = WriteOp(segment="t/1", after=f"0:{counter}", count=2, writer="w", sequence=counter)
        await store.apply(put_write_op(store.batch(), txn_id, 7, counter, op))
    first = await listings.operations(txn_id, 3)
    second = await listings.operations(txn_id, 3, first.next_page_token)
    assert second.next_page_token is None
    assert [operation.after for operation in first.items + second.items] == [f"0:{counter}" for counter in range(5)]
    operation = first.items[0]
    assert (operation.kind, operation.segment, operation.count, operation.writer) == ("write", "t/1", 2, "w")
    assert operation.key.startswith(f"/txn-op/{txn_id}/")
    await refusal(listings.operations(TxnId(0, 99)), ErrorCode.TXN_NOT_FOUND)


async def test_keys_in_use(transactions: Transactions, listings: Listings) -> None:
    """Of one owner or of all, without deleted ones; `/` and unicode are nothing special."""
    for owner, key in ((None, "a/b"), (None, "ü"), ("al", "x"), ("alice", "y"), ("al", "gone")):
        await transactions.keys.connect(key, ConnectRequest(epoch=-1, owner=owner))
    await transactions.keys.delete("gone", "al")

    async def listed(owner: str | None, limit: int) -> set[tuple[str | None, str]]:
        found, token = set(), None
        while True:
            page = await listings.transaction_keys(owner, limit, token)
            found |= {(info.owner, info.key) for info in page.items}
            token = page.next_page_token
            if token is None:
                return found

    for limit in (1, 2, 100):
        assert await listed("al", limit) == {("al", "x")}
        assert await listed(None, limit) == {(None, "a/b"), (None, "ü"), ("al", "x"), ("alice", "y")}


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "token",
    [
        *("x", "%%%", "ä", "AAAA", "a" * 4_000, encoded("all\n"), encoded("all\n../../x"), encoded("all\n" + "g" * 32)),
        *(encoded("open\n" + "0" * 20 + "/" + "0" * 32), encoded("all\n" + "0" * 32 + "\n"), encoded("nothing\nx")),
    ],
)
async def test_a_token_that_was_not_handed_out_here_is_refused(listings: Listings, token: str) -> None:
    error = await refusal(listings.transactions(Filter(), 1, token), ErrorCode.INVALID_ARGUMENT)
    assert error.members["field"] == "page_token"


async def test_a_token_means_the_same_to_every_coordinator(
    listings: Listings, population: dict[str, list[str]], store: FaultyStore, clock: FakeClock
) -> None:
    """No page is remembered anywhere."""
    first = await listings.transactions(Filter(state="ABORTED"), 3)
    second = await Listings(store, clock).transactions(Filter(state="ABORTED"), 3, first.next_page_token)
    assert [header.txn_id for header in first.items + second.items] == population["ABORTED"]
    await refusal(listings.transactions(Filter(state="OPEN"), 3, first.next_page_token), ErrorCode.INVALID_ARGUMENT)


async def test_a_begun_transaction_is_listed_at_once(transactions: Transactions, listings: Listings) -> None:
    """Indexes move in the same apply as their record."""
    begun = await under_key(transactions, version=1)
    assert (await listings.transactions(Filter(state="OPEN"))).items == [TransactionHeader(**begun.txn)]
