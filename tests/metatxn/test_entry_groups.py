"""Goal: entries of one transaction that are due together travel together, and whatever becomes of their request, each
of them is appended once or its failure is told, as if it had travelled alone.

Method: a fake cluster with two segments, and faults on the wire. `test_random_deliveries` draws the faults.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import httpx
import pytest

import metatxn
from metatxn import publishing
from metatxn.wire.batches import pack_batch, packed_message
from metatxn.wire.broker import PAYLOAD_MEDIA_TYPES, hash_of_key
from metatxn.wire.entry_groups import pack_entries, unpack_entries
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import Behind, Entry, PayloadKind
from metatxn.wire.ids import TxnId
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, Fault, answering, lost, problem, proxy, refused, silent
from tests.metatxn.test_random_deliveries import in_virtual_time

PATIENCE_S = 20
GROUP, ALONE = "/v1/txns/", "/v1/segments/"
LOW = next(key for key in map(str, range(99)) if hash_of_key(key) < 1 << 15)
HIGH = next(key for key in map(str, range(99)) if hash_of_key(key) >= 1 << 15)


def two_segments() -> FakeCluster:
    cluster = FakeCluster()
    cluster.split("s-0")
    return cluster


def entries_sent(cluster: FakeCluster) -> list[str]:
    """Which requests with entries were sent: `group`, or the segment of a single one."""
    paths = [request.partition(" ")[2].partition("?")[0] for request in cluster.requests]
    return ["group" if path.startswith(GROUP) else path.split("/")[3] for path in paths if path.endswith("/entries")]


async def written(cluster: FakeCluster, *, keys: tuple[str, ...] = (LOW, HIGH)) -> metatxn.MetatxnError | None:
    """Write one message of each key in a transaction. Returns the failure of its commit."""
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        producer = client.producer("t")
        try:
            async with client.transaction() as txn:
                for key in keys:
                    await producer.send(key, key=key, txn=txn)
        except metatxn.MetatxnError as failure:
            return failure
    return None


async def test_two_entries_are_one_request() -> None:
    cluster = two_segments()
    assert await written(cluster) is None
    assert entries_sent(cluster) == ["group"]
    assert cluster.visible() == [LOW, HIGH]


async def test_one_entry_is_no_group() -> None:
    cluster = two_segments()
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client, client.transaction() as txn:
        await (await client.producer("t").send(LOW, key=LOW, txn=txn))
    assert entries_sent(cluster) == ["s-0.a"]


async def test_entries_of_two_transactions_do_not_wait_for_each_other() -> None:
    cluster = two_segments()
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        producer = client.producer("t")
        one, two = await client.begin(), await client.begin()
        sent = [await producer.send(key, key=key, txn=txn) for key, txn in ((LOW, one), (HIGH, two))]
        for each in sent:
            await each
    assert sorted(entries_sent(cluster)) == ["s-0.a", "s-0.b"]


async def test_messages_outside_transactions_travel_alone() -> None:
    cluster = two_segments()
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        producer = client.producer("t")
        for key in (LOW, HIGH):
            await producer.send(key, key=key)
        await producer.flush()
    assert sorted(entries_sent(cluster)) == ["s-0.a", "s-0.b"]


async def test_large_entries_travel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "MAX_ENTRY_BYTES", 50)
    cluster = two_segments()
    assert await written(cluster) is None
    assert sorted(entries_sent(cluster)) == ["s-0.a", "s-0.b"]


@pytest.mark.parametrize(
    ("told", "query"), [({"epoch": 3}, "producer_epoch=3"), ({"behind": Behind(0, 1)}, "previous_sequence=0")]
)
async def test_what_only_one_request_can_say_travels_alone(told: dict[str, Any], query: str) -> None:
    """The epoch of an exclusive producer, and what a sequenced producer has sent before."""
    cluster = two_segments()
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        txn, link = await client.begin(), client._connection
        await link.layout("t")
        payload, count = pack_batch([packed_message(1, None, None)])
        entry = Entry(payload, PayloadKind.BATCH, count, TxnId.parse(txn.id), None, "p", 2, **told)
        await asyncio.gather(*[link.publish(segment, entry) for segment in ("s-0.a", "s-0.b")])
    assert sorted(entries_sent(cluster)) == ["s-0.a", "s-0.b"]
    assert all(query in request for request in cluster.requests if "/entries" in request)


@pytest.mark.parametrize(("bound", "most"), [("MAX_GROUP_ENTRIES", 3), ("MAX_GROUP_BYTES", 200)])
async def test_a_group_has_a_bound(bound: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, bound, most)
    cluster = two_segments()
    for name in ("s-0.a", "s-0.b", "s-0.a.a", "s-0.b.a"):
        cluster.split(name)
    leaves = [segment for segment in cluster.segments.values() if not segment.children]
    keys = tuple(next(k for k in map(str, range(999)) if one.low <= hash_of_key(k) <= one.high) for one in leaves)
    sizes = []

    def seen(request: httpx.Request) -> None:
        sizes.append(len(unpack_entries(request.content).entries))

    cluster.before += [("/entries", seen)] * 2
    assert await written(cluster, keys=keys) is None
    assert entries_sent(cluster) == ["group", "group"]
    assert sizes == [3, 3]
    assert sorted(cluster.visible()) == sorted(keys)


@pytest.mark.parametrize("fault", [lost, silent, proxy(502), proxy(500), answering(ErrorCode.OUTCOME_UNKNOWN)])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_group_without_an_answer_is_sent_again_one_by_one(fault: Fault, when: str) -> None:
    cluster = two_segments()
    getattr(cluster, when).append(("/entries", fault))
    assert await written(cluster) is None
    assert entries_sent(cluster)[0] == "group"
    assert sorted(entries_sent(cluster)[1:]) == ["s-0.a", "s-0.b"]
    assert cluster.visible() == [LOW, HIGH]


async def test_one_entry_of_a_group_is_sent_again_by_itself() -> None:
    cluster = two_segments()
    cluster.carries_commits = False

    def one_is_refused(request: httpx.Request) -> httpx.Response:
        moved = problem(ErrorCode.NOT_OWNER, owner_url="http://broker.test").json()
        answer = cluster._append_group(request.url.path.split("/")[3], request.content)
        return httpx.Response(200, json={"outcomes": [answer.json()["outcomes"][0], moved]})

    cluster.before.append(("/entries", one_is_refused))
    assert await written(cluster) is None
    assert entries_sent(cluster) == ["group", "s-0.b"]
    assert cluster.visible() == [LOW, HIGH]


async def test_an_entry_that_was_perhaps_appended_is_not_denied() -> None:
    """The group had no answer, and its entries are refused when they come alone: they may be in the log."""
    cluster = two_segments()
    cluster.after.append(("/entries", lost))
    cluster.before += [(f"{ALONE}s-0.{name}/entries", answering(ErrorCode.TXN_CONFLICT)) for name in "ab"]
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        producer, txn = client.producer("t"), await client.begin()
        sent = [await producer.send(key, key=key, txn=txn) for key in (LOW, HIGH)]
        failures = [await failure_of(future) for future in sent]
        await txn.abort()
    assert [type(failure) for failure in failures] == [metatxn.OutcomeUnknown] * 2


async def test_one_entry_of_a_group_that_was_perhaps_appended_is_not_denied() -> None:
    cluster = two_segments()
    cluster.carries_commits = False

    def one_is_unknown(request: httpx.Request) -> httpx.Response:
        unknown = problem(ErrorCode.OUTCOME_UNKNOWN).json()
        answer = cluster._append_group(request.url.path.split("/")[3], request.content)
        return httpx.Response(200, json={"outcomes": [answer.json()["outcomes"][0], unknown]})

    cluster.before.append(("/entries", one_is_unknown))
    cluster.before.append((f"{ALONE}s-0.b/entries", answering(ErrorCode.TXN_CONFLICT)))
    failure = await written(cluster)
    assert isinstance(failure, metatxn.OutcomeUnknown)


async def failure_of(future: asyncio.Future[str]) -> metatxn.MetatxnError | None:
    try:
        await future
    except metatxn.MetatxnError as failure:
        return failure
    return None


@pytest.mark.parametrize("outcomes", [[], [{"position": "0:0"}], [{"position": "0:0"}] * 3, [{}, {}], "no list"])
async def test_an_answer_that_does_not_fit_tells_nothing(outcomes: object) -> None:
    cluster = two_segments()
    cluster.before.append(("/entries", lambda request: httpx.Response(200, json={"outcomes": outcomes})))
    assert await written(cluster) is None
    assert sorted(entries_sent(cluster)[1:]) == ["s-0.a", "s-0.b"]
    assert cluster.visible() == [LOW, HIGH]


def test_a_broker_of_an_earlier_release_is_asked_once_until_it_may_have_been_upgraded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "GATHERING_MS", 10)
    cluster = two_segments()
    cluster.knows_groups = False

    async def story() -> None:
        async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
            producer = client.producer("t")
            for pause_s, groups in ((0, 1), (0, 1), (publishing.ASK_AGAIN_S, 2), (0, 3)):
                await asyncio.sleep(pause_s)
                cluster.knows_groups = pause_s > 0 or cluster.knows_groups
                async with client.transaction() as txn:
                    for key in (LOW, HIGH):
                        await producer.send(key, key=key, txn=txn)
                assert entries_sent(cluster).count("group") == groups

    in_virtual_time(Random(0), story())
    assert cluster.visible() == [LOW] * 4 + [HIGH] * 4


async def test_a_group_into_an_unknown_transaction_does_not_end_all_groups() -> None:
    cluster = two_segments()
    cluster.before.append(("/entries", answering(ErrorCode.TXN_NOT_FOUND)))
    assert await written(cluster) is None
    assert await written(cluster) is None
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        producer = client.producer("t")
        cluster.before.append(("/entries", answering(ErrorCode.TXN_NOT_FOUND)))
        for _ in range(2):
            async with client.transaction() as txn:
                for key in (LOW, HIGH):
                    await producer.send(key, key=key, txn=txn)
    assert entries_sent(cluster).count("group") == 4


def test_the_time_of_a_group_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that does not answer is given no more time than for one request."""
    monkeypatch.setattr(publishing, "GATHERING_MS", 10)
    cluster, took = two_segments(), []

    async def no_answer(request: httpx.Request) -> httpx.Response | None:
        await asyncio.sleep(PATIENCE_S / 2)
        return lost(request)

    async def story() -> None:
        cluster.before.append(("/entries", no_answer))
        refused = answering(ErrorCode.STORE_UNAVAILABLE)
        cluster.before += [(f"{ALONE}s-0.{name}/entries", refused) for name in "ab" for _ in range(99)]
        client = metatxn.connect_async(COORDINATOR, transport=cluster.transport, request_timeout_s=PATIENCE_S)
        async with client:
            producer, txn = client.producer("t"), await client.begin()
            began = asyncio.get_running_loop().time()
            sent = [await producer.send(key, key=key, txn=txn) for key in (LOW, HIGH)]
            assert [type(await failure_of(future)) for future in sent] == [metatxn.OutcomeUnknown] * 2
            took.append(asyncio.get_running_loop().time() - began)
            await txn.abort()

    in_virtual_time(Random(0), story())
    assert entries_sent(cluster)[0] == "group"
    assert PATIENCE_S / 2 < took[0] <= PATIENCE_S


