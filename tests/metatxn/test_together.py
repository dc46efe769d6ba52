"""Goal: messages that are sent together are messages like others, in entries as full as may be, or none is sent.

Method: a fake cluster; both clients. `test_random_deliveries` mixes them with others while everything fails.
"""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import Future
from itertools import repeat
from typing import Any

import pytest

import metatxn
from metatxn.outgoing import MessageFormat, Together
from metatxn.producer import message_batching
from metatxn.together import LEAST_PORTION, queued_together
from metatxn.topics import Layout
from metatxn.wire.broker import TopicInfo, hash_of_key
from metatxn.wire.errors import ErrorCode
from metatxn.wire.record_batches import Codec
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, answering
from tests.metatxn.flavours import Connect, Dressed
from tests.metatxn.test_batching import ENTRIES, Gate, sizes
from tests.metatxn.test_layouts import segment

MANY = 12_500


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def client(cluster: FakeCluster, connect: Connect) -> metatxn.AsyncClient:
    return connect(COORDINATOR, transport=cluster.transport)


async def test_they_arrive_in_order_in_full_entries(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    values = [{"n": number} for number in range(MANY)]
    async with client:
        positions = await (await client.producer("t").send_many(values))
    assert cluster.visible() == values
    assert sizes(cluster) == [10_000, 2_500]
    assert positions == ["0:0"] * 10_000 + ["0:1"] * 2_500


async def test_a_rest_shares_an_entry_with_others(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """As `max_entry_messages` says, which also is the limit of the entries that are made at once."""
    gate = Gate()
    cluster.before = [(ENTRIES, gate)]
    async with client:
        producer = client.producer("t", max_entry_messages=100)
        await producer.send("first")
        await gate.wait()
        await producer.send_many(range(250))
        await producer.send("last")
        gate.open()
    assert sizes(cluster) == [1, 100, 100, 51]
    assert cluster.visible() == ["first", *range(250), "last"]


async def test_each_goes_where_its_key_goes(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """Behind what was sent with that key before, and in front of what is sent after it."""
    cluster.split("s-0")
    keys = [str(number % 7) if number % 3 else None for number in range(MANY)]
    async with client:
        producer = client.producer("t", max_entry_messages=200)
        await producer.send(["1", -1], key="1")
        await producer.send_many([[key, number] for number, key in enumerate(keys)], keys)
        await producer.send(["1", MANY], key="1")
    expected = {key: [number for number, each in enumerate(keys) if each == key] for key in set(keys)}
    expected["1"] = [-1, *expected["1"], MANY]
    found: dict[str | None, list[int]] = {key: [] for key in keys}
    for home in cluster.segments.values():
        for key, number in [message for _, messages in home.entries for message in messages]:
            assert key is None or home.low <= hash_of_key(key) <= home.high
            found[key].append(number)
    found[None].sort()  # those without a key are in several segments
    assert found == expected
    assert max(sizes(cluster)) == 200


async def test_those_of_a_transaction_count_when_it_is_committed(
    cluster: FakeCluster, client: metatxn.AsyncClient
) -> None:
    async with client:
        producer = client.producer("t")
        async with client.transaction() as txn:
            await producer.send_many(range(MANY), txn=txn)
        assert cluster.visible() == list(range(MANY))
        aborted = await client.begin()
        sent = await producer.send_many(range(MANY), txn=aborted)
        await aborted.abort()
        await asyncio.wait([sent])
    assert cluster.visible() == list(range(MANY))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"values": [*range(MANY), {1, 2}]}, TypeError, "set"),
    ({"values": [*range(MANY), float("nan")]}, ValueError, "JSON"),
    (
        {"values": range(MANY), "keys": ["a"] * (MANY - 1)},
        metatxn.InvalidArgument,
        "as many as the 12500 values",
    ),
    ({"values": range(MANY), "keys": repeat("a")}, metatxn.InvalidArgument, "keys: are not as many"),
    ({"values": range(MANY), "keys": [*["a"] * (MANY - 1), 7]}, TypeError, "int"),
    ({"values": {"id": 1}}, metatxn.InvalidArgument, "values: is one dict"),
    ({"values": "text"}, metatxn.InvalidArgument, "values: is one str"),
    ({"values": b"bytes"}, metatxn.InvalidArgument, "values: is one bytes"),
]


