"""Goal: a broker remembers what a transaction has done there, and since when readers see it; and it forgets in time.

Method: the memory alone, and transactions that write, acknowledge and end at a real broker, asked as a client does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from metatxn.wire.broker import WorkOnSegment
from metatxn.wire.ids import TxnId
from participants.common import transaction_work as module
from participants.common.transaction_work import RecentWork
from tests.service.secured import Caller, secured
from tests.service.security import TokenFile


def txn(number: int) -> TxnId:
    return TxnId.parse(f"{number:032x}")


def test_those_seen_first_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction goes as a whole; one that is larger than the memory stays as long as it is the latest."""
    monkeypatch.setattr(module, "MAX_REMEMBERED", 3)
    work = RecentWork()
    for number in range(3):
        work.wrote(txn(number), "s", 1, 10, number)
    work.wrote(txn(2), "s", 4, 40, 9)
    assert [len(work.of(txn(number))) for number in range(3)] == [1, 1, 1]
    kept = work.of(txn(2))["s"]
    assert (kept.entries, kept.messages, kept.size_bytes, kept.first_ms, kept.last_ms) == (2, 5, 50, 2, 9)
    for segment in "abcde":
        work.acknowledged(txn(7), segment, "sub", 2, 20)
    assert [len(work.of(txn(number))) for number in (0, 1, 2, 7)] == [0, 0, 0, 5]
    work.wrote(txn(8), "s", 1, 1, 30)
    assert [len(work.of(txn(number))) for number in (7, 8)] == [0, 1]


def test_a_decision_takes_effect_once_and_only_where_something_was_done() -> None:
    work = RecentWork()
    work.took_effect(txn(1), "s", 5)
    assert work.of(txn(1)) == {}
    work.wrote(txn(1), "s", 1, 10, 1)
    work.took_effect(txn(1), "s", 5)
    work.took_effect(txn(1), "s", 9)
    assert work.of(txn(1))["s"].effective_ms == 5


def test_each_subscription_is_told_once_of_a_decision() -> None:
    work = RecentWork()
    work.acks_took_effect(txn(1), "s", "one", 5)
    assert work.of(txn(1)) == {}
    work.acknowledged(txn(1), "s", "one", 2, 1)
    work.acknowledged(txn(1), "s", "two", 1, 2)
    for name, now_ms in (("one", 5), ("three", 6), ("one", 7)):
        work.acks_took_effect(txn(1), "s", name, now_ms)
    assert work.of(txn(1))["s"].acks_effective_ms == {"one": 5}


async def told(caller: Caller, txn_id: str) -> list[WorkOnSegment]:
    answer = await caller.broker.get(f"/v1/txns/{txn_id}/work")
    return [WorkOnSegment.model_validate(each) for each in answer.json()["segments"]]


async def test_its_owner_is_told_what_a_transaction_has_done(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    known = {name: tokens.add(name, topics={"*": "produce,consume,admin"}) for name in ("ada", "bob")}
    async with (
        secured(tmp_path / "data", token_file=tokens.path) as cluster,
        cluster.caller(known["ada"]) as ada,
        cluster.caller(known["bob"]) as bob,
    ):
        await ada.broker.post("/v1/topics", json={"name": "orders"})
        txn_id = (await ada.coordinator.post("/v1/txns")).json()["txn_id"]
        assert await told(ada, txn_id) == []
        messages = {"messages": [{"value": number} for number in range(3)]}
        await ada.broker.post("/v1/topics/orders/messages", params={"txn_id": txn_id}, json=messages)
        (work,) = await told(ada, txn_id)
        assert (work.entries, work.messages, work.effective_ms) == (1, 3, None) and work.size_bytes > 0
        await ada.coordinator.post(f"/v1/txns/{txn_id}/commit")
        await ada.broker.get("/v1/topics/orders/messages", params={"wait_ms": 20_000})
        (work,) = await told(ada, txn_id)
        assert work.effective_ms is not None and work.first_ms is not None and work.effective_ms >= work.first_ms
        refused = await bob.broker.get(f"/v1/txns/{txn_id}/work")
        assert refused.json()["code"] == "NOT_ALLOWED"
        assert (await ada.broker.get(f"/v1/txns/{'f' * 32}/work")).json()["code"] == "TXN_NOT_FOUND"
