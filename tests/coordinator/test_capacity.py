"""Goal: what was begun can be ended, and what can be stored can be listed, on a store that takes small batches too.

Method: transactions at the very limit of what is accepted, on a real ZooKeeper (400,000 bytes) with names of the
longest kind; and random ones around the limit, of which each that was accepted must come to its end.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest

from coordinator import listings as module
from coordinator.batches import run_batch
from coordinator.capacity import ROOM_BYTES, ROOM_OF_KEY_BYTES
from coordinator.hanging import hanging_transactions
from coordinator.listings import Filter, Listings
from coordinator.settling import Settling
from coordinator.transaction_keys import FENCED_SESSIONS_KEPT
from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.backends.zookeeper import MAX_BATCH_BYTES, ZooKeeperStore
from metastore.txn.store import INDEXES
from metastore.types import Snapshot
from metatxn.wire import errors
from metatxn.wire.coordinator import MAX_KEY_LENGTH, MAX_WRITERS, BeginItem, BeginRequest, ConnectRequest
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.conftest import SKEW_MS, FakeClock, check_records, id_of, refusal
from tests.coordinator.stores import FaultyStore
from tests.servers import ZooKeeperServer

WIDE = "\N{GRINNING FACE}"
"""A character of four bytes, and of twelve in a key."""
LONGEST_OWNER, LONGEST_KEY = WIDE * 256, WIDE * MAX_KEY_LENGTH


@pytest.fixture
async def zookeeper(zookeeper_server: ZooKeeperServer) -> AsyncIterator[ZooKeeperStore]:
    store = await ZooKeeperStore.open([zookeeper_server.endpoint], f"/{secrets.token_hex(6)}", INDEXES)
    yield store
    await check_records(store)
    await store.close()


def coordinator(store: MetadataStore, clock: FakeClock) -> Transactions:
    return Transactions(store, clock, settling=Settling(store, clock, pause=clock.pause))


def properties_of(size: int) -> dict[str, str]:
    """That take as many bytes as JSON."""
    return {"": "x" * (size - len('{"":""}'))}


async def fill_with_writers(transactions: Transactions, txn_id: TxnId) -> int:
    """Remember names until one more is refused; how many there are."""
    known, step = 0, 4_096
    while step and known < MAX_WRITERS:
        names = [f"task-{number:05}-{'x' * 20}" for number in range(known, known + step)]
        error = await failure_of(transactions.add_writers(txn_id, names))
        assert error is None or (error.code, error.members.get("field")) == (ErrorCode.INVALID_ARGUMENT, "add")
        known, step = (known, step // 8) if error else (known + step, step)
    return known


async def failure_of(call: Awaitable[object]) -> errors.MetatxnError | None:
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(outcome, errors.MetatxnError) or not isinstance(outcome, BaseException), outcome
    return outcome if isinstance(outcome, errors.MetatxnError) else None


def largest(store: MetadataStore, less: int = 0, **others: Any) -> BeginRequest:
    """A begin with as many properties as the store takes, but for some bytes. Its model would refuse them: it knows
    their number and their lengths."""
    room = store.max_batch_bytes - ROOM_BYTES
    size = (room - ROOM_OF_KEY_BYTES) // 2 if "transaction_key" in others else room
    return BeginRequest.model_construct(timeout_ms=60_000, properties=properties_of(size - less), **others)


async def begun(transactions: Transactions, request: BeginRequest) -> TxnId:
    return id_of((await transactions.begin(request)).txn)


async def test_the_largest_transactions_can_be_ended_on_zookeeper(zookeeper: ZooKeeperStore, clock: FakeClock) -> None:
    transactions = coordinator(zookeeper, clock)
    plain, many, aborted, expired = [
        await begun(transactions, largest(zookeeper, less)) for less in (0, 300_000, 0, 300_000)
    ]
    assert await fill_with_writers(transactions, plain) == 0
    await transactions.commit(plain)
    assert await fill_with_writers(transactions, many) > 5_000
    assert len((await transactions.commit(many))["writers"] or ()) > 5_000
    await transactions.abort(aborted, "\1" * 1024)
    await fill_with_writers(transactions, expired)
    clock.now_ms += 120_000
    assert await transactions.expire(expired, SKEW_MS)


async def test_the_largest_transactions_under_a_key_can_be_replaced_on_zookeeper(
    zookeeper: ZooKeeperStore, clock: FakeClock
) -> None:
    transactions = coordinator(zookeeper, clock)
    for number in range(FENCED_SESSIONS_KEPT + 2):
        request = ConnectRequest(owner=LONGEST_OWNER, epoch=-1, session=f"{number:03}{WIDE * 253}")
        epoch = (await transactions.keys.connect(LONGEST_KEY, request)).epoch
    under_key: dict[str, Any] = {"owner": LONGEST_OWNER, "transaction_key": LONGEST_KEY, "epoch": epoch}
    first = await begun(transactions, largest(zookeeper, version=1, **under_key))
    assert await fill_with_writers(transactions, first) > 3_000
    second = await begun(transactions, largest(zookeeper, version=2, **under_key))
    assert (await transactions.get(first))["expired_by"] == "fencing"
    assert await fill_with_writers(transactions, second) > 3_000
    assert (await transactions.commit(second))["state"] == "COMMITTED"


async def test_what_is_too_large_is_refused_by_name_and_changes_nothing(
    transactions: Transactions, store: FaultyStore
) -> None:
    store.max_batch_bytes = MAX_BATCH_BYTES
    revision = await store.current_revision()
    for others in ({}, {"transaction_key": "nightly", "epoch": 0}):
        error = await refusal(transactions.begin(largest(store, -1, **others)), ErrorCode.INVALID_ARGUMENT)
        assert error.members["field"] == "properties"
    too_large = BeginItem.model_construct(op="begin", properties=largest(store, -1).properties)
    error = await refusal(run_batch(transactions, [BeginItem(op="begin"), too_large]), ErrorCode.INVALID_ARGUMENT)
    assert error.members["field"] == "items.1.properties"
    assert await store.current_revision() == revision


@pytest.mark.parametrize("max_batch_bytes", [MAX_BATCH_BYTES, 200_000])
async def test_whatever_is_accepted_comes_to_its_end(clock: FakeClock, max_batch_bytes: int) -> None:
    store = MemoryStore(INDEXES)
    store.max_batch_bytes = max_batch_bytes
    transactions, dice = coordinator(store, clock), random.Random(max_batch_bytes)
    epoch = (await transactions.keys.connect("nightly", ConnectRequest(epoch=-1))).epoch
    ends: Counter[str] = Counter()
    for _ in range(30):
        keyed = {"transaction_key": "nightly", "epoch": epoch} if dice.random() < 0.5 else {}
        request = largest(store, dice.choice([-1, 0, 1, 5_000, max_batch_bytes // 4]), **keyed)
        if error := await failure_of(begin := asyncio.ensure_future(transactions.begin(request))):
            assert error.code is ErrorCode.INVALID_ARGUMENT
            ends["refused"] += 1
            continue
        txn_id = id_of(begin.result().txn)
        if dice.random() < 0.5:
            await fill_with_writers(transactions, txn_id)
        end = dice.choice(["commit", "abort", "expire", "replace"])
        ends[end] += 1
        match end:
            case "commit":
                await transactions.commit(txn_id)
            case "abort":
                await transactions.abort(txn_id, "x" * 1024)
            case "expire":
                clock.now_ms += 120_000
                assert await transactions.expire(txn_id, SKEW_MS)
    assert len(ends) == 5, ends
    await check_records(store)


# -- lists ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def heavy(transactions: Transactions) -> dict[str, list[TxnId]]:
    """Of each second transaction writers are remembered, 60 KB of them."""
    names = [f"task-{number:05}-{'x' * 48}" for number in range(1_000)]
    found: dict[str, list[TxnId]] = {"COMMITTED": [], "OPEN": []}
    for number in range(120):
        txn_id = id_of((await transactions.begin(BeginRequest(timeout_ms=60_000 + number))).txn)
        state = "OPEN" if number < 60 else "COMMITTED"
        if number % 2:
            await transactions.add_writers(txn_id, names)
        if state == "COMMITTED":
            await transactions.commit(txn_id)
        found[state].append(txn_id)
    return found


@pytest.mark.parametrize("state", ["COMMITTED", "OPEN", None])
async def test_a_page_has_an_end_in_bytes(
    store: FaultyStore, clock: FakeClock, heavy: dict[str, list[TxnId]], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """However many items may be on it; together the pages are everything, once and in order."""
    monkeypatch.setattr(module, "PAGE_BYTES", 300_000)
    read = bytes_read(store, monkeypatch)
    listed: list[str] = []
    token, pages = None, 0
    while pages == 0 or token:
        read.clear()
        page = await Listings(store, clock).transactions(Filter(state=state), 1_000, token)  # type: ignore[arg-type]
        assert sum(read) < 300_000 + 16 * 70_000
        token, pages = page.next_page_token, pages + 1
        assert len(page.model_dump_json()) < 300_000 + 70_000
        listed += [str(header.txn_id) for header in page.items]
    expected = heavy[state] if state else [*heavy["OPEN"], *heavy["COMMITTED"]]
    assert listed == [str(txn_id) for txn_id in expected]
    assert pages >= 5


async def test_a_page_that_shows_nothing_has_an_end_in_bytes_too(
    store: FaultyStore, clock: FakeClock, heavy: dict[str, list[TxnId]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES", 300_000)
    token, pages = None, 0
    while pages == 0 or token:
        page = await Listings(store, clock).transactions(Filter(owner="nobody"), 1_000, token)
        assert page.items == []
        token, pages = page.next_page_token, pages + 1
    assert pages >= 5


async def test_a_page_of_hanging_transactions_has_an_end_in_bytes(
    store: FaultyStore, clock: FakeClock, heavy: dict[str, list[TxnId]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their writers are remembered beside the header."""
    monkeypatch.setattr(module, "PAGE_BYTES", 300_000)
    clock.now_ms += 10_000
    listed: list[str] = []
    token, pages = None, 0
    while pages == 0 or token:
        page = await hanging_transactions(Listings(store, clock), 1_000, 1_000, token)
        token, pages = page.next_page_token, pages + 1
        assert len(page.model_dump_json()) < 300_000 + 70_000
        listed += [str(header.txn_id) for header in page.items]
    assert sorted(listed) == sorted(str(txn_id) for txn_id in heavy["OPEN"])
    assert pages >= 5


def bytes_read(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each read of single records, from now on."""
    sizes: list[int] = []
    real = store.get_many

    async def counted(wanted: Sequence[str]) -> Snapshot:
        snapshot = await real(wanted)
        sizes.append(sum(len(record.value) for record in snapshot.records.values() if record))
        return snapshot

    monkeypatch.setattr(store, "get_many", counted)
    return sizes
