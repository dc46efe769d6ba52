"""Broker tests run on a `World`: a store with faults, real ledger directories, and processes that die."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tenacity import wait_fixed

from tests.participants.segment.world import World


@pytest.fixture(autouse=True)
def _retries_without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done again is done again at once: no test waits for a back-off."""
    monkeypatch.setattr("service.retry.WAIT", wait_fixed(0.005))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.close()
