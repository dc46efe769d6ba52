"""An event loop in a thread, and functions that make blocking methods out of coroutine methods.

    any thread                              the loop's thread
    client.topic("t") ── run ─────────────▶ AsyncClient.topic("t")
                      ◀── Future.result ───

In code:

    class Client(Facade[AsyncClient]):
        topic = blocking(AsyncClient.topic)               # the same parameters, result and docstring
        attach = making(AsyncClient.attach, Transaction)  # an object to be wrapped as well
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import re
import threading
import types
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from metatxn.paging import Paged
from metatxn.wire.errors import InvalidArgument, MetatxnError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", covariant=True)
F = TypeVar("F")
LOOKS_AGAIN_S = 1.0
"""A waiting thread notices Ctrl-C after this time at the latest."""


class Background:
    """The loop and its thread, started when they are first needed. They end with `close`, or when this object is no
    longer referenced: `closing` is then awaited on the loop, and must not refer back to this object."""

    def __init__(self, closing: Callable[[], Awaitable[None]]) -> None:
        self._closing = closing
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None
        self._closed = False

    @property
    def running(self) -> bool:
        """Whether there is something to close."""
        return self._thread is not None and self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """The result of `work`, or its exception. An interrupt of the waiting thread (Ctrl-C) cancels `work`, and is
        raised when that has cleaned up."""
        outcome: concurrent.futures.Future[R] = concurrent.futures.Future()
        task: asyncio.Task[R]

        def start() -> None:
            nonlocal task
            task = asyncio.create_task(work)
            task.add_done_callback(functools.partial(_report, outcome))

        loop: asyncio.AbstractEventLoop | None = None
        try:
            self._check_may_wait()
            loop = self.call_soon(start)
            return _awaited(outcome)
        except BaseException:
            if loop is None:
                work.close()
            elif not outcome.done():
                _call_soon(loop, lambda: task.cancel())
                concurrent.futures.wait([outcome])
            raise

    def call_soon(self, callback: Callable[[], object]) -> asyncio.AbstractEventLoop:
        """Call `callback` on the loop, which is returned. Raises `InvalidArgument` if there is no longer a loop."""
        self._check_loop()  # without the lock, which is never given back if another thread had it at a fork
        # Under the lock, so that a call before a `close` also comes before it on the loop, and is not lost.
        with self._lock:
            self._check_loop()
            loop = self._loop or self._start()
            loop.call_soon_threadsafe(callback)
        return loop

    def _check_loop(self) -> None:
        if self._closed or (self._thread is not None and not self._thread.is_alive()):
            raise InvalidArgument("this client was closed, or was made before a fork", action="Connect again.")

    def _check_may_wait(self) -> None:
        # Not by its number, because a new thread may get the number of one that has ended.
        if threading.current_thread() is self._thread:
            raise InvalidArgument(
                "a callback of the client waits for the client", action="Do it in another thread, or use AsyncClient."
            )

    def _start(self) -> asyncio.AbstractEventLoop:
        started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]
        started = concurrent.futures.Future()
        serving = _serve(started, self._closing)
        thread = threading.Thread(target=_run, args=[serving], name="metatxn", daemon=True)
        thread.start()
        self._thread = thread  # only now, because other threads take one that is not alive for one that has ended
        self._loop, stop = started.result()
        self._stop = functools.partial(_call_soon, self._loop, stop.set)
        # Not at the end of the program: clients that are still open then are closed first, and need the loop for that.
        weakref.finalize(self, self._stop).atexit = False
        return self._loop

    def close(self) -> None:
        """Close. Idempotent."""
        self._check_may_wait()
        with self._lock:
            self._closed = True
        if self._stop is not None and self._thread is not None and self._thread.is_alive():
            self._stop()
            self._thread.join()


def _run(serving: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serving)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop if that is installed; the extra `server` includes it."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]],
    closing: Callable[[], Awaitable[None]],
) -> None:
    stop = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), stop))
    await stop.wait()
    await closing()


def _awaited(outcome: concurrent.futures.Future[R]) -> R:
    """Wait for the result. A signal that arrives just before this thread begins to sleep does not wake it, so it checks
    again from time to time."""
    while True:
        try:
            return outcome.result(LOOKS_AGAIN_S)
        except TimeoutError:
            if outcome.done():
                return outcome.result()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(callback)


def _report(outcome: concurrent.futures.Future[R], task: asyncio.Task[R]) -> None:
    if task.cancelled():
        outcome.set_exception(MetatxnError("this client was closed meanwhile", definite=False))
    elif (failure := task.exception()) is not None:
        outcome.set_exception(failure)
    else:
        outcome.set_result(task.result())


class Facade(Generic[C]):
    """An object for any thread; `_core` lives on the loop of `_background`. Leaving its `with` leaves the core's `async
    with`."""

    def __init_subclass__(cls) -> None:
        for name, member in vars(cls).items():
            here = f"{cls.__qualname__}.{name}"
            if isinstance(member, types.FunctionType) and member.__qualname__ != here:
                _present(member, here, cls.__module__)

    def __init__(self, core: C, background: Background) -> None:
        self._core = core
        self._background = background

    def __repr__(self) -> str:
        return repr(self._core).replace("Async", "", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._background.run(self._core.__aexit__(kind, error, at))  # type: ignore[attr-defined]


def _present(method: types.FunctionType, name: str, module: str) -> None:
    """Present a method as one of the blocking class, so that help, signatures and documentation speak of blocking
    classes."""
    wrapped = inspect.signature(method)
    method.__qualname__, method.__name__, method.__module__ = name, name.rpartition(".")[2], module
    method.__doc__ = _blocking_words(inspect.getdoc(method) or "")
    returned = _blocking_words(str(wrapped.return_annotation))
    method.__annotations__ = method.__annotations__ | {"return": returned}
    method.__signature__ = wrapped.replace(return_annotation=returned)  # type: ignore[attr-defined]


def _blocking_words(text: str) -> str:
    """The text for blocking classes: `AsyncConsumer` is `Consumer`, `async with` is `with`, a paged result an
    iterator."""
    return re.sub(r"\bAsync(?=[A-Z])|\basync (?=with\b|for\b)", "", text).replace("Paged[", "Iterator[")


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[C], P], R]:
    @functools.wraps(method)
    def call(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._background.run(method(self._core, *args, **kwargs))

    return call


def making(
    method: Callable[Concatenate[C, P], R], kind: Callable[[R, Background], F]
) -> Callable[Concatenate[Facade[C], P], F]:
    """A blocking method for one that makes an object at once, whose facade is a `kind`."""

    @functools.wraps(method)
    def call(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> F:
        return kind(method(self._core, *args, **kwargs), self._background)

    return call


def blocking_making(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], kind: Callable[[R, Background], F]
) -> Callable[Concatenate[Facade[C], P], F]:
    """Both `blocking` and `making`."""
    wait = blocking(method)

    @functools.wraps(method)
    def call(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> F:
        return kind(wait(self, *args, **kwargs), self._background)

    return call


def iterating(method: Callable[Concatenate[C, P], Paged[R]]) -> Callable[Concatenate[Facade[C], P], Iterator[R]]:
    @functools.wraps(method)
    def call(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return items_of(method(self._core, *args, **kwargs), self._background)

    return call


def items_of(paged: Paged[R], background: Background) -> Iterator[R]:
    """Like `Paged.__aiter__`, but the loop is asked for pages instead of items."""
    while (items := background.run(paged.page())) is not None:
        yield from items
        paged.passed()
