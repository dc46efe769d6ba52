"""Goal: every endpoint does what the contract says, and every error is a problem that says what and where.

Method: requests as they travel, path for path, against the application in-process. CONTRACT.md, broker half.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest

from metastore.errors import OutcomeUnknown, StoreFull, StoreUnavailable
from metastore.txn.states import ExpiredBy
from metatxn.wire.arrow_sizes import MAX_TABLE_BYTES
from metatxn.wire.broker import (
    ARROW_MEDIA_TYPE,
    END_HEADER,
    FRAMES_MEDIA_TYPE,
    MESSAGES_MEDIA_TYPE,
    NEXT_HEADER,
    REVISION_HEADER,
)
from metatxn.wire.errors import BY_CODE, ErrorCode
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, PayloadKind, decode_frames
from metatxn.wire.names import page_token as page_token_of
from metatxn.wire.names import pair_token
from metatxn.wire.problems import MEDIA_TYPE
from metatxn.wire.rows import KEY_COLUMN
from participants.api import routes, subscription_routes
from tests.participants.broker.process import BrokerProcess
from tests.participants.devices import on_local_files
from tests.participants.pages import assert_read_alike
from tests.participants.segment.faulty_store import INTENT, Fault
from tests.participants.segment.world import World, publish, released, sending

UNKNOWN_TXN = "0" * 31 + "7"


def enc(name: str) -> str:
    return quote(name, safe="")


def assert_problem(answer: httpx.Response, code: ErrorCode, field: str | None = None) -> dict[str, Any]:
    problem: dict[str, Any] = answer.json()
    assert answer.headers["content-type"] == MEDIA_TYPE, problem
    assert (problem["code"], answer.status_code) == (code, BY_CODE[code].status), problem
    assert problem["status"] == answer.status_code
    assert {"title", "detail", "retriable", "definite", "action"} <= problem.keys()
    if field is not None:
        assert problem["field"] == field, problem
        assert field in problem["detail"]
    if problem["retriable"] and answer.status_code != 307:
        assert answer.headers["retry-after"]
    return problem


def arrow(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> bytes:
    table = pa.Table.from_pylist(rows, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


async def append(process: BrokerProcess, segment: str, body: bytes = b"x", kind: str = "", **query: Any) -> Any:
    headers = {"content-type": kind} if kind else {}
    return await process.http.post(f"/v1/segments/{enc(segment)}/entries", content=body, params=query, headers=headers)


async def read(process: BrokerProcess, segment: str, **query: Any) -> list[str]:
    answer = await process.http.get(f"/v1/segments/{enc(segment)}/entries", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == FRAMES_MEDIA_TYPE
    return [bytes(frame.payload).decode() for frame in decode_frames(answer.content)]


async def send(process: BrokerProcess, topic: str, *messages: dict[str, Any], **query: Any) -> httpx.Response:
    return await process.http.post(f"/v1/topics/{enc(topic)}/messages", json={"messages": messages}, params=query)


async def browse(process: BrokerProcess, topic: str, **query: Any) -> list[dict[str, Any]]:
    answer = await process.http.get(f"/v1/topics/{enc(topic)}/messages", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    await assert_read_alike(process.http, enc(topic), found, query)
    return found


async def values(process: BrokerProcess, topic: str, **query: Any) -> list[Any]:
    return [message["value"] for message in await browse(process, topic, **query)]


# -- topics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "tenant/name space/topic",
        "a/b/100%",
        "a/b/%2F",
        "a/b/Straße",
        "a/b/中文 🚀",
        "a/b/..",
        "a/b/?x=1#y",
        "a/b/" + "長" * 200,
    ],
)
async def test_names_hold_any_text(process: BrokerProcess, name: str) -> None:
    full = name if "/" in name else f"public/default/{name}"
    (segment,) = await process.create(name)
    assert segment == f"segment://{full}/0000-ffff-0"
    described = (await process.http.get(f"/v1/topics/{enc(full)}")).json()
    assert described["name"] == full
    assert (await send(process, full, {"value": 1})).status_code == 200
    assert await values(process, full) == [1]
    assert (await append(process, segment)).status_code == 200
    assert (await process.http.get(f"/v1/segments/{enc(segment)}")).json()["topic"] == full


async def test_a_topic_is_created_described_and_listed(process: BrokerProcess) -> None:
    answer = await process.http.post(
        "/v1/topics",
        json={"name": "t", "segments": 3, "schema": {"fields": [{"name": "id", "type": "int64"}]}},
    )
    assert answer.status_code == 201
    topic = answer.json()
    ranges = [segment["range"] for segment in topic["segments"]]
    assert ranges[0][0] == 0 and ranges[-1][1] == 0xFFFF
    assert all(low == before[1] + 1 for before, (low, _) in pairwise(ranges))
    assert all(segment["state"] == "active" and segment["owner"] for segment in topic["segments"])
    assert topic["schema"]["fields"] == [{"name": "id", "type": "int64", "nullable": True}]
    assert (await process.http.get("/v1/topics/t")).json() == topic
    assert_problem(await process.http.post("/v1/topics", json={"name": "t"}), ErrorCode.ALREADY_EXISTS)


async def test_lists_are_paged_whatever_the_names(process: BrokerProcess) -> None:
    lengths = (("a", 400), ("b", 1), ("c", 300), ("ü", 300), ("好", 508), ("😀", 508))
    wanted = [f"a/b/{letter * length}" for letter, length in lengths]
    for name in wanted:
        await process.create(name)
    assert sorted(await listed(process, {"limit": 1})) == sorted(wanted)


async def test_subscriptions_of_one_topic_and_of_all_are_paged_whatever_the_names(process: BrokerProcess) -> None:
    topics = (f"a/b/{'😀' * 508}", "a/b/c")
    wanted = sorted(["a", "ö/ü", "好" * 256, "😀" * 256], key=enc)  # the order of the keys
    for topic in topics:
        await process.create(topic)
        for name in wanted:
            await subscribe(process, topic, name)
        path = f"/v1/topics/{enc(topic)}/subscriptions"
        assert await listed(process, {"limit": 1}, path, "topic", "name") == [(topic, name) for name in wanted]
    found = await listed(process, {"limit": 1}, "/v1/subscriptions", "topic", "name")
    assert found == [(topic, name) for topic in topics for name in wanted]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_subscriptions_are_found_by_a_text(
    process: BrokerProcess, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """In the name or in that of the topic, in any case; what was dropped is not found, nor on deleted topics."""
    for topic, name in (("a/b/ÜBER", "x"), ("a/b/c", "y"), ("a/b/c", "der-über"), ("a/b/c", "z"), ("a/über/d", "x")):
        await process.http.post("/v1/topics", json={"name": topic})
        await subscribe(process, topic, name)
    await process.http.delete(f"/v1/topics/{enc('a/über/d')}")
    for most in (1, 3, 1_000):
        monkeypatch.setattr(subscription_routes, "MOST_LISTED", most)
        found = await listed(process, {"limit": limit, "text": "über"}, "/v1/subscriptions", "topic", "name")
        assert found == [("a/b/ÜBER", "x"), ("a/b/c", "der-über")]
    assert (await process.http.delete(f"/v1/topics/{enc('a/b/c')}/subscriptions/y")).status_code == 204
    found = await listed(process, {"limit": limit}, "/v1/subscriptions", "name")
    assert found == [("x",), ("der-über",), ("z",)]


async def subscribe(process: BrokerProcess, topic: str, name: str) -> None:
    body = {"type": "shared", "initial": "earliest"}
    answer = await process.http.put(f"/v1/topics/{enc(topic)}/subscriptions/{enc(name)}", json=body)
    assert answer.status_code == 200, answer.text


async def listed(process: BrokerProcess, query: dict[str, Any], path: str = "/v1/topics", *members: str) -> list[Any]:
    """The names of all items, or these members of each."""
    seen: list[Any] = []
    while True:
        answer = await process.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        seen += [tuple(item[each] for each in members) if members else item["name"] for item in page["items"]]
        if page["next_page_token"] is None:
            return seen
        query["page_token"] = page["next_page_token"]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_topics_are_found_by_a_text_in_their_names(
    process: BrokerProcess, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """In any case, and however few are looked through at once."""
    for name in ("a/b/ÜBER", "a/b/c", "a/über/d", "a/b/zzz"):
        await process.create(name)
    for most in (1, 3, 1_000):
        monkeypatch.setattr(routes, "MOST_TOPICS", most)
        assert sorted(await listed(process, {"text": "über", "limit": limit})) == ["a/b/ÜBER", "a/über/d"], most
        assert await listed(process, {"text": "nothing", "limit": limit}) == []
    assert_problem(await process.http.get("/v1/topics", params={"text": ""}), ErrorCode.INVALID_ARGUMENT, "text")


async def test_topics_are_counted_but_not_deleted_ones_or_more_than_a_request_may_look_at(
    process: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counted(**query: Any) -> Any:
        return (await process.http.get("/v1/topics", params={"count": True, "limit": 1, **query})).json()["count"]

    assert await counted() == {"topics": 0, "more": False}
    for name in ("a/b/c", "a/b/deleted", "a/b/x", "a/b/XY", "a/b/z"):
        await process.create(name)
    assert (await process.http.delete("/v1/topics/a%2Fb%2Fdeleted")).status_code == 204
    assert await counted() == {"topics": 4, "more": False}
    assert await counted(text="x") == {"topics": 2, "more": False}
    assert (await process.http.get("/v1/topics")).json()["count"] is None
    monkeypatch.setattr("participants.messages.topics.TOPICS_PER_READ", 2)
    assert await counted() == {"topics": 4, "more": False}
    monkeypatch.setattr(routes, "MOST_COUNTED", 3)
    assert (await counted())["more"] is True


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "a//c"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 513}, "name"),
        ({"name": "t", "segments": 0}, "segments"),
        ({"name": "t", "segments": 1025}, "segments"),
        ({"name": "t", "segments": "1"}, "segments"),
        ({"name": "t", "segments": True}, "segments"),
        ({"name": "t", "partitions": 1}, "partitions"),
        ({"name": "t", "schema": {}}, "schema"),
        ({"name": "t", "schema": {"fields": [{"name": "a", "type": "integer?"}]}}, "schema"),
        ({"name": "t", "schema": {"fields": [{"name": "a", "type": "timestamp[years]"}]}}, "schema"),
        ({"name": "t", "schema": {"fields": [{"name": "a", "type": "int8"}, {"name": "a", "type": "int8"}]}}, "schema"),
        ({"name": "t", "schema": {"arrow": "AAAA"}}, "schema"),
        ({"name": "t", "schema": {"arrow": "not base64!"}}, "schema"),
        ([], "body"),
    ],
)
async def test_a_bad_topic_is_refused_by_the_name_of_its_field(process: BrokerProcess, body: Any, field: str) -> None:
    problem = assert_problem(await process.http.post("/v1/topics", json=body), ErrorCode.INVALID_ARGUMENT)
    assert field in problem["field"]
    assert (await process.http.get("/v1/topics")).json()["items"] == []


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 10_000])
async def test_a_body_that_is_not_json_is_refused(process: BrokerProcess, body: bytes) -> None:
    answer = await process.http.post("/v1/topics", content=body, headers={"content-type": "application/json"})
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT)


# -- errors of every path --------------------------------------------------------------------------------------------


async def test_what_does_not_exist_is_not_found(process: BrokerProcess) -> None:
    await process.create("t")
    segment = enc("segment://public/default/none/0000-ffff-0")
    for path in (
        "/v1/topics/none",
        "/v1/topics/none/messages",
        f"/v1/segments/{segment}",
        f"/v1/segments/{segment}/entries",
        "/v1/nowhere",
    ):
        assert_problem(await process.http.get(path), ErrorCode.NOT_FOUND)
    assert_problem(await process.http.post(f"/v1/segments/{segment}/entries", content=b"x"), ErrorCode.NOT_FOUND)
    assert_problem(await send(process, "none", {"value": 1}), ErrorCode.NOT_FOUND)


async def test_a_wrong_method_is_a_problem_too(process: BrokerProcess) -> None:
    answer = await process.http.patch("/v1/topics")
    assert answer.status_code == 405 and answer.headers["content-type"] == MEDIA_TYPE


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("txn_id=1", "txn_id"),
        ("txn_id=" + "A" * 32, "txn_id"),
        ("txn_id=", "txn_id"),
        ("sequence=-1&producer=p", "sequence"),
        ("sequence=1.5&producer=p", "sequence"),
        (f"sequence={2**53}&producer=p", "sequence"),
        ("sequence=1", "sequence"),
        ("writer=", "writer"),
        ("writer=" + "w" * 257, "writer"),
        ("count=0", "count"),
        (f"count={2**32}", "count"),
        ("before_commit=true", "before_commit"),
        (f"txn_id={UNKNOWN_TXN}&before_commit=perhaps", "before_commit"),
        ("txnid=" + UNKNOWN_TXN, "txnid"),
    ],
)
async def test_a_bad_append_is_refused_by_the_name_of_its_field_and_appends_nothing(
    process: BrokerProcess, query: str, field: str
) -> None:
    (segment,) = await process.create("t")
    answer = await process.http.post(f"/v1/segments/{enc(segment)}/entries?{query}", content=b"x")
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT, field)
    assert await read(process, segment, isolation="read_uncommitted") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("after=1", "after"),
        ("after=1:-2", "after"),
        (f"after={1 << 64}:0", "after"),
        ("after=@noon", "after"),
        ("after=@2026-11-22T10:00:00", "after"),
        ("max_bytes=0", "max_bytes"),
        ("max_bytes=x", "max_bytes"),
        ("isolation=serializable", "isolation"),
        ("revision=1", "revision"),
        ("isolation=snapshot&revision=-1", "revision"),
        (f"isolation=snapshot&revision={2**63}", "revision"),
        (f"isolation=snapshot&revision={2**63 - 1}", "revision"),
        ("wait_ms=60001", "wait_ms"),
        ("wait_ms=-1", "wait_ms"),
        ("waitms=1", "waitms"),
    ],
)
async def test_a_bad_read_is_refused_by_the_name_of_its_field(process: BrokerProcess, query: str, field: str) -> None:
    (segment,) = await process.create("t")
    answer = await process.http.get(f"/v1/segments/{enc(segment)}/entries?{query}")
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT, field)
    if not query.startswith(("after", "max_bytes")):
        assert_problem(await process.http.get(f"/v1/topics/t/messages?{query}"), ErrorCode.INVALID_ARGUMENT, field)


def token(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "after",
    [
        "",
        "?",
        "x",
        "ä",
        "@noon",
        "@2026-11-22T10:00:00",
        token([]),
        token({"s": ["1:1", 1]}),
        token([{"s": 1}, None]),
        token([{"s": ["x", 1]}, None]),
        token([{"s": ["1:1", -1]}, None]),
        token([{"s": ["1:1", "1"]}, None]),
        token([{"s": ["1:-2", 1]}, None]),
        "W" * 5_000,
    ],
)
async def test_a_bad_browse_token_is_refused(process: BrokerProcess, after: str) -> None:
    await process.create("t")
    answer = await process.http.get("/v1/topics/t/messages", params={"after": after})
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT, "after")


async def test_a_path_that_is_not_utf8_or_holds_control_characters_is_refused(process: BrokerProcess) -> None:
    for path in ("/v1/topics/%ff", "/v1/segments/%ff", "/v1/topics/a%00b", "/v1/segments/%0a/entries"):
        assert_problem(await process.http.get(path), ErrorCode.INVALID_ARGUMENT)


async def test_a_huge_body_is_refused_before_it_is_read(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    taken = 0

    async def endless() -> Any:
        nonlocal taken
        while True:
            taken += 1 << 20
            yield b" " * (1 << 20)

    entries = f"/v1/segments/{enc(segment)}/entries"
    for path in (entries, "/v1/topics/t/messages", "/v1/topics"):
        taken = 0
        answer = await process.http.post(path, content=endless(), headers={"content-type": "application/json"})
        assert_problem(answer, ErrorCode.PAYLOAD_TOO_LARGE)
        assert taken <= MAX_PAYLOAD_BYTES + (2 << 20)
    huge = {"content-length": str(MAX_PAYLOAD_BYTES + 1), "content-type": "application/json"}
    for path in (entries, "/v1/topics/t/messages", "/v1/topics"):
        assert_problem(await process.http.post(path, content=b"x", headers=huge), ErrorCode.PAYLOAD_TOO_LARGE)
    assert await read(process, segment, isolation="read_uncommitted") == []


async def test_the_largest_entry_passes_there_and_back(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    body = b"x" * MAX_PAYLOAD_BYTES
    assert (await append(process, segment, body)).status_code == 200
    answer = await process.http.get(f"/v1/segments/{enc(segment)}/entries", params={"max_bytes": 1})
    (frame,) = decode_frames(answer.content)
    assert bytes(frame.payload) == body


async def test_a_small_table_that_becomes_very_large_is_refused(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000, pa.int8()), pa.array(["x" * 100_000]))
    for table in (pa.table({"a": pa.nulls(10**9)}), pa.table({"a": long})):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        answer = await append(process, segment, sink.getvalue().to_pybytes(), ARROW_MEDIA_TYPE)
        assert_problem(answer, ErrorCode.PAYLOAD_TOO_LARGE)
        assert (answer.json()["field"], answer.json()["limit_bytes"]) == ("body", MAX_TABLE_BYTES)
    assert await read(process, segment, isolation="read_uncommitted") == []
    assert (await process.http.get("/v1/topics/t")).json()["schema"] is None


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreUnavailable("gone"), ErrorCode.STORE_UNAVAILABLE),
        (StoreFull("no space"), ErrorCode.STORAGE_FULL),
        (OutcomeUnknown("no answer"), ErrorCode.OUTCOME_UNKNOWN),
    ],
)
async def test_what_the_store_fails_with_is_told(
    process: BrokerProcess, world: World, failure: StoreUnavailable, code: ErrorCode
) -> None:
    (segment,) = await process.create("t")
    txn = await world.begin()
    world.store.fault(Fault(INTENT, before=failure, times=2))
    problem = assert_problem(await append(process, segment, txn_id=str(txn)), code)
    assert problem["definite"] == (code != ErrorCode.OUTCOME_UNKNOWN)
    assert_problem(await send(process, "t", {"value": 1}, txn_id=str(txn)), code)
    assert (await append(process, segment, txn_id=str(txn))).status_code == 200


@on_local_files
async def test_a_full_disk_is_told_and_goes_on_by_itself(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    process.disk.capacity = 0
    assert_problem(await append(process, segment), ErrorCode.STORAGE_FULL)
    process.disk.capacity = None
    assert (await append(process, segment)).status_code == 200


async def test_what_a_transaction_refuses_is_told(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    aborted, timed_out, prepared = [await world.begin() for _ in range(3)]
    await world.abort(aborted)
    await world.abort(timed_out, ExpiredBy.TIMEOUT)
    await world.prepare(prepared)
    for txn, code in (
        (UNKNOWN_TXN, ErrorCode.TXN_NOT_FOUND),
        (aborted, ErrorCode.TXN_CONFLICT),
        (timed_out, ErrorCode.EXPIRED_TRANSACTION),
        (prepared, ErrorCode.TXN_CONFLICT),
    ):
        problem = assert_problem(await append(process, segment, txn_id=str(txn)), code)
        assert problem["txn_id"] == str(txn)
        assert_problem(await send(process, "t", {"value": 1}, txn_id=str(txn)), code)
    assert await read(process, segment, isolation="read_uncommitted") == []


async def test_a_segment_of_another_broker_is_a_redirect_that_keeps_path_and_query(
    process: BrokerProcess, tmp_path: Any
) -> None:
    (segment,) = await process.create("a/b/t 1")
    other = await BrokerProcess(process.world, process.world.new_device("other"), "http://other").start()
    path = f"/v1/segments/{enc(segment)}/entries?wait_ms=5"
    answer = await other.http.get(path)
    assert_problem(answer, ErrorCode.NOT_OWNER)
    assert answer.headers["location"] == f"http://broker{path}"
    await other.stop()


# -- entries ---------------------------------------------------------------------------------------------------------


async def test_entries_are_read_in_pages_from_where_the_last_one_ended(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    positions = [(await append(process, segment, f"{n}".encode())).json()["position"] for n in range(5)]
    after, seen = None, []
    while True:
        query: dict[str, Any] = {"max_bytes": 1} | ({"after": after} if after else {})
        answer = await process.http.get(f"/v1/segments/{enc(segment)}/entries", params=query)
        seen += [str(frame.position) for frame in decode_frames(answer.content)]
        after = answer.headers[NEXT_HEADER]
        if answer.headers[END_HEADER] == "true":
            break
    assert seen == positions and after == positions[-1]


async def test_112_a_retried_append_is_answered_with_the_first_position(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    txn = await world.begin()
    queries: tuple[dict[str, Any], ...] = (
        {"txn_id": str(txn), "writer": "w", "sequence": 1},
        {"producer": "p", "sequence": 1},
        {"writer": "outside", "sequence": 1},
    )
    for query in queries:
        first = (await append(process, segment, **query)).json()
        assert first["duplicate"] is False
        assert (await append(process, segment, **query)).json() == {**first, "duplicate": True}


async def test_a_long_poll_ends_with_the_decision(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    txn = await world.begin()
    await append(process, segment, b"x", txn_id=str(txn))
    reading = asyncio.create_task(read(process, segment, wait_ms=60_000))
    browsing = asyncio.create_task(browse(process, "t", wait_ms=60_000))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not reading.done() and not browsing.done()
    await world.commit(txn)
    assert await reading == ["x"]
    assert len(await browsing) == 1


async def test_a_long_poll_passes_over_what_is_aborted_and_does_not_spin(
    process: BrokerProcess, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenarios 99 and 100."""
    (segment,) = await process.create("t")
    txn = await world.begin()
    await append(process, segment, b"never", txn_id=str(txn))
    reading = asyncio.create_task(read(process, segment, wait_ms=60_000))
    reads = 0
    owner = await process.broker.segment(segment)
    real = owner.ledgers.read

    async def counting(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        return await real(*args)

    monkeypatch.setattr(owner.ledgers, "read", counting)
    await world.abort(txn)
    await released(owner, txn)
    for _ in range(200):
        await asyncio.sleep(0)
    assert not reading.done()
    await append(process, segment, b"sentinel")
    assert await reading == ["sentinel"]
    assert reads < 12


async def test_a_long_poll_without_news_ends_empty(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    assert await read(process, segment, wait_ms=1) == []
    assert await browse(process, "t", wait_ms=1) == []


async def test_a_long_poll_on_a_segment_that_is_lost_ends_in_an_error(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    path = f"/v1/segments/{enc(segment)}/entries?wait_ms=60000"
    reading = asyncio.create_task(process.http.get(path))
    for _ in range(100):
        await asyncio.sleep(0)
    (await process.broker.segment(segment)).lose("for the test")
    assert_problem(await reading, ErrorCode.STORE_UNAVAILABLE)


async def test_isolation_decides_what_is_read(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    open_txn, later = await world.begin(), await world.begin()
    await append(process, segment, b"open", txn_id=str(open_txn))
    await append(process, segment, b"later", txn_id=str(later))
    before = await world.store.current_revision()
    after = await world.commit(later)
    assert await read(process, segment) == []
    assert await read(process, segment, isolation="read_uncommitted") == ["open", "later"]
    assert await read(process, segment, isolation="snapshot", revision=before) == []
    assert await read(process, segment, isolation="snapshot", revision=after) == ["later"]
    answer = await process.http.get(f"/v1/segments/{enc(segment)}/entries", params={"isolation": "snapshot"})
    assert int(answer.headers[REVISION_HEADER]) >= after
    found = (await process.http.get("/v1/topics/t/messages", params={"isolation": "snapshot"})).json()
    assert found["revision"] >= after and len(found["messages"]) == 1


async def test_a_segment_tells_what_goes_through_it(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    process.broker.look_at_traffic()
    await append(process, segment, b"D" * 60)
    process.broker.look_at_traffic()
    rates = (await process.http.get(f"/v1/segments/{enc(segment)}")).json()["rates"]
    assert rates["bytes_in"] >= 60 * rates["messages_in"] > 0 == rates["messages_out"] == rates["bytes_out"]


async def test_a_segment_tells_who_holds_it_back(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    one, two = await world.begin(), await world.begin()
    await append(process, segment, b"A")
    await append(process, segment, b"B", txn_id=str(one))
    await append(process, segment, b"C", txn_id=str(two))
    detail = (await process.http.get(f"/v1/segments/{enc(segment)}")).json()
    assert (detail["last_position"], detail["max_read_position"]) == ("1:2", "1:0")
    assert detail["last_visible_position"] == "1:0"
    assert detail["pinned_by"] == str(one)
    assert {txn["txn_id"] for txn in detail["open_transactions"]} == {str(one), str(two)}
    assert detail["entries"] == 3 and detail["size_bytes"] > 3
    assert (detail["open_count"], detail["waiting_entries"]) == (2, 2)
    assert 0 < detail["waiting_bytes"] < detail["size_bytes"]
    assert "rates" not in detail or detail["rates"] is None
    for most, named in ((0, []), (1, [str(one)]), (2, [str(one), str(two)])):
        fewer = (await process.http.get(f"/v1/segments/{enc(segment)}", params={"max_open": most})).json()
        assert [each["txn_id"] for each in fewer["open_transactions"]] == named and fewer["open_count"] == 2
    await world.abort(one)
    await released(await process.broker.segment(segment), one)
    detail = (await process.http.get(f"/v1/segments/{enc(segment)}")).json()
    assert (detail["max_read_position"], detail["pinned_by"], detail["aborted_count"]) == ("1:1", str(two), 1)
    assert detail["last_visible_position"] == "1:0", "scenario 97: not an aborted one"
    assert detail["waiting_entries"] == 1


async def test_after_a_restart_a_segment_tells_its_last_entry_and_since_when_it_waits(
    process: BrokerProcess, world: World
) -> None:
    """N97: the place before the first entry of the new, empty ledger is no entry."""
    (segment,) = await process.create("t")
    one = await world.begin()
    await append(process, segment, b"A")
    await append(process, segment, b"B", txn_id=str(one))
    before = (await process.http.get(f"/v1/segments/{enc(segment)}")).json()
    again = await process.crash()
    after = (await again.http.get(f"/v1/segments/{enc(segment)}")).json()
    await again.stop()
    assert (after["last_position"], after["max_read_position"]) == ("1:1", "1:0")
    (waiting,) = after["open_transactions"]
    assert waiting["since_ms"] <= before["open_transactions"][0]["since_ms"]


# -- going on ---------------------------------------------------------------------------------------------------------


async def test_a_snapshot_is_never_continued_as_another_read(process: BrokerProcess, world: World) -> None:
    """What was open at the snapshot becomes visible *below* the place it came to: going on there would lose it."""
    (segment,) = await process.create("t")
    one = await world.begin()
    await append(process, segment, b"open", txn_id=str(one))
    await append(process, segment, b"plain")
    path = f"/v1/segments/{enc(segment)}/entries"
    first = await process.http.get(path, params={"isolation": "snapshot"})
    place, revision = first.headers[NEXT_HEADER], int(first.headers[REVISION_HEADER])
    await world.commit(one)
    await released(await process.broker.segment(segment), one)
    elsewhere: list[dict[str, Any]] = [
        {},
        {"isolation": "read_uncommitted"},
        {"isolation": "snapshot", "revision": revision + 1},
    ]
    for query in elsewhere:
        answer = await process.http.get(path, params={"after": place, **query})
        assert_problem(answer, ErrorCode.INVALID_ARGUMENT, "after")
    assert await read(process, segment, after=place, isolation="snapshot") == []
    assert await read(process, segment, after=place, isolation="snapshot", revision=revision) == []
    assert await read(process, segment) == ["open", "plain"]


async def test_a_browsed_snapshot_goes_on_at_its_own_revision(process: BrokerProcess, world: World) -> None:
    """Page two is of the cut of page one, and its token is good for nothing else."""
    await process.create("t")
    one = await world.begin()
    await send(process, "t", {"value": 1}, {"value": 2})
    await send(process, "t", {"value": "late"}, txn_id=str(one))
    path = "/v1/topics/t/messages"
    first = (await process.http.get(path, params={"isolation": "snapshot", "max": 1})).json()
    await world.commit(one)
    query = {"after": first["next"], "isolation": "snapshot"}
    second = (await process.http.get(path, params=query)).json()
    assert [message["value"] for message in second["messages"]] == [2]
    assert second["revision"] == first["revision"]
    answer = await process.http.get(path, params={"after": second["next"]})
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT, "after")
    assert await values(process, "t") == [1, 2, "late"]


@pytest.mark.parametrize("after", ["1:1", "2:-1", "99:99"])
async def test_a_place_behind_the_end_is_refused(process: BrokerProcess, after: str) -> None:
    (segment,) = await process.create("t")
    await append(process, segment, b"A")
    answer = await process.http.get(f"/v1/segments/{enc(segment)}/entries", params={"after": after})
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT, "after")


async def test_tokens_of_another_list_or_topic_are_refused(process: BrokerProcess) -> None:
    await process.create("one")
    await process.create("two")
    token = (await process.http.get("/v1/topics/one/messages")).json()["next"]
    answer = await process.http.get("/v1/topics/two/messages", params={"after": token})
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT, "after")
    for page_token in ("zz", token, "e30"):
        answer = await process.http.get("/v1/topics", params={"page_token": page_token})
        assert_problem(answer, ErrorCode.INVALID_ARGUMENT, "page_token")
    half, long = page_token_of("\ud800"), "x" * 16_385
    assert_problem(
        await process.http.get("/v1/topics", params={"page_token": half}), ErrorCode.INVALID_ARGUMENT, "page_token"
    )
    for page_token in ("zz", token, "e30", half, long, page_token_of("one"), pair_token("\ud800", "x")):
        answer = await process.http.get("/v1/subscriptions", params={"page_token": page_token})
        assert_problem(answer, ErrorCode.INVALID_ARGUMENT, "page_token")


# -- names and retries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (f"txn_id={UNKNOWN_TXN}&writer=a%00", "writer"),
        ("producer=a%0ab&sequence=1", "producer"),
        ("producer=%ff&sequence=1", "producer"),
        ("producer=a&producer=b&sequence=1", "producer"),
    ],
)
async def test_names_that_a_commit_could_not_name_are_refused(process: BrokerProcess, query: str, field: str) -> None:
    (segment,) = await process.create("t")
    answer = await process.http.post(f"/v1/segments/{enc(segment)}/entries?{query}", content=b"x")
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT, field)
    assert await read(process, segment, isolation="read_uncommitted") == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"value": 1, "key": "\\ud800"}]}',
        b'{"messages": [{"value": 1, "properties": {"\\ud800": "x"}}]}',
        b'{"messages": [{"value": 1}], "producer": "\\udfff"}',
    ],
)
async def test_half_of_a_surrogate_pair_is_no_text(process: BrokerProcess, body: bytes) -> None:
    await process.create("t")
    answer = await process.http.post("/v1/topics/t/messages", content=body)
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT)
    assert await values(process, "t") == []


