"""Broker tests run on a `World`: a store with faults, devices with real ledgers, and processes that die.

On each kind of device, that is. A test of what only local files can do says so:
`devices.on_local_files`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metastore.background import Backoff
from tests.participants.devices import DeviceKind
from tests.participants.segment.world import World
from tests.servers import S3Server


@pytest.fixture(autouse=True)
def _retries_without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done again is done again at once: no test waits for a back-off."""
    monkeypatch.setattr("metatxn.service.retry.backoff", lambda: Backoff(first_s=0.005, longest_s=0.005))


@pytest.fixture(params=["local", "objects"])
def device(request: pytest.FixtureRequest) -> DeviceKind:
    kind: DeviceKind = request.param
    return kind


@pytest.fixture
async def world(tmp_path: Path, device: DeviceKind) -> AsyncIterator[World]:
    world = World(tmp_path, device)
    yield world
    await world.close()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server
