from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from participants.ledger.local import LocalStorage
from tests.participants.ledger.faults import FaultyDisk
from tests.servers import S3Server


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
async def storage(tmp_path: Path, disk: FaultyDisk) -> AsyncIterator[LocalStorage]:
    async with LocalStorage.open(tmp_path, disk=disk) as opened:
        yield opened
        disk.may_sync.set()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server
