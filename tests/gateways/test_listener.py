"""Goal: answers are written in the order of the requests, those that are there together in one write, and no more of
them than a write may have.

Method: a connection whose transport notes what is written, and requests that the test answers.
"""

from __future__ import annotations

import asyncio
import struct

import pytest

from metatxn_gateways import listener
from metatxn_gateways.listener import MAX_IN_PROGRESS, FrameConnection, MalformedRequest, Reply


class Noting(asyncio.Transport):
    """Notes each write, and whether the connection was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.aborted = False
        self.reads_more = True

    def writelines(self, list_of_data: object) -> None:
        self.writes.append(b"".join(list_of_data))  # type: ignore[arg-type]

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reads_more = False

    def resume_reading(self) -> None:
        self.reads_more = True


class Asked:
    """A connection on which this many requests wait for their answers."""

    def __init__(self, count: int) -> None:
        self.transport = Noting()
        self.answers: list[asyncio.Future[Reply | None]] = []
        self.connection = FrameConnection(lambda _: self._handled, set())
        self.connection.connection_made(self.transport)
        for _ in range(count):
            self._receive(struct.pack(">i", 1) + b"r")

    def _handled(self, _: memoryview) -> asyncio.Future[Reply | None]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def _receive(self, request: bytes) -> None:
        while request:
            room = self.connection.get_buffer(-1)
            taken = min(len(room), len(request))
            room[:taken], request = request[:taken], request[taken:]
            self.connection.buffer_updated(taken)

    async def written(self) -> list[bytes]:
        """What is written once nothing is left to do."""
        for _ in range(10):
            await asyncio.sleep(0)
        self.connection.connection_lost(None)
        return self.transport.writes


def framed(*answers: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(each)) + each for each in answers)


async def test_answers_that_are_there_together_share_a_write() -> None:
    asked = Asked(5)
    asked.answers[1].set_result([b"one"])
    asked.answers[2].set_result(None)
    asked.answers[4].set_result([b"four"])
    asked.answers[0].set_result([b"ze", b"ro"])
    assert await asked.written() == [framed(b"zero", b"one")], "the third request has no answer yet"


async def test_a_write_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its client does not take, waits as an answer and not as bytes that are sent."""
    monkeypatch.setattr(listener, "WRITE_BYTES", 6)
    asked = Asked(3)
    for number, answer in enumerate(asked.answers):
        answer.set_result([b"%d" % number * 3])
    assert await asked.written() == [framed(b"000", b"111"), framed(b"222")]


async def test_what_was_answered_before_a_malformed_request_is_written() -> None:
    asked = Asked(3)
    asked.answers[1].set_exception(MalformedRequest("this one"))
    asked.answers[2].set_result([b"two"])
    asked.answers[0].set_result([b"zero"])
    assert await asked.written() == [framed(b"zero")]
    assert asked.transport.aborted


async def test_a_request_that_was_cancelled_does_not_hold_up_the_answer_before_it() -> None:
    asked = Asked(2)
    asked.answers[1].cancel()
    asked.answers[0].set_result([b"zero"])
    assert await asked.written() == [framed(b"zero")]


async def test_more_is_read_once_there_is_room() -> None:
    asked = Asked(MAX_IN_PROGRESS)
    assert not asked.transport.reads_more
    asked.answers[0].set_result([b"zero"])
    await asked.written()
    assert asked.transport.reads_more


async def test_nothing_is_written_while_the_client_takes_nothing() -> None:
    asked = Asked(1)
    asked.connection.pause_writing()
    asked.answers[0].set_result([b"zero"])
    assert await asked.written() == []
