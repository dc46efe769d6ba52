"""An operator who splits and merges segments of all topics, while others write to them."""

from __future__ import annotations

import asyncio

from tests.simulation.workloads.base import Actor, Workload


class Layout(Workload):
    """Without topics of its own."""

    name = "layout"

    async def set_up(self) -> None:
        """There is nothing to set up."""

    def start(self) -> None:
        self.employ("operator", Operator)


class Operator(Actor):
    async def act(self) -> None:
        faults = self.workload.world.faults
        pause_s = faults.pause_s("layout_changes_per_minute")
        if pause_s is None:
            return
        await asyncio.sleep(min(pause_s, 60.0))
        if not self.workload.stopping:
            faults.made["layout_changes"] += 1
            await self.client.change_layout(self.random.choice(self.workload.cluster.topics))
