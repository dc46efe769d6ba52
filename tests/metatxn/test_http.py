"""What is repeated, what is not, and where it is sent next.

Method: faults in front of a fake cluster; the requests it saw and the entries it holds say what the client did.
"""

from __future__ import annotations

import json

import httpx
import pytest

import metatxn
from service.problems import ErrorCode
from tests.metatxn.fake_cluster import BROKER, COORDINATOR, FakeCluster, answering, lost, refused, silent


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def test_retriable_and_definite_is_tried_again(cluster: FakeCluster) -> None:
    cluster.before = [("POST /v1/txns", answering(ErrorCode.STORE_UNAVAILABLE, {"Retry-After": "0"}))] * 3
    with cluster.client() as client:
        assert client.begin().state == "OPEN"
    assert cluster.requests.count("POST /v1/txns") == 4


def test_retry_after_is_waited_for(cluster: FakeCluster) -> None:
    cluster.before = [("POST /v1/txns", answering(ErrorCode.RATE_LIMITED, {"Retry-After": "60"}))]
    with cluster.client(request_timeout_s=1) as client, pytest.raises(metatxn.RateLimited) as caught:
        client.begin()
    assert caught.value.retry_after_s == 60
    assert cluster.requests.count("POST /v1/txns") == 1


def test_answer_that_stays_is_not_asked_for_again(cluster: FakeCluster) -> None:
    cluster.before = [("POST /v1/txns", answering(ErrorCode.NOT_ALLOWED))]
    with cluster.client() as client, pytest.raises(metatxn.NotAllowed):
        client.begin()
    assert cluster.requests.count("POST /v1/txns") == 1


@pytest.mark.parametrize("fault", [lost, silent, answering(ErrorCode.OUTCOME_UNKNOWN)])
def test_publish_whose_reply_is_lost_is_appended_once(cluster: FakeCluster, fault: object) -> None:
    """Scenario 112, for data: the retry carries the same producer and sequence."""
    assert callable(fault)
    cluster.after = [("entries", fault)]
    with cluster.client() as client:
        client.producer("t").send({"n": 1}).result(60)
    publishes = [request for request in cluster.requests if "entries" in request]
    assert len(publishes) == 2
    assert publishes[0] == publishes[1]
    assert cluster.visible() == [{"n": 1}]


@pytest.mark.parametrize("refusal", [ErrorCode.STORE_UNAVAILABLE, ErrorCode.RATE_LIMITED, ErrorCode.NOT_OWNER])
def test_a_publish_whose_reply_is_lost_is_not_denied_because_nobody_serves_it_later(
    cluster: FakeCluster, refusal: ErrorCode
) -> None:
    """That the last attempt certainly did nothing says nothing about the first one, which is in the log."""
    cluster.before = [("entries", lambda _: None), *[("entries", answering(refusal))] * 100]
    cluster.after = [("entries", lost)]
    with cluster.client(request_timeout_s=0.5) as client, pytest.raises(metatxn.OutcomeUnknown) as caught:
        client.producer("t").send("x").result(60)
    assert not caught.value.definite
    assert cluster.visible() == ["x"]


def test_redirect_keeps_method_and_body() -> None:
    """307: sent on as it is, and the next request goes to the new owner at once."""
    seen: list[tuple[str, str, bytes]] = []
    cluster = FakeCluster()

    async def handle(request: httpx.Request) -> httpx.Response:
        if "entries" in request.url.path:
            seen.append((request.method, request.url.host, request.content))
            if request.url.host == "broker.test":
                there = str(request.url).replace("broker.test", "other.test")
                return httpx.Response(307, headers={"Location": there})
        return await cluster._handle(request)

    with metatxn.connect(COORDINATOR, transport=httpx.MockTransport(handle)) as client:
        producer = client.producer("t")
        producer.send(1).result(60)
        producer.send(2).result(60)
    body = json.dumps([{"value": 1}], separators=(",", ":")).encode()
    assert seen[:2] == [("POST", "broker.test", body), ("POST", "other.test", body)]
    assert [host for _, host, _ in seen[2:]] == ["other.test"]
    assert cluster.visible() == [1, 2]


@pytest.mark.parametrize("location", ["http://other.test", "http://other.test/"])
def test_location_may_be_just_the_owner(location: str) -> None:
    cluster = FakeCluster()

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.host == "broker.test" and "entries" in request.url.path:
            return httpx.Response(307, headers={"Location": location})
        return await cluster._handle(request)

    with metatxn.connect(COORDINATOR, transport=httpx.MockTransport(handle)) as client:
        client.producer("t").send(1).result(60)
    assert cluster.visible() == [1]


def test_redirects_in_a_circle_end(cluster: FakeCluster) -> None:
    async def handle(request: httpx.Request) -> httpx.Response:
        if "entries" in request.url.path:
            return httpx.Response(307, headers={"Location": str(request.url)})
        return await cluster._handle(request)

    transport = httpx.MockTransport(handle)
    with (
        metatxn.connect(COORDINATOR, request_timeout_s=0.3, transport=transport) as client,
        pytest.raises(metatxn.NotOwner),
    ):
        client.producer("t").send(1).result(60)


def test_next_coordinator_is_asked_when_one_is_gone() -> None:
    cluster = FakeCluster()

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/cluster":
            urls = ["http://dead.test", COORDINATOR]
            processes = [{"id": url, "url": url} for url in urls]
            return httpx.Response(200, json={"coordinators": processes, "brokers": [], "revision": 1})
        if request.url.host == "dead.test":
            raise httpx.ConnectError("connection refused", request=request)
        return await cluster._handle(request)

    for _ in range(8):  # whichever is asked first
        with metatxn.connect(COORDINATOR, transport=httpx.MockTransport(handle)) as client:
            assert client.begin().state == "OPEN"


def test_broker_that_restarts_is_waited_for(cluster: FakeCluster) -> None:
    cluster.before = [("entries", refused)] * 4
    with cluster.client() as client:
        client.producer("t").send(1).result(60)
    assert cluster.visible() == [1]


def test_cluster_without_broker_says_so() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"coordinators": [], "brokers": [], "revision": 1})

    transport = httpx.MockTransport(handle)
    with (
        metatxn.connect(BROKER, request_timeout_s=0.2, transport=transport) as client,
        pytest.raises(metatxn.ServiceUnreachable, match="no coordinator is registered"),
    ):
        client.begin()


def test_names_travel_as_one_path_segment() -> None:
    """A topic may hold slashes, spaces, percent signs and any letter."""
    seen: list[bytes] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        if request.url.path == "/v1/cluster":
            return httpx.Response(
                200, json={"coordinators": [], "brokers": [{"id": "b", "url": BROKER}], "revision": 1}
            )
        return httpx.Response(200, json={"name": "x", "segments": []})

    with metatxn.connect(BROKER, transport=httpx.MockTransport(handle)) as client:
        client.topic("a/b c/50%ü?")
    assert seen[-1] == b"/v1/topics/a%2Fb%20c%2F50%25%C3%BC%3F"


def test_token_is_sent() -> None:
    seen: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("Authorization"))
        return httpx.Response(200, json={"coordinators": [], "brokers": [], "revision": 1})

    with metatxn.connect(BROKER, token="secret", transport=httpx.MockTransport(handle)) as client:
        client.cluster()
    assert seen == ["Bearer secret"]


def test_a_closed_client_says_so(cluster: FakeCluster) -> None:
    """Also to the thread that shows life for a consumer that was not closed."""
    with cluster.client() as client:
        client.begin()
    with pytest.raises(metatxn.InvalidArgument, match="closed"):
        client.begin()
