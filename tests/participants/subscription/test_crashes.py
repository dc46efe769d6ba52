"""Goal: wherever a broker dies, what was acknowledged stays so, what does not count returns, and nothing is left over.

Method: one story of plain, transactional, cumulative and void acknowledgements; the store takes its first n writes of
the broker and no more, with the last one's answer lost or not; the broker dies; the next one finds what it must find.
Every n is tried. DESIGN §5.5, 5.10; scenarios 82-84, 107.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.types import Batch
from metatxn.wire.ids import TxnId
from tests.participants.segment.faulty_store import Fault
from tests.participants.subscription.consuming import Consuming

WRITES = 18
"""More than the story makes."""


def by_broker(batch: Batch) -> bool:
    return any(getattr(check, "key", "").startswith(paths.SEGMENT_OWNERS) for check in batch.checks)


class Cut:
    """The store takes `writes` applies of the broker; with `silent` it takes one more and its answer is lost."""

    def __init__(self, consuming: Consuming, writes: int, silent: bool) -> None:
        self._store = consuming.world.store
        self.reached = False
        seen: list[Batch] = []

        def refused(batch: Batch) -> bool:
            if by_broker(batch) and not any(batch is each for each in seen):
                seen.append(batch)
            self.reached = len(seen) > writes
            return self.reached and by_broker(batch)

        if silent:
            self._store.fault(Fault(refused, after=OutcomeUnknown("no answer")))
        self._store.fault(Fault(refused, before=StoreUnavailable("gone"), times=10**6))

    def heal(self) -> None:
        self._store._faults.clear()


@dataclass
class Acknowledged:
    """Values whose acknowledgement must hold, and those of which nobody can know."""

    surely: set[int] = field(default_factory=set)
    perhaps: set[int] = field(default_factory=set)


async def told(
    consuming: Consuming, ids: Sequence[str], values: set[int], found: Acknowledged, txn_id: TxnId | None, **how: Any
) -> None:
    answer = await consuming.ack(ids, txn_id, **how)
    if answer.status_code == 200:
        found.surely |= values
    elif not answer.json()["definite"]:
        found.perhaps |= values


async def story(consuming: Consuming, ids: Sequence[str]) -> tuple[Acknowledged, list[TxnId]]:
    world = consuming.world
    counts, void = Acknowledged(), Acknowledged()
    good, bad, opened = [await world.begin() for _ in range(3)]
    await told(consuming, [ids[0], ids[4], ids[5]], {0, 4, 5}, counts, good)
    await told(consuming, ids[6:9], {6, 7, 8}, void, bad)
    await told(consuming, [ids[9]], {9}, counts, None)
    await told(consuming, [ids[10]], {10}, counts, good, writer="counts")
    await told(consuming, [ids[11]], {11}, void, good, writer="void")
    await told(consuming, [ids[13]], {13}, void, opened)
    revision = await world.commit(good, writers=["counts"])
    revision = max(revision, await world.abort(bad))
    while consuming.process.broker._mirror.revision < revision:
        await asyncio.sleep(0)
    for _ in range(200):
        await asyncio.sleep(0)
    await told(consuming, [ids[1]], {0, 1}, counts, None, kind="cumulative")
    await told(consuming, [ids[17]], {17}, counts, None)
    return counts, [good, bad, opened]


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("writes", range(WRITES))
async def test_a_broker_dies_after_any_write(consuming: Consuming, writes: int, silent: bool) -> None:
    await consuming.subscribe(kind="failover")
    ids = [message for start in range(0, 18, 3) for message in await consuming.publish(*range(start, start + 3))]
    await consuming.receive()
    cut = Cut(consuming, writes, silent)
    counts, (good, bad, opened) = await story(consuming, ids)
    cut.heal()
    await consuming.crash()
    await consuming.idle()
    left = set(await consuming.values())
    assert not left & counts.surely, "an acknowledgement that counts is lost"
    pending = {13} if await consuming.world.operations(opened) else set()
    assert set(range(18)) - counts.surely - counts.perhaps <= left | pending, "something was acknowledged by nobody"
    assert [await consuming.world.operations(txn) for txn in (good, bad)] == [[], []]
    await consuming.abort(opened)
    assert set(await consuming.values()) == pending
    assert await consuming.findings() == []
    if writes == WRITES - 1:
        assert not cut.reached, "the story has more writes than are tried"
        assert not counts.perhaps and len(counts.surely) == 7


async def test_a_recovery_that_fails_half_way_follows_nothing(consuming: Consuming) -> None:
    """The headers of pending acknowledgements are followed before these are read. When the store goes away in between,
    the segment is opened again, and what was opened in vain must not be remembered forever."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn)
    failing = consuming.world.store.hold_range(paths.ops_of_transaction(txn))
    failing.error = StoreUnavailable("gone")
    failing.go.set()
    segment = await consuming.segment()
    segment.lose("for the test")
    broker = consuming.process.broker
    await failing.reached.wait()
    while broker.not_ready:
        await broker._opened.wait()
    await consuming.commit(txn)
    assert await consuming.world.operations(txn) == []
    assert not broker._mirror._listeners
