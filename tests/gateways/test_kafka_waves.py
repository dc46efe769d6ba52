"""Goal: the batches of an idempotent producer share answers of the store and syncs, and stand in the order of their
sequences, whatever fails, and no matter who hangs up.

Method: requests on one connection of the listener, sent before the answers of earlier ones; a device that is slow, or
full. DESIGN §5.22, rule 6.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from crc32c import crc32c

from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metatxn.wire import errors
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.position import Position
from metatxn_gateways.kafka import sequences as sequences_module
from metatxn_gateways.kafka.codes import KafkaCode, KafkaError
from metatxn_gateways.kafka.sequences import Arrived, NotTheFollowing, Sequences
from metatxn_gateways.kafka.turns import Turns
from metatxn_gateways.kafka.wave_pace import WavePace
from metatxn_gateways.listener import MalformedRequest
from participants.segment.dedup import DedupTable
from participants.segment.publishing import Hold, Published
from participants.segment.segment import Segment
from tests.gateways.asking import PRODUCER, Holder, Link, batch, made, on_one_connection, worst
from tests.gateways.conftest import Gateway
from tests.gateways.test_kafka_admin import deleted
from tests.gateways.test_kafka_compacted import Compacted, records
from tests.participants.ledger.faults import no_space
from tests.participants.segment.faulty_store import INTENT, Fault, puts

WELL = KafkaCode.NONE


class Batches:
    """Batches of one record each that one producer sends to one partition, in a transaction or outside of one."""

    def __init__(self, gateway: Gateway, holder: Holder | None) -> None:
        self.gateway = gateway
        self.asking = on_one_connection(gateway)
        self.holder = holder

    @classmethod
    async def of(cls, gateway: Gateway, *, transactional: bool, announced: bool = True) -> Batches:
        """Unless its partition is `announced`, the first wave of a transaction has to store its intent."""
        await gateway.create("t")
        batches = cls(gateway, Holder("h") if transactional else None)
        if batches.holder is not None:
            assert not await batches.asking.init(batches.holder)
            if announced:
                await batches.begin()
            else:
                assert not await batches.asking.add_offsets(batches.holder, "g")
        return batches

    async def begin(self) -> None:
        assert self.holder is not None
        assert not await self.asking.add_partitions(self.holder, ("t", 0))

    @property
    def segment(self) -> Segment:
        (segment,) = self.gateway.broker.served.values()
        return segment

    @property
    def sequences(self) -> Sequences:
        (found,) = self.gateway.listener._produce._waves._sequences._last.values()
        return found

    def send(self, number: int, epoch: int = 0) -> asyncio.Task[tuple[int, int]]:
        """Batches that are sent one after the other arrive in that order."""
        producer = -1 if self.holder is not None else 9
        return asyncio.ensure_future(
            self.asking.produce(
                "t", 0, b"%d" % number, holder=self.holder, producer=producer, sequence=number, epoch=epoch
            )
        )

    def send_all(self, *numbers: int) -> list[asyncio.Task[tuple[int, int]]]:
        return [self.send(number) for number in numbers]

    async def here(self, count: int) -> None:
        """Until this many batches have arrived and have no answer."""
        while len(self.sequences._here) < count:
            await asyncio.sleep(0)

    async def held(self, *numbers: int) -> list[asyncio.Task[tuple[int, int]]]:
        """Send these, the first of which waits for the device, and the others behind it."""
        self.gateway.process.device.hold()
        sent = [self.send(numbers[0])]
        await self.gateway.process.device.held()
        sent += self.send_all(*numbers[1:])
        await self.here(len(numbers))
        return sent

    async def reopened(self) -> None:
        """Until the segment is served again after it was lost."""
        while not self.gateway.broker.served:
            await asyncio.sleep(0.001)

    async def appended(self, count: int) -> list[bytes | None]:
        """What a reader finds, once there is so much."""
        if self.holder is not None:
            assert not await self.asking.end(self.holder, commit=True)
        found = await self.asking.read("t", 0, count)
        assert await self.asking.fetch("t", 0, count) == (KafkaCode.NONE, [], count)
        return found


def well(*offsets: int) -> list[tuple[int, int]]:
    return [(KafkaCode.NONE, offset) for offset in offsets]


def codes(answers: Sequence[tuple[int, int]]) -> list[KafkaCode]:
    return [KafkaCode(code) for code, _ in answers]


def disk_of(gateway: Gateway) -> Any:
    """Files with faults."""
    return gateway.process.device.disk  # type: ignore[attr-defined]


# -- together ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transactional", [False, True])
async def test_what_arrives_meanwhile_shares_one_answer_of_the_store_and_one_sync(
    gateway: Gateway, transactional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = await Batches.of(gateway, transactional=transactional)
    store, found, reads = gateway.world.store, gateway.world.store.get_many, 0

    async def counted(wanted: Sequence[str]) -> Any:
        nonlocal reads
        reads += any(key.startswith(paths.HEADERS) for key in wanted)
        return await found(wanted)

    assert await batches.send(0) == (WELL, 0)
    monkeypatch.setattr(store, "get_many", counted)
    before = disk_of(gateway).syncs
    sent = await batches.held(1, 2, 3, 4, 5)
    gateway.process.device.go()
    assert await asyncio.gather(*sent) == well(1, 2, 3, 4, 5)
    assert (disk_of(gateway).syncs - before, reads) == (2, 2 if transactional else 0)
    assert len([each for each in store.applied if INTENT(each)]) == (1 if transactional else 0)
    assert await batches.appended(6) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize(("name", "most"), [("WAVE_BATCHES", 2), ("WAVE_BYTES", 2 * len(batch(b"0")))])
async def test_a_wave_is_bounded(gateway: Gateway, name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = await Batches.of(gateway, transactional=False)
    monkeypatch.setattr(sequences_module, name, most)
    before = disk_of(gateway).syncs
    sent = await batches.held(0, 1, 2, 3, 4)
    gateway.process.device.go()
    assert await asyncio.gather(*sent) == well(0, 1, 2, 3, 4)
    assert disk_of(gateway).syncs - before == 3


async def test_a_wave_waits_for_what_its_client_sends_next(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = await Batches.of(gateway, transactional=False)
    ended = WavePace.ended

    def ended_after_long(pace: WavePace, on_their_way: int) -> None:
        ended(pace, on_their_way)
        pace._latest_s = asyncio.get_running_loop().time() + 1_000

    monkeypatch.setattr(WavePace, "ended", ended_after_long)
    sent = await batches.held(0, 1, 2)  # two are on their way at the end of both waves
    gateway.process.device.go()
    assert await asyncio.gather(*sent) == well(0, 1, 2)
    for number in (3, 5):  # the wave that waited was not a full one, so the next one waits, too
        before = disk_of(gateway).syncs
        sent = [batches.send(number)]
        await batches.here(1)
        for _ in range(20):
            await asyncio.sleep(0)
        sent.append(batches.send(number + 1))
        assert await asyncio.gather(*sent) == well(number, number + 1)
        assert disk_of(gateway).syncs - before == 1


async def test_a_wave_that_failed_is_followed_at_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client sends again what it has, and perhaps one batch at first."""
    batches = await Batches.of(gateway, transactional=False)
    expected: list[int] = []
    monkeypatch.setattr(WavePace, "ended", lambda _, on_their_way: expected.append(on_their_way))
    sent = await batches.held(0, 1, 2)
    disk_of(gateway).write_error = no_space()
    gateway.process.device.go()
    answers = await asyncio.gather(*sent)
    assert answers[0] == (WELL, 0) and WELL not in codes(answers[1:])
    assert expected == [3, 0]


