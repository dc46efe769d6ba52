"""Goal: an answer is the bytes of its frames in order, in chunks that bound what a slow reader costs, and what is
large is sent out of the buffer that it was read into.

Method: generated frames in several buffers, some hidden, sizes around those that decide how a frame is sent; the chunks
as the server gets them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import pytest
from fastapi.responses import Response
from hypothesis import given, settings
from hypothesis import strategies as st

from metastore.errors import StoreUnavailable
from metatxn.wire import errors
from metatxn.wire.frames import Frame, PayloadKind, RawFrame, encode_frame, peek, peek_all
from metatxn.wire.position import Position
from participants.api.frames_response import ANSWER_BYTES, CHUNK_BYTES, SMALL_BYTES, FramesResponse, LargeEntryResponse
from participants.ledger.storage import StorageFailed

SIZES = st.sampled_from([1, 500, SMALL_BYTES - 200, SMALL_BYTES, CHUNK_BYTES - 200, CHUNK_BYTES, 2 * CHUNK_BYTES + 1])
SHOWN = st.lists(st.lists(st.tuples(SIZES, st.booleans()), max_size=5), max_size=3)
"""Of each buffer: its entries, and whether readers may see them."""


HEADERS = {"Metatxn-Next": "1:2"}


def raw_frames(buffers: list[list[tuple[int, bool]]]) -> list[RawFrame]:
    found: list[RawFrame] = []
    entry = 0
    for sizes in buffers:
        encoded = []
        for size, _ in sizes:
            payload = bytes([entry % 251]) * size
            encoded.append(
                encode_frame(Frame(payload, PayloadKind.BYTES, 1, position=Position(1, entry), publish_ms=0))
            )
            entry += 1
        frames = peek_all(b"".join(encoded))
        found += [frame for frame, (_, shown) in zip(frames, sizes, strict=True) if shown]
    return found


async def sent(response: Response) -> tuple[dict[bytes, bytes], list[bytes | memoryview]]:
    """Headers and chunks."""
    messages: list[Mapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is asked")

    await response({"type": "http"}, receive, send)
    start, *bodies = messages
    assert [body["more_body"] for body in bodies] == [True] * (len(bodies) - 1) + [False]
    return dict(start["headers"]), [body["body"] for body in bodies]


@settings(deadline=None, max_examples=50)
@given(SHOWN)
async def test_an_answer_is_its_frames_in_order(buffers: list[list[tuple[int, bool]]]) -> None:
    frames = raw_frames(buffers)
    headers, chunks = await sent(FramesResponse(frames, HEADERS))
    body = b"".join(chunks)
    assert body == b"".join(frame.data for frame in frames)
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"metatxn-next"] == b"1:2"
    assert all(len(chunk) <= CHUNK_BYTES for chunk in chunks)


@settings(deadline=None, max_examples=50)
@given(SHOWN)
async def test_only_what_is_small_is_copied(buffers: list[list[tuple[int, bool]]]) -> None:
    frames = raw_frames(buffers)
    _, chunks = await sent(FramesResponse(frames, HEADERS))
    read_into = {id(frame.buffer.obj) for frame in frames}
    copied = sum(len(chunk) for chunk in chunks if not isinstance(chunk, memoryview) or id(chunk.obj) not in read_into)
    assert copied <= sum(len(frame.data) for frame in frames if len(frame.data) <= SMALL_BYTES)


async def test_neighbours_in_a_buffer_are_one_chunk() -> None:
    """As a page of messages of 1 KiB: thousands of frames are not thousands of pieces to put together."""
    frames = raw_frames([[(1_000, True)] * 900])
    _, chunks = await sent(FramesResponse(frames, HEADERS))
    assert len(chunks) == 2 and len(chunks[1]) == 0
    assert isinstance(chunks[0], memoryview) and chunks[0].obj is frames[0].buffer.obj


LARGE = encode_frame(
    Frame(
        random.Random(7).randbytes(ANSWER_BYTES + 12_345), PayloadKind.BYTES, 1, position=Position(1, 7), publish_ms=0
    )
)


async def test_a_large_entry_is_read_again_chunk_by_chunk() -> None:
    asked = []

    async def read_part(start: int, end: int) -> memoryview:
        asked.append(end - start)
        return memoryview(LARGE)[start:end]

    frame = peek(LARGE)
    headers, chunks = await sent(LargeEntryResponse(frame, read_part, HEADERS))
    assert b"".join(chunks) == LARGE
    assert headers[b"content-length"] == str(len(LARGE)).encode()
    assert headers[b"metatxn-next"] == b"1:2"
    assert max(asked) <= CHUNK_BYTES and sum(asked) == len(LARGE)


@pytest.mark.parametrize("at", [0, CHUNK_BYTES, len(LARGE) - 1])
@pytest.mark.parametrize("cut", [False, True], ids=["flipped", "cut"])
async def test_what_is_damaged_by_then_is_not_sent(at: int, cut: bool) -> None:
    """The CRC of the whole frame was right when it was checked; what is served is checked, too."""
    damaged = bytearray(LARGE)
    damaged[at] ^= 1
    if cut:
        del damaged[at:]

    async def read_part(start: int, end: int) -> memoryview:
        return memoryview(bytes(damaged[start:end]))

    served, finished = await left(read_part)
    assert not finished, "so that the server cuts the connection"
    assert LARGE.startswith(served) and len(served) == at // CHUNK_BYTES * CHUNK_BYTES


@pytest.mark.parametrize(
    "error", [StoreUnavailable("it is away"), StorageFailed("no disk"), errors.StoreUnavailable("segment lost")]
)
async def test_what_cannot_be_read_to_its_end_is_left_unfinished(error: Exception) -> None:
    """Too late for an answer that says why: the first one has begun."""

    async def read_part(start: int, end: int) -> memoryview:
        if start:
            raise error
        return memoryview(LARGE)[start:end]

    assert await left(read_part) == (LARGE[:CHUNK_BYTES], False)


async def left(read_part: Callable[[int, int], Awaitable[memoryview]]) -> tuple[bytes, bool]:
    """What is sent of the large entry, and whether it is finished."""
    served, more = bytearray(), True

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal more
        served.extend(message.get("body", b""))
        more = message.get("more_body", True)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is asked")

    response = LargeEntryResponse(peek(LARGE), read_part, HEADERS)
    await response({"type": "http"}, receive, send)
    return bytes(served), not more
