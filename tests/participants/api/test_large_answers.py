"""Goal: a large answer is sent in chunks, byte by byte the same, and what is too large to wait in memory waits on disk.

Method: the response alone, called as the server calls it; what it holds between two chunks is counted. What a slow
reader costs a whole broker is measured in `processes/test_slow_readers.py`.
"""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.responses import Response

from participants.api.large_answers import CHUNK_BYTES, IN_MEMORY_BYTES, LargeAnswer

SIZES = [CHUNK_BYTES + 1, IN_MEMORY_BYTES, IN_MEMORY_BYTES + 1, 16 << 20]


async def taken(size: int) -> tuple[bytes, int]:
    """The body as it is taken, chunk by chunk; and what was held in memory when the first one had been."""
    held: list[int] = []
    body = bytearray()
    before = tracemalloc.get_traced_memory()[0]
    answer = LargeAnswer(Response(b"x" * (size - 1) + b"y", status_code=201, media_type="application/json"))

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 201
            assert dict(message["headers"])[b"content-length"] == str(size).encode()
            held.append(tracemalloc.get_traced_memory()[0] - before)
        else:
            assert len(message["body"]) <= CHUNK_BYTES
            assert message["more_body"] == bool(message["body"])
            body.extend(message["body"])

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is asked")

    await answer({"type": "http"}, receive, send)
    return bytes(body), held[0]


@pytest.fixture(autouse=True)
def _traced() -> Any:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("size", SIZES)
async def test_the_body_is_the_same_and_no_more_than_the_bound_waits_in_memory(size: int) -> None:
    body, held = await taken(size)
    assert body == b"x" * (size - 1) + b"y"
    assert held <= min(size, IN_MEMORY_BYTES) + CHUNK_BYTES


async def test_without_room_for_a_file_it_is_sent_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    body, held = await taken(16 << 20)
    assert len(body) == 16 << 20 and body[-1:] == b"y"
    assert held >= 16 << 20, "else this test does not test what it says"
