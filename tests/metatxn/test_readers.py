"""What a reader requests ahead, and that this changes nothing of what it returns.

Method: a fake cluster whose pages of messages the test gives, and holds back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random

import httpx
import pytest

import metatxn
from metatxn.wire.batches import pack_batch, packed_message
from metatxn.wire.frames import Frame, PayloadKind, encode_frame
from metatxn.wire.names import MessageId, message_ids, parse_message_ids
from metatxn.wire.pages import PageHead, PagePart, encode_head
from metatxn.wire.position import Position
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, Outcome

PAGE = 1000


def page_of(values: Sequence[object], after: int, *, more: bool) -> bytes:
    """One entry with these messages."""
    frames = b""
    if values:
        batch, count = pack_batch(packed_message(value, None, None) for value in values)
        frames = encode_frame(Frame(batch, PayloadKind.BATCH, count, position=Position(1, after), publish_ms=0))
    parts = [PagePart(segment="s", bytes=len(frames))] if values else []
    return encode_head(PageHead(parts=parts, next=str(after + len(values)), more=more)) + frames


class Log:
    """The messages of a topic, as a broker would return them page by page."""

    def __init__(self, count: int) -> None:
        self.values = list(range(count))
        self.asked: list[str] = []
        self.failing = 0
        self.held: dict[str, asyncio.Event] = {}

    async def __call__(self, request: httpx.Request) -> Outcome:
        after = request.url.params.get("after", "0")
        self.asked.append(after)
        if after in self.held:
            await self.held[after].wait()
        if self.failing and after != "0":
            self.failing -= 1
            return httpx.Response(400, json={"code": "INVALID_ARGUMENT", "retriable": False, "definite": True})
        found = self.values[int(after) :][:PAGE]
        return httpx.Response(200, content=page_of(found, int(after), more=len(found) == PAGE))


@pytest.fixture
def log() -> Log:
    return Log(2 * PAGE + 1)


@pytest.fixture
async def reader(log: Log) -> AsyncIterator[metatxn.AsyncReader]:
    cluster = FakeCluster()
    cluster.before = [("GET /v1/topics/t/batches", log)] * 100
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        yield await client.reader("t")


async def test_what_is_no_page_is_told_with_its_address() -> None:
    cluster = FakeCluster()

    async def answer(request: httpx.Request) -> Outcome:
        return httpx.Response(200, content=b"<html>")

    cluster.before = [("GET /v1/topics/t/batches", answer)]
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        with pytest.raises(metatxn.ServiceUnreachable, match=r"/v1/topics/t/batches.* does not answer with"):
            await (await client.reader("t")).page()


async def values(reader: metatxn.AsyncReader) -> list[object]:
    return [message.value async for message in reader]


async def test_one_page_is_requested_while_the_page_before_it_is_handed_out(
    reader: metatxn.AsyncReader, log: Log
) -> None:
    second = str(PAGE)
    log.held[second] = asyncio.Event()
    messages = aiter(reader)
    assert (await anext(messages)).value == 0
    while second not in log.asked:
        await asyncio.sleep(0)
    log.held[second].set()
    for _ in range(100):
        await asyncio.sleep(0)
    assert log.asked == ["0", second], "no more than one page ahead"
    assert [message.value async for message in messages] == log.values[1:]
    assert len(log.asked) == len(set(log.asked)) == 4, "each page once, and the end"


async def test_a_reader_that_goes_on_at_the_end_sees_what_came_meanwhile(log: Log) -> None:
    """The page ahead was requested while it was empty, a long time ago."""
    log.values = log.values[:PAGE]
    cluster = FakeCluster()
    cluster.before = [("GET /v1/topics/t/batches", log)] * 100
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        messages = aiter(await client.reader("t"))
        for value in log.values[:]:
            assert (await anext(messages)).value == value
        while len(log.asked) < 2:
            await asyncio.sleep(0)
        log.values += ["more"]  # type: ignore[list-item]
        assert (await anext(messages)).value == "more"


async def test_a_page_that_could_not_be_read_ahead_is_requested_again(reader: metatxn.AsyncReader, log: Log) -> None:
    log.failing = 1
    assert await values(reader) == log.values


async def test_an_error_that_stays_is_raised(reader: metatxn.AsyncReader, log: Log) -> None:
    log.failing = 2
    with pytest.raises(metatxn.InvalidArgument):
        await values(reader)


@pytest.mark.parametrize(
    "segment", ["segment://a/b/c/0000-ffff-0", "segment://a/b/c\u00e9\U0001f600/0000-ffff-12", "s"]
)
def test_ids_made_together_are_those_made_one_by_one(segment: str) -> None:
    position = Position(12, 3456)
    indexes = [0, 1, 9, 10, 99, 100, 12345]
    expected = [str(MessageId(segment, position, index)) for index in indexes]
    assert message_ids(segment, position, indexes) == expected


def test_ids_that_follow_each_other_are_parsed_as_each_is_alone() -> None:
    places = [("segment://a/b/ü/0000-ffff-0", Position(1, 2)), ("s", Position(12, 345)), ("s2", Position(12, 34))]
    ids = [text for name, at in places for text in message_ids(name, at, [0, 7, 12, 123, 99_999])]
    random = Random(7)
    for _ in range(200):
        some = random.choices(ids, k=8)
        assert parse_message_ids(iter(some)) == [MessageId.parse(text) for text in some]
        start, text = random.choice(ids), random.choice(ids)
        at = random.randrange(len(text))
        broken = text[:at] + random.choice("AZaz09-_=.ü ") + text[at + random.randrange(2) :]
        try:
            alone = MessageId.parse(broken)
        except ValueError:
            with pytest.raises(ValueError, match="is not a"):
                parse_message_ids([start, text, broken])
        else:
            assert parse_message_ids([start, text, broken])[2] == alone


async def test_a_reader_says_what_it_reads(reader: metatxn.AsyncReader) -> None:
    assert repr(reader) == "AsyncReader('t')"
