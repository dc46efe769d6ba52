"""Goal: a confirmed commit has everything that was acknowledged before it, whatever became of the transaction, of its
coordinator and of the answers.

Method: requests given to the listener's handler; one read of the transaction key is late. DESIGN §5.22.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from coordinator.key_sweep import KeySweep
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.key_records import read_key
from metastore.txn.store import INDEXES, read_transaction
from metastore.versions import ClusterVersion
from metatxn.wire.ids import TxnId
from metatxn_gateways.kafka.codes import KafkaCode
from metatxn_gateways.kafka.producers import Producers
from metatxn_gateways.kafka.requests import OFFERED
from tests.gateways.asking import Asking, Holder, asked, batch, code_in, made
from tests.gateways.conftest import Gateway
from tests.participants.segment.faulty_store import INTENT, Fault, puts


async def test_requests_at_the_same_time_find_one_producer(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    late, waits, calls = asyncio.Event(), asyncio.Event(), 0

    async def read_late(*place: Any) -> Any:
        nonlocal calls
        calls += 1
        first, found = calls == 1, await read_key(*place)
        if first:
            waits.set()
            await late.wait()
        return found

    await gateway.create("t")
    values = {"transactional_id": "x", "transaction_timeout": timedelta(seconds=60)}
    begun, _ = await code_in(gateway, 22, 4, "InitProducerIdRequest", **values, producer_id=-1, producer_epoch=-1)
    holder = {"transactional_id": "x", "producer_id": begun.producer_id, "producer_epoch": 0}
    await gateway.crash()
    monkeypatch.setattr("metatxn_gateways.kafka.producers.read_key", read_late)
    offsets = asyncio.ensure_future(code_in(gateway, 25, 3, "AddOffsetsToTxnRequest", **holder, group_id="g"))
    await waits.wait()
    topic = made(24, 3, "AddPartitionsToTxnTopic", name="t", partitions=(0,))
    adding = {f"v3_and_below_{name}": value for name, value in holder.items()} | {"v3_and_below_topics": (topic,)}
    assert (await code_in(gateway, 24, 3, "AddPartitionsToTxnRequest", **adding))[1] == KafkaCode.NONE
    records = batch(b"a", producer=begun.producer_id, sequence=0, attributes=0x10)
    part = made(0, 8, "PartitionProduceData", index=0, records=records)
    data = made(0, 8, "TopicProduceData", name="t", partition_data=(part,))
    sent = {"transactional_id": "x", "acks": -1, "timeout": timedelta(seconds=1), "topic_data": (data,)}
    answer = await asked(gateway, 0, 8, made(0, 8, "ProduceRequest", **sent))
    assert answer.responses[0].partition_responses[0].error_code == 0
    late.set()
    assert (await offsets)[1] == KafkaCode.NONE
    _, ended = await code_in(gateway, 26, 3, "EndTxnRequest", **holder, committed=True)
    seen = await gateway.browse("t")
    assert (ended, [each["value_base64"] for each in seen]) == (KafkaCode.NONE, ["YQ=="])


async def begun(gateway: Gateway) -> Holder:
    """One record is in its transaction."""
    await gateway.create("t")
    holder, ask = Holder("x"), Asking.of(gateway)
    assert await ask.init(holder) == KafkaCode.NONE
    assert await ask.add_partitions(holder, ("t", 0)) == KafkaCode.NONE
    assert await ask.produce("t", 0, b"a", holder=holder, sequence=0) == (KafkaCode.NONE, 0)
    return holder


async def test_a_producer_whose_id_was_forgotten_is_fenced_and_made_anew(gateway: Gateway) -> None:
    """DESIGN §5.26. It holds no transaction, and was idle for longer than ids are remembered."""
    holder, ask = await begun(gateway), Asking.of(gateway)
    store = gateway.broker.store

    async def forget() -> int:
        sweep = KeySweep(store, lambda: gateway.world.now_ms() + 1_000, ClusterVersion(), retention_ms=1)
        return await sweep.forget_once()

    assert await forget() == 0, "its transaction is open"
    assert await ask.end(holder, commit=True) == KafkaCode.NONE
    assert await forget() == 1
    assert await ask.add_partitions(holder, ("t", 0)) == KafkaCode.PRODUCER_FENCED
    assert await ask.init(holder) == KafkaCode.PRODUCER_FENCED
    again = Holder("x")
    assert await ask.init(again) == KafkaCode.NONE
    assert await ask.add_partitions(again, ("t", 0)) == KafkaCode.NONE
    assert (await ask.produce("t", 0, b"b", holder=again, sequence=0))[0] == KafkaCode.NONE
    assert await ask.end(again, commit=True) == KafkaCode.NONE
    assert [each["value_base64"] for each in await gateway.browse("t")] == ["YQ==", "Yg=="]


async def test_a_topic_that_another_producer_has_for_itself_takes_nothing_of_kafkas_clients(gateway: Gateway) -> None:
    """The transaction of the batch goes on, and is not taken for one that has ended."""
    holder, ask = await begun(gateway), Asking.of(gateway)
    path = "/v1/topics/t/exclusive-producer"
    epoch = (await gateway.http.post(path, json={"session": "a"})).json()["epoch"]
    assert (await ask.produce("t", 0, b"b"))[0] == KafkaCode.TOPIC_AUTHORIZATION_FAILED
    inside = await ask.produce("t", 0, b"b", holder=holder, sequence=1)
    assert inside[0] == KafkaCode.TOPIC_AUTHORIZATION_FAILED
    own = {"messages": [{"value": "own"}], "producer_epoch": epoch}
    assert (await gateway.http.post("/v1/topics/t/messages", json=own)).status_code == 200
    await gateway.http.delete(f"{path}?epoch={epoch}")
    assert (await ask.produce("t", 0, b"b", holder=holder, sequence=1))[0] == KafkaCode.NONE


async def operator_aborts(gateway: Gateway) -> None:
    held = await gateway.transactions.keys.get("kafka:x")
    assert held.txn_id is not None
    await gateway.transactions.abort(TxnId.parse(held.txn_id))


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_transaction_that_was_lost_is_not_replaced_by_another(gateway: Gateway, restarts: bool) -> None:
    """Otherwise a commit would be confirmed without what was in the first one."""
    holder, ask = await begun(gateway), Asking.of(gateway)
    await operator_aborts(gateway)
    if restarts:
        await gateway.crash()
    while (code := (await ask.produce("t", 0, b"a", holder=holder, sequence=0))[0]) == KafkaCode.NONE:
        await asyncio.sleep(0.001)  # until the segment knows the decision
    assert code == KafkaCode.INVALID_PRODUCER_EPOCH
    assert await ask.add_partitions(holder, ("t", 0)) == KafkaCode.INVALID_PRODUCER_EPOCH
    assert await ask.add_offsets(holder, "g") == KafkaCode.INVALID_PRODUCER_EPOCH
    assert (await ask.produce("t", 0, b"b", holder=holder, sequence=1))[0] == KafkaCode.INVALID_PRODUCER_EPOCH
    code = await ask.end(holder, commit=True)
    if code == KafkaCode.COORDINATOR_LOAD_IN_PROGRESS:
        code = await ask.end(holder, commit=True)
    assert code == KafkaCode.INVALID_PRODUCER_EPOCH
    assert await gateway.browse("t") == []


async def test_a_producer_goes_on_once_it_has_aborted_what_was_lost(gateway: Gateway) -> None:
    holder, ask = await begun(gateway), Asking.of(gateway)
    await operator_aborts(gateway)
    assert await ask.end(holder, commit=False) == KafkaCode.NONE
    assert await ask.add_partitions(holder, ("t", 0)) == KafkaCode.NONE
    assert (await ask.produce("t", 0, b"b", holder=holder, sequence=1))[0] == KafkaCode.NONE
    assert await ask.end(holder, commit=True) == KafkaCode.NONE
    assert [each["value_base64"] for each in await gateway.browse("t")] == ["Yg=="]


async def test_a_repeated_end_is_answered_by_the_next_process(gateway: Gateway) -> None:
    holder, ask = await begun(gateway), Asking.of(gateway)
    assert await ask.end(holder, commit=True) == KafkaCode.NONE
    await gateway.crash()
    assert await ask.end(holder, commit=True) == KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await ask.end(holder, commit=True) == KafkaCode.NONE
    assert await ask.end(holder, commit=False) == KafkaCode.INVALID_TXN_STATE


async def test_a_begin_stores_the_intents_and_reads_nothing(gateway: Gateway) -> None:
    """Behind an end at the same process. The first batch for each partition reads once, and so does the end."""
    holder, ask = await begun(gateway), Asking.of(gateway)
    await gateway.create("u", segments=2)
    assert await ask.end(holder, commit=True) == KafkaCode.NONE
    store, reads = gateway.world.store, list[str]()
    read = store.get_many

    async def counted(wanted: Sequence[str]) -> Any:
        reads.append(wanted[0].split("/")[1])
        return await read(wanted)

    store.get_many = counted  # type: ignore[method-assign]
    before = len(store.applied)
    assert await ask.add_partitions(holder, ("t", 0), ("u", 1)) == KafkaCode.NONE
    assert sum(key.startswith(paths.OPS) for key in store.applied[before].puts) == 2
    assert (await ask.produce("t", 0, b"b", holder=holder, sequence=1))[0] == KafkaCode.NONE
    assert (await ask.produce("u", 1, b"c", holder=holder, sequence=0))[0] == KafkaCode.NONE
    assert await ask.end(holder, commit=True) == KafkaCode.NONE
    assert not any(key.startswith(paths.OPS) for batch in store.applied[before + 1 :] for key in batch.puts)
    assert [each for each in reads if each.startswith("txn")] == ["txn", "txn", "txn-key"]
    assert [each["value_base64"] for each in await gateway.browse("u")] == ["Yw=="]


async def test_a_reconcile_during_the_begin_takes_nothing_from_it(gateway: Gateway) -> None:
    """It reads the header before it is there. Then the producer was told that it was fenced."""
    holder, ask = await begun(gateway), Asking.of(gateway)
    assert await ask.end(holder, commit=True) == KafkaCode.NONE
    held = gateway.world.store.fault(Fault(INTENT, hold_before=True))
    adding = asyncio.create_task(ask.add_partitions(holder, ("t", 0)))
    await held.reached.wait()
    await gateway.broker.reconcile()
    held.go.set()
    assert await adding == KafkaCode.NONE
    await gateway.broker.reconcile()
    assert (await ask.produce("t", 0, b"b", holder=holder, sequence=1))[0] == KafkaCode.NONE
    assert await ask.end(holder, commit=True) == KafkaCode.NONE
    assert [each["value_base64"] for each in await gateway.browse("t")] == ["YQ==", "Yg=="]


async def test_what_was_announced_before_it_began_has_no_intent_of_its_begin(gateway: Gateway) -> None:
    """An id that somebody has guessed is taken for one that was collected, and its operations are deleted. That must
    not be those of a transaction that begins meanwhile: nothing would hide its entries once they are aborted."""
    holder, ask = await begun(gateway), Asking.of(gateway)
    last = await held_by_x(gateway)
    assert await ask.end(holder, commit=True) == KafkaCode.NONE
    following = TxnId(last.coordinator, last.sequence + 1)
    (place,) = (await gateway.http.get("/v1/topics/t")).json()["segments"]
    segment = gateway.broker.serving(place["segment"])
    assert segment is not None
    body = {"txn_ids": [following], "segments": [segment.id]}
    assert (await gateway.http.post("/v1/intents", json=body)).json() == {"stored": 0}
    deletion = gateway.world.store.hold_range(paths.write_ops_of_segment(following, segment.id), unread=True)
    await gateway.broker.reconcile()
    await deletion.reached.wait()
    begin = gateway.world.store.fault(Fault(puts(paths.HEADERS), hold_after=True))
    adding = asyncio.create_task(ask.add_partitions(holder, ("t", 0)))
    await begin.reached.wait()
    deletion.go.set()
    while segment.buffer.get(following) is not None:
        await asyncio.sleep(0)
    begin.go.set()
    assert await adding == KafkaCode.NONE and await held_by_x(gateway) == following
    assert (await ask.produce("t", 0, b"never", holder=holder, sequence=1))[0] == KafkaCode.NONE
    assert await ask.end(holder, commit=False) == KafkaCode.NONE
    await gateway.crash()
    assert [each["value_base64"] for each in await gateway.browse("t")] == ["YQ=="]


async def held_by_x(gateway: Gateway) -> TxnId:
    held = await gateway.transactions.keys.get("kafka:x")
    assert held.txn_id is not None
    return TxnId.parse(held.txn_id)


async def test_an_end_behind_a_late_look_ends_what_the_key_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look of a batch tells of the first transaction when the second is open."""
    store, now = MemoryStore(INDEXES), iter(range(1_000, 100_000))
    producers = Producers(store, Transactions(store, lambda: next(now), 7))
    producer = await producers.transactional("x", await producers.connect("x", 60_000, None), 0)
    await producers.add(producer, [])
    first, late, waits = producer.txn_id, asyncio.Event(), asyncio.Event()

    async def read_late(*place: Any) -> Any:
        found = await read_key(*place)
        waits.set()
        await late.wait()
        return found

    with monkeypatch.context() as patch:
        patch.setattr("metatxn_gateways.kafka.producers.read_key", read_late)
        looking = asyncio.create_task(producers.open_transaction(producer, refused=first))
        await waits.wait()
    await producers.end(producer, commit=True)
    await producers.add(producer, [])
    second = producer.txn_id
    assert second is not None
    late.set()
    await looking
    assert producer.txn_id == first
    await producers.end(producer, commit=True)
    records = await read_transaction(store, second)
    assert records is not None and records.header.state == "COMMITTED"


