"""Goal: the record of a run tells how often a gateway has answered for a service.

Method: two worlds in which every request is lost, one with a gateway.
"""

from __future__ import annotations

import pytest

from metatxn.transport import api
from tests.simulation.network import OF_A_GATEWAY, Network
from tests.simulation.transport import SimulatedTransport
from tests.simulation.world import World

REQUESTS = 100
WITHOUT_A_GATEWAY, WITH_ONE = 5, 6
"""Seeds."""


@pytest.mark.parametrize("seed", [WITHOUT_A_GATEWAY, WITH_ONE])
def test_each_page_of_a_gateway_is_counted(seed: int) -> None:
    world = World(seed)
    world.faults.on, world.faults.rates.net_lost_request = True, 1.0
    transport = SimulatedTransport(Network(world))

    async def pages() -> list[int]:
        found = []
        for _ in range(REQUESTS):
            end = world.loop.time() + 1
            try:
                answer = await transport.send(api.Request("POST", "http://t", api.Headers(), None, 1, 1, end))
                found.append(answer.status)
            except api.NoAnswer:
                pass
        return found

    statuses = world.loop.run_until_complete(pages())
    world.loop.close()
    assert set(statuses) == (set(OF_A_GATEWAY) if seed == WITH_ONE else set())
    assert world.faults.made["net_gateway_pages"] == len(statuses) < REQUESTS
