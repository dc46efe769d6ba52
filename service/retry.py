"""Work that must get done: again and again, with jittered back-off, until it succeeds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter


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
        wait=wait_exponential_jitter(initial=0.05, max=5.0),
        before_sleep=before_sleep,
        reraise=True,
    ):
        with attempt:
            await work()