@pytest.mark.parametrize(("arguments", "error", "match"), BAD, ids=range(len(BAD)))
async def test_nothing_is_sent_if_one_of_them_cannot_be(
    cluster: FakeCluster,
    client: metatxn.AsyncClient,
    arguments: dict[str, Any],
    error: type[Exception],
    match: str,
) -> None:
    async with client:
        producer = client.producer("t")
        with pytest.raises(error, match=match):
            await producer.send_many(**arguments)
        txn = await client.begin()
        with pytest.raises(error):
            await producer.send_many(**arguments, txn=txn)
        assert await (await producer.send_many([])) == []
        await txn.commit()
    assert cluster.visible() == []


async def test_a_sequenced_producer_sends_them_one_by_one(client: metatxn.AsyncClient) -> None:
    async with client:
        with pytest.raises(metatxn.InvalidArgument, match="sequence: each message") as caught:
            await client.producer("t", "p", sequenced=True).send_many([1])
    assert caught.value.members["field"] == "sequence"


@pytest.mark.parametrize("count", [2, MANY], ids=["few", "many"])
async def test_the_first_failure_is_told(cluster: FakeCluster, client: metatxn.AsyncClient, count: int) -> None:
    """By the future, the flush and the commit; what was not in that entry is there, outside of transactions."""
    async with client:
        producer = client.producer("t")
        cluster.before = [(ENTRIES, answering(ErrorCode.SCHEMA_MISMATCH))]
        sent = await producer.send_many(range(count))
        with pytest.raises(metatxn.SchemaMismatch):
            await sent
        with pytest.raises(metatxn.SchemaMismatch):
            await producer.flush()
        assert cluster.visible() == list(range(min(count, 10_000), count))
        txn = await client.begin()
        cluster.before = [(ENTRIES, answering(ErrorCode.SCHEMA_MISMATCH))]
        await asyncio.wait([await producer.send_many(range(count), txn=txn)])
        with pytest.raises(metatxn.SchemaMismatch):
            await txn.commit()


async def test_sending_waits_while_too_much_is_pending(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    gate = Gate()
    cluster.before = [(ENTRIES, gate)]
    async with client:
        producer = client.producer("t", max_entry_messages=LEAST_PORTION, max_pending_bytes=1)
        sending = asyncio.ensure_future(producer.send_many(range(MANY)))
        await gate.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sending), 0.1)
        gate.open()
        await (await sending)
    assert cluster.visible() == list(range(MANY))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
async def test_they_find_the_segments_that_took_over(
    cluster: FakeCluster, client: metatxn.AsyncClient, compression: Codec | None
) -> None:
    """An entry that was made for a segment that is gone meanwhile is divided by keys."""
    keys = [str(number % 9) for number in range(MANY)]
    values = [[key, None if key == "3" else b"x".hex(), number] for number, key in enumerate(keys)]

    def split(_: object) -> None:
        cluster.split("s-0")

    cluster.before = [(ENTRIES, split)]
    async with client:
        producer = client.producer("t", compression=compression)
        positions = await (await producer.send_many(values, keys))
    assert cluster.segments["s-0"].entries == []
    for place, position in enumerate(positions):
        entry = int(position.partition(":")[2])
        low, high = cluster.segments["s-0.a"], cluster.segments["s-0.b"]
        home = low if hash_of_key(keys[place]) <= low.high else high
        assert values[place] in home.entries[entry][1]
    found = cluster.visible()
    assert sorted(each[2] for each in found) == list(range(MANY))
    for key in set(keys):
        assert [each for each in found if each[0] == key] == [each for each in values if each[0] == key]


