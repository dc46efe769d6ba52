"""What is repeated, what is not, and where it is sent next.

Method: faults in front of a fake cluster; the requests it saw and the entries it holds say what the client did.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import httpx
import pytest

import metatxn
from metatxn.wire.batches import pack_batch, packed_message
from metatxn.wire.errors import ErrorCode
from tests.metatxn.fake_cluster import (
    BROKER,
    COORDINATOR,
    FakeCluster,
    Fault,
    answering,
    lost,
    problem,
    proxy,
    refused,
    silent,
)
from tests.over_httpx import OverHttpx
from tests.simulation.loop import SimulationLoop


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


def test_a_refusal_of_which_a_part_was_carried_out_is_not_asked_for_again(cluster: FakeCluster) -> None:
    """It is as final as any other refusal. That it is not definite is for the caller to know."""
    cluster.before = [("entries", answering(ErrorCode.TXN_CONFLICT, definite=False))]
    with cluster.client() as client, pytest.raises(metatxn.TransactionConflict) as caught:
        client.producer("t").send("x").result(60)
    assert not caught.value.definite
    assert len([request for request in cluster.requests if "entries" in request]) == 1


@pytest.mark.parametrize("fault", [lost, silent, answering(ErrorCode.OUTCOME_UNKNOWN), proxy(502), proxy(504)])
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


@pytest.mark.parametrize(
    "refusal",
    [
        *map(answering, (ErrorCode.STORE_UNAVAILABLE, ErrorCode.RATE_LIMITED, ErrorCode.NOT_OWNER)),
        pytest.param(answering(ErrorCode.TXN_CONFLICT), id="its transaction has ended, with it or without"),
        pytest.param(answering(ErrorCode.TXN_NOT_FOUND), id="its transaction ended long ago, with it or without"),
        pytest.param(proxy(404), id="a proxy that does not know the path"),
    ],
)
def test_a_publish_whose_reply_is_lost_is_not_denied_because_the_next_one_is_refused(
    cluster: FakeCluster, refusal: Fault
) -> None:
    """That the last attempt certainly did nothing says nothing about the first one, which is in the log."""
    cluster.before = [("entries", lambda _: None), *[("entries", refusal)] * 100]
    cluster.after = [("entries", lost)]
    with cluster.client(request_timeout_s=0.5) as client, pytest.raises(metatxn.OutcomeUnknown) as caught:
        client.producer("t").send("x").result(60)
    assert not caught.value.definite
    assert cluster.visible() == ["x"]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_what_a_proxy_says_of_a_request_that_must_not_be_repeated(cluster: FakeCluster, status: int) -> None:
    """It may have been carried out: it is not sent again, and nobody is told that nothing happened."""
    cluster.before = [("/receive", proxy(status))] * 2
    with cluster.client() as client, pytest.raises(metatxn.OutcomeUnknown) as caught:
        client._background.run(client._core.consumer("t", "s")._request(1, 0))
    assert not caught.value.definite and str(status) in caught.value.detail
    assert sum("/receive" in request for request in cluster.requests) == 1


@pytest.mark.parametrize("status", [502, 503, 504])
def test_what_a_proxy_says_of_a_question_is_asked_again(cluster: FakeCluster, status: int) -> None:
    cluster.before = [("GET /v1/topics/t", proxy(status))] * 2
    with cluster.client() as client:
        assert client.topic("t").name == "t"


@pytest.mark.parametrize("status", [400, 403, 404, 413])
def test_a_proxy_that_lets_nothing_through_did_nothing(cluster: FakeCluster, status: int) -> None:
    cluster.before = [("POST /v1/txns", proxy(status))] * 2
    with cluster.client() as client, pytest.raises(metatxn.ServiceUnreachable, match=str(status)) as caught:
        client.begin()
    assert caught.value.definite and not caught.value.retriable
    assert cluster.requests.count("POST /v1/txns") == 1


def test_a_topic_that_was_made_after_all_is_there(cluster: FakeCluster) -> None:
    """The answer to the first attempt was lost, so that the topic exists now is no refusal of it."""
    refusal = answering(ErrorCode.ALREADY_EXISTS)
    cluster.before = [("POST /v1/topics", lost), ("POST /v1/topics", refusal)] * 2
    with cluster.client() as client:
        assert client.create_topic("t", exist_ok=True).name == "t"
        with pytest.raises(metatxn.OutcomeUnknown):
            client.create_topic("t")


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

    with metatxn.connect(COORDINATOR, transport=OverHttpx(httpx.MockTransport(handle))) as client:
        producer = client.producer("t")
        producer.send(1).result(60)
        producer.send(2).result(60)
    body, _ = pack_batch([packed_message(1, None, None)])
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

    with metatxn.connect(COORDINATOR, transport=OverHttpx(httpx.MockTransport(handle))) as client:
        client.producer("t").send(1).result(60)
    assert cluster.visible() == [1]


def test_redirects_in_a_circle_end(cluster: FakeCluster) -> None:
    async def handle(request: httpx.Request) -> httpx.Response:
        if "entries" in request.url.path:
            return httpx.Response(307, headers={"Location": str(request.url)})
        return await cluster._handle(request)

    transport = OverHttpx(httpx.MockTransport(handle))
    with (
        metatxn.connect(COORDINATOR, request_timeout_s=1, transport=transport) as client,
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
        with metatxn.connect(COORDINATOR, transport=OverHttpx(httpx.MockTransport(handle))) as client:
            assert client.begin().state == "OPEN"


class TwoCoordinators(FakeCluster):
    """Of which one has lost its store. `listed` are the processes that are announced; `asked` counts."""

    def __init__(self, listed: tuple[str, ...] = ("one", "two")) -> None:
        super().__init__()
        self.listed = listed
        self.without_store: set[str] = set()
        self.asked: Counter[str] = Counter()

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked[request.url.host] += 1
        if request.url.host in self.without_store:
            return problem(ErrorCode.STORE_UNAVAILABLE, headers={"Retry-After": "60"})
        if request.url.path == "/v1/cluster":
            coordinators = [
                {"id": f"{host}-{number}", "url": f"http://{host}.test"} for number, host in enumerate(self.listed)
            ]
            return httpx.Response(200, json={"coordinators": coordinators, "brokers": [], "revision": 1})
        return await super()._handle(request)


@pytest.mark.parametrize("listed", [("one", "two"), ("one", "one", "two", "two")])
@pytest.mark.parametrize("sick", ["one.test", "two.test"])
@pytest.mark.parametrize("order", range(8))
def test_next_coordinator_is_asked_when_one_has_lost_its_store(sick: str, listed: tuple[str, ...], order: int) -> None:
    """It answers, and can do nothing; the other one is not waited for, whatever the first one asks for. One that was
    killed is still announced for a while, at the address of its successor. Found by the simulation."""
    cluster = TwoCoordinators(listed)
    with metatxn.connect("http://one.test", transport=cluster.transport, randomness=Random(order)) as client:
        client.begin()
        cluster.without_store = {sick}
        for _ in range(5):
            assert client.begin().commit().state == "COMMITTED"
        assert cluster.asked[sick] <= 3
        assert client.cluster().revision == 1


def test_whoever_was_asked_first_need_not_know_the_others_now() -> None:
    """The URL that was given is that of a coordinator without its store: everything goes through the other one, whom it
    has named before. It is asked again when that one is gone."""
    cluster = TwoCoordinators()
    with metatxn.connect("http://one.test", request_timeout_s=5, transport=cluster.transport) as client:
        client.begin()
        cluster.without_store = {"one.test"}
        assert client.cluster(patient=False).revision == 1
        cluster.without_store = {"one.test", "two.test"}
        with pytest.raises(metatxn.StoreUnavailable):
            client.cluster(patient=False)
        cluster.without_store = {"two.test"}
        assert client.cluster(patient=False).revision == 1


def test_broker_that_restarts_is_waited_for(cluster: FakeCluster) -> None:
    cluster.before = [("entries", refused)] * 4
    with cluster.client() as client:
        client.producer("t").send(1).result(60)
    assert cluster.visible() == [1]


class Elsewhere(FakeCluster):
    """A cluster whose broker announces an address that nothing answers at, `until` it is that time. `tried` are the
    times at which it was."""

    def __init__(self, until: float = float("inf")) -> None:
        super().__init__()
        self.until = until
        self.tried: list[float] = []

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "inside":
            self.tried.append(asyncio.get_running_loop().time())
            if self.tried[-1] < self.until:
                raise httpx.ConnectError("[Errno -2] Name or service not known", request=request)
        if request.url.path == "/v1/cluster":
            coordinators, brokers = [{"id": "c", "url": COORDINATOR}], [{"id": "b", "url": "http://inside:8471"}]
            return httpx.Response(200, json={"coordinators": coordinators, "brokers": brokers, "revision": 1})
        return await super()._handle(request)


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """How long it takes on a loop whose time jumps."""
    loop = SimulationLoop(Random(0), 1, lambda: 0.0)
    try:
        loop.run_until_complete(work())
        return loop.time()
    finally:
        loop.close()


def test_an_address_that_cannot_be_reached_is_named_soon() -> None:
    """With who has named it, and the option to correct it; and not after the 30 s that a request may take."""
    cluster = Elsewhere()

    async def ask() -> None:
        async with metatxn.connect_async(COORDINATOR, transport=cluster.transport, randomness=Random(0)) as client:
            with pytest.raises(metatxn.ServiceUnreachable) as raised:
                await client.topic("t")
        error = raised.value
        assert error.retriable and error.definite
        for words in ("http://inside:8471", COORDINATOR, "Name or service not known"):
            assert words in error.detail, error.detail
        assert "--advertise-url" in error.action
        assert error.members == {"address": "http://inside:8471", "named_by": COORDINATOR}

    assert in_virtual_time(ask) <= 3
    assert len(cluster.tried) > 3, "a service that is just being started is tried again"


def test_an_address_that_was_reached_before_is_waited_for() -> None:
    """Its service is being restarted, which may take longer."""
    cluster = Elsewhere(until=0)

    async def ask() -> None:
        async with metatxn.connect_async(COORDINATOR, transport=cluster.transport, randomness=Random(0)) as client:
            await client.topic("t")
            cluster.until = asyncio.get_running_loop().time() + 20
            assert (await client.topic("t")).name == "t"

    assert 20 < in_virtual_time(ask) < 30


def test_an_address_that_cannot_be_reached_is_given_up_only_if_nothing_else_is_wrong() -> None:
    """A service that answers 503 meanwhile may be one that is about to take over."""
    cluster = Elsewhere(until=2)
    cluster.before = [("GET /v1/topics/t", answering(ErrorCode.STORE_UNAVAILABLE, {"Retry-After": "4"}))]

    async def ask() -> None:
        async with metatxn.connect_async(COORDINATOR, transport=cluster.transport, randomness=Random(0)) as client:
            assert (await client.topic("t")).name == "t"

    assert in_virtual_time(ask) > 5


def test_the_listener_is_named_to_every_service(cluster: FakeCluster) -> None:
    seen: set[str | None] = set()

    async def handle(request: httpx.Request) -> httpx.Response:
        seen.add(request.headers.get("Metatxn-Listener"))
        return await cluster._handle(request)

    transport = OverHttpx(httpx.MockTransport(handle))
    with metatxn.connect(COORDINATOR, listener="external", transport=transport) as client:
        client.begin().commit()
    assert seen == {"external"}
    with pytest.raises(metatxn.InvalidArgument, match="listener"):
        metatxn.connect(COORDINATOR, listener="no name\n")


def test_cluster_without_broker_says_so() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"coordinators": [], "brokers": [], "revision": 1})

    transport = OverHttpx(httpx.MockTransport(handle))
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

    with metatxn.connect(BROKER, transport=OverHttpx(httpx.MockTransport(handle))) as client:
        client.topic("a/b c/50%ü?")
    assert seen[-1] == b"/v1/topics/a%2Fb%20c%2F50%25%C3%BC%3F"


def test_token_is_sent() -> None:
    seen: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("Authorization"))
        return httpx.Response(200, json={"coordinators": [], "brokers": [], "revision": 1})

    with metatxn.connect(BROKER, token="secret", transport=OverHttpx(httpx.MockTransport(handle))) as client:
        client.cluster()
    assert seen == ["Bearer secret"]


def test_a_closed_client_says_so(cluster: FakeCluster) -> None:
    """Also to the thread that shows life for a consumer that was not closed."""
    with cluster.client() as client:
        client.begin()
    with pytest.raises(metatxn.InvalidArgument, match="closed"):
        client.begin()
