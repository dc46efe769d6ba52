"""Goal: a topic with the format `kafka` is used through REST like any other, and its partitions stay what they are.

Method: a broker in-process, its HTTP paths. DESIGN §5.20.
"""

from __future__ import annotations

from typing import Any

import pytest

from metatxn.wire.broker import BYTES_MEDIA_TYPE, MESSAGES_MEDIA_TYPE
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import PayloadKind, decode_frames
from tests.participants.api.test_rest import append, assert_problem, enc
from tests.participants.broker.process import BrokerProcess
from tests.participants.broker.stories import assert_lawful
from tests.participants.segment.world import World

SENT: list[dict[str, Any]] = [
    {"key": "k", "value": {"a": [1, None]}, "properties": {"p": "ü"}},
    {"key": None, "value_base64": "AP8="},
    {"value": None},
]


async def test_messages_are_published_as_batches_and_read_as_they_were(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t", format="kafka")
    described = (await process.http.get("/v1/topics/t")).json()
    assert described["format"] == "kafka"
    for _ in range(2):  # the second is a retry
        answer = await process.http.post(
            "/v1/topics/t/messages", json={"messages": SENT, "producer": "p", "sequence": 1}
        )
        assert answer.status_code == 200, answer.text
    await append(process, segment, b'[{"value": 7}]', MESSAGES_MEDIA_TYPE)
    read = (await process.http.get("/v1/topics/t/messages")).json()["messages"]
    assert [(each["key"], each["value"], each["value_base64"]) for each in read] == [
        ("k", {"a": [1, None]}, None),
        (None, None, "AP8="),
        (None, None, None),
        (None, 7, None),
    ]
    assert read[0]["properties"] == {"p": "ü", "content-type": "application/json"}
    frames = list(decode_frames((await process.http.get(f"/v1/segments/{enc(segment)}/entries")).content))
    assert [(frame.kind, frame.count) for frame in frames] == [(PayloadKind.KAFKA, 3), (PayloadKind.KAFKA, 1)]
    assert [int.from_bytes(frame.payload[:8]) for frame in frames] == [0, 3]
    await assert_lawful(world)


async def test_each_message_of_a_batch_is_delivered_and_acknowledged(process: BrokerProcess) -> None:
    """The count of a batch is honoured: places, backlogs and acknowledgements are of messages."""
    await process.create("t", format="kafka")
    await process.http.put("/v1/topics/t/subscriptions/s", json={"type": "shared", "initial": "earliest"})
    await process.http.post("/v1/topics/t/messages", json={"messages": [{"value": n} for n in range(5)]})
    path = "/v1/topics/t/subscriptions/s"
    got = (await process.http.post(f"{path}/receive", json={"consumer": "c", "max": 3})).json()["messages"]
    assert [each["value"] for each in got] == [0, 1, 2]
    acked = await process.http.post(f"{path}/acks", json={"kind": "individual", "message_ids": [got[1]["message_id"]]})
    assert acked.status_code == 200, acked.text
    (shown,) = (await process.http.get(path)).json()["segments"]
    assert (shown["backlog"], shown["unacked"]) == (4, 2)


async def test_a_partition_is_neither_split_nor_merged_nor_sealed(process: BrokerProcess) -> None:
    one, other = await process.create("t", 2, format="kafka")
    for path, body in (("split", {}), ("merge", {"with": other}), ("seal", {})):
        answer = await process.http.post(f"/v1/segments/{enc(one)}/{path}", json=body)
        problem = assert_problem(answer, ErrorCode.INVALID_ARGUMENT, "segment")
        assert "kafka" in problem["detail"]
    answer = await process.http.post("/v1/topics/t/messages", json={"messages": SENT})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "t", "format": "avro"}, "format"),
        ({"name": "t", "format": "kafka", "schema": {"fields": [{"name": "a", "type": "int64"}]}}, "format"),
    ],
)
async def test_a_format_that_cannot_be_is_refused(process: BrokerProcess, body: dict[str, Any], field: str) -> None:
    problem = (await process.http.post("/v1/topics", json=body)).json()
    assert problem["code"] == ErrorCode.INVALID_ARGUMENT and field in problem["detail"]
    assert (await process.http.get("/v1/topics/t")).status_code == 404


async def test_an_entry_that_is_no_list_of_messages_is_refused(process: BrokerProcess) -> None:
    (segment,) = await process.create("t", format="kafka")
    for payload, kind in ((b"x", BYTES_MEDIA_TYPE), (b"[]", MESSAGES_MEDIA_TYPE)):
        assert_problem(await append(process, segment, payload, kind), ErrorCode.INVALID_ARGUMENT)
    assert (await process.http.get("/v1/topics/t/messages")).json()["messages"] == []
