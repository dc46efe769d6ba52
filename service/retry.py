"""Work that must get done: again and again, with jittered back-off, until it succeeds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

WAIT = wait_random_exponential(multiplier=0.05, min=0.01, max=5.0)
"""Seconds: a random part of 0.05, 0.1, 0.2, … up to 5, so that those who failed together do not come back together."""


async def until_it_succeeds(
    work: Callable[[], Awaitable[None]],
    retry_on: type[Exception] | tuple[type[Exception], ...],
    report: Callable[[BaseException | None], None] = lambda _: None,
) -> None:
    """Await `work()` until it ends without `retry_on`; other exceptions pass. `report` hears of each failure."""

    def before_sleep(state: RetryCallState) -> None:
        report(state.outcome.exception() if state.outcome else None)

    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(retry_on),
        wait=WAIT,
        before_sleep=before_sleep,
        reraise=True,
    ):
        with attempt:
            await work()
