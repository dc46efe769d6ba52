from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.world import World


@pytest.fixture
async def process(world: World, tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    process = await BrokerProcess(world, world.new_device("data")).start()
    yield process
    await process.stop()
