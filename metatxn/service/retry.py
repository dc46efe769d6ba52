"""Work that must be done: it is repeated, with jittered back-off, until it succeeds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

WAIT = wait_random_exponential(multiplier=0.05, min=0.01, max=5.0)
"""In seconds: a random part of 0.05, 0.1, 0.2, … up to 5, so that workers that failed together do not retry
together."""


async def until_it_succeeds(
    work: Callable[[], Awaitable[None]],
    retry_on: type[Exception] | tuple[type[Exception], ...],
    report: Callable[[BaseException | None], None] = lambda _: None,
) -> None:
    """Await `work()` until it ends without one of `retry_on`; other exceptions are raised. `report` is called for each
    failure."""
    try:
        await work()
    except retry_on as error:
        await _go_on(error, work, retry_on, report)


async def _go_on(
    failed: Exception,
    work: Callable[[], Awaitable[None]],
    retry_on: type[Exception] | tuple[type[Exception], ...],
    report: Callable[[BaseException | None], None],
) -> None:
    """Continue after the first attempt, whose result is `failed`. The first attempt is made without the library, whose
    objects are three dozen, and a cycle: as garbage of every transaction they would make a broker's memory grow."""

    def before_sleep(state: RetryCallState) -> None:
        report(state.outcome.exception() if state.outcome else None)

    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(retry_on),
        wait=WAIT,
        before_sleep=before_sleep,
        reraise=True,
    ):
        with attempt:
            if attempt.retry_state.attempt_number == 1:
                raise failed
            await work()
