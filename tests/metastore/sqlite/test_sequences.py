"""Goal: many callers of one sequence cost one commit, and a record of unknown outcome is never sent again.

Method: statements are counted, and the commit fails so that nobody can look up whether it took; with the native
sequence and with the emulated one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metastore import keys
from metastore.backends.sqlite import SqliteStore
from metastore.errors import OutcomeUnknown
from tests.metastore.factories import SqliteWithoutSequence
from tests.metastore.sqlite.hooks import Hooks, disk_error, in_writer

CALLERS = 64


async def test_callers_that_wait_together_share_one_transaction(tmp_path: Path) -> None:
    hooks = Hooks()
    store = await SqliteStore.open(tmp_path / "x.db", connect=hooks.connect)
    hooks.statements.clear()
    records = await asyncio.gather(*(store.put_sequential("/q/", str(n).encode()) for n in range(CALLERS)))
    assert hooks.statements.count("BEGIN IMMEDIATE") == 1
    assert [record.key for record in records] == [f"/q/{keys.number(n + 1)}" for n in range(CALLERS)]
    assert (await store.scan("/q/")).records == records
    await store.close()


@pytest.mark.parametrize("kind", [SqliteStore, SqliteWithoutSequence])
@pytest.mark.parametrize("took", [True, False])
async def test_a_number_of_unknown_outcome(tmp_path: Path, kind: type[SqliteStore], took: bool) -> None:
    hooks = Hooks()
    store = await kind.open(tmp_path / "x.db", connect=hooks.connect)
    await store.put_sequential("/q/", b"before")

    def refuse(seen: str) -> None:
        if seen.startswith(("ROLLBACK", "SELECT number FROM meta WHERE name = 'last_group'")):
            raise disk_error()

    def lose(seen: str) -> None:
        if seen == "COMMIT" and in_writer():
            hooks.before, hooks.after = refuse, lambda seen: None
            raise disk_error()

    hooks.statements.clear()
    setattr(hooks, "after" if took else "before", lose)
    with pytest.raises(OutcomeUnknown):
        await store.put_sequential("/q/", b"lost")
    assert hooks.statements.count("BEGIN IMMEDIATE") == 1, "it was sent again"
    hooks.before = lambda seen: None

    after = await store.put_sequential("/q/", b"after")
    assert after.key == f"/q/{keys.number(3 if took else 2)}"
    values = [record.value for record in (await store.scan("/q/")).records]
    assert values == ([b"before", b"lost", b"after"] if took else [b"before", b"after"])
    await store.close()