async def test_a_sequence_cannot_be_used_for_something_else(process: BrokerProcess) -> None:
    """DESIGN §5.13: answering ids of messages that were never taken would lose them."""
    await process.create("t")
    query = {"producer": "p", "sequence": 1}
    one = {"messages": [{"value": 1}], **query}
    first = (await process.http.post("/v1/topics/t/messages", json=one)).json()
    assert (await process.http.post("/v1/topics/t/messages", json=one)).json() == first
    two = {"messages": [{"value": 1}, {"value": 2}], **query}
    assert_problem(await process.http.post("/v1/topics/t/messages", json=two), ErrorCode.INVALID_ARGUMENT, "sequence")
    assert await values(process, "t") == [1]


async def test_opaque_bytes_do_not_fit_a_topic_with_columns(process: BrokerProcess) -> None:
    (segment,) = await process.create("t", schema={"fields": [{"name": "id", "type": "int64"}]})
    assert_problem(await append(process, segment, b"bytes"), ErrorCode.SCHEMA_MISMATCH)
    assert await read(process, segment, isolation="read_uncommitted") == []


# -- messages --------------------------------------------------------------------------------------------------------


async def test_messages_come_back_as_they_were_sent_in_the_order_of_their_ids(process: BrokerProcess) -> None:
    await process.create("t", segments=4)
    plain: list[Any] = [None, True, 0, -1.5, 10**30, "ü 🚀 \u2028", [1, [2]], {"a": {"b": []}}]
    sent: list[dict[str, Any]] = [{"key": f"k{number}", "value": value} for number, value in enumerate(plain)]
    sent += [{"value_base64": base64.b64encode(b"\xff\0").decode()}, {"value": 1, "properties": {"p": "ü"}}]
    answer = await send(process, "t", *sent)
    assert answer.status_code == 200, answer.text
    ids = answer.json()["message_ids"]
    assert len(set(ids)) == len(sent)
    found = {message["message_id"]: message for message in await browse(process, "t")}
    for message_id, message in zip(ids, sent, strict=True):
        for name, value in message.items():
            assert found[message_id][name] == value


