"""Work that must be done: it is repeated, with jittered back-off, until it succeeds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from metastore.background import Backoff

T = TypeVar("T")


def backoff() -> Backoff:
    """The pauses between attempts: up to 0.05 s, 0.1 s, 0.2 s, … 5 s."""
    return Backoff(first_s=0.05, longest_s=5.0)


async def until_it_succeeds(
    work: Callable[[], Awaitable[T]],
    retry_on: type[Exception] | tuple[type[Exception], ...],
    report: Callable[[Exception], None] = lambda _: None,
) -> T:
    """Await `work()` until it ends without one of `retry_on`, and return its value; other exceptions are raised.
    `report` is called for each failure."""
    pauses = backoff()
    while True:
        try:
            return await work()
        except retry_on as error:
            report(error)
        await pauses.pause()
