"""Goal: a namespace has the transaction buffer and the pending-ack store that were chosen for it, and nothing else
changes.

Method: a package that offers both, as `importlib.metadata` finds it installed; a coordinator, a broker and a client in
this process. That each keeps the rules is asked in `txn/test_buffer.py` and `subscription/test_pending_acks.py`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import metatxn
from coordinator.service import CoordinatorService
from metastore.urls import open_store
from metatxn.wire.position import Position
from participants.broker.providers import Providers
from participants.service import BrokerService
from participants.subscription.memory_pending_acks import MemoryPendingAcks
from participants.subscription.segment_subscriptions import subscriptions_of
from participants.txn.memory_buffer import MemoryTransactionBuffer
from tests.participants.plain_providers import PlainBuffer, PlainPendingAcks

ENTRY_POINTS = """\
[metatxn.transaction_buffers]
plain = tests.participants.plain_providers:open_plain_buffer

[metatxn.pending_ack_stores]
plain = tests.participants.plain_providers:open_plain_pending_acks
"""
PLAIN = {"shop/orders": "plain"}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "packages" / "plain-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plain\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(information.parent)


async def test_each_namespace_has_its_own_and_both_serve(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        store = await open_store("memory://")
        stack.push_async_callback(store.close)
        service = BrokerService(
            store, data_dir=tmp_path / "data", port=0, transaction_buffers=PLAIN, pending_ack_stores=PLAIN
        )
        await service.start()
        stack.push_async_callback(service.stop)
        coordinator = CoordinatorService(store, port=0)
        await coordinator.start()
        stack.push_async_callback(coordinator.stop)
        client = await stack.enter_async_context(metatxn.connect_async(coordinator.url))

        kinds = {
            "shop/orders/t": (PlainBuffer, PlainPendingAcks),
            "shop/other/t": (MemoryTransactionBuffer, MemoryPendingAcks),
        }
        for topic, (buffer, pending) in kinds.items():
            await client.create_topic(topic)
            async with await client.subscribe(topic, "s", initial="earliest") as consumer:
                for decision in ("committed", "aborted"):
                    txn = await client.begin()
                    await client.producer(topic).send({"v": decision}, txn=txn)
                    await (txn.commit() if decision == "committed" else txn.abort())
                message = await consumer.receive()
                assert message is not None and message.value == {"v": "committed"}
                async with client.transaction() as txn:
                    await consumer.acknowledge(message, txn=txn)
            assert service.broker is not None
            (segment_id,) = (segment.segment for segment in (await client.topic(topic)).segments)
            segment = await service.broker.segment(segment_id)
            assert type(segment.buffer) is buffer
            assert [type(each.pending) for each in subscriptions_of(segment)] == [pending]


def test_all_others_have_what_is_chosen_for_them() -> None:
    providers = Providers.load({"*": "plain", "shop/orders": "memory"}, {})
    segments = [f"segment://{name}/t/0000-ffff-0" for name in ("shop/orders", "shop/other")]
    buffers = [type(providers.transaction_buffer(segment, Position(1, 0))) for segment in segments]
    assert buffers == [MemoryTransactionBuffer, PlainBuffer]
    assert {type(providers.pending_ack_store(segment, "s")) for segment in segments} == {MemoryPendingAcks}


def test_what_is_not_installed_is_named_beside_what_is() -> None:
    with pytest.raises(ValueError, match=r"no package offers 'spilling' as one of metatxn.tra.* are: memory, plain"):
        Providers.load({"shop/orders": "spilling"}, {})
