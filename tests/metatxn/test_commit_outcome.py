"""A commit ends in the truth: committed, aborted, or an error that says which of the two is still possible.

Method: faults around the commit request in front of a fake cluster, whose headers are the truth.
"""

from __future__ import annotations

import httpx
import pytest

import metatxn
from service.problems import ErrorCode
from tests.metatxn.fake_cluster import FakeCluster, answering, lost, silent

COMMIT = "/commit"


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def only(cluster: FakeCluster) -> str:
    """The state of the only transaction."""
    (header,) = cluster.transactions.values()
    return str(header["state"])


@pytest.mark.parametrize("fault", [lost, silent, answering(ErrorCode.OUTCOME_UNKNOWN)])
def test_reply_is_lost_and_header_says_committed(cluster: FakeCluster, fault: object) -> None:
    """Scenario 112."""
    assert callable(fault)
    cluster.after = [(COMMIT, fault)]
    with cluster.client() as client:
        txn = client.begin()
        assert txn.commit().state == "COMMITTED"
    assert len([request for request in cluster.requests if COMMIT in request]) == 1


def test_request_is_lost_and_sent_again(cluster: FakeCluster) -> None:
    """The header is still OPEN: the request may be on its way, and the same decision again is harmless."""
    cluster.before = [(COMMIT, lost)]
    with cluster.client() as client:
        assert client.begin().commit().state == "COMMITTED"


def test_reply_is_lost_and_header_says_expired(cluster: FakeCluster) -> None:
    def expire_and_lose(request: httpx.Request) -> httpx.Response | None:
        (header,) = cluster.transactions.values()
        header.update(state="ABORTED", expired_by="timeout", finalized_ms=9)
        return lost(request)

    cluster.before = [(COMMIT, expire_and_lose)]
    with cluster.client() as client, pytest.raises(metatxn.ExpiredTransaction, match="timeout"):
        client.begin().commit()


def test_reply_is_lost_and_header_is_gone(cluster: FakeCluster) -> None:
    """Nobody can say any more, and neither does the client."""
    cluster.after = [(COMMIT, lost)]
    cluster.before = [("GET /v1/txns/", answering(ErrorCode.TXN_NOT_FOUND))]
    with cluster.client() as client, pytest.raises(metatxn.OutcomeUnknown) as caught:
        client.begin().commit()
    assert not caught.value.definite


def test_unknown_outcome_is_not_aborted_on_leaving(cluster: FakeCluster) -> None:
    cluster.after = [(COMMIT, lost)]
    cluster.before = [("GET /v1/txns/", answering(ErrorCode.TXN_NOT_FOUND))]
    with cluster.client() as client, pytest.raises(metatxn.OutcomeUnknown), client.transaction():
        pass
    assert not any("/abort" in request for request in cluster.requests)


def test_commit_with_a_send_that_fails(cluster: FakeCluster) -> None:
    """Scenario 27: the commit fails with the send's error, and the transaction is not left open."""
    cluster.before = [("entries", answering(ErrorCode.PAYLOAD_TOO_LARGE))]
    with cluster.client() as client:
        txn = client.begin()
        client.producer("t").send("much", txn=txn)
        with pytest.raises(metatxn.PayloadTooLarge):
            txn.commit()
    assert only(cluster) == "ABORTED"


def test_failed_send_that_was_flushed_away_still_fails_the_commit(cluster: FakeCluster) -> None:
    cluster.before = [("entries", answering(ErrorCode.PAYLOAD_TOO_LARGE))]
    with cluster.client() as client:
        txn = client.begin()
        producer = client.producer("t")
        producer.send("much", txn=txn)
        with pytest.raises(metatxn.PayloadTooLarge):
            producer.flush()
        with pytest.raises(metatxn.PayloadTooLarge):
            txn.commit()
    assert only(cluster) == "ABORTED"


def test_transaction_whose_abort_failed_cannot_be_committed(cluster: FakeCluster) -> None:
    """Its timeout will abort it; until then an incomplete transaction must not become visible."""
    cluster.before = [("entries", answering(ErrorCode.PAYLOAD_TOO_LARGE)), ("/abort", answering(ErrorCode.NOT_ALLOWED))]
    with cluster.client() as client:
        txn = client.begin()
        client.producer("t").send("much", txn=txn)
        with pytest.raises(metatxn.PayloadTooLarge):
            txn.commit()
        with pytest.raises(metatxn.InvalidTransactionState):
            txn.commit()
    assert only(cluster) == "OPEN"


def test_send_without_an_answer(cluster: FakeCluster) -> None:
    """Scenario 28: the send fails when its time is over, and the commit does not report success."""
    cluster.before = [("entries", silent)] * 100
    with cluster.client(request_timeout_s=0.5) as client:
        txn = client.begin()
        sent = client.producer("t").send("x", txn=txn)
        with pytest.raises(metatxn.OutcomeUnknown):
            sent.result(10)
        with pytest.raises(metatxn.OutcomeUnknown):
            txn.commit()
    assert only(cluster) == "ABORTED"


def test_exception_inside_aborts(cluster: FakeCluster) -> None:
    with cluster.client() as client, pytest.raises(ZeroDivisionError), client.transaction():
        1 / 0  # noqa: B018
    assert only(cluster) == "ABORTED"


def test_leaving_commits(cluster: FakeCluster) -> None:
    with cluster.client() as client, client.transaction() as txn:
        client.producer("t").send("x", txn=txn)
    assert cluster.visible() == ["x"]


def test_already_committed_version_takes_nothing() -> None:
    cluster = FakeCluster()

    def done(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"state": "COMMITTED", "already_committed": True, "version": 7})

    cluster.before = [("POST /v1/txns", done)]
    with cluster.client() as client:
        txn = client.begin(key="k", epoch=1, version=7)
        assert txn.already_committed
        with pytest.raises(metatxn.InvalidTransactionState, match="version 7"):
            client.producer("t").send("x", txn=txn)
        assert txn.commit().state == "COMMITTED"
    assert cluster.visible() == []
