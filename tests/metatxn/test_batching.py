"""What shares an entry, when it is sent, who waits for it, and in which order it arrives.

Method: a fake cluster that counts entries and holds answers back until the test lets them go; both clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future

import httpx
import pyarrow as pa
import pytest

import metatxn
from metatxn.wire.broker import hash_of_key
from metatxn.wire.errors import ErrorCode
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, Outcome, answering, lost, refused
from tests.metatxn.flavours import Connect

HOUR_MS = 3_600_000
ENTRIES = "/entries"


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def client(cluster: FakeCluster, connect: Connect) -> metatxn.AsyncClient:
    return connect(COORDINATOR, transport=cluster.transport)


class Gate:
    """A fault that holds requests back. It knows no event loop, and the clients bring theirs."""

    def __init__(self) -> None:
        self.reached: Future[None] = Future()
        self.opened: Future[None] = Future()

    async def __call__(self, request: httpx.Request) -> Outcome:
        if not self.reached.done():
            self.reached.set_result(None)
        await asyncio.wrap_future(self.opened)
        return None

    async def wait(self) -> None:
        await asyncio.wrap_future(self.reached)

    def open(self) -> None:
        if not self.opened.cancelled():  # together with the request that waited
            self.opened.set_result(None)


def sizes(cluster: FakeCluster) -> list[int]:
    """Messages per entry."""
    return [len(messages) for segment in cluster.segments.values() for _, messages in segment.entries]


async def test_what_lingers_shares_an_entry(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """Until it is flushed, however long that takes; the transaction's commit flushes too."""
    async with client:
        producer = client.producer("t", linger_ms=HOUR_MS)
        for number in range(100):
            await producer.send(number)
        await producer.flush()
        assert sizes(cluster) == [100]
        async with client.transaction() as txn:
            for number in range(50):
                await producer.send(number, txn=txn)
        assert sizes(cluster) == [100, 50]
        await producer.send("the last")
    assert sizes(cluster) == [100, 50, 1]


