"""Goal: an answer is the bytes of its frames in order, in chunks that bound what a slow reader costs, and what is
large is sent out of the buffer that it was read into.

Method: generated frames in several buffers, some hidden, sizes around those that decide how a frame is sent; the chunks
as the server gets them.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from participants.api.frames_response import CHUNK_BYTES, SMALL_BYTES, FramesResponse
from participants.ledger.frames import Frame, PayloadKind, RawFrame, encode, peek
from participants.ledger.position import Position

SIZES = st.sampled_from([1, 500, SMALL_BYTES - 200, SMALL_BYTES, CHUNK_BYTES - 200, CHUNK_BYTES, 2 * CHUNK_BYTES + 1])
SHOWN = st.lists(st.lists(st.tuples(SIZES, st.booleans()), max_size=6), max_size=4)
"""Of each buffer: its entries, and whether readers may see them."""


def raw_frames(buffers: list[list[tuple[int, bool]]]) -> list[RawFrame]:
    found, entry = [], 0
    for sizes in buffers:
        encoded = []
        for size, _ in sizes:
            encoded.append(encode(Frame(Position(1, entry), bytes([entry % 251]) * size, PayloadKind.BYTES, 1, 0)))
            entry += 1
        buffer, at = memoryview(b"".join(encoded)), 0
        for _, shown in sizes:
            header = peek(buffer, at)
            at = header.end
            if shown:
                found.append(RawFrame(header, buffer))
    return found


async def sent(frames: list[RawFrame]) -> tuple[dict[bytes, bytes], list[bytes | memoryview]]:
    """Headers and chunks."""
    messages: list[Mapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is asked")

    await FramesResponse(frames, {"Metatxn-Next": "1:2"})({"type": "http"}, receive, send)
    start, *bodies = messages
    assert [body["more_body"] for body in bodies] == [True] * (len(bodies) - 1) + [False]
    return dict(start["headers"]), [body["body"] for body in bodies]


@given(SHOWN)
async def test_an_answer_is_its_frames_in_order(buffers: list[list[tuple[int, bool]]]) -> None:
    frames = raw_frames(buffers)
    headers, chunks = await sent(frames)
    body = b"".join(chunks)
    assert body == b"".join(frame.data for frame in frames)
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"metatxn-next"] == b"1:2"
    assert all(len(chunk) <= CHUNK_BYTES for chunk in chunks)


@given(SHOWN)
async def test_only_what_is_small_is_copied(buffers: list[list[tuple[int, bool]]]) -> None:
    frames = raw_frames(buffers)
    _, chunks = await sent(frames)
    read_into = {id(frame.buffer.obj) for frame in frames}
    copied = sum(len(chunk) for chunk in chunks if not isinstance(chunk, memoryview) or id(chunk.obj) not in read_into)
    assert copied <= sum(len(frame.data) for frame in frames if len(frame.data) <= SMALL_BYTES)


async def test_neighbours_in_a_buffer_are_one_chunk() -> None:
    """As a page of messages of 1 KiB: thousands of frames are not thousands of pieces to put together."""
    frames = raw_frames([[(1_000, True)] * 900])
    _, chunks = await sent(frames)
    assert len(chunks) == 2 and len(chunks[1]) == 0
    assert isinstance(chunks[0], memoryview) and chunks[0].obj is frames[0].buffer.obj
