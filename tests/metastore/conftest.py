"""Every test that asks for `store` or `backend` runs once per entry of `FACTORIES`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from metastore.api import MetadataStore
from tests.metastore.factories import FACTORIES, Backend


@pytest.fixture(params=sorted(FACTORIES))
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with FACTORIES[request.param](request) as backend:
        yield backend


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.open()
