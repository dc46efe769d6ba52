"""Goal: the log tells what becomes of every segment, in lines of the schema that operators get; what is planned is no
warning.

Method: brokers in-process over one object store, as in `test_placement`, and what they log.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from coordinator.gc_sweep import GcSweep
from coordinator.metrics import CoordinatorMetrics
from metatxn.service.lifecycle import Lifecycle
from tests.log_lines import of, told
from tests.participants.broker.shared import SharedBroker, Start
from tests.participants.broker.test_draining import create, serves, start
from tests.participants.devices import only
from tests.participants.segment.world import World

device = only("objects", "Local files are those of one broker; here several have the same ledgers.")
__all__ = ["start"]  # the fixture


async def posted(process: SharedBroker, segment: str, verb: str, **body: object) -> list[str]:
    answer = await process.http.post(f"/v1/segments/{quote(segment, safe='')}/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    children: list[str] = answer.json().get("children", [])
    return children


async def test_a_planned_move_is_no_warning(start: Start, world: World) -> None:
    with told() as lines:
        first = await start()
        names = await create(first, 3)
        await serves(first, names)
        second = await start()
        path = f"/v1/brokers/{first.broker.id}"
        await first.http.post(f"{path}/drain")
        await serves(second, names)
        await first.http.post(f"{path}/undrain")
    assert {line["level"] for line in lines} == {"info"}
    drained = [line["event"] for line in lines if line.get("broker") == first.broker.id]
    assert drained == [Lifecycle.DRAIN_BEGUN, Lifecycle.BROKER_DRAINED, Lifecycle.DRAIN_ENDED]
    for name in names:
        of_it = [(line["event"], line["generation"]) for line in lines if line.get("segment") == name]
        assert of_it[:3] == [
            (Lifecycle.SEGMENT_ACQUIRED, 1),
            (Lifecycle.SEGMENT_HANDED_OVER, 1),
            (Lifecycle.SEGMENT_ACQUIRED, 2),
        ]


async def test_a_segment_of_a_dead_broker_is_taken_over_and_the_dead_one_loses_it(start: Start, world: World) -> None:
    with told() as lines:
        dead = await start()
        (name,) = await create(dead, 1)
        await serves(dead, [name])
        await dead.freeze()
        await (await start()).serving(name)
        dead.thaw()
        while dead.broker.served:
            await asyncio.sleep(0)
    (taken,) = of(lines, Lifecycle.SEGMENT_TAKEN_OVER)
    (lost,) = of(lines, Lifecycle.SEGMENT_LOST)
    assert (taken["former"], taken["level"], lost["level"]) == (dead.broker.id, "warning", "warning")
    assert (lost["generation"], taken["generation"]) == (1, 2)


async def test_changes_of_the_layout(start: Start, world: World) -> None:
    with told() as lines:
        process = await start()
        (parent,) = await create(process, 1)
        low, high = await posted(process, parent, "split")
        (child,) = await posted(process, low, "merge", **{"with": high})
        answer = await process.http.delete(f"/v1/segments/{quote(parent, safe='')}")
        assert answer.status_code == 204, answer.text
        await posted(process, child, "seal")
    (split,) = of(lines, Lifecycle.SEGMENT_SPLIT)
    (merged,) = of(lines, Lifecycle.SEGMENTS_MERGED)
    (removed,) = of(lines, Lifecycle.SEGMENT_REMOVED)
    assert (split["segment"], split["children"]) == (parent, [low, high])
    assert (merged["segments"], merged["child"]) == ([low, high], child)
    assert (removed["segment"], removed["children"]) == (parent, [low, high])
    assert {line["segment"] for line in of(lines, Lifecycle.SEGMENT_SEALED)} == {low, high, child}


async def test_what_a_coordinator_collects(world: World) -> None:
    for _ in range(2):
        await world.commit(await world.begin())
    with told() as lines:
        await GcSweep(world.store, lambda: world.now_ms() + 1_000, CoordinatorMetrics(), retention_ms=0).collect_once()
    (collected,) = lines
    assert (collected["event"], collected["deleted"], collected["kept"]) == (Lifecycle.HEADERS_COLLECTED, 2, 0)
