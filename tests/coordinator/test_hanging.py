"""Who pins which segment's horizon, since when (CONTRACT, `GET /admin/v2/transactions/hanging`; scenario X117).

Method: operation records as brokers leave them, and a count of the records that are read to show them.
"""

from __future__ import annotations

import httpx
import pytest

from coordinator import hanging as module
from coordinator.hanging import hanging_transactions
from coordinator.listings import Listings
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metastore.keys import escape, number
from metastore.txn import paths
from metastore.txn.records.operations import AckOp, WriteOp
from metatxn.wire.coordinator import HangingTransaction
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.conftest import CountedReads, FakeClock, id_of, refusal, under_key
from tests.coordinator.stores import FaultyStore
from tests.coordinator.test_transactions import begin

ORDERS = "segment://public/default/orders/0000-ffff-0"
AUDIT = "segment://public/default/audit/0000-ffff-0"


@pytest.fixture
def listings(store: FaultyStore, clock: FakeClock) -> Listings:
    return Listings(store, clock)


async def write(truth: MemoryStore, txn_id: TxnId, segment: str, counter: int = 0, after: str = "1:-1") -> None:
    op = WriteOp(segment=segment, after=after, count=1)
    await truth.apply(truth.batch().create(paths.write_op(txn_id, segment, 1, counter), op.encode()))


async def acknowledge(truth: MemoryStore, txn_id: TxnId, segment: str, subscription: str, counter: int) -> None:
    """DESIGN §4: segment token, kind, subscription token, owner generation, counter."""
    key = f"{paths.OPS}{txn_id}/{escape(segment)}:a:{escape(subscription)}:{number(1)}:{number(counter)}"
    op = AckOp(segment=segment, subscription=subscription, incarnation=1, position=f"1:{counter}")
    await truth.apply(truth.batch().create(key, op.encode()))


def touched(txn: HangingTransaction) -> list[tuple[str, str | None, str | None]]:
    return [(at.segment, at.subscription, at.after) for at in txn.touched]


async def test_every_segment_and_subscription_is_named_once(
    transactions: Transactions, listings: Listings, truth: MemoryStore, clock: FakeClock
) -> None:
    """With the position of the first write; subscription `s` is not `s1`, and a colon in a name separates nothing."""
    txn_id = id_of((await under_key(transactions, "nightly", owner="billing", timeout_ms=600_000)).txn)
    await transactions.add_writers(txn_id, ["w2", "w1"])
    for counter in range(3):
        await write(truth, txn_id, ORDERS, counter, after=f"4:{10 + counter}")
        for subscription in ("s", "s1", "a:b"):
            await acknowledge(truth, txn_id, AUDIT, subscription, counter)
    await write(truth, txn_id, AUDIT, after="2:7")
    clock.now_ms += 90_000
    (txn,) = (await hanging_transactions(listings)).items
    assert (txn.txn_id, txn.owner, txn.transaction_key) == (str(txn_id), "billing", "nightly")
    assert (txn.writers, txn.prepared, txn.age_ms, txn.more_touched) == (["w1", "w2"], None, 90_000, None)
    assert touched(txn) == [
        *((AUDIT, "a:b", None), (AUDIT, "s1", None), (AUDIT, "s", None), (AUDIT, None, "2:7")),
        (ORDERS, None, "4:10"),
    ]


async def test_only_what_is_open_for_too_long(transactions: Transactions, listings: Listings, clock: FakeClock) -> None:
    """The oldest first, also when its deadline is the latest; prepared ones among them."""
    decided, oldest = await begin(transactions), await begin(transactions, timeout_ms=9_000_000)
    await transactions.commit(decided)
    clock.now_ms += 1_000
    prepared = await begin(transactions)
    await transactions.prepare(prepared)
    clock.now_ms += 59_000
    young = await begin(transactions)
    page = await hanging_transactions(listings, 59_000)
    assert [(txn.txn_id, txn.age_ms, txn.prepared) for txn in page.items] == [
        (str(oldest), 60_000, None),
        (str(prepared), 59_000, True),
    ]
    assert [txn.txn_id for txn in (await hanging_transactions(listings)).items] == [str(oldest)]
    assert len((await hanging_transactions(listings, 0)).items) == 3
    clock.now_ms -= 60_000
    assert (await transactions.get(young))["state"] == "OPEN"
    assert all(txn.age_ms >= 0 for txn in (await hanging_transactions(listings, 0)).items), "a clock that is behind"


