"""Goal: what is asked at the end of a seed, and needs no history, finds its lie too: that nothing hangs, and that
nothing of a transaction is left in memory.

Method: a world in which somebody waits forever, and a service that remembers. What else is asked then is shown its lie
by mutants: `resync-without-listing` (what a watch has fed is what a scan finds), `gc-without-empty-check` and
`deadline-entry-stays` (the store drains).
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from metastore.txn import paths
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.txn.memory_buffer import MemoryTransactionBuffer
from tests.simulation.backups import Backups
from tests.simulation.cluster import Cluster
from tests.simulation.loop import Stuck
from tests.simulation.memory import transactions_in
from tests.simulation.world import World

TXN = TxnId(1, 7)


def test_who_waits_for_what_never_comes_is_found_to_hang() -> None:
    loop = World(1).loop
    with pytest.raises(Stuck):
        loop.run_until_complete(asyncio.Event().wait())
    loop.abandon()
    loop.close()


def test_nobody_waits_for_backups_that_die_while_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_until_it_dies(_: Backups) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)  # closes its files, and its process dies meanwhile

    async def story() -> bool:
        backups.start()
        await asyncio.sleep(1)
        ending = asyncio.create_task(backups.finish())
        await asyncio.sleep(0.5)
        world.kill(world.processes["backups"])
        async with asyncio.timeout(60):
            await ending
        return True

    world = World(1)
    backups = Backups(Cluster(world))
    monkeypatch.setattr(Backups, "_keep_taking", take_until_it_dies)
    assert world.loop.run_until_complete(story())
    world.loop.abandon()
    world.loop.close()


def test_a_transaction_is_found_wherever_a_service_remembers_it() -> None:
    buffer = MemoryTransactionBuffer(Position(0, -1))
    service = SimpleNamespace(segments={"s": [buffer]}, waiting={paths.header(TXN)}, name=str(TxnId(1, 8)))
    assert set(transactions_in(service, [str(TXN)])) == {".waiting[]"}
    buffer.pin(buffer.track(TXN, 0), Position(0, -1))
    found = transactions_in(service, [str(TXN)])
    assert {path for path in found if path.startswith(".segments[][]._")}, found
    assert not transactions_in(service, [str(TxnId(2, 7))])
