"""Goal: an entry of very many messages keeps nobody waiting: a broker works through it in pieces, bounded by count and
by length, and everybody else has a turn behind each.

Method: another task counts its turns; every piece is written down with the number of turns at that moment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatxn.wire import errors
from metatxn.wire.broker import ARROW_MEDIA_TYPE, MAX_ENTRY_MESSAGES, MESSAGES_MEDIA_TYPE, Message
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import RawFrame
from metatxn.wire.rows import KEY_COLUMN
from participants.messages import payloads, pieces, projection
from tests.extent import usually
from tests.participants.segment.world import World
from tests.participants.subscription.consuming import Consuming

MESSAGES = 5_000


class Turns:
    """Another task, and the sizes of pieces by the number of turns that it had had."""

    def __init__(self) -> None:
        self.number = 0
        self.sizes: dict[int, int] = {}

    async def run(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)

    def note(self, size: int) -> None:
        self.sizes[self.number] = self.sizes.get(self.number, 0) + size


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    found = Turns()
    running = asyncio.create_task(found.run())
    yield found
    running.cancel()


@pytest.fixture
async def consuming(world: World) -> AsyncIterator[Consuming]:
    found = await Consuming.start(world)
    yield found
    await found.process.stop()


async def publish(consuming: Consuming, body: bytes, media_type: str) -> None:
    path = f"/v1/segments/{consuming.segments[0].replace('/', '%2F')}/entries"
    answer = await consuming.process.http.post(path, content=body, headers={"Content-Type": media_type})
    assert answer.status_code == 200, answer.text


async def test_an_entry_of_many_messages_is_decoded_in_turns(
    consuming: Consuming, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = payloads._check_readable

    def noted(messages: list[Message]) -> None:
        turns.note(len(messages))
        check(messages)

    monkeypatch.setattr(payloads, "_check_readable", noted)
    await publish(consuming, json.dumps([{"value": 1}] * MESSAGES).encode(), MESSAGES_MEDIA_TYPE)
    assert sum(turns.sizes.values()) == MESSAGES
    assert max(turns.sizes.values()) <= pieces.PIECE_ITEMS


@pytest.mark.parametrize("kind", [MESSAGES_MEDIA_TYPE, ARROW_MEDIA_TYPE], ids=["messages", "arrow"])
async def test_a_compacted_view_is_made_in_turns(
    consuming: Consuming, turns: Turns, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    keyed = payloads.keyed

    def noted(frame: RawFrame) -> Iterator[list[tuple[int, str, bool]]]:
        for piece in keyed(frame):
            turns.note(len(piece))
            yield piece

    monkeypatch.setattr("participants.topic.compaction.keyed", noted)
    rows: list[dict[str, Any]] = [{"key": f"k{number % 7}", "value": number} for number in range(MESSAGES)]
    if kind == MESSAGES_MEDIA_TYPE:
        body = json.dumps(rows).encode()
    else:
        table = pa.Table.from_pylist(rows).replace_schema_metadata({KEY_COLUMN: b"key"})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        body = sink.getvalue().to_pybytes()
    await publish(consuming, body, kind)
    shown = (await consuming.asked("GET", "/messages?compacted=true&max=1000"))["messages"]
    values = [each["value"] for each in shown]
    expected = rows[-7:]
    assert values == ([each["value"] for each in expected] if kind == MESSAGES_MEDIA_TYPE else expected)
    assert sum(turns.sizes.values()) == MESSAGES
    assert max(turns.sizes.values()) <= pieces.PIECE_ITEMS


async def test_columns_are_left_out_in_turns(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry by entry: a page may have thousands."""

    def noted(frame: Any, _: Any) -> Any:
        turns.note(1)
        return frame

    monkeypatch.setattr(projection, "project", noted)
    frames: Any = list(range(100))
    assert await projection.with_columns(frames, ["a"]) == frames
    assert list(turns.sizes.values()) == [1] * 100


def test_an_entry_holds_a_bounded_number_of_messages() -> None:
    one = b'{"value":1}'
    assert len(payloads.decode_messages(b"[" + b",".join([one] * MAX_ENTRY_MESSAGES) + b"]")) == MAX_ENTRY_MESSAGES
    with pytest.raises(errors.MetatxnError) as refused:
        payloads.decode_messages(b"[" + b",".join([one] * (MAX_ENTRY_MESSAGES + 1)) + b"]")
    assert refused.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_what_is_wrong_is_named_by_its_place_in_the_whole() -> None:
    body = json.dumps([{"value": 1}] * 2_500 + [{"value": 1, "colour": "red"}]).encode()
    with pytest.raises(errors.MetatxnError, match=r"^body\.2500\.colour: "):
        payloads.decode_messages(body)


@pytest.mark.parametrize("text", ["", "[", "[1", "1", "null", "{}", '[{"value":1}] x'])
@pytest.mark.parametrize("before", [0, 2_500])
def test_what_is_no_list_is_not_taken(text: str, before: int) -> None:
    """In one piece, and in several."""
    several = "[" + '{"value":1},' * before if before else ""
    with pytest.raises(errors.MetatxnError, match=r"^body") as refused:
        payloads.decode_messages(f"{several}{text}".encode())
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", '{"deep":[-1e999]}'])
def test_a_number_that_json_has_no_form_for_is_not_taken(number: str) -> None:
    """A parser makes one of too large a literal; written again, no parser would read it."""
    with pytest.raises(errors.MetatxnError, match="not plain JSON"):
        payloads.decode_messages(f'[{{"value":{number}}}]'.encode())


def test_a_text_may_say_infinity() -> None:
    values = ["NaN", {"Infinity": "-Infinity"}]
    assert [
        each.value for each in payloads.decode_messages(json.dumps([{"value": v} for v in values]).encode())
    ] == values


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=usually(40, 100))
@given(st.lists(JSON), st.sampled_from([None, 0, 2]))
def test_pieces_put_together_are_the_whole(items: list[Any], indent: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_ITEMS", 3)
        patch.setattr(pieces, "PIECE_CHARACTERS", 20)
        found = [json.loads(piece) for piece in pieces.json_pieces(json.dumps(items, indent=indent))]
    assert [item for piece in found for item in piece] == items
    assert all(len(piece) <= 3 for piece in found)


@pytest.mark.parametrize(
    "text", ["", " ", "{}", "[", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[1]]", "[1] x", "1", "[[]"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"character|char \d"):
        list(pieces.json_pieces(text))