@pytest.mark.parametrize("fault", [lost, refused, proxy(502), answering(ErrorCode.STORE_UNAVAILABLE)])
async def test_groups_go_on_after_a_failure(fault: Fault) -> None:
    """The client asks anybody for the owner then, and learns it from the answer."""
    cluster = two_segments()
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        producer = client.producer("t")
        for number in range(4):
            if number == 1:
                cluster.before.append(("/entries", fault))
            async with client.transaction() as txn:
                for key in (LOW, HIGH):
                    await producer.send(key, key=key, txn=txn)
    assert [request for request in entries_sent(cluster) if request == "group"] == ["group"] * 4
    assert len(entries_sent(cluster)) == 4 + 2


async def test_an_entry_that_cannot_be_sent_takes_no_other_along() -> None:
    cluster = two_segments()
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        txn, link = await client.begin(), client._connection
        await link.layout("t")
        payload, count = pack_batch([packed_message(1, None, None)])
        good, bad = (
            Entry(payload, PayloadKind.BATCH, count, TxnId.parse(txn.id), None, name, 0) for name in ("p", "\ud800")
        )
        found = await asyncio.gather(link.publish("s-0.a", good), link.publish("s-0.b", bad), return_exceptions=True)
    assert found[0] == "0:0" and isinstance(found[1], UnicodeEncodeError)
    assert entries_sent(cluster) == ["s-0.a"]