async def test_23_a_keyed_transaction_over_three_segments_is_all_or_nothing(
    process: BrokerProcess, world: World
) -> None:
    segments = await process.create("t", segments=3)
    txn = await world.begin()
    messages = [{"key": str(number), "value": number} for number in range(60)]
    assert (await send(process, "t", *messages, txn_id=str(txn))).status_code == 200
    assert await values(process, "t") == []
    await world.commit(txn)
    for segment in segments:
        await released(await process.broker.segment(segment), txn)
    found = await browse(process, "t")
    assert sorted(message["value"] for message in found) == list(range(60))
    assert {message["txn_id"] for message in found} == {str(txn)}


async def test_a_browse_goes_on_in_the_middle_of_an_entry(process: BrokerProcess) -> None:
    await process.create("t", segments=2)
    await send(process, "t", *({"key": str(number), "value": number} for number in range(25)))
    seen: list[int] = []
    query: dict[str, Any] = {"max": 3}
    while True:
        page = (await process.http.get("/v1/topics/t/messages", params=query)).json()
        if not page["messages"]:
            break
        seen += [message["value"] for message in page["messages"]]
        query["after"] = page["next"]
    assert sorted(seen) == list(range(25))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{}]}, "messages.0"),
        ({"messages": [{"value": 1, "value_base64": "AA=="}]}, "messages.0"),
        ({"messages": [{"value_base64": "not base64!"}]}, "messages.0.value_base64"),
        ({"messages": [{"value_base64": None}]}, "messages.0"),
        ({"messages": [{"value": 1, "key": 5}]}, "messages.0.key"),
        ({"messages": [{"value": 1, "properties": {"a": 1}}]}, "messages.0.properties.a"),
        ({"messages": [{"value": 1, "headers": {}}]}, "messages.0.headers"),
        ({"messages": [{"value": 1}], "sequence": 1}, "sequence"),
        ({"messages": [{"value": 1}], "sequence": -1, "producer": "p"}, "sequence"),
        ({"messages": [{"value": 1}], "producer": ""}, "producer"),
        ({"messages": [{"value": 1}], "txn_id": UNKNOWN_TXN}, "txn_id"),
    ],
)
async def test_bad_messages_are_refused_by_the_name_of_their_field(
    process: BrokerProcess, body: Any, field: str
) -> None:
    await process.create("t")
    problem = assert_problem(await process.http.post("/v1/topics/t/messages", json=body), ErrorCode.INVALID_ARGUMENT)
    assert problem["field"] == field
    assert await browse(process, "t", isolation="read_uncommitted") == []


