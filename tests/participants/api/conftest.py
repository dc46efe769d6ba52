from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.participants.broker.process import BrokerProcess
from tests.participants.devices import usually_on
from tests.participants.segment.world import World

device = usually_on("local", "What is asked here is answered before anybody looks where ledgers lie.")


@pytest.fixture
async def process(world: World, tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    process = await BrokerProcess(world, world.new_device("data")).start()
    yield process
    await process.stop()