async def test_nobody_is_sent_who_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "GATHERING_MS", 10)
    cluster = two_segments()
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        txn, link = await client.begin(), client._connection
        await link.layout("t")
        payload, count = pack_batch([packed_message(1, None, None)])
        entry = Entry(payload, PayloadKind.BATCH, count, TxnId.parse(txn.id), None, "p", 0)
        sent = [asyncio.create_task(link.publish(segment, entry)) for segment in ("s-0.a", "s-0.b")]
        await asyncio.sleep(0)
        for task in sent:
            task.cancel()
        await asyncio.gather(*sent, return_exceptions=True)
        group = asyncio.create_task(link.publish("s-0.a", entry))
        assert await group == "0:0"
    assert entries_sent(cluster) == ["s-0.a"]


def test_a_group_says_everything_about_its_entries() -> None:
    entries = [
        ("s", Entry(b"abc", PayloadKind.BATCH, 3, None, "w", "p", 7)),
        ("t", Entry(b"", PayloadKind.BYTES, 1, None, None, None, 0)),
        ("u", Entry(b"[]", PayloadKind.MESSAGES, 2, None, "w", None, 1)),
    ]
    found = unpack_entries(pack_entries(entries)).entries
    assert [(head.segment, payload) for head, payload in found] == [(name, entry.payload) for name, entry in entries]
    assert [(head.writer, head.producer, head.sequence, head.count) for head, _ in found] == [
        (entry.writer, entry.producer, entry.sequence, entry.count) for _, entry in entries
    ]
    assert [head.media_type for head, _ in found] == [PAYLOAD_MEDIA_TYPES[entry.kind] for _, entry in entries]