@pytest.mark.parametrize("idempotent", [False, True])
async def test_batches_of_one_connection_keep_their_order_whatever_else_their_requests_hold(
    gateway: Gateway, idempotent: bool
) -> None:
    """Requests that are received in one step of the loop, as uvloop does it: one for two partitions, and one behind
    it."""
    await gateway.create("t", 2)
    asking = on_one_connection(gateway)
    producer, sequences = (9, (0, 1)) if idempotent else (-1, (-1, -1))
    parts = tuple(
        made(
            0,
            8,
            "PartitionProduceData",
            index=number,
            records=batch(b"first", producer=producer, sequence=sequences[0]),
        )
        for number in range(2)
    )
    data = made(0, 8, "TopicProduceData", name="t", partition_data=parts)
    fields = {"transactional_id": None, "acks": -1, "timeout": timedelta(seconds=1), "topic_data": (data,)}
    for number in range(2):
        assert await asking.produce("t", number, b"opened") == (WELL, 0)
    both = asyncio.ensure_future(asking.ask(0, 8, made(0, 8, "ProduceRequest", **fields)))
    behind = asking.produce("t", 0, b"second", producer=producer, sequence=sequences[1])
    assert await asyncio.ensure_future(behind) == (WELL, 2)
    assert worst(await both) == WELL
    assert await asking.read("t", 0, 3) == [b"opened", b"first", b"second"]