@pytest.mark.parametrize(
    ("limit", "most", "expected"),
    [(3, 500, [[2], [5], []]), (2, 500, [[2], [5], []]), (1, 500, [[2], [5], []]), (1, 2, [[], [2], [], [5], []])],
)
async def test_those_that_hold_something_are_found_among_those_that_do_not(
    transactions: Transactions,
    listings: Listings,
    truth: MemoryStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    most: int,
    expected: list[list[int]],
) -> None:
    """A page examines as many as it may have, and again, until it has some; the next ones follow from there."""
    monkeypatch.setattr(module, "MAX_EXAMINED", most)
    ids = [await begin(transactions, timeout_ms=600_000) for _ in range(7)]
    await write(truth, ids[2], ORDERS)
    await acknowledge(truth, ids[5], AUDIT, "s", 1)
    clock.now_ms += 70_000
    pages, token = [], None
    while True:
        page = await hanging_transactions(listings, limit=limit, page_token=token, holding=True)
        pages.append([txn.txn_id for txn in page.items])
        token = page.next_page_token
        if token is None:
            break
    assert pages == [[str(ids[each]) for each in page] for page in expected]


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
async def test_pages_put_together_are_everything_once(
    transactions: Transactions, listings: Listings, clock: FakeClock, limit: int
) -> None:
    """The oldest has the latest deadline; that which has ended since the last look is left out."""
    ids = []
    for nth in range(6):
        ids.append(str(await begin(transactions, timeout_ms=200_000 - 10_000 * nth)))
        clock.now_ms += 1_000
    clock.now_ms += 70_000
    await listings.ages.look()
    await transactions.abort(TxnId.parse(ids.pop(2)))
    found, token = [], None
    while True:
        page = await hanging_transactions(listings, limit=limit, page_token=token)
        assert len(page.items) <= limit
        found += [txn.txn_id for txn in page.items]
        token = page.next_page_token
        if token is None:
            break
    assert found == ids
    await refusal(hanging_transactions(listings, page_token="x"), ErrorCode.INVALID_ARGUMENT)


async def test_many_operations_are_not_read(
    transactions: Transactions,
    listings: Listings,
    truth: MemoryStore,
    clock: FakeClock,
    counted: CountedReads,
) -> None:
    """Two thousand writes on one segment cost one small range each time, and so do the finished transactions around."""
    txn_id = await begin(transactions, timeout_ms=600_000)
    for counter in range(2_000):
        await write(truth, txn_id, ORDERS, counter, after=f"1:{counter}")
    await write(truth, txn_id, AUDIT, after="3:3")
    for _ in range(200):
        await transactions.commit(await begin(transactions))
    clock.now_ms += 70_000
    counted.start()
    (txn,) = (await hanging_transactions(listings)).items
    assert touched(txn) == [(AUDIT, None, "3:3"), (ORDERS, None, "1:0")]
    assert counted.ranges <= 3 and counted.rows <= 50


async def test_very_many_segments_are_cut_and_said_so(
    transactions: Transactions,
    listings: Listings,
    truth: MemoryStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_TOUCHED", 30)
    exact, more = [await begin(transactions, timeout_ms=600_000) for _ in range(2)]
    for counter in range(31):
        await write(truth, more, f"segment://t/n/x/{counter:03}")
        if counter:
            await write(truth, exact, f"segment://t/n/x/{counter:03}")
    clock.now_ms += 70_000
    found = {txn.txn_id: txn for txn in (await hanging_transactions(listings)).items}
    assert (len(found[str(exact)].touched), found[str(exact)].more_touched) == (30, None)
    assert (len(found[str(more)].touched), found[str(more)].more_touched) == (30, True)
    assert found[str(more)].touched[29].segment == "segment://t/n/x/029"


async def test_over_http(http: httpx.AsyncClient, truth: MemoryStore, clock: FakeClock) -> None:
    """Absent members are left out; `next_page_token` is always there."""
    txn_id = (await http.post("/v1/txns", json={"timeout_ms": 600_000})).json()["txn_id"]
    await write(truth, TxnId.parse(txn_id), ORDERS)
    clock.now_ms += 61_000
    page = (await http.get("/admin/v2/transactions/hanging")).json()
    (item,) = page["items"]
    assert page["next_page_token"] is None
    assert {"txn_id", "state", "created_ms", "deadline_ms", "revision", "age_ms", "touched"} == set(item)
    assert (item["age_ms"], item["touched"]) == (61_000, [{"segment": ORDERS, "after": "1:-1"}])
    for query, field in (("max_age_ms=-1", "max_age_ms"), ("older_than_ms=5", "older_than_ms"), ("limit=0", "limit")):
        response = await http.get(f"/admin/v2/transactions/hanging?{query}")
        assert (response.status_code, response.json()["field"]) == (422, field)