def test_a_group_waits_for_a_service_that_has_too_much_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """And for no longer than a request may take."""
    monkeypatch.setattr(publishing, "GATHERING_MS", 10)
    cluster, took = two_segments(), []
    busy = answering(ErrorCode.RATE_LIMITED, {"Retry-After": "7"})

    async def story() -> None:
        client = metatxn.connect_async(COORDINATOR, transport=cluster.transport, request_timeout_s=PATIENCE_S)
        async with client:
            producer = client.producer("t")
            for refusals in (1, 99):
                cluster.before = [("/entries", busy)] * refusals
                txn = await client.begin()
                began = asyncio.get_running_loop().time()
                sent = [await producer.send(key, key=key, txn=txn) for key in (LOW, HIGH)]
                failures = [await failure_of(future) for future in sent]
                took.append((asyncio.get_running_loop().time() - began, {type(failure) for failure in failures}))
                await txn.abort()

    in_virtual_time(Random(0), story())
    (first_s, none), (second_s, refused_finally) = took
    assert 7 <= first_s < 8 and none == {type(None)}
    assert second_s <= PATIENCE_S and refused_finally == {metatxn.RateLimited}
    assert entries_sent(cluster)[:2] == ["group", "group"]
    assert sorted(entries_sent(cluster)[2:]) == ["group"] * 3 + ["s-0.a", "s-0.b"]