@pytest.mark.parametrize(
    "value",
    ['"\\ud800"', "NaN", "-Infinity", "1e400", '{"\\ud800": 1}', "[" * 300 + "]" * 300, "[" * 900 + "]" * 900],
    ids=["surrogate", "NaN", "Infinity", "too large a number", "surrogate key", "deep", "deeper"],
)
@pytest.mark.parametrize("kind", ["application/json", MESSAGES_MEDIA_TYPE])
async def test_values_that_could_not_be_read_again_are_refused(process: BrokerProcess, value: str, kind: str) -> None:
    """What is taken must be served: one poisoned message would end every browse of its topic."""
    (segment,) = await process.create("t")
    if kind == MESSAGES_MEDIA_TYPE:
        answer = await append(process, segment, f'[{{"value": {value}}}]'.encode(), kind)
    else:
        body = f'{{"messages": [{{"value": {value}}}]}}'.encode()
        answer = await process.http.post("/v1/topics/t/messages", content=body, headers={"content-type": kind})
    assert_problem(answer, ErrorCode.INVALID_ARGUMENT)
    assert (await send(process, "t", {"value": "fine"})).status_code == 200
    assert await values(process, "t") == ["fine"]


@pytest.mark.parametrize("kind", ["application/json", MESSAGES_MEDIA_TYPE])
async def test_explicit_nulls_can_be_read_again(process: BrokerProcess, kind: str) -> None:
    (segment,) = await process.create("t")
    message: dict[str, Any] = {"value": None, "key": None, "properties": None}
    if kind == MESSAGES_MEDIA_TYPE:
        answer = await append(process, segment, json.dumps([message]).encode(), kind)
    else:
        answer = await send(process, "t", message)
    assert answer.status_code == 200
    (found,) = await browse(process, "t")
    assert (found["value"], found["key"], found["properties"]) == (None, None, {})


