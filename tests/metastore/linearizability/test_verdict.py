"""Goal: the verdict names each lie of a store, and believes what is strange but allowed.

Method: the clients of the real tests work on a store in memory that keeps its promises, except for one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.errors import CheckFailed, OutcomeUnknown, StoreUnavailable
from metastore.types import Absent, Applied, AtVersion, Batch, EmptyRange, Record, Snapshot
from tests.metastore.linearizability.deployments import Deployment
from tests.metastore.linearizability.run import run
from tests.metastore.linearizability.verdict import verdict

CLIENTS = 10


class _Strange(MemoryStore):
    """Does something strange to one call of ten."""

    def __init__(self) -> None:
        super().__init__()
        self._dice = random.Random(1)

    def _now(self) -> bool:
        return self._dice.random() < 0.1


class HonestStore(_Strange):
    """Nothing is strange."""


class AppliesLate(_Strange):
    """An unknown apply may take effect at any time."""

    async def apply(self, batch: Batch) -> Applied:
        if not self._now():
            return await super().apply(batch)
        asyncio.get_running_loop().call_later(self._dice.random() / 100, self._late, batch)
        raise OutcomeUnknown("by the test")

    def _late(self, batch: Batch) -> None:
        self._applying = asyncio.gather(super().apply(batch), return_exceptions=True)


class NeverApplies(_Strange):
    """An unknown apply may also never take effect."""

    async def apply(self, batch: Batch) -> Applied:
        if self._now():
            raise OutcomeUnknown("by the test")
        return await super().apply(batch)


class RefusesWhatItApplied(_Strange):
    async def apply(self, batch: Batch) -> Applied:
        applied = await super().apply(batch)
        if self._now():
            raise StoreUnavailable("by the test")
        return applied


class LosesWhatItAcknowledged(_Strange):
    async def apply(self, batch: Batch) -> Applied:
        if self._now():
            return Applied(self._revision + 1)
        return await super().apply(batch)


class IgnoresChecks(_Strange):
    async def apply(self, batch: Batch) -> Applied:
        if self._now():
            batch.checks.clear()
        return await super().apply(batch)


class IgnoresChecksOfOthers(_Strange):
    """Of keys that it does not write: write skew."""

    async def apply(self, batch: Batch) -> Applied:
        batch.checks = [
            check for check in batch.checks if not isinstance(check, EmptyRange) and check.key in batch.written()
        ]
        return await super().apply(batch)


class AppliesInTwoSteps(_Strange):
    async def apply(self, batch: Batch) -> Applied:
        later = dict(list(batch.puts.items())[1:])
        for key in later:
            del batch.puts[key]
        applied = await super().apply(batch)
        for key, value in later.items():
            await asyncio.sleep(0)
            applied = await super().apply(self.batch().put(key, value))
        return applied


class ReadsWhatWas(_Strange):
    """As from a follower that lags behind."""

    def __init__(self) -> None:
        super().__init__()
        self._old: dict[str, Record | None] = {}

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        now = await super().get_many(wanted)
        old = {key: self._old.get(key, record) for key, record in now.records.items()}
        self._old |= now.records
        return Snapshot(old if self._now() else now.records, now.revision)


class TellsOldRevisions(_Strange):
    async def apply(self, batch: Batch) -> Applied:
        applied = await super().apply(batch)
        return Applied(applied.revision - 40) if self._now() else applied


class RefusesWithoutReason(_Strange):
    async def apply(self, batch: Batch) -> Applied:
        for check in batch.checks:
            if isinstance(check, AtVersion | Absent) and self._now():
                raise CheckFailed(check, await self.get(check.key), self._revision)
        return await super().apply(batch)


async def judge(store: MetadataStore, path: Path) -> dict[str, str]:
    @asynccontextmanager
    async def again() -> AsyncIterator[MetadataStore]:
        yield store

    return verdict(await run(Deployment(again, [store] * CLIENTS), path, answers=1_500))


@pytest.mark.parametrize("store", [HonestStore, AppliesLate, NeverApplies])
async def test_what_is_allowed_is_believed(store: type[_Strange], tmp_path: Path) -> None:
    assert await judge(store(), tmp_path / "history.jsonl") == {}


LISTS, REGISTER = "lists are not strictly serializable", "is not linearizable"


@pytest.mark.parametrize(
    ("store", "told"),
    [
        (RefusesWhatItApplied, [LISTS, REGISTER]),
        (LosesWhatItAcknowledged, [LISTS, REGISTER]),
        (IgnoresChecks, [LISTS, REGISTER]),
        (IgnoresChecksOfOthers, [LISTS]),
        (AppliesInTwoSteps, [LISTS]),
        (ReadsWhatWas, [LISTS, REGISTER, "a read does not belong to its revision"]),
        (TellsOldRevisions, ["a revision went back", "a version is not that of the value"]),
        (RefusesWithoutReason, ["a check did hold"]),
    ],
)
async def test_each_lie_is_named(store: type[_Strange], told: list[str], tmp_path: Path) -> None:
    wrong = await judge(store(), tmp_path / "history.jsonl")
    for what in told:
        assert any(name.endswith(what) for name in wrong), sorted(wrong)
