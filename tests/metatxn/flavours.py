"""Both clients through one suite: tests are written for `AsyncClient`, and `Client` is dressed as one.

The dress only moves each call into a thread; which of them are awaited it takes from the asynchronous class.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, cast

import pytest

import metatxn

Connect = Callable[..., metatxn.AsyncClient]
ASYNCHRONOUS: dict[type, type] = {
    metatxn.Client: metatxn.AsyncClient,
    metatxn.Consumer: metatxn.AsyncConsumer,
    metatxn.TopicsConsumer: metatxn.AsyncTopicsConsumer,
    metatxn.Producer: metatxn.AsyncProducer,
    metatxn.Reader: metatxn.AsyncReader,
    metatxn.TableWriter: metatxn.AsyncTableWriter,
    metatxn.Transaction: metatxn.AsyncTransaction,
}
_END = object()


class Dressed:
    """A blocking object that is used like its asynchronous counterpart."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found
        if isinstance(self.inner, metatxn.Client) and name == "transaction":
            return lambda *args, **kwargs: entered(self.begin(*args, **kwargs))

        def call(*args: Any, **kwargs: Any) -> Any:
            return dressed(found(*map(undressed, args), **{key: undressed(value) for key, value in kwargs.items()}))

        if not inspect.iscoroutinefunction(getattr(ASYNCHRONOUS[type(self.inner)], name)):
            return call

        async def in_thread(*args: Any, **kwargs: Any) -> Any:
            result = await asyncio.to_thread(call, *args, **kwargs)
            return waited_for(result) if isinstance(result, Future) else result

        return in_thread

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.inner.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.inner.__exit__, kind, error, at)

    async def __aiter__(self) -> AsyncIterator[Any]:
        items = iter(self.inner)
        while (item := await asyncio.to_thread(next, items, _END)) is not _END:
            yield item


def dressed(result: Any) -> Any:
    return Dressed(result) if type(result) in ASYNCHRONOUS or isinstance(result, Iterator) else result


def undressed(argument: Any) -> Any:
    return argument.inner if isinstance(argument, Dressed) else argument


def waited_for(future: Future[str]) -> asyncio.Future[str]:
    wrapped = asyncio.wrap_future(future)
    wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())
    return wrapped


@contextlib.asynccontextmanager
async def entered(making: Any) -> AsyncIterator[Any]:
    async with await making as made:
        yield made


@pytest.fixture(params=["async", "sync"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """`metatxn.connect_async`, or `metatxn.connect` in its dress."""
    if request.param == "async":
        return metatxn.connect_async
    return lambda *args, **kwargs: cast(metatxn.AsyncClient, Dressed(metatxn.connect(*args, **kwargs)))
