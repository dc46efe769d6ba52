"""Goal: work that fails is done again until it succeeds, each failure is heard of, and success leaves nothing behind.

Method: work that fails a given number of times; the garbage collector counts what only it could free.
"""

from __future__ import annotations

import gc

import pytest

from metastore.background import Backoff
from metatxn.service.retry import until_it_succeeds


class Failing:
    def __init__(self, *failures: Exception) -> None:
        self.left = list(failures)
        self.attempts = 0
        self.heard: list[Exception] = []

    async def work(self) -> int:
        """Returns how often it was attempted."""
        self.attempts += 1
        if self.left:
            raise self.left.pop(0)
        return self.attempts


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metatxn.service.retry.backoff", lambda: Backoff(first_s=0.001, longest_s=0.001))


@pytest.mark.parametrize("times", [0, 1, 2, 5])
async def test_each_failure_is_followed_by_one_more_attempt(times: int) -> None:
    failures = [OSError(number) for number in range(times)]
    failing = Failing(*failures)
    assert await until_it_succeeds(failing.work, OSError, failing.heard.append) == times + 1
    assert failing.heard == failures


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_any_other_exception_passes(before: int) -> None:
    failing = Failing(*[OSError()] * before, ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        await until_it_succeeds(failing.work, OSError, failing.heard.append)
    assert (failing.attempts, len(failing.heard)) == (before + 1, before)


async def test_success_leaves_nothing_to_collect() -> None:
    """Done for every transaction: what waits for the collector then is what a process grows by."""
    failing = Failing()
    await until_it_succeeds(failing.work, OSError)
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            await until_it_succeeds(failing.work, OSError)
        assert gc.collect() < 100
    finally:
        gc.enable()
