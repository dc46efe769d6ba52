from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.participants.segment.world import World
from tests.participants.subscription.consuming import Consuming


@pytest.fixture
async def consuming(world: World, tmp_path: Path) -> AsyncIterator[Consuming]:
    consuming = await Consuming.start(world)
    yield consuming
    await consuming.process.stop()