async def test_a_retry_without_keys_falls_into_the_same_segment(process: BrokerProcess) -> None:
    """Round robin would send it elsewhere, where nobody remembers its sequence."""
    await process.create("t", segments=4)
    body = {"messages": [{"value": 1}, {"value": 2}], "producer": "p", "sequence": 7}
    answers = [(await process.http.post("/v1/topics/t/messages", json=body)).json() for _ in range(5)]
    assert all(answer == answers[0] for answer in answers)
    assert await values(process, "t") == [1, 2]


@pytest.mark.parametrize("inside", [False, True])
async def test_a_part_that_was_taken_is_never_called_nothing(
    process: BrokerProcess, world: World, inside: bool
) -> None:
    """Two segments, one of them lost. Anyone who was told "nothing happened" could send all of it again, and have a
    half twice; or, inside a transaction, commit without it, and have the other half."""
    segments = await process.create("t", segments=2)
    blocked = await process.broker.segment(segments[0])
    assert blocked.ledgers.open is not None
    messages = [{"key": str(number), "value": number} for number in range(20)]
    await blocked.ledgers.open.close()
    params = {"txn_id": str(await world.begin())} if inside else {}
    answer = await process.http.post("/v1/topics/t/messages", params=params, json={"messages": messages})
    problem = assert_problem(answer, ErrorCode.OUTCOME_UNKNOWN)
    assert problem["definite"] is False and ("abort" in problem["action"]) == inside