async def test_linger_ends_by_itself(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """Nobody flushes, and the message is sent all the same."""
    async with client:
        producer = client.producer("t", linger_ms=1)
        assert await (await producer.send("x")) == "0:0"


@pytest.mark.parametrize(("full_by", "count"), [({"max_entry_messages": 5}, 5), ({"max_entry_bytes": 161}, 8)])
async def test_full_entry_does_not_linger(
    cluster: FakeCluster, client: metatxn.AsyncClient, full_by: dict[str, int], count: int
) -> None:
    """By messages, or by bytes: the header takes 61 of them, and each message up to 12, so that eight fit."""
    async with client:
        producer = client.producer("t", linger_ms=HOUR_MS, **full_by)  # type: ignore[arg-type]  # two numbers
        sent = [await producer.send(1) for _ in range(9)]
        await sent[count - 1]
        assert sizes(cluster) == [count]


async def test_sent_while_an_entry_is_on_its_way_shares_the_next(
    cluster: FakeCluster, client: metatxn.AsyncClient
) -> None:
    gate = Gate()
    cluster.before = [(ENTRIES, gate)]
    async with client:
        producer = client.producer("t")
        await producer.send(0)
        await gate.wait()
        for number in range(1, 11):
            await producer.send(number)
        gate.open()
        await producer.flush()
    assert sizes(cluster) == [1, 10]


async def test_send_waits_while_too_much_is_pending(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    gate = Gate()
    cluster.before = [(ENTRIES, gate)]
    async with client:
        producer = client.producer("t", max_pending_bytes=1000)
        await producer.send("x" * 600)
        await gate.wait()
        await producer.send("x" * 600)
        third = asyncio.ensure_future(producer.send("small"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(third), 0.1)
        gate.open()
        await (await third)
    assert sum(sizes(cluster)) == 3


async def test_what_lingers_is_sent_when_it_takes_the_space(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """Neither lane is full, and together they are all there may be: waiting for the hour would stop everything."""
    cluster.split("s-0")
    async with client:
        producer = client.producer("t", linger_ms=HOUR_MS, max_pending_bytes=1000)
        for number in range(100):
            await producer.send("x" * 100, key=str(number))
    assert sum(sizes(cluster)) == 100


async def test_flush_waits_only_for_what_came_before(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """Somebody goes on sending, so that there is always something on its way; the flush ends nevertheless."""
    gate, flushed = Gate(), asyncio.Event()
    cluster.before = [(ENTRIES, gate)]
    async with client:
        producer = client.producer("t")

        async def go_on() -> None:
            while not flushed.is_set():
                await producer.send("more")
                await asyncio.sleep(0)

        await producer.send("before")
        await gate.wait()
        sending = asyncio.create_task(go_on())
        gate.open()
        await asyncio.wait_for(producer.flush(), 60)
        flushed.set()
        await sending
    assert cluster.visible()[0] == "before"


async def test_dropped_producer_still_delivers(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    async with client:
        await client.producer("t", linger_ms=HOUR_MS).send("x")
    assert cluster.visible() == ["x"]


async def test_closing_raises_what_nobody_waited_for(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    cluster.before = [(ENTRIES, answering(ErrorCode.PAYLOAD_TOO_LARGE))]
    with pytest.raises(metatxn.PayloadTooLarge):
        async with client:
            await client.producer("t", linger_ms=HOUR_MS).send("x")


async def test_closed_takes_nothing(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    async with client:
        producer = client.producer("t")
        await producer.send("x")
        await producer.close()
        with pytest.raises(metatxn.InvalidArgument, match="closed"):
            await producer.send("y")
    with pytest.raises(metatxn.InvalidArgument, match="closed"):
        await client.begin()
    assert cluster.visible() == ["x"]


async def test_closing_ends_what_is_tried_again(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    gate = Gate()

    async def hold_and_refuse(request: httpx.Request) -> Outcome:
        await gate(request)
        return refused(request)

    cluster.before = [("POST /v1/txns", hold_and_refuse)]
    beginning = asyncio.ensure_future(client.begin())
    await gate.wait()
    await client.close()
    gate.open()
    with pytest.raises(metatxn.MetatxnError, match="closed"):
        await beginning


async def test_retry_that_is_refused_says_nothing_of_the_first_attempt(cluster: FakeCluster, connect: Connect) -> None:
    """The entry is in the log and its answer is lost; then the broker is gone. "Nothing happened" would be a lie."""
    cluster.after = [(ENTRIES, lost)]
    async with connect(COORDINATOR, request_timeout_s=0.5, transport=cluster.transport) as client:
        producer = client.producer("t")
        cluster.before = [(ENTRIES, lambda _: None), *[(ENTRIES, refused)] * 100]
        sent = await producer.send("x")
        with pytest.raises(metatxn.OutcomeUnknown) as caught:
            await sent
        assert not caught.value.definite
        with pytest.raises(metatxn.OutcomeUnknown):
            await producer.flush()
    assert cluster.visible() == ["x"]


async def test_newer_message_does_not_overtake_one_that_looks_for_its_segment(
    cluster: FakeCluster, client: metatxn.AsyncClient
) -> None:
    """Scenario 26, DESIGN §5.14. Two segments are sealed; one of them tells it late. Meanwhile the layout is known, and
    a message of the same key must not go to the child while its predecessor is still on its way to the parent.
    """
    cluster.split("s-0")
    low, high = (next(key for key in map(str, range(100)) if (hash_of_key(key) > 0x7FFF) == half) for half in (0, 1))
    gate = Gate()

    def seal_late(request: httpx.Request) -> Awaitable[Outcome]:
        cluster.split("s-0.a")
        return gate(request)

    def seal(request: httpx.Request) -> None:
        cluster.split("s-0.b")

    cluster.before = [("s-0.a/entries", seal_late), ("s-0.b/entries", seal)]
    async with client:
        producer = client.producer("t")
        first = await producer.send("first", key=low)
        await gate.wait()
        other = await producer.send("other", key=high)
        while cluster.requests.count("GET /v1/topics/t") < 2:
            await asyncio.sleep(0.01)
        second = await producer.send("second", key=low)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(second), 0.1)
        gate.open()
        await asyncio.gather(first, other, second)
    assert sorted(cluster.visible()) == ["first", "other", "second"]
    assert [value for value in cluster.visible() if value != "other"] == ["first", "second"]


async def test_plain_rows_arrive_once_and_are_there_after_a_flush(
    cluster: FakeCluster, client: metatxn.AsyncClient
) -> None:
    cluster.after = [(ENTRIES, lost)] * 2
    async with client:
        async with client.table_writer("t", key_column="k") as writer:
            await writer.write(pa.table({"k": ["a", "b"], "n": [0, 1]}))
            assert cluster.visible() == []
            await writer.flush()
            assert [row["n"] for row in cluster.visible()] == [0, 1]
            await writer.write(pa.table({"k": ["a"], "n": [2]}))
        assert [row["n"] for row in cluster.visible()] == [0, 1, 2]
        assert "txn" not in "".join(cluster.requests), "nobody has begun a transaction"
        with pytest.raises(metatxn.InvalidArgument, match="writer: requires a transaction"):
            client.table_writer("t", writer="w")


async def test_plain_rows_behind_a_failure_are_not_sent(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """Every call tells of it, not the first one only: nobody goes on without having heard."""
    cluster.before = [(ENTRIES, answering(ErrorCode.SCHEMA_MISMATCH))]
    async with client:
        writer = client.table_writer("t", key_column="k")
        await writer.write(pa.table({"k": ["a"], "n": [0]}))
        for asked in (writer.flush, writer.flush, lambda: writer.write(pa.table({"k": ["a"], "n": [1]})), writer.close):
            with pytest.raises(metatxn.SchemaMismatch):
                await asked()
    assert cluster.visible() == []


async def test_a_flush_tells_of_failures_inside_transactions(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """Every time: the transaction cannot be committed any more. What is outside of it is told once."""
    async with client:
        producer = client.producer("t")
        txn = await client.begin()
        for inside in (txn, None):
            cluster.before = [(ENTRIES, answering(ErrorCode.SCHEMA_MISMATCH))]
            await asyncio.wait([await producer.send("x", txn=inside)])
        for _ in range(2):
            with pytest.raises(metatxn.SchemaMismatch):
                await producer.flush()
        with pytest.raises(metatxn.SchemaMismatch):
            await txn.commit()
        await producer.flush()
    assert cluster.visible() == []
