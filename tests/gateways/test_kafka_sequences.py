"""Goal: the batches of an idempotent producer wait for the device together, and stand in the order of their sequences,
whatever fails.

Method: requests on one connection of the listener, sent before the answers of earlier ones; a device that is slow, or
full. DESIGN §5.22.
"""

from __future__ import annotations

import asyncio
import base64
from itertools import permutations
from typing import Any

import pytest

from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from metatxn_gateways.kafka.codes import KafkaCode
from metatxn_gateways.kafka.producers import Sequences
from participants.segment.dedup import DedupTable, Scope
from participants.segment.publishing import Hold
from tests.gateways.asking import Asking, Holder, framed, read_answer
from tests.gateways.conftest import Gateway
from tests.participants.ledger.faults import no_space


def on_one_connection(gateway: Gateway) -> Asking:
    handle = gateway.listener._connect()

    async def ask(api_key: int, version: int, entity: Any) -> Any:
        parts = await handle(framed(api_key, version, entity))
        assert parts is not None
        return read_answer(api_key, version, b"".join(parts))

    return Asking(ask)


class Batches:
    """Batches of one record each that one producer sends to one partition, in a transaction or outside of one."""

    def __init__(self, gateway: Gateway, asking: Asking, holder: Holder | None) -> None:
        self._gateway = gateway
        self.asking = asking
        self.holder = holder

    @classmethod
    async def of(cls, gateway: Gateway, *, transactional: bool) -> Batches:
        await gateway.create("t")
        asking, holder = on_one_connection(gateway), Holder("h") if transactional else None
        if holder is not None:
            assert not await asking.init(holder) and not await asking.add_partitions(holder, ("t", 0))
        return cls(gateway, asking, holder)

    def send(self, number: int) -> asyncio.Task[tuple[int, int]]:
        producer = -1 if self.holder is not None else 9
        sent = self.asking.produce("t", 0, b"%d" % number, holder=self.holder, producer=producer, sequence=number)
        return asyncio.ensure_future(sent)

    async def begun(self, count: int) -> None:
        """Until so many appends have begun."""
        (segment,) = self._gateway.broker.served.values()
        while segment.ledgers.last_assigned.entry < count - 1:
            await asyncio.sleep(0)

    async def appended(self) -> list[bytes]:
        if self.holder is not None:
            assert not await self.asking.end(self.holder, commit=True)
        return [base64.b64decode(each["value_base64"]) for each in await self._gateway.browse("t")]


@pytest.mark.parametrize("transactional", [False, True])
async def test_batches_in_sequence_wait_for_one_sync_together(gateway: Gateway, transactional: bool) -> None:
    batches = await Batches.of(gateway, transactional=transactional)
    assert await batches.send(0) == (KafkaCode.NONE, 0)
    gateway.process.device.hold()
    first = batches.send(1)
    await gateway.process.device.held()
    later = [batches.send(number) for number in range(2, 6)]
    await batches.begun(6)
    gateway.process.device.go()
    assert await asyncio.gather(first, *later) == [(KafkaCode.NONE, number) for number in range(1, 6)]
    assert await batches.appended() == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("transactional", [False, True])
async def test_nothing_follows_a_batch_that_failed_before_that_is_sent_again(
    gateway: Gateway, transactional: bool
) -> None:
    """Also not what was on its way behind it: then the batches would stand in another order."""
    batches = await Batches.of(gateway, transactional=transactional)
    assert await batches.send(0) == (KafkaCode.NONE, 0)
    disk = gateway.process.device.disk  # type: ignore[attr-defined]  # files with faults
    disk.write_error = no_space()
    failed = await asyncio.gather(*(batches.send(number) for number in range(1, 4)))
    assert {code for code, _ in failed} == {KafkaCode.KAFKA_STORAGE_ERROR}
    disk.write_error = None
    for early in (2, 3):
        assert (await batches.send(early))[0] == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    again = await asyncio.gather(*(batches.send(number) for number in range(1, 4)))
    assert again == [(KafkaCode.NONE, number) for number in range(1, 4)]
    assert await batches.appended() == [b"0", b"1", b"2", b"3"]


async def test_the_first_batches_of_a_producer_are_refused_together(gateway: Gateway) -> None:
    """The table does not know the producer, which may begin anywhere, but only once."""
    batches = await Batches.of(gateway, transactional=False)
    (segment,) = gateway.broker.served.values()
    segment.publisher.hold = Hold("s", "3 messages")
    first = batches.send(0)
    assert (await first)[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER, "the client is to send it again"
    segment.publisher.hold = None
    assert (await batches.send(1))[0] == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [await batches.send(number) for number in range(2)] == [(KafkaCode.NONE, 0), (KafkaCode.NONE, 1)]
    assert await batches.appended() == [b"0", b"1"]


async def test_what_a_closed_connection_has_begun_is_followed_by_the_next(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=False)
    gateway.process.device.hold()
    lost = [batches.send(0), batches.send(1)]
    await batches.begun(2)
    for each in lost:
        each.cancel()
    gateway.process.device.go()
    batches.asking = on_one_connection(gateway)
    assert [await batches.send(number) for number in range(1, 3)] == [(KafkaCode.NONE, 1), (KafkaCode.NONE, 2)]
    assert await batches.appended() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_the_first_batch_that_failed_is_the_next_whatever_the_order_of_their_failures(order: tuple[int, ...]) -> None:
    sequences = Sequences(following=7)
    begun = [sequences.begin(7 + number, 8 + number) for number in range(4)]
    sequences.succeeded(begun[0])
    for number in order:
        sequences.failed(begun[1 + number])
    again = sequences.begin(8, 9)
    for late in begun:
        sequences.failed(late)
    assert sequences.following == 9, "what failed before says nothing about what was sent again"
    sequences.failed(again)
    assert sequences.following == 8


@pytest.mark.parametrize("txn_id", [None, TxnId(0, 7)])
def test_the_last_batch_is_that_with_the_highest_position(txn_id: TxnId | None) -> None:
    """Found by the simulation: batches that became durable together are remembered in any order, and a new leader took
    one for the last that was not."""
    table, scope = DedupTable((0, 65_535)), Scope(txn_id, None, "kafka/9")
    for sequence in (0, 3, 1):
        table.durable(scope, sequence, Position(1, sequence), count=sequence + 1)
    assert table.last_of("kafka/9") == (3, 4) and table.last_of("kafka/8") is None
