"""A commit ends in the truth: committed, aborted, or an error that says which of the two is still possible.

Method: faults around the commit request in front of a fake cluster, whose headers are the truth; both clients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable

import httpx
import pyarrow as pa
import pytest

import metatxn
from metatxn.wire.errors import ErrorCode
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, Fault, Outcome, answering, lost, proxy, refused, silent
from tests.metatxn.flavours import Connect

COMMIT = "/commit"


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def client(cluster: FakeCluster, connect: Connect) -> metatxn.AsyncClient:
    return connect(COORDINATOR, request_timeout_s=5, transport=cluster.transport)


def only(cluster: FakeCluster) -> str:
    """The state of the only transaction."""
    (header,) = cluster.transactions.values()
    return str(header["state"])


@pytest.mark.parametrize(
    "fault",
    [
        lost,
        silent,
        answering(ErrorCode.OUTCOME_UNKNOWN),
        *[pytest.param(proxy(status), id=f"proxy says {status}") for status in (500, 502, 503, 504)],
        pytest.param(proxy(200), id="a page instead of the answer"),
        pytest.param(proxy(200, '{"state": "FROZEN"}'), id="an answer that this version does not understand"),
    ],
)
async def test_reply_is_lost_and_header_says_committed(
    cluster: FakeCluster, client: metatxn.AsyncClient, fault: object
) -> None:
    """Scenario 112. Whatever stands before the coordinator may have lost the answer, and says only that."""
    assert callable(fault)
    cluster.after = [(COMMIT, fault)]
    async with client:
        txn = await client.begin()
        assert (await txn.commit()).state == "COMMITTED"
    assert len([request for request in cluster.requests if COMMIT in request]) == 1


async def test_request_is_lost_and_sent_again(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """The header is still OPEN: the request may be on its way, and the same decision again is harmless."""
    cluster.before = [(COMMIT, lost)]
    async with client:
        assert (await (await client.begin()).commit()).state == "COMMITTED"


@pytest.mark.parametrize(
    "second",
    [
        refused,
        answering(ErrorCode.TXN_NOT_FOUND),
        answering(ErrorCode.NOT_ALLOWED),
        answering(ErrorCode.STORE_UNAVAILABLE),
        answering(ErrorCode.RATE_LIMITED),
    ],
)
async def test_lost_commit_is_not_denied_because_the_next_one_is_refused(
    cluster: FakeCluster, connect: Connect, second: object
) -> None:
    """The header was still OPEN when it was read again, so the lost request may land at any later time; and nothing is
    aborted on leaving."""
    assert callable(second)
    cluster.before = [(COMMIT, lost), *[(COMMIT, second)] * 100]
    async with connect(COORDINATOR, request_timeout_s=0.5, transport=cluster.transport) as client:
        with pytest.raises(metatxn.OutcomeUnknown) as caught:
            async with client.transaction():
                pass
    assert not caught.value.definite
    assert not any("/abort" in request for request in cluster.requests)


async def test_lost_commit_is_denied_when_the_next_one_meets_an_abort(
    cluster: FakeCluster, client: metatxn.AsyncClient
) -> None:
    """A final header is the last word: the lost request cannot land any more."""
    cluster.before = [(COMMIT, lost), (COMMIT, answering(ErrorCode.EXPIRED_TRANSACTION))]
    async with client:
        txn = await client.begin()
        with pytest.raises(metatxn.ExpiredTransaction):
            await txn.commit()


@pytest.mark.parametrize("refusal", [ErrorCode.STORE_UNAVAILABLE, ErrorCode.NOT_ALLOWED, ErrorCode.RATE_LIMITED])
async def test_lost_commit_is_not_denied_because_its_header_cannot_be_read(
    cluster: FakeCluster, connect: Connect, refusal: ErrorCode
) -> None:
    """It has landed. That nothing happened is said of the reading, and not of the commit."""
    cluster.after = [(COMMIT, lost)]
    cluster.before = [("GET /v1/txns/", answering(refusal))] * 100
    async with connect(COORDINATOR, request_timeout_s=0.5, transport=cluster.transport) as client:
        txn = await client.begin()
        with pytest.raises(metatxn.OutcomeUnknown) as caught:
            await txn.commit()
    assert not caught.value.definite and only(cluster) == "COMMITTED"


Writers = list[str] | None


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(["a"], ["b"], id="others"),
        pytest.param(["a"], ["a", "b"], id="ours and others"),
        pytest.param(["a"], None, id="all"),
        pytest.param([], None, id="all, where ours were none"),
        pytest.param([], ["b"], id="others, where ours were none"),
        pytest.param(["a"], [], id="none"),
    ],
)
@pytest.mark.parametrize("fault", [lost, proxy(504)], ids=["lost", "gateway"])
async def test_request_is_lost_and_somebody_else_commits_with_other_writers(
    cluster: FakeCluster, client: metatxn.AsyncClient, ours: Writers, theirs: Writers, fault: Fault
) -> None:
    """DESIGN §5.12: the first list has decided. It is committed, and not as we have asked."""

    def lose_and_overtake(request: httpx.Request) -> Outcome | Awaitable[Outcome]:
        (txn_id,) = cluster.transactions
        cluster.commit(txn_id, theirs)
        return fault(request)

    cluster.before = [(COMMIT, lose_and_overtake)]
    async with client:
        txn = await client.begin()
        with pytest.raises(metatxn.InvalidTransactionState, match="other writers") as caught:
            await txn.commit(ours)
    assert caught.value.definite and only(cluster) == "COMMITTED"


@pytest.mark.parametrize("writers", [None, [], ["a"], ["b", "a", "b"]])
async def test_reply_is_lost_and_our_writers_count(
    cluster: FakeCluster, client: metatxn.AsyncClient, writers: Writers
) -> None:
    cluster.after = [(COMMIT, lost)]
    async with client:
        header = await (await client.begin()).commit(writers)
    assert header.writers == (None if writers is None else sorted(set(writers)))


@pytest.mark.parametrize("fault", [lambda _: None, lost], ids=["answered", "lost"])
@pytest.mark.parametrize(("theirs", "counts"), [(None, True), (["a", "b"], True), (["b"], False), ([], False)])
async def test_remembered_writers_that_somebody_else_has_left_out(
    cluster: FakeCluster, client: metatxn.AsyncClient, theirs: Writers, counts: bool, fault: Fault
) -> None:
    """A commit without a list goes by those that are remembered. Somebody else's list was faster, and what it leaves
    out is void. That others have remembered more is as it should be."""
    async with client:
        txn = await client.begin()
        await txn.remember_writers(["a"])
        if theirs is None:
            cluster.remember(txn.id, ["c"])
        cluster.commit(txn.id, theirs)
        cluster.after = [(COMMIT, fault)]
        if counts:
            assert (await txn.commit()).state == "COMMITTED"
        else:
            with pytest.raises(metatxn.InvalidTransactionState, match="'a'"):
                await txn.commit()


@pytest.mark.parametrize("fault", [lambda _: None, lost], ids=["answered", "lost"])
@pytest.mark.parametrize("operation", ["rows", "acknowledgement"])
@pytest.mark.parametrize(("theirs", "counts"), [(None, True), (["a", "b"], True), (["b"], False), ([], False)])
async def test_writers_used_here_that_somebody_else_has_left_out(
    cluster: FakeCluster, client: metatxn.AsyncClient, theirs: Writers, counts: bool, operation: str, fault: Fault
) -> None:
    """Nothing was remembered here, and a commit without a list takes all. Somebody else's list was faster."""
    async with client:
        txn = await client.begin()
        await operate(cluster, client, txn, operation)
        cluster.commit(txn.id, theirs)
        cluster.after = [(COMMIT, fault)]
        if counts:
            assert (await txn.commit()).state == "COMMITTED"
        else:
            with pytest.raises(metatxn.InvalidTransactionState, match=r"other writers.*'a'") as caught:
                await txn.commit()
            assert caught.value.definite