async def test_messages_larger_than_an_entry_are_refused_and_pin_nothing(process: BrokerProcess, world: World) -> None:
    """JSON may grow when it is written again: 1e9 becomes 1000000000.0."""
    await process.create("t")
    txn = await world.begin()
    value = "[" + ",".join(["1e9"] * 3_500_000) + "]"
    body = f'{{"messages": [{{"value": {value}}}]}}'.encode()
    assert len(body) < MAX_PAYLOAD_BYTES
    answer = await process.http.post(
        f"/v1/topics/t/messages?txn_id={txn}", content=body, headers={"content-type": "application/json"}
    )
    assert_problem(answer, ErrorCode.PAYLOAD_TOO_LARGE)
    assert (await send(process, "t", {"value": 1})).status_code == 200
    assert await values(process, "t") == [1]


# -- Arrow and schemas -----------------------------------------------------------------------------------------------


async def test_the_first_arrow_write_sets_the_schema_and_others_must_fit(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    assert (await append(process, segment, arrow([{"id": 1, "name": "a"}]), ARROW_MEDIA_TYPE)).status_code == 200
    topic = (await process.http.get("/v1/topics/t")).json()
    assert [(field["name"], field["type"]) for field in topic["schema"]["fields"]] == [
        ("id", "int64"),
        ("name", "string"),
    ]
    for rows, columns in (
        ([{"id": 1}], ["name"]),
        ([{"id": 1, "more": 1}], ["name", "more"]),
        ([{"id": "1", "name": "b"}], ["id"]),
        ([{"id": "1", "name": "b", "more": 1}], ["more", "id"]),
    ):
        problem = assert_problem(
            await append(process, segment, arrow(rows), ARROW_MEDIA_TYPE), ErrorCode.SCHEMA_MISMATCH
        )
        assert problem["columns"] == columns
        assert all(column in problem["detail"] for column in columns)
    await assert_json_must_fit(process)
    assert (await send(process, "t", {"value": {"id": 2, "name": None}}, {"key": "gone", "value": None})).is_success
    assert await values(process, "t", isolation="read_uncommitted") == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": None},
        None,
    ]