async def test_a_begin_stores_a_bounded_number_of_intents(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metatxn_gateways.kafka.producers.MOST_ANNOUNCED", 2)
    holder, ask = Holder("x"), Asking.of(gateway)
    await gateway.create("u", segments=4)
    assert await ask.init(holder) == KafkaCode.NONE
    assert await ask.add_partitions(holder, *(("u", number) for number in range(4))) == KafkaCode.NONE
    (begin,) = [batch for batch in gateway.world.store.applied if INTENT(batch)]
    assert sum(key.startswith(paths.OPS) for key in begin.puts) == 2


async def test_a_producer_gets_its_next_id_once_however_often_it_asks(gateway: Gateway) -> None:
    holder, ask = await begun(gateway), Asking.of(gateway)
    first = holder.producer_id
    assert await ask.init(holder) == KafkaCode.NONE
    second, holder.producer_id = holder.producer_id, first
    assert await ask.init(holder) == KafkaCode.NONE
    assert first != second == holder.producer_id
    assert await ask.init(holder) == KafkaCode.NONE
    holder.producer_id = first
    assert await ask.init(holder) == KafkaCode.PRODUCER_FENCED


async def test_a_fenced_producer_is_told_what_its_version_knows(gateway: Gateway) -> None:
    """Clients of earlier versions know no PRODUCER_FENCED, and take it for an error of their own."""
    holder, ask = await begun(gateway), Asking.of(gateway)
    assert await ask.init(Holder("x")) == KafkaCode.NONE
    fields = holder.fields
    topic = {"name": "t", "partitions": (0,)}
    adding = {f"v3_and_below_{name}": value for name, value in fields.items()}
    for api_key, kind, since, values in (
        (22, "InitProducerIdRequest", 4, fields | {"transaction_timeout": timedelta(seconds=60)}),
        (24, "AddPartitionsToTxnRequest", 2, adding),
        (25, "AddOffsetsToTxnRequest", 2, fields | {"group_id": "g"}),
        (26, "EndTxnRequest", 2, fields | {"committed": True}),
    ):
        for version in OFFERED[api_key]:
            if api_key == 22 and version < 3:
                continue  # it does not say which producer asks
            if api_key == 24:
                values["v3_and_below_topics"] = (made(24, version, "AddPartitionsToTxnTopic", **topic),)
            told = (await code_in(gateway, api_key, version, kind, **values))[1]
            assert told == (KafkaCode.INVALID_PRODUCER_EPOCH if version < since else KafkaCode.PRODUCER_FENCED), kind
    late = KafkaCode.INVALID_PRODUCER_EPOCH
    assert (await ask.produce("t", 0, b"b", holder=holder, sequence=1))[0] == late
    assert await ask.commit_offsets_in(holder, "g", {("t", 0): 1}) == late
