"""Both clients tell the same stories on a real server: what README and contract show, in `await` and without.

Method: written once, for `AsyncClient`; `tests.metatxn.flavours` puts `Client` through it as well.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

import metatxn
from metatxn.wire.names import MessageId
from tests.metatxn.dev_server import DevServer
from tests.metatxn.flavours import ASYNCHRONOUS, Connect

PATIENCE_S = 60
NewTopic = Callable[..., Awaitable[str]]


@pytest.fixture
async def client(dev: DevServer, connect: Connect) -> AsyncIterator[metatxn.AsyncClient]:
    async with connect(dev.coordinator_url) as client:
        yield client


@pytest.fixture
def new_topic(client: metatxn.AsyncClient) -> NewTopic:
    async def create(segments: int = 1) -> str:
        return (await client.create_topic(f"t-{uuid.uuid4().hex[:12]}", segments)).name

    return create


async def values(client: metatxn.AsyncClient, topic: str, **options: Any) -> list[Any]:
    return [message.value async for message in await client.reader(topic, **options)]


async def eventually(read: Callable[[], Awaitable[Any]], expected: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await read() != expected:
            await asyncio.sleep(0.02)


async def received(consumer: metatxn.AsyncConsumer) -> metatxn.Message:
    message = await consumer.receive(timeout_s=PATIENCE_S)
    assert message is not None
    return message


async def test_input_and_output_change_together(client: metatxn.AsyncClient, new_topic: NewTopic) -> None:
    """Scenarios 24 and 53: two topics and the acknowledgement of the input, first aborted, then committed."""
    orders, audit, bills = [await new_topic() for _ in range(3)]
    await (await client.producer(orders).send({"id": 7}, key="7"))
    async with await client.subscribe(orders, "billing", initial="earliest") as consumer:
        for count in range(2):
            message = await received(consumer)
            assert (message.value, message.key, message.redelivery_count) == ({"id": 7}, "7", count)
            txn = await client.begin()
            for topic in (audit, bills):
                await client.producer(topic).send({"order": 7}, txn=txn)
            await consumer.acknowledge(message, txn=txn)
            assert await values(client, audit) == []
            if count == 0:
                await txn.abort("on purpose")
            else:
                await txn.commit()
        for topic in (audit, bills):
            await eventually(lambda topic=topic: values(client, topic), [{"order": 7}])  # type: ignore[misc]
        assert await consumer.receive(timeout_s=0) is None


async def test_acknowledged_or_given_again(client: metatxn.AsyncClient, new_topic: NewTopic) -> None:
    topic = await new_topic()
    async with client.producer(topic) as producer:
        for number in range(5):
            await producer.send(number)
    seen = []
    async with await client.subscribe(topic, "s", "shared", "earliest") as consumer:
        async for message in consumer:
            seen.append((message.value, message.redelivery_count))
            if message.value == 3 and not message.redelivery_count:
                await consumer.negative_acknowledge(message)
            else:
                await consumer.acknowledge(message)
            if len(seen) == 6:
                break
    assert sorted(seen) == [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (4, 0)]
    assert [summary.name async for summary in client.subscriptions(topic)] == ["s"]


async def test_a_client_that_is_closed_aborts_what_it_has_open(
    client: metatxn.AsyncClient, new_topic: NewTopic, dev: DevServer, connect: Connect
) -> None:
    """What it has begun and used, and neither tried to commit nor left to others; readers go on at once."""
    topic = await new_topic()
    await client.producer(topic).send("input")
    await client.create_subscription(topic, "s")
    async with connect(dev.coordinator_url) as other:
        used, acknowledging, left, unused = [await other.begin(600_000) for _ in range(4)]
        attached = other.attach((await client.begin(600_000)).id)
        key = uuid.uuid4().hex
        version = await other.begin(600_000, key, (await other.connect_key(key)).epoch, 1)
        for txn in (used, left, attached, version):
            await other.producer(topic).send("inside", txn=txn)
        consumer = await other.subscribe(topic, "s")
        await consumer.acknowledge(await received(consumer), acknowledging)
        left.leave_open()
    states = [(await client.attach(txn.id).refresh()).state for txn in (used, acknowledging)]
    assert states == ["ABORTED", "ABORTED"]
    assert (await client.attach(unused.id).refresh()).state == "OPEN"
    for txn in (left, attached, version):
        assert (await client.attach(txn.id).commit()).state == "COMMITTED"
    await eventually(lambda: values(client, topic), ["input", "inside", "inside", "inside"])


async def test_by_key_what_is_given_back_comes_before_what_was_fetched_behind_it(
    client: metatxn.AsyncClient, new_topic: NewTopic
) -> None:
    """What the consumer has fetched and not returned yet waits for it, too."""
    topic = await new_topic()
    async with client.producer(topic) as producer:
        for number in range(4):
            await producer.send(number, key="odd" if number % 2 else "even")
    async with await client.subscribe(topic, "s", "key_shared") as consumer:
        first, second = await received(consumer), await received(consumer)
        assert (first.value, second.value) == (0, 1)
        await consumer.negative_acknowledge(first)
        rest = [await received(consumer) for _ in range(3)]
        assert [message.value for message in rest if message.key == "even"] == [0, 2]
        assert [message.value for message in rest if message.key == "odd"] == [3]
        await consumer.acknowledge([second, *rest])
        assert await consumer.receive(timeout_s=0) is None and not consumer.others_hold


async def test_cumulative_acknowledgement(client: metatxn.AsyncClient, new_topic: NewTopic) -> None:
    topic = await new_topic()
    async with client.producer(topic) as producer:
        for number in range(5):
            await producer.send(number)
    async with await client.subscribe(topic, "s", "exclusive", initial="earliest") as consumer:
        held = [await received(consumer) for _ in range(4)]
        async with client.transaction() as txn:
            await consumer.acknowledge_cumulative(held[2], txn)

    async def backlog() -> int:
        return (await client.subscription(topic, "s")).segments[0].backlog

    await eventually(backlog, 2)


async def test_a_reader_acknowledges_for_all_consumers(client: metatxn.AsyncClient, new_topic: NewTopic) -> None:
    """Of a shared subscription, where a consumer cannot."""
    topic = await new_topic()
    async with client.producer(topic, max_entry_messages=1) as producer:
        for number in range(5):
            await producer.send(number)
    async with await client.subscribe(topic, "s", "shared", "earliest") as consumer:
        held = [await received(consumer) for _ in range(4)]
        with pytest.raises(metatxn.InvalidArgument, match=r"^kind: .*shared"):
            await consumer.acknowledge_cumulative(held[2])
        third = MessageId.parse(held[2].message_id)
        async with client.transaction() as txn:
            await client.acknowledge_up_to(topic, "s", {third.segment: str(third.position)}, txn)

    async def backlog() -> int:
        return (await client.subscription(topic, "s")).segments[0].backlog

    await eventually(backlog, 2)


async def test_readers(client: metatxn.AsyncClient, new_topic: NewTopic) -> None:
    """Over several pages, from the end, from a token, following, and at one revision."""
    topic = await new_topic(3)
    async with client.producer(topic) as producer:
        for number in range(2500):
            await producer.send(number, key=str(number))
    revision = (await client.cluster()).revision
    reader = await client.reader(topic)
    latest = await client.reader(topic, start="latest")
    assert sorted([message.value async for message in reader]) == list(range(2500))
    following = aiter(await client.reader(topic, start=str(reader.token), follow=True))
    async with client.transaction() as txn:
        await client.producer(topic).send("more", txn=txn)
    assert (await anext(following)).value == "more"
    await following.aclose()  # type: ignore[attr-defined]  # it is a generator
    for other in (reader, latest):
        assert [message.value async for message in other] == ["more"]
    before = await values(client, topic, isolation="snapshot", revision=revision)
    assert "more" not in before
    assert "more" in await values(client, topic, isolation="snapshot")


async def test_tables(client: metatxn.AsyncClient, new_topic: NewTopic) -> None:
    topics = [await new_topic(2), await new_topic()]
    async with client.transaction() as txn:
        for topic in topics:
            async with client.table_writer(topic, txn, key_column="id") as writer:
                await writer.write(pa.table({"id": [1, 2, 3]}))
            assert writer.rows == 3
    tables = await client.read_table(topics, isolation="snapshot")
    assert [table.sort_by("id")["id"].to_pylist() for table in tables.values()] == [[1, 2, 3]] * 2
    assert (await client.read_table(topics[1], isolation="snapshot")).num_rows == 3
    segment = (await client.topic(topics[1])).segments[0].segment
    async with client.table_writer(topics[1], key_column="id") as writer:
        await writer.write(pa.table({"id": [4]}))
    assert (await client.read_table(topics[1]))["id"].to_pylist() == [1, 2, 3, 4], "without a transaction"
    frames = [frame async for frame in client.read_segment(segment)]
    assert client.decode_entry(frames[0], None).num_rows == (await client.read_frames(segment)).frames[0].count == 3


async def test_key_fences_whoever_had_it(client: metatxn.AsyncClient, new_topic: NewTopic) -> None:
    """Scenario 116."""
    topic, key = await new_topic(), f"key-{uuid.uuid4().hex}"
    epoch = (await client.connect_key(key)).epoch
    old = await client.begin(key=key, epoch=epoch, version=1)
    taken = await client.connect_key(key)
    assert taken.aborted_txn_id == old.id
    with pytest.raises(metatxn.ExpiredTransaction):
        await old.commit()
    async with client.transaction(key=key, epoch=taken.epoch, version=1) as txn:
        await client.producer(topic).send("once", txn=txn)
    assert (await client.begin(key=key, epoch=taken.epoch, version=1)).already_committed
    assert key in [found.key async for found in client.keys()]  # noqa: SIM118  it is no dict
    await client.delete_key(key)
    with pytest.raises(metatxn.NotFound):
        await client.key(key)


async def test_listing_goes_over_all_pages(client: metatxn.AsyncClient) -> None:
    owner = uuid.uuid4().hex
    begun = [(await client.begin(owner=owner)).id for _ in range(5)]
    listed = [header.txn_id async for header in client.transactions("OPEN", owner=owner, limit=2)]
    assert {*listed} == {*begun} and len(listed) == len(begun)
    for txn_id in begun:
        await client.attach(txn_id).abort()
    assert [header async for header in client.transactions("OPEN", owner=owner)] == []


async def test_segment_is_split_under_a_producer(client: metatxn.AsyncClient, new_topic: NewTopic) -> None:
    """Scenarios 26 and 89: the layout that the producer knows is out of date, inside a transaction too."""
    topic = await new_topic()
    producer = client.producer(topic, max_entry_messages=3)
    async with client.transaction() as txn:
        for number in range(60):
            await producer.send([number % 7, number], key=str(number % 7), txn=txn)
            if number in (20, 40):
                active = [each for each in (await client.topic(topic)).segments if each.state == "active"]
                await client.split_segment(active[0].segment)
    expected = [[key, number] for key in range(7) for number in range(key, 60, 7)]
    await eventually(lambda: in_order(client, topic), expected)


async def in_order(client: metatxn.AsyncClient, topic: str) -> list[Any]:
    """Key by key, each in the order read."""
    return sorted(await values(client, topic), key=lambda value: value[0])


INSIDE = {
    "acknowledges", "check_takes_operations", "closed", "failed", "has_prefetched", "joined_by", "let_go", "open",
    "outgoing", "page", "passed", "prefetched", "together", "used_by",
}  # fmt: skip
"""What only the clients themselves call."""


def test_both_have_the_same_methods() -> None:
    """Anyone who adds a method to one is told to add it to the other."""
    for blocking, asynchronous in ASYNCHRONOUS.items():
        missing = {name for name in dir(asynchronous) if not name.startswith("_")} - set(dir(blocking)) - INSIDE
        assert not missing, f"{blocking.__name__} lacks {', '.join(missing)}"