async def test_bytes_and_nothing_are_values_too(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """Also if their entry is divided."""
    cluster.before = [(ENTRIES, lambda _: cluster.split("s-0"))]
    values: list[Any] = [b"1", b"bytes", None, "text", {"deep": [1]}] * 50
    async with client:
        await client.producer("t", max_entry_messages=LEAST_PORTION).send_many(values, ["a"] * len(values))
    home = next(each for each in cluster.segments.values() if each.entries)
    assert [message for _, messages in home.entries for message in messages] == values


async def test_the_size_of_an_entry_has_a_bound(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """As for messages that are sent one by one."""
    async with client:
        for bound in (2_000, 4_000):
            producer = client.producer("t", max_entry_bytes=bound, linger_ms=3_600_000)
            await producer.send_many(["x"] * 1_000)
            await producer.flush()
            together = sizes(cluster)
            cluster.segments["s-0"].entries.clear()
            for _ in range(1_000):
                await producer.send("x")
            await producer.flush()
            assert together == sizes(cluster)
            cluster.segments["s-0"].entries.clear()


def test_an_entry_that_is_made_at_once_is_compressed() -> None:
    layout = Layout(TopicInfo(name="t", segments=[segment("0000-ffff-0", "active", [], [])]))
    made: list[Any] = []
    for codec in (None, "zstd"):
        future: Future[list[str]] = Future()
        receipt = Together(future, 1_000)
        form, batching = MessageFormat(codec), message_batching(None, 1 << 20, 0, 1)
        made += queued_together(["x"] * 1_000, [None] * 1_000, layout, form, batching, receipt)
    plain, compressed = made
    assert len(compressed.payload) < len(plain.payload) / 4


async def test_entries_without_a_key_take_turns_of_segments(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    cluster.split("s-0")
    async with client:
        await client.producer("t").send_many(range(20_000))
    assert [len(each.entries) for name, each in cluster.segments.items() if name != "s-0"] == [1, 1]


async def test_a_transaction_without_them_cannot_be_committed(
    cluster: FakeCluster, client: metatxn.AsyncClient
) -> None:
    async with client:
        txn = await client.begin()
        with pytest.raises(metatxn.NotFound):
            await client.producer("nowhere").send_many([1, 2], txn=txn)
        with pytest.raises(metatxn.InvalidTransactionState):
            await txn.commit()


async def test_a_segment_that_ended_is_asked_again(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """As by messages that are sent one by one: nothing is trusted forever. A key without a segment fails alone."""
    cluster.split("s-0")
    low, high = (next(key for key in map(str, range(100)) if (hash_of_key(key) > 0x7FFF) == half) for half in (0, 1))
    async with client:
        producer = client.producer("t")
        cluster.segments["s-0.a"].ended = True
        for _ in range(2):
            sent = await producer.send_many([1, 2], [low, high])
            with pytest.raises(metatxn.NotFound):
                await sent
            with pytest.raises(metatxn.NotFound):
                await producer.flush()
        assert cluster.visible() == [2, 2]
        cluster.segments["s-0.a"].ended = False
        await (await producer.send_many([1, 2], [low, high]))
    assert sorted(cluster.visible()) == [1, 2, 2, 2]


async def test_what_comes_behind_a_close_fails(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """The future tells it, because others were sent before."""
    gate = Gate()
    cluster.before = [(ENTRIES, gate)]
    async with client:
        producer = client.producer("t", max_entry_messages=LEAST_PORTION, max_pending_bytes=1)
        sending = asyncio.ensure_future(producer.send_many(range(MANY)))
        await gate.wait()
        closing = asyncio.ensure_future(producer.close())
        core = producer.inner._core if isinstance(producer, Dressed) else producer
        while not core.delivery._closed:
            await asyncio.sleep(0.01)
        gate.open()
        await closing
        with pytest.raises(metatxn.InvalidArgument, match="closed"):
            await (await sending)
        with pytest.raises(metatxn.InvalidArgument, match="closed"):
            await producer.send_many([1])
    assert cluster.visible() == list(range(len(cluster.visible()))) and 0 < len(cluster.visible()) < MANY


def test_they_cannot_be_withdrawn(cluster: FakeCluster) -> None:
    with metatxn.connect(COORDINATOR, transport=cluster.transport) as client:
        sent = client.producer("t").send_many(range(MANY))
        assert not sent.cancel()
        assert len(sent.result(60)) == MANY


async def test_nobody_has_to_look_at_a_failure(cluster: FakeCluster) -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    cluster.before = [(ENTRIES, answering(ErrorCode.SCHEMA_MISMATCH))]
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        producer = client.producer("t")
        await producer.send_many(range(MANY))
        with pytest.raises(metatxn.SchemaMismatch):
            await producer.flush()
    gc.collect()
    assert told == []


async def test_a_portion_is_what_it_is_among_others(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """Nothing joins it, and what is pending are its bytes and not those that an entry may have."""
    gate = Gate()
    cluster.before = [(ENTRIES, gate)]
    async with client:
        producer = client.producer("t", max_pending_bytes=1 << 20)
        await producer.send("first")
        await gate.wait()
        for number in range(20):
            await producer.send_many([number] * LEAST_PORTION)
        await producer.send("last")
        gate.open()
    assert sizes(cluster) == [1, *[LEAST_PORTION] * 20, 1]
