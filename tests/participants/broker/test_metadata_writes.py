"""Goal: what a publish and a transaction cost the metadata store, whatever the number of messages.

Method: a broker, the production coordinator, and the store between them, which remembers every apply that it took.
The figures are those of issue 5, "Measured by".
"""

from __future__ import annotations

import pytest

from coordinator.transactions import Transactions
from metastore.txn import paths
from metatxn.wire.ids import TxnId
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.faulty_store import CLEANUP, INTENT
from tests.participants.segment.world import World, materialized

MESSAGES = [{"key": str(number), "value": number} for number in range(1_000)]


async def publish(process: BrokerProcess, txn_id: TxnId | None) -> None:
    query = {"txn_id": str(txn_id)} if txn_id is not None else {}
    answer = await process.http.post("/v1/topics/t/messages", json={"messages": MESSAGES}, params=query)
    assert answer.status_code == 200, answer.text


async def test_a_plain_publish_writes_no_metadata(world: World, process: BrokerProcess) -> None:
    await process.create("t", segments=3)
    before = len(world.store.applied)
    for _ in range(10):
        await publish(process, None)
    assert world.store.applied[before:] == []


@pytest.mark.parametrize("segments", [1, 4])
async def test_a_transaction_over_p_segments_takes_p_plus_2_applies_and_one_cleanup(
    world: World, process: BrokerProcess, segments: int
) -> None:
    ids = await process.create("t", segments=segments)
    coordinator = Transactions(world.store, world.now_ms)
    await coordinator.begin()  # leases the numbers of many transactions, the next one's among them
    before = len(world.store.applied)
    begun = await coordinator.begin()
    txn_id = begun.txn_id
    await publish(process, txn_id)
    await coordinator.commit(txn_id)
    for segment_id in ids:
        await materialized(await process.broker.segment(segment_id), txn_id)
    applied = world.store.applied[before:]
    assert len([batch for batch in applied if INTENT(batch)]) == segments
    assert len([batch for batch in applied if paths.header(txn_id) in batch.puts]) == 2, "its begin and its end"
    assert len([batch for batch in applied if CLEANUP(batch)]) == 1
    assert len(applied) == segments + 2 + 1, "and nothing else"
