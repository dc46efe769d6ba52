from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from participants.ledger.local import LocalStorage
from tests.participants.ledger.faults import FaultyDisk


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
async def storage(tmp_path: Path, disk: FaultyDisk) -> AsyncIterator[LocalStorage]:
    async with LocalStorage.open(tmp_path, disk=disk) as opened:
        yield opened
        disk.may_sync.set()