@pytest.mark.parametrize("list_is", ["remembered", "in the commit"])
@pytest.mark.parametrize("fault", [lambda _: None, lost], ids=["answered", "lost"])
async def test_writers_that_are_left_out_here_may_have_been_used_here(
    cluster: FakeCluster, client: metatxn.AsyncClient, list_is: str, fault: Fault
) -> None:
    """An attempt that failed, and the next one."""
    async with client:
        txn = await client.begin()
        for attempt in ("attempt-0", "attempt-1"):
            async with client.table_writer("t", txn, attempt, key_column="k") as rows:
                await rows.write(pa.table({"k": ["x"]}))
        cluster.after = [(COMMIT, fault)]
        if list_is == "remembered":
            await txn.remember_writers(["attempt-1"])
            assert (await txn.commit()).writers == ["attempt-1"]
        else:
            assert (await txn.commit(["attempt-1"])).writers == ["attempt-1"]


async def operate(
    cluster: FakeCluster, client: metatxn.AsyncClient, txn: metatxn.AsyncTransaction, operation: str
) -> None:
    """As the writer "a"."""
    if operation == "rows":
        async with client.table_writer("t", txn, "a", key_column="k") as rows:
            await rows.write(pa.table({"k": ["x"]}))
    else:
        cluster.before = [("/acks", lambda _: httpx.Response(200, json={}))]
        message = metatxn.Message("t", "s-0:0:0", "x")
        await client.consumer("t", "s").acknowledge(message, txn, "a")


