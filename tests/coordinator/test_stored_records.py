"""Goal: records are shown as they stand in the store, in bounded pages, and with what shows them in its own tool.

Method: a store with records of a transaction, of others, and some that nobody of ours has written.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from coordinator import stored_records as module
from coordinator.api.routes import _page
from coordinator.stored_records import StoredRecords
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metastore.backends.sqlite import SqliteStore
from metastore.txn import paths
from metastore.txn.records.operations import WriteOp
from metatxn.wire.coordinator import BeginRequest, StoredRecord
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.conftest import id_of, refusal
from tests.coordinator.stores import FaultyStore

SEGMENT = "segment://public/default/orders/0000-ffff-0"


async def whole(stored: StoredRecords, txn_id: TxnId, limit: int) -> list[StoredRecord]:
    found, token = [], None
    while True:
        page = await stored.of_transaction(txn_id, limit, token)
        found += page.items
        token = page.next_page_token
        if token is None:
            return found


async def test_the_records_of_a_transaction_are_its_header_those_beside_it_and_its_operations(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore
) -> None:
    txn_id, other = [id_of((await transactions.begin(BeginRequest())).txn) for _ in range(2)]
    for of in (txn_id, other):
        await transactions.keep_alive(of, 60_000)
        await transactions.add_writers(of, ["w"])
        for counter in range(5):
            op = WriteOp(segment=SEGMENT, after="1:-1", count=1)
            await truth.apply(truth.batch().create(paths.write_op(of, SEGMENT, 1, counter), op.encode()))
    stored = StoredRecords(store)
    for limit in (1, 2, 5, 100):
        found = await whole(stored, txn_id, limit)
        assert [each.key.split("/")[1] for each in found] == ["txn", "txn-lease", "txn-writers", *["txn-op"] * 5]
        assert all(str(txn_id) in each.key for each in found)
        assert found[0].value["state"] == "OPEN" and found[2].value == ["w"]
        record = await truth.get(found[0].key)
        assert record is not None and found[0].version == record.version
    await refusal(stored.of_transaction(TxnId.parse("f" * 32), 10), ErrorCode.TXN_NOT_FOUND)
    token = (await stored.of_transaction(txn_id, 1)).next_page_token
    await refusal(stored.of_transaction(other, 1, token), ErrorCode.INVALID_ARGUMENT)


async def test_records_are_listed_below_a_prefix_whatever_they_hold(
    store: FaultyStore, truth: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"/a/1": b'{"x": 1}', "/a/2": b"", "/a/3": b"not \xff JSON", "/a/4": b"[" * 100_000, "/b": b"1"}
    batch = truth.batch()
    for key, value in values.items():
        batch.create(key, value)
    await truth.apply(batch)
    stored = StoredRecords(store)
    page = await stored.below("/a/", 100)
    assert [(each.key, each.value) for each in page.items][:3] == [
        ("/a/1", {"x": 1}),
        ("/a/2", None),
        ("/a/3", "not \ufffd JSON"),
    ]
    assert page.items[3].value == "[" * 100_000 and page.next_page_token is None
    monkeypatch.setattr(module, "PAGE_BYTES", 10)
    page = await stored.below("/a/", 100)
    assert [each.key for each in page.items] == ["/a/1", "/a/2", "/a/3"], "a page ends with what exceeds the bound"
    page = await stored.below("/a/", 100, page.next_page_token)
    assert [each.key for each in page.items] == ["/a/4"]


@pytest.mark.parametrize(
    "value", [rb'"\ud800"', rb'{"\ud800": 1}', *(b"[" * depth + b"]" * depth for depth in range(240, 270))]
)
async def test_json_that_no_answer_can_hold_is_text(store: FaultyStore, truth: MemoryStore, value: bytes) -> None:
    await truth.apply(truth.batch().create("/a", value))
    (shown,) = json.loads(bytes(_page(await StoredRecords(store).below("/a", 1)).body))["items"]
    assert shown["value"] in (value.decode(), json.loads(value) if b"u" not in value else None)


async def test_the_command_shows_the_record_in_sqlite(tmp_path: Path) -> None:
    """Also if its key is meant to be more than a key."""
    store = await SqliteStore.open(tmp_path / "metadata.db")
    key = '/a/o\'x; rm -rf $(echo "y")'
    await store.apply(store.batch().create(key, b'{"x": 1}'))
    printed = subprocess.run(
        shlex.split(store.command_for(key)), capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert printed == '{"x": 1}\n'
    await store.close()
