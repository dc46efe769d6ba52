"""Goal: the future of a message that a blocking producer sends is a future like any other, whenever it is first used.

Method: each use of a future before, while and after it ends, beside one of Python's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, as_completed, wait
from itertools import count

import pytest

from metatxn.sync.producer import Sent
from metatxn.wire.errors import NotFound

GONE = NotFound("gone")
USES: dict[str, Callable[[Future[str]], object]] = {
    "result": lambda future: future.result(10),
    "exception": lambda future: future.exception(10),
    "wait": lambda future: len(wait([future], 10).done),
    "as completed": lambda future: len(list(as_completed([future], 10))),
    "callback": lambda future: called_back(future),
    "asyncio": lambda future: asyncio.run(wrapped(future)),
}


def called_back(future: Future[str]) -> bool:
    called = threading.Event()
    future.add_done_callback(lambda _: called.set())
    return called.wait(10) and future.done()


async def wrapped(future: Future[str]) -> str:
    return await asyncio.wrap_future(future)


def outcome(use: Callable[[Future[str]], object], future: Future[str]) -> object:
    try:
        return use(future)
    except NotFound as error:
        return error


def end(future: Future[str], error: NotFound | None) -> None:
    if error is None:
        future.set_result("position")
    else:
        future.set_exception(error)


@pytest.mark.parametrize("error", [None, GONE], ids=["durable", "failed"])
@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("when", ["before", "after", "used before", "used again"])
def test_it_ends_as_any_other(name: str, when: str, error: NotFound | None) -> None:
    told = []
    for future in (Future[str](), Sent()):
        if when.startswith("used"):
            assert not future.done()
        ending = threading.Thread(target=end, args=(future, error))
        if when == "before":
            found: list[object] = []
            using = threading.Thread(target=lambda: found.append(outcome(USES[name], future)))  # noqa: B023  joined here
            using.start()
            ending.start()
            using.join()
            told.append(found)
        else:
            ending.start()
            ending.join()
            told.append([outcome(USES[name], future) for _ in range(2 if when == "used again" else 1)])
        ending.join()
    assert told[0] == told[1]


def test_it_is_told_once_if_it_is_first_used_while_it_ends() -> None:
    """Both orders of every step come up, because the threads take turns at random places."""
    turns = threading.Barrier(2)
    futures = [Sent() for _ in range(2_000)]

    def end_all() -> None:
        for future, number in zip(futures, count(), strict=False):
            turns.wait()
            future.set_result(str(number))

    ending = threading.Thread(target=end_all)
    ending.start()
    found, calls = [], [0] * len(futures)
    for future, number in zip(futures, count(), strict=False):
        turns.wait()
        future.add_done_callback(lambda _, number=number: calls.__setitem__(number, calls[number] + 1))  # type: ignore[misc]
        found.append(future.result(10))
    ending.join()
    assert found == [str(number) for number in range(len(futures))]
    assert calls == [1] * len(futures)


def test_nothing_is_made_for_a_future_that_nobody_looks_at() -> None:
    future = Sent()
    future.set_result("position")
    assert set(vars(future)) == {"_outcome"}


def test_a_message_that_was_sent_cannot_be_withdrawn() -> None:
    future = Sent()
    assert not future.cancel()
    assert not future.cancelled()
    assert not future.done()
    with pytest.raises(TimeoutError):
        future.result(0)
    with pytest.raises(AttributeError):
        future.nonsense  # noqa: B018
    assert "pending" in repr(future)
