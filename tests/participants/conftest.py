"""Broker tests run on a `World`: a store with faults, devices with real ledgers, and processes that die.

On each kind of device, that is. A test of what only local files can do says so:
`devices.on_local_files`. What brokers and subscriptions do with segments hardly depends on it: `make test` runs half of
their tests on each kind, but for those that say `devices.on_both`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from zlib import crc32

import pytest

from metastore.background import Backoff
from tests.extent import WHOLE
from tests.participants.devices import DeviceKind
from tests.participants.segment.world import World
from tests.servers import S3Server

ABOVE_SEGMENTS = re.compile(r"tests/participants/(?:broker|subscription)/")
KIND = re.compile(r"(?<=[\[-])(?:local|objects)(?=[\]-])")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not WHOLE:
        either = {item.nodeid for item in items if ABOVE_SEGMENTS.match(item.nodeid) and not _names_its_devices(item)}
        left_out = {item for item in items if item.nodeid in either and _is_left_out(item.nodeid, either)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _names_its_devices(item: pytest.Item) -> bool:
    return any(marker.args[0] == "device" for marker in item.iter_markers("parametrize"))


def _is_left_out(name: str, names: set[str]) -> bool:
    """True of one of the two that run the same on another kind; always of the same one."""
    other = KIND.sub(lambda kind: {"local": "objects", "objects": "local"}[kind[0]], name, count=1)
    two = sorted((name, other))
    return other in names and two[crc32(two[0].encode()) % 2] != name


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
