"""Goal: the end of a seed leaves nothing open that a later test, or anyone who runs the next seed, would meet.

Method: a task of a loop that ends waits forever, and asks for an event loop on its way out, as `asyncio.gather` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.simulation.world import World


@pytest.fixture
def fresh_process() -> Iterator[None]:
    """The main thread is as in a process that has not had an event loop: asyncio makes one for anyone who asks
    first."""
    policy = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(policy)


@pytest.mark.usefixtures("fresh_process")
def test_what_is_abandoned_is_given_no_loop() -> None:
    loop = World(1).loop
    refused: list[str] = []

    async def asks_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                asyncio.get_event_loop().close()
            except RuntimeError as error:
                refused.append(str(error))

    task = loop.create_task(asks_at_its_end())
    loop.call_later(1, loop.stop)
    loop.run_forever()
    assert not task.done()
    loop.abandon()
    loop.close()
    assert refused == ["There is no current event loop in thread 'MainThread'."]
