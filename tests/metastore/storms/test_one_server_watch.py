"""Goal: however many watches one process opens below a prefix, the server holds one.

Method: the server itself is asked how many it holds, before and after, and again when it has been killed.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from metastore.api import MetadataStore
from metastore.types import Changes, Revision, Watch
from tests.metastore.storms.places import SERVED, served
from tests.metastore.storms.watch_storm import insist

WATCHES = 20


async def all_see_a_write(store: MetadataStore, watches: list[Watch]) -> Revision:
    applied = await insist(store, "/w/1", b"")
    for watch in watches:
        item = await anext(watch)
        assert isinstance(item, Changes) and item.revision == applied.revision
    return applied.revision


@pytest.mark.parametrize("kind", sorted(SERVED))
async def test_one_server_watch_for_all_of_a_prefix(kind: str, tmp_path: Path) -> None:
    async with served(SERVED[kind], tmp_path) as place, AsyncExitStack() as stack:
        store = await place.open()
        stack.push_async_callback(store.close)
        start = await store.current_revision() + 1
        first = await stack.enter_async_context(store.watch("/w/", start))
        seen = await all_see_a_write(store, [first])
        held = place.server.watches()
        assert held >= 1
        later = [await stack.enter_async_context(store.watch("/w/", seen + 1)) for _ in range(WATCHES)]
        await all_see_a_write(store, [first, *later])
        assert place.server.watches() == held
        await place.restart()
        await all_see_a_write(store, [first, *later])
        assert place.server.watches() <= held
