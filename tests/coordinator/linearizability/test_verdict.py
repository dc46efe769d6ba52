"""Goal: the verdict names each lie of a coordinator, and believes what is strange but allowed.

Method: the clients of the real test call three applications on one store in memory, without a network. What each of
them has of that store keeps its promises, except for one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from coordinator.service import CoordinatorService
from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.store import INDEXES
from metastore.types import Applied, Batch, Record, Snapshot
from tests.coordinator.linearizability.run import COORDINATORS, Deployment, run
from tests.coordinator.linearizability.verdict import STORE_AWAY, faults
from tests.coordinator.stores import ShuffledStore
from tests.histories.calls import Call, Outcome

ANSWERS = 1_000


class _Strange(ShuffledStore):
    """Does something strange to one call of ten."""

    def __init__(self, truth: MetadataStore, seed: int) -> None:
        super().__init__(truth, seed)
        self._dice = random.Random(seed)

    def _now(self) -> bool:
        return self._dice.random() < 0.1


class Honest(_Strange):
    """Nothing is strange."""


class LosesReplies(_Strange):
    """An unknown apply may have taken effect."""

    async def apply(self, batch: Batch) -> Applied:
        applied = await super().apply(batch)
        if self._now():
            raise OutcomeUnknown("by the test")
        return applied


class LosesRequests(_Strange):
    """An unknown apply may never take effect."""

    async def apply(self, batch: Batch) -> Applied:
        if self._now():
            raise OutcomeUnknown("by the test")
        return await super().apply(batch)


class AppliesLate(_Strange):
    """An unknown apply may take effect at any time."""

    async def apply(self, batch: Batch) -> Applied:
        if not self._now():
            return await super().apply(batch)
        asyncio.get_running_loop().call_later(self._dice.random() / 100, self._late, batch)
        raise OutcomeUnknown("by the test")

    def _late(self, batch: Batch) -> None:
        self._applying = asyncio.gather(super().apply(batch), return_exceptions=True)


class AnswersBeforeTheApply(AppliesLate):
    async def apply(self, batch: Batch) -> Applied:
        try:
            return await super().apply(batch)
        except OutcomeUnknown:
            return Applied(1)


class ReadsFromACache(_Strange):
    def __init__(self, truth: MetadataStore, seed: int) -> None:
        super().__init__(truth, seed)
        self._cache: dict[str, Record | None] = {}

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        now = await super().get_many(wanted)
        old = {key: self._cache.get(key, record) for key, record in now.records.items()}
        self._cache |= now.records
        return Snapshot(old if self._now() else now.records, now.revision)


class RefusesWhatItApplied(_Strange):
    async def apply(self, batch: Batch) -> Applied:
        applied = await super().apply(batch)
        if self._now():
            raise StoreUnavailable("by the test")
        return applied


class IgnoresChecks(_Strange):
    async def apply(self, batch: Batch) -> Applied:
        if self._now():
            batch.checks.clear()
        return await super().apply(batch)


class Forgets(_Strange):
    """To write the records under `prefix`, when there are others to write."""

    prefix = ""

    async def apply(self, batch: Batch) -> Applied:
        if self._now() and len(batch.puts) > 1:
            for key in [key for key in batch.puts if key.startswith(self.prefix)]:
                del batch.puts[key]
        return await super().apply(batch)


class ForgetsKeys(Forgets):
    prefix = paths.TRANSACTION_KEYS


class ForgetsHeaders(Forgets):
    prefix = paths.HEADERS


LOSING = [LosesReplies, LosesRequests, AppliesLate]
ALWAYS_AWAY = Call("nemesis", {"verb": STORE_AWAY}, Outcome.UNKNOWN, 0, 0)


async def judge(view: type[_Strange], path: Path) -> Iterator[tuple[str, str]]:
    truth = MemoryStore(INDEXES)
    services = [CoordinatorService(view(truth, seed)) for seed in range(COORDINATORS)]
    urls = [f"http://coordinator-{number}" for number in range(COORDINATORS)]
    mounts = {
        url: httpx.ASGITransport(app=service.app, raise_app_exceptions=False)
        for url, service in zip(urls, services, strict=True)
    }
    async with httpx.AsyncClient(mounts=mounts, timeout=60, verify=False) as http:
        calls = await run(Deployment(http, urls), path, answers=ANSWERS)
    await truth.close()
    return faults([ALWAYS_AWAY, *calls] if view in LOSING else calls)


@pytest.mark.parametrize("view", [Honest, *LOSING])
async def test_what_is_allowed_is_believed(view: type[_Strange], tmp_path: Path) -> None:
    assert list(await judge(view, tmp_path / "history.jsonl")) == []


LIES = [AnswersBeforeTheApply, ReadsFromACache, RefusesWhatItApplied, IgnoresChecks, ForgetsKeys, ForgetsHeaders]


@pytest.mark.parametrize("view", LIES)
async def test_each_lie_is_found(view: type[_Strange], tmp_path: Path) -> None:
    assert any(what.endswith("is not linearizable") for what, _ in await judge(view, tmp_path / "history.jsonl"))
