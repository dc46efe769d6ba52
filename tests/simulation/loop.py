"""The event loop of a simulation: virtual time, no I/O, and an order of callbacks that a seed decides.

Time stands still while anything is ready to run and then jumps to the next timer, so a simulated minute costs what its
callbacks cost. Of the callbacks that are ready one is drawn: asyncio promises the order in which they were scheduled,
and code may rely on it for callbacks of one step, so a seed decides how far from the front the draw may reach.

The same seed makes the same draws. What could differ between two runs is taken away here: tasks and futures hash by
their number and not by their address, so that a set of them is walked in the same order; threads are callbacks.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from random import Random
from typing import Any, TypeVar

from tests.simulation.processes import CURRENT, Died, Process

T = TypeVar("T")


class Stuck(Exception):
    """Nothing is ready and no timer runs: anyone who is awaited will never answer."""


class _Numbered:
    """Hashes by a number of the loop: an address would differ from run to run."""

    number: int

    def __hash__(self) -> int:
        return self.number


class SimulationFuture(_Numbered, asyncio.Future[T]):
    pass


class SimulationTask(_Numbered, asyncio.Task[T]):
    process: Process | None
    _log_destroy_pending: bool


class SimulationLoop(asyncio.BaseEventLoop):
    """`reach`: among how many of the callbacks in front one is drawn; 1 is asyncio's own order.

    `thread_delay_s` is how long a blocking call waits before it runs, and again before its caller hears of it.
    """

    _ready: deque[Any]
    _scheduled: list[tuple[float, asyncio.TimerHandle]]
    _stopping: bool

    def __init__(self, random: Random, reach: int, thread_delay_s: Callable[[], float]) -> None:
        super().__init__()
        self._random = random
        self._reach = reach
        self._thread_delay_s = thread_delay_s
        self._now = 0.0
        self._numbers = 0
        self._graveyard: list[SimulationTask[Any]] = []
        self.steps = 0
        self.set_task_factory(_new_task)

    def time(self) -> float:
        return self._now

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def create_future(self) -> asyncio.Future[Any]:
        future: SimulationFuture[Any] = SimulationFuture(loop=self)
        future.number = self.next_number()
        return future

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, call: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a blocking call in one piece, some time from now, as a part of the process that asks for it."""
        future = self.create_future()

        def run() -> None:
            try:
                result, error = call(*args), None
            except Died:
                return
            except Exception as raised:  # noqa: BLE001 - the one who waits hears of it
                result, error = None, raised
            self.call_later(self._thread_delay_s(), _resolve, future, result, error)

        self.call_later(self._thread_delay_s(), run)
        return future

    def call_at(  # type: ignore[override]
        self, when: float, call: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, call, args, self, context)
        heapq.heappush(self._scheduled, (when, timer))  # numbers are compared faster than timers
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, call: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, call, *args, context=context)

    # -- one step ----------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Not one step but all of them, until somebody stops the loop: each is a few microseconds."""
        ready, reach, random = self._ready, self._reach, self._random.random
        while not self._stopping:
            if not ready:
                self._advance()
            if reach == 1:
                handle = ready.popleft()
            else:
                place = int(random() * min(len(ready), reach))
                handle = ready[place]
                del ready[place]
            if handle._cancelled:
                continue
            process = handle._context.get(CURRENT)
            if process is not None:
                if not process.alive:
                    continue
                if process.frozen:
                    process.parked.append(handle)
                    continue
            self.steps += 1
            handle._run()

    def _advance(self) -> None:
        """Jump to the next timer and make all that are due then ready. Raises `Stuck`."""
        timers = self._scheduled
        while timers and timers[0][1]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Stuck("nothing is ready and no timer runs")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[1])

    def thaw(self, process: Process) -> None:
        """Let a frozen process go on with all that has piled up."""
        self._ready.extend(process.thaw())

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a `select`."""

    def bury(self, process: Process) -> None:
        """Keep what a dead process was doing: collected, its tasks would run their `finally`."""
        for task in asyncio.all_tasks(self):
            assert isinstance(task, SimulationTask)
            if task.process is process:
                self._graveyard.append(task)

    # -- the end of a seed -------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Close what never ended: tasks of dead processes, servers, anyone who still waits. Nothing of it runs
        again."""
        # A `finally` that asks for a loop gets none: where none has been yet, asyncio makes one, which nobody closes.
        asyncio.set_event_loop(None)
        self._ready.clear()
        self._scheduled.clear()
        for task in sorted(asyncio.all_tasks(self), key=hash):
            assert isinstance(task, SimulationTask)
            task._log_destroy_pending = False
            try:
                coroutine = task.get_coro()
                assert isinstance(coroutine, Generator) or hasattr(coroutine, "close")
                coroutine.close()
            except BaseException:  # noqa: BLE001, S110 - a `finally` that wants to await
                pass
        self._graveyard.clear()
        self._ready.clear()
        self._scheduled.clear()


def _new_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, *, context: Context | None = None, **options: Any
) -> asyncio.Task[Any]:
    assert isinstance(loop, SimulationLoop)
    task: SimulationTask[Any] = SimulationTask.__new__(SimulationTask)
    task.number = loop.next_number()  # before asyncio puts it into a set of its own
    context = context if context is not None else copy_context()
    task.process = context.get(CURRENT)
    task.__init__(coroutine, loop=loop, context=context, **options)  # type: ignore[misc]
    return task


def _resolve(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
