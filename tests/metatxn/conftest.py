"""A development server for the whole session, started as a user would, and clients of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import metatxn
from tests.metatxn.command_line import Done, run_here
from tests.metatxn.dev_server import DevServer
from tests.metatxn.flavours import connect

__all__ = ["connect"]


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    directory = tmp_path_factory.mktemp("dev")
    with DevServer(directory / "data", "--audit-log", str(directory / "audit.log")) as server:
        yield server


@pytest.fixture
def client(dev: DevServer) -> Iterator[metatxn.Client]:
    with metatxn.connect(dev.coordinator_url) as client:
        yield client


@pytest.fixture
def new_topic(client: metatxn.Client) -> Callable[..., str]:
    """Makes a topic that no other test has."""

    def create(segments: int = 1, schema: pa.Schema | None = None) -> str:
        return client.create_topic(f"t-{uuid.uuid4().hex[:12]}", segments, schema).name

    return create


@pytest.fixture
def cli(dev: DevServer) -> Callable[..., Done]:
    return lambda *arguments: run_here(*arguments, METATXN_URL=dev.broker_url)


@pytest.fixture
def ask(cli: Callable[..., Done]) -> Callable[..., Any]:
    """The JSON that a command prints."""

    def call(*arguments: str) -> Any:
        done = cli(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call
