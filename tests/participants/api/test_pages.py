"""Goal: anyone who reads a topic in batches gets what other readers get, page by page, and a page has a bound.

Method: a broker in-process, its HTTP paths. That both reads agree is also asserted wherever the tests of this package
browse a topic (`tests/participants/pages.py`): over splits, merges, removals, several brokers and every kind of entry.
"""

from __future__ import annotations

import asyncio
import gzip
import struct
from typing import Any

import pytest
from crc32c import crc32c

from metatxn.wire.batches import pack_batch, packed_message
from metatxn.wire.contents import messages_of
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, FrameError, PayloadKind, RawFrame, decode_frames
from metatxn.wire.names import MessageId
from metatxn.wire.pages import decode_page
from metatxn.wire.record_batches import CHECKED_FROM, HEADER, LENGTH_OFFSET
from participants.api.frames_response import ANSWER_BYTES
from participants.ledger.chain import LedgerChain
from tests.participants.api.test_batches import append as append_batch
from tests.participants.api.test_rest import append, assert_problem, enc, send
from tests.participants.broker.process import BrokerProcess
from tests.participants.pages import read_all, read_page
from tests.participants.segment.world import World, released


async def test_a_page_has_the_entries_of_all_segments_as_they_are_stored(process: BrokerProcess) -> None:
    await process.create("t", segments=2)
    for number in range(4):
        await send(process, "t", *({"key": str(key), "value": number} for key in range(8)))
    head, entries = await read_page(process.http, "t")
    assert [part.segment for part in head.parts] == list(dict.fromkeys(each.segment for each in entries))
    assert len(head.parts) == 2 and len(entries) == 8 and not head.more
    assert {each.frame.kind for each in entries} == {PayloadKind.MESSAGES}
    nothing, none = await read_page(process.http, "t", after=head.next)
    assert not none and not nothing.parts and not nothing.more


