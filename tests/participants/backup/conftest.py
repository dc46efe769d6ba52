from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.participants.backup.cases import BackupCase
from tests.participants.devices import DeviceKind
from tests.participants.segment.world import World


@pytest.fixture
async def case(world: World, tmp_path: Path, device: DeviceKind) -> AsyncIterator[BackupCase]:
    case = BackupCase(world, tmp_path, device)
    yield case
    await case.restored.close()