async def test_a_wave_that_was_full_is_followed_at_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = await Batches.of(gateway, transactional=False)
    monkeypatch.setattr(sequences_module, "WAVE_BATCHES", 1)
    expected: list[int] = []
    monkeypatch.setattr(WavePace, "ended", lambda _, on_their_way: expected.append(on_their_way))
    sent = await batches.held(0, 1, 2)
    gateway.process.device.go()
    assert await asyncio.gather(*sent) == well(0, 1, 2)
    assert expected[1:] == [0, 1], "the first wave was all that was there when it left"


async def test_a_batch_as_large_as_any_is_a_wave(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = await Batches.of(gateway, transactional=False)
    monkeypatch.setattr(sequences_module, "WAVE_BYTES", 1)
    assert await asyncio.gather(*batches.send_all(0, 1)) == well(0, 1)


async def test_what_is_in_a_transaction_is_no_wave_with_what_is_not(gateway: Gateway) -> None:
    """Also under one producer id, which no client does."""
    batches = await Batches.of(gateway, transactional=True)
    sent = await batches.held(0, 1)
    assert batches.holder is not None
    outside = batches.asking.produce("t", 0, b"2", producer=batches.holder.producer_id, sequence=2)
    sent.append(asyncio.ensure_future(outside))
    await batches.here(3)
    gateway.process.device.go()
    assert await asyncio.gather(*sent) == well(0, 1, 2)
    assert not await batches.asking.end(batches.holder, commit=False)
    assert [each["value_base64"] for each in await gateway.browse("t")] == ["Mg=="]


@pytest.mark.parametrize("transactional", [False, True])
async def test_batches_are_judged_in_the_order_in_which_they_came(gateway: Gateway, transactional: bool) -> None:
    """Also if what the first one needs to know comes late."""
    batches = await Batches.of(gateway, transactional=transactional)
    partitions = gateway.listener._partitions
    find, late, waits = partitions.segment, asyncio.Event(), asyncio.Event()

    async def find_late(name: str, partition: int) -> Segment:
        if not waits.is_set():
            waits.set()
            await late.wait()
        return await find(name, partition)

    partitions.segment = find_late  # type: ignore[method-assign]
    sent = batches.send_all(0, 1, 2)
    await waits.wait()
    await asyncio.sleep(0)
    late.set()
    assert await asyncio.gather(*sent) == well(0, 1, 2)


# -- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transactional", [False, True])
async def test_nothing_follows_a_batch_that_failed_before_that_is_sent_again(
    gateway: Gateway, transactional: bool
) -> None:
    batches = await Batches.of(gateway, transactional=transactional)
    assert await batches.send(0) == (WELL, 0)
    disk_of(gateway).write_error = no_space()
    failed = codes(await asyncio.gather(*batches.send_all(1, 2, 3)))
    assert failed == [KafkaCode.KAFKA_STORAGE_ERROR] * 3, "an error after which clients send again"
    disk_of(gateway).write_error = None
    assert codes([await each for each in batches.send_all(2, 3)]) == [KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2
    assert await asyncio.gather(*batches.send_all(1, 2, 3)) == well(1, 2, 3)
    assert await batches.appended(4) == [b"0", b"1", b"2", b"3"]


async def test_a_failure_reaches_what_waits_behind_it(gateway: Gateway) -> None:
    """Also one of which nobody knows whether it took effect. What was appended is found when it is sent again."""
    batches = await Batches.of(gateway, transactional=False)
    assert await batches.send(0) == (WELL, 0)
    sent = await batches.held(1, 2, 3)
    gateway.process.device.fail()
    gateway.process.device.go()
    failed = codes(await asyncio.gather(*sent))
    assert failed == [KafkaCode.REQUEST_TIMED_OUT] * 3, "an error after which clients send again"
    gateway.process.device.heal()
    await batches.reopened()
    assert await asyncio.gather(*batches.send_all(1, 2, 3)) == well(1, 2, 3)
    assert await batches.appended(4) == [b"0", b"1", b"2", b"3"]


async def test_what_is_wrong_with_one_batch_is_not_told_of_those_behind_it(gateway: Gateway) -> None:
    """A client divides a batch that is too large, and sends those behind it again."""
    batches = await Batches.of(gateway, transactional=False)
    sent = await batches.held(0, 1, 2)
    waiting = list(batches.sequences._accepted.values())[1]
    waiting.entry = Entry(
        waiting.entry.payload, PayloadKind.KAFKA, 1 << 30, producer="kafka/9", sequence=waiting.sequence
    )
    gateway.process.device.go()
    assert codes(await asyncio.gather(*sent)) == [
        KafkaCode.NONE,
        KafkaCode.MESSAGE_TOO_LARGE,
        KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ]
    assert await asyncio.gather(*batches.send_all(1, 2)) == well(1, 2)


async def test_an_answer_of_the_store_that_is_lost_fails_the_whole_wave(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=True, announced=False)
    lost = gateway.world.store.fault(Fault(INTENT, hold_after=True, after=StoreUnavailable("the answer is lost")))
    sent = [batches.send(0)]
    await lost.reached.wait()
    sent += batches.send_all(1, 2)
    await batches.here(3)
    lost.go.set()
    assert codes(await asyncio.gather(*sent)) == [KafkaCode.NOT_LEADER_OR_FOLLOWER] * 3
    assert await asyncio.gather(*batches.send_all(0, 1, 2)) == well(0, 1, 2)
    assert await batches.appended(3) == [b"0", b"1", b"2"]


async def test_a_request_that_names_a_partition_twice_is_malformed(gateway: Gateway) -> None:
    """2,000 copies of a batch in one request took two seconds of the event loop when their connection was closed, and
    four times as many took sixteen times as long."""
    batches = await Batches.of(gateway, transactional=False)
    part = made(0, 8, "PartitionProduceData", index=0, records=batch(b"0", producer=9, sequence=0))
    other = replace(part, index=1)
    topics = [made(0, 8, "TopicProduceData", name="t", partition_data=parts) for parts in [(part,), (other, part)]]
    fields = {"transactional_id": None, "acks": -1, "timeout": timedelta(seconds=1)}
    for repeated in (tuple(topics), (replace(topics[0], partition_data=(part, part)),)):
        with pytest.raises(MalformedRequest, match="twice"):
            await batches.asking.ask(0, 8, made(0, 8, "ProduceRequest", **fields, topic_data=repeated))
    assert not batches.gateway.listener._produce._waves._sequences._last
    assert worst(await batches.asking.ask(0, 8, made(0, 8, "ProduceRequest", **fields, topic_data=(topics[1],)))) == 3


# -- copies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_batch_that_is_sent_again_meanwhile_waits_for_the_first_one(
    gateway: Gateway, transactional: bool
) -> None:
    batches = await Batches.of(gateway, transactional=transactional)
    sent = await batches.held(0, 1, 0, 1, 2)
    gateway.process.device.go()
    assert await asyncio.gather(*sent) == well(0, 1, 0, 1, 2)
    assert await batches.appended(3) == [b"0", b"1", b"2"]


async def test_a_copy_of_a_batch_that_failed_takes_its_place(gateway: Gateway) -> None:
    """And what came behind the copy goes on behind it: its client has heard of no failure."""
    batches = await Batches.of(gateway, transactional=False)
    assert await batches.send(0) == (WELL, 0)
    disk = disk_of(gateway)
    sent = await batches.held(1, 2, 1, 2, 3)
    segment, failing = batches.segment, asyncio.Event()
    publish = segment.publish_in_order

    async def without_space(entries: Sequence[Entry]) -> Published:
        failing.set()
        disk.write_error = no_space()
        published = await publish(entries)
        disk.write_error, segment.publish_in_order = None, publish  # type: ignore[method-assign]
        return published

    segment.publish_in_order = without_space  # type: ignore[method-assign]
    gateway.process.device.go()
    assert codes(await asyncio.gather(*sent)) == [
        *(KafkaCode.NONE, KafkaCode.KAFKA_STORAGE_ERROR, KafkaCode.NONE),
        *(KafkaCode.NONE, KafkaCode.NONE),
    ]
    assert failing.is_set()
    assert await batches.appended(4) == [b"0", b"1", b"2", b"3"]


async def test_another_batch_under_the_same_sequence_is_refused(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=False)
    sent = await batches.held(0, 1)
    for number in range(2):
        other = batches.asking.produce("t", 0, b"x", b"y", producer=9, sequence=number)
        assert (await other)[0] == KafkaCode.INVALID_REQUEST
    gateway.process.device.go()
    assert await asyncio.gather(*sent) == well(0, 1)
    assert (await batches.asking.produce("t", 0, b"x", b"y", producer=9, sequence=0))[0] == KafkaCode.INVALID_REQUEST


# -- epochs --------------------------------------------------------------------------------------------------------


async def test_the_epoch_is_judged_with_the_sequence(gateway: Gateway) -> None:
    """Behind what is on its way, and before anything of the next epoch is durable."""
    batches = await Batches.of(gateway, transactional=False)
    sent = await batches.held(0, 1)
    sent.append(batches.send(0, epoch=2))
    await batches.here(3)
    for late in (batches.send(2), batches.send(1), batches.send(0, epoch=1)):
        assert (await late)[0] == KafkaCode.INVALID_PRODUCER_EPOCH
    assert (await batches.send(2, epoch=2))[0] == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    sent.append(batches.send(1, epoch=2))
    await batches.here(4)
    gateway.process.device.go()
    assert await asyncio.gather(*sent) == well(0, 1, 2, 3)
    assert await batches.appended(4) == [b"0", b"1", b"0", b"1"]


async def test_the_next_epoch_begins_although_what_is_before_it_fails(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=False)
    sent = await batches.held(0, 1)
    batches.segment.publisher.hold = Hold("s", "3 messages")
    sent.append(batches.send(0, epoch=1))
    await batches.here(3)
    gateway.process.device.go()
    assert codes(await asyncio.gather(*sent)) == [WELL, *[KafkaCode.NOT_LEADER_OR_FOLLOWER] * 2]
    batches.segment.publisher.hold = None
    assert await batches.send(0, epoch=1) == (WELL, 1)
    assert (await batches.send(1))[0] == KafkaCode.INVALID_PRODUCER_EPOCH


# -- who hangs up --------------------------------------------------------------------------------------------------


async def test_what_a_closed_connection_has_sent_is_followed_by_the_next(gateway: Gateway) -> None:
    """What is on its way is appended, and what waited is not kept."""
    batches = await Batches.of(gateway, transactional=False)
    lost = await batches.held(0, 1, 2)
    for each in lost:
        each.cancel()
    await asyncio.wait(lost)
    assert len(batches.sequences._here) == 1
    batches.asking = on_one_connection(gateway)
    again = batches.send_all(0, 1, 2)
    await batches.here(4)
    gateway.process.device.go()
    assert await asyncio.gather(*again) == well(0, 1, 2)
    assert batches.sequences.is_idle and not batches.sequences._accepted
    assert await batches.appended(3) == [b"0", b"1", b"2"]


async def test_a_copy_takes_the_place_of_what_a_closed_connection_has_left(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=False)
    lost = await batches.held(0, 1, 2)
    batches.asking = on_one_connection(gateway)
    again = batches.send_all(0, 1, 2, 3)
    await batches.here(7)
    for each in reversed(lost):
        each.cancel()
    await asyncio.wait(lost)
    gateway.process.device.go()
    assert await asyncio.gather(*again) == well(0, 1, 2, 3)
    assert await batches.appended(4) == [b"0", b"1", b"2", b"3"]


async def test_a_segment_that_closes_leaves_nobody_waiting(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=True, announced=False)
    held = gateway.world.store.fault(Fault(INTENT, hold_before=True))
    sent = batches.send_all(0, 1, 2)
    await held.reached.wait()
    await batches.here(3)
    await batches.segment.close()
    assert set(codes(await asyncio.gather(*sent))) <= {KafkaCode.REQUEST_TIMED_OUT, KafkaCode.NOT_LEADER_OR_FOLLOWER}
    assert batches.sequences.is_idle and not batches.sequences.is_sending
    held.go.set()


# -- the first batch of a producer -----------------------------------------------------------------------------------


async def test_a_first_batch_that_was_refused_is_not_passed_over(gateway: Gateway) -> None:
    """The table does not know the producer, which may begin anywhere, but only once."""
    batches = await Batches.of(gateway, transactional=False)
    batches.segment.publisher.hold = Hold("s", "3 messages")
    assert (await batches.send(0))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    batches.segment.publisher.hold = None
    assert (await batches.send(1))[0] == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [await each for each in batches.send_all(0, 1)] == well(0, 1)


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_first_batch_that_came_while_the_segment_was_opened_is_not_passed_over(
    gateway: Gateway, transactional: bool
) -> None:
    batches = await Batches.of(gateway, transactional=transactional)
    segment = batches.segment
    held = gateway.world.store.fault(Fault(puts(paths.segment(segment.id)), hold_before=True))
    segment.lose("its ledger has failed")
    await held.reached.wait()
    assert codes(await asyncio.gather(*batches.send_all(5, 6))) == [KafkaCode.NOT_LEADER_OR_FOLLOWER] * 2
    held.go.set()
    await batches.reopened()
    assert (await batches.send(6))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER, "the one before it was not sent again"
    assert await asyncio.gather(*batches.send_all(5, 6)) == well(0, 1)
    assert await batches.appended(2) == [b"5", b"6"]


async def test_what_another_broker_has_meanwhile_is_not_waited_for(gateway: Gateway) -> None:
    """A client that is sent back with a batch, and sends it again, owes nothing."""
    batches = await Batches.of(gateway, transactional=False)
    segment = batches.segment
    segment.lose("its ledger has failed")
    assert (await batches.send(5))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await batches.reopened()
    assert codes(await asyncio.gather(*batches.send_all(8, 9))) == [KafkaCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert await asyncio.gather(*batches.send_all(8, 9)) == well(0, 1)


async def test_what_is_given_up_is_not_waited_for(gateway: Gateway) -> None:
    """A client that was sent back, and goes on in its next epoch, owes nothing. It does not send the same again."""
    batches = await Batches.of(gateway, transactional=False)
    batches.segment.lose("its ledger has failed")
    assert (await batches.send(5))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await batches.reopened()
    assert (await batches.send(6))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    following = [batches.send(number, epoch=1) for number in range(2)]
    assert codes(await asyncio.gather(*following)) == [KafkaCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert [await batches.send(number, epoch=1) for number in range(2)] == well(0, 1)


async def test_what_a_client_begins_again_with_is_owed_if_it_is_refused(gateway: Gateway) -> None:
    """In the place of what it gave up."""
    batches = await Batches.of(gateway, transactional=False)
    batches.segment.lose("its ledger has failed")
    assert (await batches.send(5))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await batches.reopened()
    for number in range(2):
        assert (await batches.send(number, epoch=1))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    damaged = bytearray(batch(b"0", producer=9, sequence=0, epoch=1))
    damaged[-1] ^= 1
    assert (await batches.asking.append("t", 0, bytes(damaged)))[0] == KafkaCode.CORRUPT_MESSAGE
    assert (await batches.send(1, epoch=1))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert [await batches.send(number, epoch=1) for number in range(2)] == well(0, 1)


async def test_what_another_broker_has_with_what_was_sent_back_is_not_waited_for(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=False)
    batches.segment.lose("its ledger has failed")
    assert (await batches.send(5))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await batches.reopened()
    assert (await batches.send(6))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert (await batches.send(8))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER, "it may have been on its way, behind 6"
    assert await asyncio.gather(*batches.send_all(8, 9)) == well(0, 1)


async def test_what_is_owed_is_not_passed_over_where_sequences_begin_anew(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=False)
    batches.segment.lose("its ledger has failed")
    last = (1 << 31) - 1
    assert (await batches.send(last))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await batches.reopened()
    assert (await batches.send(0))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert await asyncio.gather(*batches.send_all(last, 0, 1)) == well(0, 1, 2)


async def test_what_a_closed_connection_was_told_is_no_sign_on_one_that_was_told_of_a_failure(
    gateway: Gateway,
) -> None:
    """What follows there was sent before its client heard of that."""
    batches = await Batches.of(gateway, transactional=False)
    batches.segment.lose("its ledger has failed")
    assert (await batches.send(5))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await batches.reopened()
    second, link = batches.asking, Link()
    batches.asking = on_one_connection(gateway, link)
    assert (await batches.send(6))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    link.on_lost()
    batches.asking = second
    assert (await batches.send(6))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert await asyncio.gather(*batches.send_all(5, 6)) == well(0, 1)


async def test_what_lies_in_an_earlier_connection_is_no_sign(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=False)
    batches.segment.lose("its ledger has failed")
    assert (await batches.send(5))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await batches.reopened()
    assert (await batches.send(6))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    batches.asking = on_one_connection(gateway)
    assert (await batches.send(6))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER, "the other one may only have been late"
    assert [await each for each in batches.send_all(5, 6)] == well(0, 1)


async def test_a_connection_that_is_closed_brings_nothing_any_more(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=False)
    batches.segment.lose("its ledger has failed")
    link = Link()
    batches.asking = on_one_connection(gateway, link)
    assert (await batches.send(5))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await batches.reopened()
    assert (await batches.send(6))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    link.on_lost()
    batches.asking = on_one_connection(gateway)
    assert await batches.send(6) == (WELL, 0)


async def test_a_batch_that_is_no_batch_is_not_passed_over(gateway: Gateway) -> None:
    """It was damaged on its way, and its client sends it again."""
    batches = await Batches.of(gateway, transactional=False)
    damaged = bytearray(batch(b"0", producer=9, sequence=0))
    damaged[-1] ^= 1
    assert (await batches.asking.append("t", 0, bytes(damaged)))[0] == KafkaCode.CORRUPT_MESSAGE
    assert (await batches.send(1))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert [await each for each in batches.send_all(0, 1)] == well(0, 1)


async def test_what_was_sent_again_for_a_closed_connection_is_not_kept(gateway: Gateway) -> None:
    """However often its client comes again while the first one is on its way."""
    batches = await Batches.of(gateway, transactional=False)
    sent = await batches.held(0)
    (first,) = batches.sequences._accepted.values()
    for _ in range(3):
        batches.asking = on_one_connection(gateway)
        again = batches.send(0)
        await batches.here(2)
        assert len(first.copies) == 1
        again.cancel()
        await asyncio.wait([again])
        assert not first.copies
    gateway.process.device.go()
    assert await asyncio.gather(*sent) == well(0)


# -- openings -----------------------------------------------------------------------------------------------------


class Opening:
    """What `Sequences` wants of one opening of a segment."""

    id = "s"
    lost: str | None = None

    def __init__(self, generation: int) -> None:
        self.dedup = DedupTable((0, 65_535))
        self.ownership = self
        self.generation = generation


def arrived(number: int) -> Arrived:
    return Arrived(Entry(b"", PayloadKind.KAFKA, 1, producer="kafka/9", sequence=number), None)


async def test_nothing_passes_over_what_is_on_its_way_in_a_former_opening() -> None:
    """It may be there or not, and the new opening does not know it."""
    sequences, connection = Sequences(), Turns()
    before, after = (cast(Segment, Opening(generation)) for generation in (1, 2))
    first = arrived(5)
    sequences.arrive(before, first, connection)
    wave = sequences.next_wave()
    for number in (6, 5):
        with pytest.raises(KafkaError, match="NOT_LEADER"):
            sequences.arrive(after, arrived(number), connection)
    sequences.ended(wave, Published([], errors.OutcomeUnknown("the segment was closed")))
    with pytest.raises(errors.OutcomeUnknown):
        await first.place
    with pytest.raises(KafkaError, match="NOT_LEADER"):
        sequences.arrive(after, arrived(6), connection)
    sequences.arrive(after, arrived(5), connection)
    with pytest.raises(NotTheFollowing):
        sequences.arrive(after, arrived(7), connection)
    sequences.arrive(after, arrived(6), connection)


async def test_a_segment_that_is_lost_takes_nothing() -> None:
    sequences, connection = Sequences(), Turns()
    lost, after = Opening(1), cast(Segment, Opening(2))
    lost.lost = "deposed"
    with pytest.raises(KafkaError, match="NOT_LEADER"):
        sequences.arrive(cast(Segment, lost), arrived(5), connection)
    with pytest.raises(KafkaError, match="NOT_LEADER"):
        sequences.arrive(after, arrived(6), connection)
    sequences.arrive(after, arrived(5), connection)


async def test_what_was_withdrawn_leaves_alone_what_is_on_its_way() -> None:
    sequences, opening, connection = Sequences(), cast(Segment, Opening(1)), Turns()
    first, second, third = (arrived(number) for number in range(3))
    sequences.arrive(opening, first, connection)
    wave = sequences.next_wave()
    for each in (second, third):
        sequences.arrive(opening, each, connection)
    sequences.withdraw(first)
    sequences.withdraw(second)
    with pytest.raises(KafkaError, match="NOT_LEADER"):
        await third.place
    sequences.ended(wave, Published([Position(1, 0)], None))
    assert await first.place == Position(1, 0)
    sequences.arrive(opening, arrived(1), connection)


# -- what is gone ----------------------------------------------------------------------------------------------------


async def rolled(segment: Segment) -> None:
    assert segment.on_full is not None
    await segment.on_full()


async def test_a_retry_of_what_was_trimmed_is_answered(gateway: Gateway) -> None:
    batches = await Batches.of(gateway, transactional=False)
    assert await asyncio.gather(*batches.send_all(0, 1)) == well(0, 1)
    await rolled(batches.segment)
    assert await batches.send(2) == (WELL, 2)
    assert await deleted(gateway, 2) == (WELL, 2)
    for number in range(2):
        assert await batches.send(number) == (KafkaCode.DUPLICATE_SEQUENCE_NUMBER, -1)
    assert [await each for each in batches.send_all(2, 3)] == well(2, 3)


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_retry_of_what_was_compacted_away_is_answered(gateway: Gateway, crashes: bool) -> None:
    """The table of sequences has it, and its offset is gone."""
    topic = Compacted(gateway)
    await topic.create()

    async def send(number: int) -> tuple[int, int]:
        draft = bytearray(records((b"a", b"%d" % number)))
        PRODUCER.pack_into(draft, 43, 9, 0, number)
        struct.pack_into(">I", draft, 17, crc32c(draft[21:]))
        return await topic.produce(bytes(draft))

    for number in range(3):
        assert await send(number) == (WELL, number)
    await topic.roll()
    await topic.passes()
    if crashes:
        await gateway.crash()
    for number in range(2):
        assert await send(number) == (KafkaCode.DUPLICATE_SEQUENCE_NUMBER, -1)
    assert [await send(number) for number in (2, 3)] == well(2, 3)
