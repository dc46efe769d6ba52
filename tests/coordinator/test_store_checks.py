"""Goal: the steps of a check are together the check of the whole store, each is bounded, and none counts twice.

Method: a store with transactions in several states, and with records that are wrong.
"""

from __future__ import annotations

import pytest

from coordinator import store_checks as module
from coordinator.store_checks import StoreChecks
from coordinator.stored_records import StoredRecords
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metastore.check import StoreCheck, dump
from metastore.txn import paths
from metatxn.wire.coordinator import BeginRequest, CheckedRecords, key_prefix
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.conftest import id_of, refusal
from tests.coordinator.stores import FaultyStore


async def whole(checks: StoreChecks, limit: int) -> list[list[CheckedRecords]]:
    pages, token = [], None
    while True:
        page = await checks.step(limit, token)
        pages.append(page.items)
        assert token is None or page.next_page_token != token, "it goes on"
        token = page.next_page_token
        if token is None:
            return pages


async def test_the_steps_are_together_the_whole_check(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore
) -> None:
    ids = [id_of((await transactions.begin(BeginRequest())).txn) for _ in range(4)]
    await transactions.commit(ids[0])
    wrong = {paths.lease(TxnId.parse("f" * 32)): b"{}", "/odd": b"1", "/odd/1": b"{", "/\u00fcber/1": b""}
    batch = truth.batch()
    for key, value in wrong.items():
        batch.put(key, value)
    await truth.apply(batch)
    expected = [(each.key, each.problem, each.action) async for each in StoreCheck(truth).findings()]
    assert {key for key, _, _ in expected} == {*wrong}
    held = [record async for record in dump(truth)]
    for limit in (1, 2, 7, 1000):
        pages = await whole(StoreChecks(store), limit)
        assert all(sum(each.records for each in page) <= limit for page in pages)
        items = [each for page in pages for each in page]
        found = [(each.key, each.problem, each.action) for item in items for each in item.findings]
        assert found == expected
        assert sum(each.records for each in items) == len(held)
        assert sum(each.bytes for each in items) == sum(len(each.key.encode()) + len(each.value) for each in held)
        assert {each.prefix for each in items} == {key_prefix(each.key) for each in held} >= {"/", "/odd/", "/txn/"}


async def test_a_step_ends_behind_a_large_value_and_begins_where_the_last_one_has_ended(
    store: FaultyStore, truth: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEP_BYTES", 10)
    await truth.apply(truth.batch().put("/a/1", b"1" * 5).put("/a/2", b"1" * 6).put("/a/3", b"1"))
    checks = StoreChecks(store)
    first = await checks.step(100)
    assert [each.records for each in first.items] == [2]
    second = await checks.step(100, first.next_page_token)
    assert [each.records for each in second.items] == [1] and second.next_page_token is None
    other = (await StoredRecords(store).below("/a/", 1)).next_page_token
    await refusal(checks.step(1, other), ErrorCode.INVALID_ARGUMENT)


async def test_an_empty_store_has_one_page_without_items(store: FaultyStore) -> None:
    assert await whole(StoreChecks(store), 10) == [[]]
