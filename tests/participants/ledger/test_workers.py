"""Goal: calls that begin together share threads, and each has its own outcome.

Method: an executor that runs everything in place, and notes how many calls it was given at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from participants.ledger.storage import LedgerStopped
from participants.ledger.workers import CALLS_AT_ONCE, Workers

THREADS = 3


class Noting(Executor):
    def __init__(self) -> None:
        self.parts: list[int] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        self.parts.append(len(args[0]))
        done: Future[Any] = Future()
        done.set_result(call(*args))
        return done


@pytest.fixture
def executor() -> Noting:
    return Noting()


@pytest.fixture
def workers(executor: Noting) -> Workers:
    return Workers(executor, THREADS)


@pytest.mark.parametrize(
    ("count", "parts"),
    [
        (1, [1]),
        (THREADS, [1, 1, 1]),
        (10, [4, 4, 2]),
        (100, [CALLS_AT_ONCE] * 12 + [4]),
    ],
)
async def test_calls_of_one_step_share_threads(
    workers: Workers, executor: Noting, count: int, parts: list[int]
) -> None:
    begun = [workers.begin_with_others(lambda number: number + 1, number) for number in range(count)]
    assert await asyncio.gather(*begun) == list(range(1, count + 1))
    assert executor.parts == parts
    await workers.close()


async def test_calls_of_several_steps_do_not_wait_for_each_other(workers: Workers, executor: Noting) -> None:
    for number in range(2):
        assert await workers.begin_with_others(lambda number: number, number) == number
    assert executor.parts == [1, 1]


async def test_each_call_has_its_own_error(workers: Workers) -> None:
    def call(number: int) -> int:
        if number % 2:
            raise OSError(number, "odd")
        return number

    begun = [workers.begin_with_others(call, number) for number in range(100)]
    outcomes = await asyncio.gather(*begun, return_exceptions=True)
    assert [each if isinstance(each, int) else each.args[0] for each in outcomes] == list(range(100))
    assert sum(isinstance(each, OSError) for each in outcomes) == 50


async def test_close_waits_for_what_has_not_been_handed_over(workers: Workers) -> None:
    called: list[int] = []
    begun = workers.begin_with_others(called.append, 1)
    await workers.close()
    assert called == [1] and begun.done()
    with pytest.raises(LedgerStopped):
        workers.begin_with_others(called.append, 2)


async def test_a_call_that_nobody_waits_for_holds_up_no_other(workers: Workers) -> None:
    begun = [workers.begin_with_others(lambda number: number, number) for number in range(10)]
    begun[0].cancel()
    assert await asyncio.gather(*begun[1:]) == list(range(1, 10))
    await workers.close()


async def test_calls_that_get_no_thread_fail(
    workers: Workers, executor: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(executor, "submit", refuse)
    begun = [workers.begin_with_others(print) for _ in range(10)]
    outcomes = await asyncio.gather(*begun, return_exceptions=True)
    assert {str(each) for each in outcomes} == {"can't start new thread"}
    await workers.close()


async def test_whatever_ends_a_thread_is_told(
    workers: Workers, executor: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> Future[Any]:
        ended: Future[Any] = Future()
        ended.set_exception(KeyboardInterrupt("in a thread"))
        return ended

    monkeypatch.setattr(executor, "submit", die)
    begun = [workers.begin_with_others(print) for _ in range(10)]
    await asyncio.wait(begun)
    assert {str(each.exception()) for each in begun} == {"in a thread"}
    await workers.close()
