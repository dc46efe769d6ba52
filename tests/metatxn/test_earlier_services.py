"""Goal: the client works with services of release 0.2.0, which would take a binary batch for opaque bytes and refuse a
parameter that they do not know.

Method: a cluster that does not tell its version; what the client sends it is what release 0.2.0 knows.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metatxn
from metatxn.cli.options import CliError
from metatxn.cli.txn import _records
from metatxn.json_messages import entry_in_json
from metatxn.wire.batches import pack_batch, packed_message, unpack_batch
from metatxn.wire.broker import BATCH_MEDIA_TYPE, END_HEADER, MESSAGES_MEDIA_TYPE, NEXT_HEADER
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.pages import PageHead, encode_head
from participants.messages.payloads import batch_as_json, decode_messages
from tests.metatxn.fake_cluster import FakeCluster, problem
from tests.metatxn.test_batches import MESSAGE


def sent_as(cluster: FakeCluster) -> list[str]:
    """The types of the entries that are sent from now on."""
    found: list[str] = []

    def seen(request: httpx.Request) -> None:
        found.append(request.headers["Content-Type"])

    cluster.before += [("POST /v1/segments", seen)] * 2
    return found


def test_messages_are_sent_in_json_until_every_service_knows_batches() -> None:
    cluster = FakeCluster()
    cluster.version = None
    types = sent_as(cluster)
    with cluster.client() as client:
        producer = client.producer("t")
        producer.send({"id": 7}, key="k", properties={"a": "b"}).result()
        cluster.version = 2
        client.cluster()
        producer.send({"id": 8}, key="k").result()
    assert types == [MESSAGES_MEDIA_TYPE, BATCH_MEDIA_TYPE]
    assert cluster.visible() == [{"id": 7}, {"id": 8}]


def test_a_sequenced_producer_waits_for_the_end_of_an_upgrade() -> None:
    cluster = FakeCluster()
    cluster.version = None
    client = cluster.client()
    producer = client.producer("t", "p", sequenced=True)
    sent = producer.send({"id": 7}, sequence=0)
    for raising in (sent.result, client.close):
        with pytest.raises(metatxn.UpgradePending):
            raising()
    assert cluster.visible() == []


def test_frames_are_read_without_a_parameter_that_is_not_known() -> None:
    cluster = FakeCluster()
    for version, asks in ((None, False), (1, False), (2, True)):
        cluster.version = version
        empty = httpx.Response(200, content=b"", headers={NEXT_HEADER: "0:-1", END_HEADER: "true"})
        cluster.before.append(("GET /v1/segments", lambda request, empty=empty: empty))  # type: ignore[misc]
        with cluster.client() as client:
            client.read_frames("s-0", columns=["a"])
        assert ("batches=true" in cluster.requests[-1]) is asks
        assert ("columns=a" in cluster.requests[-1]) is asks


def test_topics_are_read_in_json_until_every_service_knows_batches() -> None:
    cluster = FakeCluster()
    cluster.version = None
    messages = [{"message_id": "m", "value": 7, "key": "k", "publish_ms": 1}]
    in_json = httpx.Response(200, json={"messages": messages, "next": "n"})
    in_batches = httpx.Response(200, content=encode_head(PageHead(parts=[], next="n")))
    cluster.before += [("GET /v1/topics/t/", lambda _: in_json), ("GET /v1/topics/t/", lambda _: in_batches)]
    with cluster.client() as client:
        reader = client.reader("t")
        message = next(iter(reader))
        assert (message.value, message.key) == (7, "k")
        cluster.version = 2
        client.cluster()
        assert list(reader) == []
    paths = [request.split("?")[0] for request in cluster.requests if request.startswith("GET /v1/topics/t/")]
    assert paths == ["GET /v1/topics/t/messages", "GET /v1/topics/t/batches"]


def test_a_transaction_is_shown_although_its_records_are_not() -> None:
    """The answer is that of a coordinator without this endpoint."""
    cluster = FakeCluster()
    unknown = problem(ErrorCode.NOT_FOUND, "Not Found")
    cluster.before += [("GET /v1/txns/", lambda _: unknown)] * 2
    with cluster.client() as client:
        assert _records(client, "0" * 32, wanted=False) == []
        with pytest.raises(CliError, match=r"upgrade it to release 0\.3\.0"):
            _records(client, "0" * 32, wanted=True)


@settings(deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=20))
def test_the_messages_are_the_same_in_json(messages: list[tuple[Any, str | None, dict[str, str] | None]]) -> None:
    payload, count = pack_batch(packed_message(*message) for message in messages)
    batch = Entry(payload, PayloadKind.BATCH, count, producer="p", sequence=1)
    as_json = entry_in_json(batch)
    assert (as_json.kind, as_json.count, as_json.sequence) == (PayloadKind.MESSAGES, count, 1)
    assert decode_messages(as_json.payload) == decode_messages(batch_as_json(batch))
    assert [message.key for message in decode_messages(as_json.payload)] == list(unpack_batch(payload, count).keys)