async def test_a_page_has_as_many_entries_as_fit_and_at_least_one(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    sizes = [100, 100, 5_000, 100, 100]
    for size in sizes:
        await append(process, segment, bytes(size))
    pages: list[list[int]] = []
    after: dict[str, str] = {}
    while True:
        head, entries = await read_page(process.http, "t", max_bytes=400, **after)
        if not entries:
            break
        pages.append([len(each.frame.payload) for each in entries])
        assert head.more == (sum(map(len, pages)) < len(sizes))
        after = {"after": head.next}
    assert pages == [[100, 100], [5_000], [100, 100]]


async def test_a_page_whose_time_is_over_ends_with_its_next_entry(
    process: BrokerProcess, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that has none yet goes on: to a reader, one without messages is the end of the topic."""
    monkeypatch.setattr("participants.topic.messages.BROWSE_BYTES", 1)
    monkeypatch.setattr("participants.topic.messages.BROWSE_MS", 0)
    (segment,) = await process.create("t")
    aborted = await world.begin()
    for _ in range(3):
        await send(process, "t", {"value": "hidden"}, txn_id=str(aborted))
    await world.abort(aborted)
    await released(await process.broker.segment(segment), aborted)
    for number in range(4):
        await send(process, "t", {"value": number})
    after: dict[str, str] = {}
    for number in range(4):
        head, (entry,) = await read_page(process.http, "t", **after)
        assert messages_of(entry.frame)[1] == [number]
        after = {"after": head.next}
    assert not (await read_page(process.http, "t", **after))[1]


async def test_a_reader_goes_on_in_the_middle_of_an_entry_and_ends_at_the_end_of_one(process: BrokerProcess) -> None:
    await process.create("t", segments=2)
    for _ in range(2):
        await send(process, "t", *({"key": str(number), "value": number} for number in range(20)))
    every = (await process.http.get("/v1/topics/t/messages")).json()["messages"]
    for limit in (1, 3, 25):
        first = (await process.http.get("/v1/topics/t/messages", params={"max": limit})).json()
        head, entries = await read_page(process.http, "t", after=first["next"])
        assert entries[0].skip == head.parts[0].skip
        assert first["messages"] + await read_all(process.http, "t", after=first["next"]) == every
    head, entries = await read_page(process.http, "t", max_bytes=1)
    assert [each.skip for each in entries] == [0] and head.more
    rest = (await process.http.get("/v1/topics/t/messages", params={"after": head.next})).json()["messages"]
    assert rest == every[entries[0].frame.count :]


async def test_a_reader_that_waits_is_woken_by_a_commit(process: BrokerProcess, world: World) -> None:
    await process.create("t")
    latest, entries = await read_page(process.http, "t", start="latest")
    assert not entries and not latest.more
    txn = await world.begin()
    await send(process, "t", {"value": 1}, txn_id=str(txn))
    waiting = asyncio.create_task(read_page(process.http, "t", after=latest.next, wait_ms=60_000))
    await asyncio.sleep(0)
    await world.commit(txn)
    _, (entry,) = await waiting
    assert str(entry.frame.txn_id) == str(txn)


async def test_a_snapshot_tells_its_revision(process: BrokerProcess) -> None:
    await process.create("t")
    await send(process, "t", {"value": 1})
    head, _ = await read_page(process.http, "t", isolation="snapshot")
    assert head.revision is not None
    await send(process, "t", {"value": 2})
    again, _ = await read_page(process.http, "t", isolation="snapshot", after=head.next)
    assert again.revision == head.revision


async def test_a_large_entry_is_sent_as_a_whole(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    batch, _ = pack_batch([packed_message(bytes(MAX_PAYLOAD_BYTES - 100), None, None)])
    assert len(batch) > ANSWER_BYTES
    assert (await append_batch(process, segment, batch)).status_code == 200
    _, (entry,) = await read_page(process.http, "t")
    assert bytes(entry.frame.payload) == batch


@pytest.mark.parametrize(
    ("query", "field"),
    [("after=nonsense", "after"), ("max_bytes=0", "max_bytes"), ("isolation=serial", "isolation"), ("max=3", "max")],
)
async def test_a_bad_read_is_refused_by_the_name_of_its_field(process: BrokerProcess, query: str, field: str) -> None:
    await process.create("t")
    assert_problem(await process.http.get(f"/v1/topics/t/batches?{query}"), ErrorCode.INVALID_ARGUMENT, field)


async def test_a_compacted_view_is_read_with_json(process: BrokerProcess) -> None:
    await process.create("t")
    await send(process, "t", {"key": "a", "value": 1}, {"key": "b", "value": 1})
    view = (await process.http.get("/v1/topics/t/messages", params={"compacted": "true", "max": 1})).json()
    answer = await process.http.get("/v1/topics/t/batches", params={"after": view["next"]})
    assert "compacted view" in assert_problem(answer, ErrorCode.INVALID_ARGUMENT, "after")["detail"]
    behind = (await process.http.get("/v1/topics/t/messages", params={"after": view["next"]})).json()["next"]
    await send(process, "t", {"key": "a", "value": 2})
    assert [each["value"] for each in await read_all(process.http, "t", after=behind)] == [2]


@pytest.mark.parametrize("body", [b"", b"\1\0\0\0{", b"\2\0\0\0{}"])
def test_what_is_no_page_is_told(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode_page(body)


async def test_frames_that_are_cut_off_are_told(process: BrokerProcess) -> None:
    await process.create("t")
    await send(process, "t", {"value": 1})
    whole = (await process.http.get("/v1/topics/t/batches")).content
    decode_page(whole)
    for broken in (whole[:-1], whole + b"x", whole[:-1] + bytes([whole[-1] ^ 1])):
        with pytest.raises(FrameError):
            decode_page(broken)


def compressed(key: str) -> bytes:
    """A batch of four kilobytes with one message that has four mebibytes."""
    (batch, _) = pack_batch([packed_message(bytes(4 << 20), key, None)])
    body = gzip.compress(batch[HEADER.size :])
    fields = list(HEADER.unpack_from(batch))
    fields[1], fields[5] = HEADER.size - LENGTH_OFFSET - 4 + len(body), 1
    draft = HEADER.pack(*fields)[CHECKED_FROM:] + body
    fields[4] = crc32c(draft)
    return struct.pack(">qiibI", *fields[:5]) + draft


async def test_a_page_has_a_bound_for_what_is_decompressed(process: BrokerProcess) -> None:
    """Otherwise a page of 1,000 messages, in a few megabytes, would become so many gigabytes for anyone who reads
    it."""
    (segment,) = await process.create("t")
    subscription = "/v1/topics/t/subscriptions/s"
    await process.http.put(subscription, json={"type": "shared", "initial": "earliest"})
    for key in "abc":
        await append_batch(process, segment, compressed(key))

    async def keys_of_page(**params: Any) -> tuple[list[str], str]:
        answer = (await process.http.get("/v1/topics/t/messages", params={"max": 1000, **params})).json()
        return [each["key"] for each in answer["messages"]], answer["next"]

    for first in ({}, {"compacted": "true"}):
        keys, at = await keys_of_page(**first)
        assert keys == ["a"]
        keys, at = await keys_of_page(after=at)
        assert keys == ["b"], "the page before told where this one begins"
    _, entries = await read_page(process.http, "t")
    assert len(entries) == 1
    place: dict[str, str] = {}
    read: list[str | None] = []
    for end in ("false", "false", "true"):
        found = await process.http.get(f"/v1/segments/{enc(segment)}/entries", params=place)
        place = {"after": found.headers["Metatxn-Next"]}
        assert found.headers["Metatxn-End"] == end
        (frame,) = decode_frames(found.content)
        read += messages_of(frame).keys
    assert read == ["a", "b", "c"]
    for expected in (["a"], ["b"], ["c"], []):
        received = await process.http.post(f"{subscription}/receive", json={"consumer": "c", "max": 1000})
        assert [each["key"] for each in received.json()["messages"]] == expected


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted", "snapshot"])
@pytest.mark.parametrize("path", ["/v1/segments/{segment}/entries", "/v1/topics/t/batches", "/v1/topics/t/messages"])
@pytest.mark.parametrize(("place", "expected"), [("", 200), ("@1970-01-01T00:00:00Z", 200), ("named", 410)])
async def test_a_trim_that_overtakes_a_read_is_told_to_readers_that_have_named_a_position(
    process: BrokerProcess, monkeypatch: pytest.MonkeyPatch, isolation: str, path: str, place: str, expected: int
) -> None:
    """Found by the simulation: a reader that had named none, and held a revision, was told that it came too late."""
    (segment,) = await process.create("t")
    for value in range(3):
        await send(process, "t", {"value": value})
    params = {"isolation": isolation}
    if place == "named" and path.startswith("/v1/topics"):
        whole = await process.http.get("/v1/topics/t/messages", params={"isolation": isolation, "max": 1})
        params["after"] = whole.json()["next"]
    elif place:
        params["after"] = "1:-1" if place == "named" else place
    real, reading, go = LedgerChain.read, asyncio.Event(), asyncio.Event()

    async def overtaken(chain: LedgerChain, *args: Any) -> list[RawFrame]:
        found = await real(chain, *args)
        reading.set()
        await go.wait()
        return found

    monkeypatch.setattr(LedgerChain, "read", overtaken)
    asked = asyncio.create_task(process.http.get(path.format(segment=enc(segment)), params=params))
    await reading.wait()
    assert (await process.http.post(f"/v1/segments/{enc(segment)}/trim", json={"before": "1:2"})).status_code == 200
    go.set()
    answer = await asked
    assert answer.status_code == expected, answer.text
    if expected == 200:
        assert b"2" in answer.content and b'"value":0' not in answer.content.replace(b" ", b"")
    else:
        assert_problem(answer, ErrorCode.POSITION_TRIMMED)


@pytest.mark.parametrize("begins", ["before the split", "before the trim", "after it", "at the end"])
@pytest.mark.parametrize("path", ["batches", "messages"])
async def test_a_reader_is_told_what_was_trimmed_of_a_child_after_it_began_and_not_of_what_was_before(
    process: BrokerProcess, path: str, begins: str
) -> None:
    (parent,) = await process.create("t")
    await send(process, "t", {"value": "a", "key": "k"})
    await send(process, "t", {"value": "b", "key": "k"})

    async def begun(*, at_end: bool = False) -> str:
        params = {"start": "latest"} if at_end else {"max": 1}
        answer = await process.http.get("/v1/topics/t/messages", params=params)
        token: str = answer.json()["next"]
        return token

    tokens = {"before the split": await begun()}
    await process.http.post(f"/v1/segments/{enc(parent)}/split", json={})
    child = next(iter(await sent_to(process, *"cde")))
    tokens["before the trim"] = await begun()
    await process.http.post(f"/v1/segments/{enc(child)}/trim", json={"before": "1:2"})
    tokens |= {"after it": await begun(), "at the end": await begun(at_end=True)}
    await sent_to(process, "f")
    answer = await process.http.get(f"/v1/topics/t/{path}", params={"after": tokens[begins]})
    if begins.startswith("before"):
        assert_problem(answer, ErrorCode.POSITION_TRIMMED)
        return
    seen = [value for value in "abcdef" if f'"{value}"'.encode() in answer.content]
    assert seen == (["f"] if begins == "at the end" else ["b", "e", "f"])


async def sent_to(process: BrokerProcess, *values: str) -> set[str]:
    """The segments of these messages, which have the same key."""
    sent = [await send(process, "t", {"value": value, "key": "k"}) for value in values]
    return {MessageId.parse(each).segment for answer in sent for each in answer.json()["message_ids"]}
