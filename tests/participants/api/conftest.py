from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.participants.broker.process import BrokerProcess
from tests.participants.devices import only
from tests.participants.segment.world import World

device = only("local")
"""What is asked here is answered before anybody looks where ledgers lie; the tests of `broker` do."""


@pytest.fixture
async def process(world: World, tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    process = await BrokerProcess(world, world.new_device("data")).start()
    yield process
    await process.stop()