async def assert_json_must_fit(process: BrokerProcess) -> None:
    """The first message that does not is named, with its column; and bytes are no row."""
    misfits: tuple[tuple[str, dict[str, Any]], ...] = (
        ("id", {"value": {"id": "x", "name": "a"}}),
        ("id", {"value": {"id": 1.5}}),
        ("id", {"value": {"id": True}}),
        ("other", {"value": {"other": 1}}),
        ("value", {"value": 5}),
        ("value", {"value": [1]}),
        ("value", {"value_base64": "aGVsbG8="}),
    )
    for column, message in misfits:
        problem = assert_problem(await send(process, "t", {"value": {"id": 1}}, message), ErrorCode.SCHEMA_MISMATCH)
        assert (problem["message"], problem["columns"]) == (1, [column])
        assert f"message 1 does not fit: column {column}" in problem["detail"]


async def test_a_write_with_further_columns_adds_them(process: BrokerProcess) -> None:
    """Behind those of the topic, by a broker that has not heard of an earlier addition too."""
    (segment,) = await process.create("t")
    for rows in ([{"id": 1}], [{"id": 2, "name": "a"}]):
        assert (await append(process, segment, arrow(rows), ARROW_MEDIA_TYPE)).status_code == 200
    topic = (await process.http.get("/v1/topics/t")).json()
    assert [field["name"] for field in topic["schema"]["fields"]] == ["id", "name"]
    misplaced = arrow([{"name": "a", "id": 3, "more": 1}])
    assert_problem(await append(process, segment, misplaced, ARROW_MEDIA_TYPE), ErrorCode.SCHEMA_MISMATCH)
    further: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("n", pa.int8())]
    await process.broker.schemas.extend(segment, pa.schema(further), 0)  # as another broker does
    assert (await send(process, "t", {"value": {"id": 4, "n": 7}})).status_code == 200
    assert_problem(await send(process, "t", {"value": {"id": 4, "m": 7}}), ErrorCode.SCHEMA_MISMATCH)


