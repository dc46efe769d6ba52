"""Goal: a record is found by the timestamp that its producer gave it, whatever their order, and whatever was rolled,
trimmed, rewritten or opened again.

Method: a segment of batches with offsets; every search is compared with a look at all records. DESIGN §5.20.
"""

from __future__ import annotations

import random
from itertools import chain

import pytest

from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from metatxn.wire.record_batches import KafkaRecord, decode_columns
from participants.ledger.offsets import first_offset
from participants.messages.batches import encode_batch
from participants.segment.rolling import roll
from participants.segment.segment import Segment
from participants.segment.trimming import trim
from tests.participants.segment.test_hidden import tended
from tests.participants.segment.test_offsets import first_node
from tests.participants.segment.world import ALL_BYTES, SEGMENT, World, materialized

Times = list[tuple[int, int]]


async def publish(segment: Segment, *times_ms: int, txn_id: TxnId | None = None) -> Position:
    payload = encode_batch([KafkaRecord(b"k", b"v", timestamp_ms=each) for each in times_ms])
    return (await segment.publish(Entry(payload, PayloadKind.KAFKA, len(times_ms), txn_id)))[0]


async def all_records(segment: Segment) -> Times:
    """The offset and the timestamp of each record that is there."""
    seen: Times = []
    at = segment.ledgers.start
    while True:
        page = await segment.reader.read_uncommitted(at, ALL_BYTES)
        for frame in page.frames:
            seen += enumerate(decode_columns(frame.payload, frame.count).times_ms, first_offset(frame))
        if page.end:
            return seen
        at = page.next


async def assert_found(segment: Segment) -> None:
    """Each timestamp, the ones around it, and the latest one."""
    records = await all_records(segment)
    for asked in sorted({0, *chain.from_iterable((ms - 1, ms, ms + 1) for _, ms in records)}):
        expected = next(((offset, ms) for offset, ms in records if ms >= asked), None)
        assert await segment.record_times.first_from(asked) == expected, asked
    latest = max((ms for _, ms in records), default=None)
    expected = next(((offset, ms) for offset, ms in records if ms == latest), None)
    assert await segment.record_times.latest() == expected


async def recorded(world: World) -> list[int | None]:
    stored = await world.store.inner.get(paths.segment(SEGMENT))
    assert stored is not None
    return [each.latest_record_ms for each in SegmentRecord.decode(stored.value).ledgers]


async def test_nothing_is_found_where_there_is_nothing(world: World) -> None:
    segment = await (await first_node(world)).open()
    await assert_found(segment)
    await publish(segment, 5)
    assert await segment.record_times.first_from(6) is None


async def test_records_out_of_order_are_found_within_a_batch_and_over_ledgers(world: World) -> None:
    node = await first_node(world)
    segment = await node.open()
    for ledger in (((50, 10, 70), (20,)), ((90,), (5, 6)), ((60, 100, 30),)):
        for times_ms in ledger:
            await publish(segment, *times_ms)
        await roll(segment, world.store, node.storage)
    await publish(segment, 95, 40)
    await assert_found(segment)
    assert await recorded(world) == [70, 90, 100, None]
    segment = await world.reopened()
    await assert_found(segment)
    assert (await recorded(world))[3] is None, "a ledger that a death has ended is read when somebody asks"


async def test_a_ledger_that_has_nothing_so_late_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await first_node(world)
    segment = await node.open()
    for latest_ms in (10, 30, 20):
        await publish(segment, 1, latest_ms)
        await roll(segment, world.store, node.storage)
    read: list[int] = []
    times_in_storage = segment.record_times._times_in_storage

    async def counted(ledger: object) -> object:
        read.append(ledger.id)  # type: ignore[attr-defined]
        return await times_in_storage(ledger)  # type: ignore[arg-type]

    monkeypatch.setattr(segment.record_times, "_times_in_storage", counted)
    assert await segment.record_times.first_from(25) == (3, 30)
    assert await segment.record_times.first_from(31) is None
    assert await segment.record_times.latest() == (3, 30)
    assert read == [2], "once"
    await segment.record_times.first_from(0)
    assert read == [2, 1]


async def test_what_is_left_out_is_found_no_more(world: World) -> None:
    node = await first_node(world)
    segment = await node.open()
    lost = await world.begin()
    await publish(segment, 7)
    for latest_ms in (100, 90, 80, 70):
        await publish(segment, latest_ms, txn_id=lost)
    await publish(segment, 50)
    await roll(segment, world.store, node.storage)
    await publish(segment, 60)
    assert await segment.record_times.latest() == (1, 100), "whatever becomes of it"
    await world.abort(lost)
    await materialized(segment, lost)
    await tended(segment)
    assert segment.record.ledgers[0].form is not None
    await assert_found(segment)
    segment = await world.reopened()
    await assert_found(segment)
    await trim(segment, world.store, world._nodes[-1].storage, Position(1, 1))
    await assert_found(segment)
    assert await segment.record_times.first_from(0) == (5, 50)


async def test_a_batch_whose_header_is_wrong_hides_nothing(world: World) -> None:
    """It says that it has a later record than it has, or cannot be read at all."""
    segment = await (await first_node(world)).open()
    batch = bytearray(encode_batch([KafkaRecord(b"k", b"v", timestamp_ms=5)]))
    batch[35:43] = (99).to_bytes(8)
    await segment.publish(Entry(bytes(batch), PayloadKind.KAFKA, 1))
    await publish(segment, 20)
    assert await segment.record_times.first_from(10) == (1, 20)
    batch[61] = 0x7F
    await segment.publish(Entry(bytes(batch), PayloadKind.KAFKA, 1))
    assert await segment.record_times.first_from(30) == (2, 99)


@pytest.mark.parametrize("seed", range(3))
async def test_random_records_are_found(world: World, seed: int) -> None:
    draw = random.Random(seed)
    node = await first_node(world)
    segment = await node.open()
    for _ in range(30):
        txn = await world.begin() if draw.random() < 0.3 else None
        await publish(segment, *(draw.randrange(60) for _ in range(draw.choice((1, 1, 3)))), txn_id=txn)
        if txn is not None:
            await (world.abort(txn) if draw.random() < 0.7 else world.commit(txn))
            await materialized(segment, txn)
        if draw.random() < 0.3:
            await roll(segment, world.store, world._nodes[-1].storage)
            await tended(segment)
        if draw.random() < 0.1:
            segment = await world.reopened()
        if draw.random() < 0.3:
            await segment.record_times.first_from(draw.randrange(60))
    await assert_found(segment)