async def test_reply_is_lost_and_header_says_expired(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    def expire_and_lose(request: httpx.Request) -> httpx.Response | None:
        (header,) = cluster.transactions.values()
        header.update(state="ABORTED", expired_by="timeout", finalized_ms=9)
        return lost(request)

    cluster.before = [(COMMIT, expire_and_lose)]
    async with client:
        txn = await client.begin()
        with pytest.raises(metatxn.ExpiredTransaction, match="timeout"):
            await txn.commit()


async def test_reply_is_lost_and_header_is_gone(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """Nobody can say any more, and neither does the client."""
    cluster.after = [(COMMIT, lost)]
    cluster.before = [("GET /v1/txns/", answering(ErrorCode.TXN_NOT_FOUND))]
    async with client:
        txn = await client.begin()
        with pytest.raises(metatxn.OutcomeUnknown) as caught:
            await txn.commit()
    assert not caught.value.definite


async def test_unknown_outcome_is_not_aborted_on_leaving(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    cluster.after = [(COMMIT, lost)]
    cluster.before = [("GET /v1/txns/", answering(ErrorCode.TXN_NOT_FOUND))]
    async with client:
        with pytest.raises(metatxn.OutcomeUnknown):
            async with client.transaction():
                pass
    assert not any("/abort" in request for request in cluster.requests)


@pytest.mark.parametrize("way", ["commit", "leave"])
async def test_commit_with_a_send_that_fails(cluster: FakeCluster, client: metatxn.AsyncClient, way: str) -> None:
    """Scenario 27: the commit fails with the send's error, and the transaction is not left open."""
    cluster.before = [("entries", answering(ErrorCode.PAYLOAD_TOO_LARGE))] * 2  # together with the commit, and alone
    async with client:
        txn = await client.begin()
        with pytest.raises(metatxn.PayloadTooLarge):  # noqa: PT012
            if way == "commit":
                await client.producer("t").send("much", txn=txn)
                await txn.commit()
            async with txn:
                await client.producer("t").send("much", txn=txn)
    assert only(cluster) == "ABORTED"
    assert sum("/abort" in request for request in cluster.requests) == 1
    assert not any(COMMIT in request for request in cluster.requests)


async def test_failure_that_was_looked_at_still_fails_the_commit(
    cluster: FakeCluster, client: metatxn.AsyncClient
) -> None:
    """Neither a future that was waited for nor a flush takes it away."""
    cluster.before = [("entries", answering(ErrorCode.PAYLOAD_TOO_LARGE))]
    async with client:
        producer = client.producer("t")
        with pytest.raises(metatxn.PayloadTooLarge):  # noqa: PT012
            async with client.transaction() as txn:
                sent = await producer.send("much", txn=txn)
                with pytest.raises(metatxn.PayloadTooLarge):
                    await sent
                with pytest.raises(metatxn.PayloadTooLarge):
                    await producer.flush()
    assert only(cluster) == "ABORTED"


async def test_send_that_raised_dooms_the_transaction(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    """The topic is not there, and the caller looks away."""
    async with client:
        with pytest.raises(metatxn.InvalidTransactionState):  # noqa: PT012
            async with client.transaction() as txn:
                with contextlib.suppress(metatxn.NotFound):
                    await client.producer("nowhere").send("x", txn=txn)
    assert only(cluster) == "ABORTED"


async def test_transaction_whose_abort_failed_cannot_be_committed(
    cluster: FakeCluster, client: metatxn.AsyncClient
) -> None:
    """Its timeout will abort it; until then an incomplete transaction must not become visible."""
    cluster.before = [("entries", answering(ErrorCode.PAYLOAD_TOO_LARGE))] * 2
    cluster.before += [("/abort", answering(ErrorCode.NOT_ALLOWED))] * 2
    async with client:
        txn = await client.begin()
        await client.producer("t").send("much", txn=txn)
        with pytest.raises(metatxn.PayloadTooLarge):
            await txn.commit()
        with pytest.raises(metatxn.InvalidTransactionState):
            await txn.commit()
        assert only(cluster) == "OPEN"


async def test_send_without_an_answer(cluster: FakeCluster, connect: Connect) -> None:
    """Scenario 28: the send fails when its time is over, and the commit does not report success."""
    cluster.before = [("entries", silent)] * 100
    async with connect(COORDINATOR, request_timeout_s=0.5, transport=cluster.transport) as client:
        txn = await client.begin()
        sent = await client.producer("t").send("x", txn=txn)
        with pytest.raises(metatxn.OutcomeUnknown):
            await sent
        with pytest.raises(metatxn.OutcomeUnknown):
            await txn.commit()
    assert only(cluster) == "ABORTED"


async def test_exception_inside_aborts(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    async with client:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with client.transaction() as txn:
                await client.producer("t").send("never", txn=txn)
                1 / 0  # noqa: B018
    assert only(cluster) == "ABORTED"
    assert cluster.visible() == []


async def test_leaving_commits(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    async with client, client.transaction() as txn:
        await client.producer("t").send("x", txn=txn)
    assert cluster.visible() == ["x"]


async def test_already_committed_version_takes_nothing(cluster: FakeCluster, client: metatxn.AsyncClient) -> None:
    def done(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"state": "COMMITTED", "already_committed": True, "version": 7})

    cluster.before = [("POST /v1/txns", done)]
    async with client:
        txn = await client.begin(key="k", epoch=1, version=7)
        assert txn.already_committed
        with pytest.raises(metatxn.InvalidTransactionState, match="version 7"):
            await client.producer("t").send("x", txn=txn)
        assert (await txn.commit()).state == "COMMITTED"
    assert cluster.visible() == []


async def test_a_client_that_is_closed_aborts_no_transaction_that_may_be_committed(
    cluster: FakeCluster, connect: Connect
) -> None:
    """The commit had no answer, and nobody could tell the outcome: it is left to the timeout."""
    async with connect(COORDINATOR, request_timeout_s=0.2, transport=cluster.transport) as client:
        txn = await client.begin()
        await (await client.producer("t").send(1, txn=txn))
        cluster.before = [(COMMIT, silent), *[("GET /v1/txns/", silent)] * 100]
        with pytest.raises(metatxn.OutcomeUnknown):
            await txn.commit()
    assert only(cluster) == "OPEN" and not any("/abort" in request for request in cluster.requests)


async def test_closing_ends_although_nobody_answers_an_abort(
    cluster: FakeCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metatxn.connection.CLOSING_S", 0.05)
    async with connect(COORDINATOR, request_timeout_s=3_600, transport=cluster.transport) as client:
        await client.producer("t").send(1, txn=await client.begin())
        cluster.before = [("/abort", silent)] * 100
    assert only(cluster) == "OPEN" and any("/abort" in request for request in cluster.requests)