async def test_a_refused_write_sets_no_schema(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    answer = await append(process, segment, arrow([{"wrong": 1}]), ARROW_MEDIA_TYPE, txn_id=UNKNOWN_TXN)
    assert_problem(answer, ErrorCode.TXN_NOT_FOUND)
    assert (await append(process, segment, arrow([{"right": 1}]), ARROW_MEDIA_TYPE)).status_code == 200


def corrupt_offsets() -> bytes:
    """A well-formed stream in which one string ends far outside of the data; the first and the last offset are fine."""
    body = bytearray(arrow([{"s": "abcd"}, {"s": "efgh"}]))
    start = body.rindex(b"\x04\0\0\0\x08\0\0\0")
    body[start : start + 4] = b"\xff\xff\xff\x7f"
    return bytes(body)


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"\xff\xff\xff\xff\0\0\0\0"[:6], arrow([{"id": 1}])[:-20], arrow([{"id": 1}])[20:], corrupt_offsets()],
    ids=["empty", "short", "no schema", "cut at the end", "cut at the start", "offsets out of bounds"],
)
async def test_what_is_not_an_arrow_stream_is_refused(process: BrokerProcess, body: bytes) -> None:
    (segment,) = await process.create("t")
    assert_problem(await append(process, segment, body, ARROW_MEDIA_TYPE), ErrorCode.INVALID_ARGUMENT, "body")
    assert await browse(process, "t", isolation="read_uncommitted") == []
    assert (await process.http.get("/v1/topics/t")).json().get("schema") is None


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1], pa.timestamp("ns")), "1970-01-01"),
        (pa.array([2**62], pa.timestamp("us")), "4611686018427387904"),
        (pa.array([10**8], pa.date32()), "100000000"),
        (pa.array([datetime.timedelta(seconds=1)]), "0:00:01"),
        (pa.array([b"\xff"]), "/w=="),
        (pa.array([[1, None]]), [1, None]),
        (pa.array([[2**62]], pa.list_(pa.timestamp("us"))), ["<value out of range: 4611686018427387904>"]),
        (pa.array([float("nan")]), "nan"),
    ],
    ids=["nanoseconds", "year 100000", "date out of range", "duration", "binary", "list", "years in a list", "NaN"],
)
async def test_every_arrow_value_can_be_browsed(process: BrokerProcess, column: Any, expected: Any) -> None:
    """One value that Python has no form for must not end the browse of the topic."""
    (segment,) = await process.create("t")
    table = pa.table({"c": column, "k": pa.array(["key"])}).replace_schema_metadata({KEY_COLUMN: b"k"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    answer = await append(process, segment, sink.getvalue().to_pybytes(), ARROW_MEDIA_TYPE)
    assert answer.status_code == 200, answer.text
    (found,) = await browse(process, "t")
    assert found["key"] == "key"
    value = found["value"]["c"]
    assert value == expected or str(expected) in str(value)


async def test_the_count_of_an_entry_is_its_rows(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    await append(process, segment, json.dumps([{"value": 1}, {"value": 2}]).encode(), MESSAGES_MEDIA_TYPE)
    await append(process, segment, arrow([{"id": 1}] * 3), ARROW_MEDIA_TYPE + "; charset=x")
    answer = await process.http.get(f"/v1/segments/{enc(segment)}/entries")
    assert [(frame.kind, frame.count) for frame in decode_frames(answer.content)] == [
        (PayloadKind.MESSAGES, 2),
        (PayloadKind.ARROW, 3),
    ]
    wrong = await append(process, segment, arrow([{"id": 1}] * 3), ARROW_MEDIA_TYPE, count=2)
    assert_problem(wrong, ErrorCode.INVALID_ARGUMENT, "count")
    (plain,) = await process.create("plain")
    await append(process, plain, b"bytes", count=7)
    answer = await process.http.get(f"/v1/segments/{enc(plain)}/entries")
    assert [(frame.kind, frame.count) for frame in decode_frames(answer.content)] == [(PayloadKind.BYTES, 7)]


async def test_27_a_send_that_fails_leaves_the_transaction_to_be_ended(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    txn = await world.begin()
    owner = await process.broker.segment(segment)
    await publish(owner, "A", txn)
    answer = await append(process, segment, b"x" * (MAX_PAYLOAD_BYTES + 1), txn_id=str(txn))
    assert_problem(answer, ErrorCode.PAYLOAD_TOO_LARGE)
    await world.abort(txn)
    await released(owner, txn)
    assert await read(process, segment) == []


async def test_a_client_that_hangs_up_does_not_stop_its_publish(process: BrokerProcess, world: World) -> None:
    (segment,) = await process.create("t")
    owner = await process.broker.segment(segment)
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_after=True))
    request = sending(owner, "x", txn, writer="w", sequence=1)
    await held.reached.wait()
    request.cancel()
    held.go.set()
    answer = await append(process, segment, b"x", txn_id=str(txn), writer="w", sequence=1)
    assert answer.json()["duplicate"] is True


async def test_the_openapi_page_shows_every_path(process: BrokerProcess) -> None:
    paths = (await process.http.get("/openapi.json")).json()["paths"]
    assert {
        "/v1/topics",
        "/v1/topics/{topic}",
        "/v1/topics/{topic}/messages",
        "/v1/segments/{segment}",
        "/v1/segments/{segment}/entries",
    } <= paths.keys()
    assert "application/vnd.apache.arrow.stream" in json.dumps(paths["/v1/segments/{segment}/entries"]["post"])


async def test_a_position_is_found_by_a_time_or_from_another_one(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    last = [(await append(process, segment, b"%d" % number)).json()["position"] for number in range(3)][-1]
    path = f"/v1/segments/{enc(segment)}/position"
    assert (await process.http.get(path, params={"at_ms": 0})).json()["position"] == "1:0"
    assert (await process.http.get(path, params={"before": last, "entries": 2})).json()["position"] == "1:0"
    for query in ({}, {"at_ms": 0, "before": last}):
        assert_problem(await process.http.get(path, params=query), ErrorCode.INVALID_ARGUMENT, "at_ms")
