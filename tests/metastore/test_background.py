"""Goal: a mirror whose consumer fails does not go stale in silence. Method: a consumer that raises."""

from __future__ import annotations

import asyncio

from metastore.backends.memory import MemoryStore
from metastore.types import Event
from metastore.watches import Mirror


async def test_the_event_loop_hears_of_background_work_that_dies() -> None:
    heard: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.put_nowait(context))

    def refuse(event: Event) -> None:
        raise ValueError("a bug of the consumer")

    store = MemoryStore()
    async with Mirror(store, "/a/", refuse).running():
        await store.apply(store.batch().put("/a/1", b""))
        context = await heard.get()
    assert context["message"] == "mirror of /a/ has died"
    assert isinstance(context["exception"], ValueError)
    await store.close()


async def test_work_that_is_cancelled_is_no_news() -> None:
    heard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    store = MemoryStore()
    async with Mirror(store, "/a/", lambda event: None).running():
        pass
    await store.close()
    assert not heard
