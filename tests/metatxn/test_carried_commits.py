"""Goal: a commit travels with the last entries of its transaction where nobody else commits that, and where nothing
else of it is under way; and whatever becomes of the request, the commit ends in the truth, and no entry of a committed
transaction is told to have failed (DESIGN §5.1, scenario 171).

Method: a fake cluster with two segments, and faults on the wire. Its segments forget the sequences of a transaction
once it is decided, as brokers do. `test_random_deliveries` draws the faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import metatxn
from metatxn import publishing
from metatxn.carried import NOT_TOLD
from metatxn.client import AsyncClient
from metatxn.wire.entry_groups import unpack_entries
from metatxn.wire.errors import ErrorCode
from tests.metatxn.dev_server import DevServer
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, Fault, answering, lost, problem, proxy, refused, silent
from tests.metatxn.test_entry_groups import ALONE, GROUP, HIGH, LOW, entries_sent, two_segments

COMMIT = "/commit"
NO_ANSWER = [lost, silent, proxy(502), answering(ErrorCode.OUTCOME_UNKNOWN)]


def connected(cluster: FakeCluster) -> AsyncClient:
    return metatxn.connect_async(COORDINATOR, request_timeout_s=5, transport=cluster.transport)


def commits(cluster: FakeCluster) -> int:
    """The number of requests that are nothing but a commit."""
    return sum(COMMIT in request for request in cluster.requests)


def state(cluster: FakeCluster) -> str:
    """The state of the only transaction."""
    (header,) = cluster.transactions.values()
    return str(header["state"])


async def sent(client: AsyncClient, txn: metatxn.AsyncTransaction, *keys: str) -> list[asyncio.Future[str]]:
    producer = client.producer("t")
    return [await producer.send(key, key=key, txn=txn) for key in keys]


@pytest.mark.parametrize("keys", [(LOW,), (LOW, HIGH)], ids=["one entry", "two entries"])
async def test_171_the_last_entries_and_the_commit_are_one_request(keys: tuple[str, ...]) -> None:
    cluster = two_segments()
    async with connected(cluster) as client:
        txn = await client.begin()
        futures = await sent(client, txn, *keys)
        header = await txn.commit()
        assert [await future for future in futures] == ["0:0"] * len(keys)
    assert (header.state, txn.header) == ("COMMITTED", header)
    assert (entries_sent(cluster), commits(cluster)) == (["group"], 0)
    assert sorted(cluster.visible()) == sorted(keys)


async def test_171_a_server_needs_one_request_for_both(dev: DevServer) -> None:
    def commit_requests() -> list[str]:
        shown = httpx.get(f"{dev.coordinator_url}/metrics").text.splitlines()
        return [line for line in shown if "/commit" in line and "_count" in line]

    topics = [f"t-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    async with metatxn.connect_async(dev.coordinator_url) as client:
        for topic in topics:
            await client.create_topic(topic)
        producers = [client.producer(topic) for topic in topics]
        for producer in producers:
            await (await producer.send("so that the client knows the topics"))
        before = commit_requests()
        async with client.transaction() as txn:
            sent = [await producer.send("x", txn=txn) for producer in producers]
        assert txn.header is not None and txn.header.state == "COMMITTED"
        assert all([await future for future in sent])
    assert commit_requests() == before


async def test_171_it_names_the_writers() -> None:
    cluster = two_segments()
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW)
        assert (await txn.commit(["w"])).writers == ["w"]
    assert commits(cluster) == 0


@pytest.mark.parametrize("how", ["attached", "for a version", "left open"])
async def test_171_it_travels_alone_where_others_may_commit(how: str) -> None:
    cluster = two_segments()
    async with connected(cluster) as client:
        txn = await (client.begin(key="k", epoch=1, version=7) if how == "for a version" else client.begin())
        if how == "attached":
            txn = client.attach(txn.id)
        if how == "left open":
            txn.leave_open()
        await sent(client, txn, LOW, HIGH)
        await txn.commit()
    assert (entries_sent(cluster), commits(cluster)) == (["group"], 1)


@pytest.mark.parametrize("what", ["a large entry", "more than one group", "an entry on its way"])
async def test_171_it_waits_for_what_else_is_under_way(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, gate = two_segments(), asyncio.Event()
    if what == "a large entry":
        monkeypatch.setattr(publishing, "MAX_ENTRY_BYTES", 90)
    if what == "more than one group":
        monkeypatch.setattr(publishing, "MAX_GROUP_ENTRIES", 1)
    cluster.before.append(("/entries", lambda _: _opened(gate)))
    async with connected(cluster) as client:
        txn, producer = await client.begin(), client.producer("t")
        await producer.send("x" * 100, key=LOW, txn=txn)
        if what == "an entry on its way":
            await _until(lambda: bool(entries_sent(cluster)))
        await producer.send(HIGH, key=HIGH, txn=txn)
        committing = asyncio.create_task(txn.commit())
        await _until(lambda: len([entry for segment in cluster.segments.values() for entry in segment.entries]) == 1)
        assert state(cluster) == "OPEN"
        gate.set()
        await committing
    assert commits(cluster) == 1
    assert len(cluster.visible()) == 2


async def _until(happened: Callable[[], bool]) -> None:
    while not happened():
        await asyncio.sleep(0)


async def _opened(gate: asyncio.Event) -> None:
    await gate.wait()


@pytest.mark.parametrize("how", ["an entry", "something else"])
async def test_171_nothing_is_committed_after_a_failure(how: str) -> None:
    cluster = two_segments()
    async with connected(cluster) as client:
        txn, other = await client.begin(), client.producer("t")
        if how == "an entry":
            cluster.before.append(("/entries", answering(ErrorCode.PAYLOAD_TOO_LARGE)))
            with pytest.raises(metatxn.PayloadTooLarge):
                await (await other.send(LOW, key=LOW, txn=txn))
        else:
            txn.failed(metatxn.NotFound("no such subscription"))
        await sent(client, txn, HIGH)
        cluster.before += [("/abort", answering(ErrorCode.NOT_ALLOWED))] * 2  # so that nothing else prevents it
        with pytest.raises(metatxn.MetatxnError):
            await txn.commit()
        await client.producer("t").flush()
    assert state(cluster) == "OPEN"


async def test_171_what_waits_to_be_sent_is_under_way_in_entries_that_are_not_known_yet() -> None:
    cluster = two_segments()
    async with connected(cluster) as client:
        txn, producer = await client.begin(), client.producer("t", linger_ms=3_600_000)
        await producer.send(LOW, key=LOW, txn=txn)
        assert producer.delivery.under_way(txn.id) is None
        flushing = asyncio.create_task(producer.flush())
        await _until(lambda: producer.delivery.under_way(txn.id) == {(producer.delivery._producer, 0)})
        await flushing
        assert producer.delivery.under_way(txn.id) == set()


async def test_171_an_entry_that_is_refused_keeps_the_others_from_being_committed() -> None:
    """One is refused, together and alone: the transaction is aborted."""
    cluster = two_segments()

    def one_is_refused(request: httpx.Request) -> httpx.Response:
        ((_, first), _) = unpack_entries(request.content).entries
        assert first, "the other one has an outcome, too"
        return httpx.Response(
            200, json={"outcomes": [{"position": "0:0"}, problem(ErrorCode.PAYLOAD_TOO_LARGE).json()]}
        )

    cluster.before += [(GROUP, one_is_refused), (f"{ALONE}s-0.b/entries", answering(ErrorCode.PAYLOAD_TOO_LARGE))]
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW, HIGH)
        with pytest.raises(metatxn.PayloadTooLarge):
            await txn.commit()
    assert (state(cluster), commits(cluster)) == ("ABORTED", 0)


async def test_171_what_was_not_appended_together_is_sent_alone_and_then_committed() -> None:
    cluster = two_segments()
    cluster.split("s-0.a")  # behind the client's back, when it has read the layout
    async with connected(cluster) as client:
        await client.producer("t").flush()
        layout = await client._connection.layout("t")
        assert "s-0.a.a" in layout.names
        txn = await client.begin()
        cluster.split("s-0.a.a")
        futures = await sent(client, txn, LOW, HIGH)
        assert (await txn.commit()).state == "COMMITTED"
        assert all([await future for future in futures])
    assert sorted(cluster.visible()) == sorted((LOW, HIGH))
    assert commits(cluster) == 0, "what was refused departs again, with the commit"


async def test_171_a_broker_that_carries_no_commits_leaves_them_to_a_coordinator() -> None:
    cluster = two_segments()
    cluster.carries_commits = False
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW, HIGH)
        assert (await txn.commit()).state == "COMMITTED"
    assert (entries_sent(cluster), commits(cluster)) == (["group"], 1)


@pytest.mark.parametrize("fault", NO_ANSWER)
@pytest.mark.parametrize("keys", [(LOW,), (LOW, HIGH)], ids=["one entry", "two entries"])
async def test_171_without_an_answer_the_header_tells_that_all_is_there(fault: Fault, keys: tuple[str, ...]) -> None:
    """The entries are refused when they are sent again, because the transaction is committed."""
    cluster = two_segments()
    cluster.after.append((GROUP, fault))
    async with connected(cluster) as client:
        txn = await client.begin()
        futures = await sent(client, txn, *keys)
        together = await client.producer("t").send_many([], [], txn)
        assert (await txn.commit()).state == "COMMITTED"
        assert [await future for future in futures] == [NOT_TOLD] * len(keys)
        assert await together == []
    assert sorted(cluster.visible()) == sorted(keys)


async def test_171_messages_that_were_sent_together_have_no_position_then() -> None:
    cluster = two_segments()
    cluster.after.append((GROUP, lost))
    async with connected(cluster) as client:
        txn = await client.begin()
        together = await client.producer("t").send_many([LOW, HIGH], [LOW, HIGH], txn)
        await txn.commit()
        assert await together == [NOT_TOLD] * 2


@pytest.mark.parametrize("fault", [*NO_ANSWER, refused, answering(ErrorCode.STORE_UNAVAILABLE)])
async def test_171_a_request_that_never_arrived_is_made_up_for(fault: Fault) -> None:
    """Nobody vouches any more that the transaction is not committed: the commit may still arrive."""
    cluster = two_segments()
    cluster.before.append((GROUP, fault))
    async with connected(cluster) as client:
        txn = await client.begin()
        futures = await sent(client, txn, LOW, HIGH)
        assert (await txn.commit()).state == "COMMITTED"
        assert [await future for future in futures] == ["0:0"] * 2
    assert commits(cluster) == 1
    assert cluster.vouched == []
    assert sorted(cluster.visible()) == sorted((LOW, HIGH))


async def test_171_a_request_that_arrives_late_commits_what_was_sent_again() -> None:
    """The second entry is refused because the first request, which nobody waits for any more, has committed it."""
    cluster = two_segments()
    late: list[httpx.Request] = []

    def delayed(request: httpx.Request) -> httpx.Response | None:
        late.append(request)
        return lost(request)

    def arrives(request: httpx.Request) -> None:
        if late:
            cluster._append_group(late[0].url.path.split("/")[3], late.pop().content)

    cluster.before += [(GROUP, delayed), ("s-0.b/entries", arrives)]
    async with connected(cluster) as client:
        txn = await client.begin()
        futures = await sent(client, txn, LOW, HIGH)
        assert (await txn.commit()).state == "COMMITTED"
        assert NOT_TOLD in [await future for future in futures]
    assert sorted(cluster.visible()) == sorted((LOW, HIGH))


async def test_171_entries_that_were_refused_in_an_aborted_transaction_have_failed() -> None:
    cluster = two_segments()

    def aborted(request: httpx.Request) -> httpx.Response | None:
        cluster._decide(request.url.path.split("/")[3], "ABORTED")
        return lost(request)

    cluster.before.append((GROUP, aborted))
    async with connected(cluster) as client:
        txn = await client.begin()
        futures = await sent(client, txn, LOW, HIGH)
        with pytest.raises(metatxn.OutcomeUnknown):
            await txn.commit()
        for future in futures:
            with pytest.raises(metatxn.OutcomeUnknown):
                await future
    assert cluster.visible() == []


async def test_171_if_nobody_tells_the_outcome_it_is_unknown() -> None:
    cluster = two_segments()
    cluster.after.append((GROUP, lost))
    cluster.before += [("GET /v1/txns/", answering(ErrorCode.NOT_ALLOWED))] * 5
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW, HIGH)
        with pytest.raises(metatxn.OutcomeUnknown):
            await txn.commit()
    assert state(cluster) == "COMMITTED", "and no abort could change that"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(ErrorCode.NOT_ALLOWED), None),
        (problem(ErrorCode.OUTCOME_UNKNOWN), None),
        (problem(ErrorCode.INVALID_TXN_STATE), metatxn.InvalidTransactionState),
    ],
    ids=["refused", "without an answer of the store", "aborted"],
)
async def test_171_a_commit_that_failed_is_tried_alone(answer: httpx.Response, error: type[Exception] | None) -> None:
    cluster = two_segments()

    def appended(request: httpx.Request) -> httpx.Response:
        txn_id = request.url.path.split("/")[3]
        cluster.carries_commits = False
        told: dict[str, Any] = cluster._append_group(txn_id, request.content).json()
        if error is not None:
            cluster._decide(txn_id, "ABORTED")
        return httpx.Response(200, json=told | {"commit": answer.json()})

    cluster.before.append((GROUP, appended))
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW, HIGH)
        if error is None:
            assert (await txn.commit()).state == "COMMITTED"
        else:
            with pytest.raises(error):
                await txn.commit()
    assert commits(cluster) == 1
    assert sorted(cluster.visible()) == (sorted((LOW, HIGH)) if error is None else [])


async def test_171_a_commit_without_an_answer_is_not_denied() -> None:
    """The broker does not know whether its commit took effect, and the next attempt is refused."""
    cluster = two_segments()
    cluster.carries_commits = False

    def unknown(request: httpx.Request) -> httpx.Response:
        told: dict[str, Any] = cluster._append_group(request.url.path.split("/")[3], request.content).json()
        return httpx.Response(200, json=told | {"commit": problem(ErrorCode.OUTCOME_UNKNOWN).json()})

    cluster.before += [(GROUP, unknown), (COMMIT, answering(ErrorCode.NOT_ALLOWED))]
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW, HIGH)
        with pytest.raises(metatxn.OutcomeUnknown):
            await txn.commit()


async def test_171_entries_of_others_do_not_stand_for_ours() -> None:
    """Another object writes into the transaction meanwhile: as many entries depart as ours are under way, but one of
    ours is on its way elsewhere."""
    cluster, gate = two_segments(), asyncio.Event()
    cluster.before.append(("s-0.a/entries", lambda _: _opened(gate)))
    async with connected(cluster) as client:
        txn = await client.begin()
        producer, other = client.producer("t"), client.producer("t")
        await producer.send("first", key=LOW, txn=txn)
        await _until(lambda: bool(entries_sent(cluster)))
        await producer.send("second", key=HIGH, txn=txn)
        await other.send("of another", key=HIGH, txn=client.attach(txn.id))
        committing = asyncio.create_task(txn.commit())
        await _until(lambda: len([entry for each in cluster.segments.values() for entry in each.entries]) == 2)
        assert state(cluster) == "OPEN"
        gate.set()
        await committing
    assert sorted(cluster.visible()) == ["first", "of another", "second"]


@pytest.mark.parametrize("reached", [True, False], ids=["it arrives", "it never arrives"])
@pytest.mark.parametrize("told", [True, False], ids=["the header tells", "nobody tells"])
async def test_171_who_gives_up_waiting_learns_the_truth_from_the_next_commit(reached: bool, told: bool) -> None:
    """The caller is cancelled while the commit is on its way."""
    cluster, gate = two_segments(), asyncio.Event()
    (cluster.after if reached else cluster.before).append((GROUP, lambda _: _opened(gate)))
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW, HIGH)
        committing = asyncio.create_task(txn.commit())
        await _until(lambda: bool(entries_sent(cluster)))
        if not told:
            cluster.before += [("/abort", answering(ErrorCode.NOT_ALLOWED)), ("GET /v1/txns", silent)]
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        gate.set()
        if reached:
            assert (await txn.commit()).state == "COMMITTED"
        elif told:
            with pytest.raises(metatxn.InvalidTransactionState):
                await txn.commit()
        else:
            with contextlib.suppress(metatxn.OutcomeUnknown):  # the header was still open
                assert (await txn.commit()).state == "COMMITTED"
            await client.producer("t").flush()
            await _until(lambda: state(cluster) == "COMMITTED")
            assert (await txn.commit()).state == "COMMITTED"
    assert sorted(cluster.visible()) == ([] if told and not reached else sorted((LOW, HIGH)))


async def test_171_a_commit_in_doubt_is_only_read() -> None:
    """An entry has failed, and nobody could abort: the entry may be missing, so the next commit tries nothing."""
    cluster = two_segments()
    cluster.before += [(GROUP, lost), (f"{ALONE}s-0.b/entries", answering(ErrorCode.PAYLOAD_TOO_LARGE))]
    cluster.before += [("/abort", answering(ErrorCode.NOT_ALLOWED))] * 2
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW, HIGH)
        for _ in range(2):
            with pytest.raises(metatxn.OutcomeUnknown):
                await txn.commit()
        assert (state(cluster), commits(cluster)) == ("OPEN", 0)
        cluster._decide(txn.id, "ABORTED")  # by its timeout
        with pytest.raises(metatxn.InvalidTransactionState):
            await txn.commit()


async def test_171_what_fails_after_the_decision_came_too_late() -> None:
    """Another task sends while the commit is on its way. It is told that the transaction takes nothing any more."""
    cluster, gate = two_segments(), asyncio.Event()
    cluster.after.append((GROUP, lambda _: _opened(gate)))
    async with connected(cluster) as client:
        txn, producer = await client.begin(), client.producer("t")
        await producer.send(LOW, key=LOW, txn=txn)
        committing = asyncio.create_task(txn.commit())
        await _until(lambda: state(cluster) == "COMMITTED")
        late = await producer.send("late", key=HIGH, txn=txn)
        with pytest.raises(metatxn.TransactionConflict):
            await late
        txn.failed(metatxn.NotFound("an acknowledgement, too"))
        gate.set()
        assert (await committing).state == "COMMITTED"
        assert (await txn.refresh()).state == "COMMITTED"
    assert cluster.visible() == [LOW]


async def test_171_an_entry_that_was_refused_is_not_durable_because_another_program_commits() -> None:
    """The answer says that no commit was tried, so a committed header is that of somebody else."""
    cluster = two_segments()

    def one_is_refused(request: httpx.Request) -> httpx.Response:
        txn_id, ((first, payload), _) = request.url.path.split("/")[3], unpack_entries(request.content).entries
        params = {"txn_id": txn_id, "producer": first.producer, "sequence": first.sequence, "count": first.count}
        alone = httpx.Request("POST", httpx.URL("http://b", params=params), content=payload)
        alone.headers["Content-Type"] = first.media_type
        told = [cluster._append(first.segment, alone).json(), problem(ErrorCode.STORE_UNAVAILABLE).json()]
        cluster.commit(txn_id, None)
        return httpx.Response(200, json={"outcomes": told})

    cluster.before.append((GROUP, one_is_refused))
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW, HIGH)
        with pytest.raises(metatxn.TransactionConflict):
            await txn.commit()
    assert len(cluster.visible()) == 1


@pytest.mark.parametrize("writers", [{"a"}, [7], "a"], ids=["a set", "a number", "one text"])
async def test_171_writers_that_do_not_fit_are_not_sent_along(writers: Any) -> None:
    cluster = two_segments()
    groups: list[bool] = []
    cluster.before.append((GROUP, lambda request: groups.append(unpack_entries(request.content).commit is not None)))
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW, HIGH)
        with contextlib.suppress(TypeError, metatxn.MetatxnError):
            await txn.commit(writers)
    assert groups == [False]


@pytest.mark.parametrize("refusal", [refused, answering(ErrorCode.STORE_UNAVAILABLE), answering(ErrorCode.NOT_FOUND)])
async def test_171_a_request_that_was_not_carried_out_is_forgotten(refusal: Fault) -> None:
    """Then the commit is refused at the coordinator, and that is what the caller is told."""
    cluster = two_segments()
    cluster.before += [(GROUP, refusal), (COMMIT, answering(ErrorCode.NOT_ALLOWED))]
    async with connected(cluster) as client:
        txn = await client.begin()
        await sent(client, txn, LOW, HIGH)
        with pytest.raises(metatxn.NotAllowed):
            await txn.commit()
