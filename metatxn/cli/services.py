"""Running the servers: one process and one event loop, until Ctrl-C or SIGTERM.

The client library never imports the servers. The servers and the store are loaded through the entry points of
`metatxn.services`.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import structlog

from metatxn.cli.options import CliError

_TAKEN = "the data directory {} is in use by another process. Stop that process, or give another --data-dir."
_CHECK_STORE = "Check that it exists and can be reached, or give another --store."

log = structlog.get_logger()


EXTRAS = {"kafka": "gateways", "pulsar": "gateways"}
"""The extras with what a component needs, other than `server`."""


class ServerProcess(Protocol):
    @property
    def url(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


BeforeStop = Callable[[], Awaitable[None]]


class DrainedProcess(ServerProcess, Protocol):
    async def before_stop(self) -> None: ...


class Store(Protocol):
    async def close(self) -> None: ...


def load(name: str) -> Any:
    """Load the entry point `name` of `metatxn.services`."""
    for entry_point in entry_points(group="metatxn.services", name=name):
        try:
            with _without_collector():
                return entry_point.load()
        except ModuleNotFoundError as error:
            raise CliError(
                f"this command needs {error.name}, which is part of the server and is not installed. "
                f"Install it with `pip install 'metatxn[{EXTRAS.get(name, 'server')}]'`."
            ) from error
    raise CliError(f"the component {name!r} of the server is not installed. Install the package metatxn again.")


@contextmanager
def _without_collector() -> Iterator[None]:
    """Importing makes objects that stay, so garbage collection takes a fifth of the time and frees none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def connect_store(url: str, data_dir: Path | None = None, *, to_read: bool = False) -> Store:
    """Open a store. `data_dir` contains it if none was named by `--store`. With `to_read` nothing is changed, and
    another process may serve the store meanwhile."""
    try:
        opener: Callable[[str], Awaitable[Store]] = load("open_store_to_read" if to_read else "open_store")
        return await opener(url)
    except CliError:
        raise
    except ValueError as error:
        raise CliError(
            f"--store: {_sentence(error)} Give the URL of a store in one of the forms that --help shows."
        ) from error
    except Exception as error:
        log.debug("the store could not be opened", exc_info=error)
        if data_dir and _in_use(error):
            raise CliError(_TAKEN.format(data_dir)) from error
        if _in_use(error):
            raise CliError(f"--store: {_sentence(error)}") from error  # the error says what to do
        raise CliError(f"cannot open the store {url}: {_sentence(error)} {_CHECK_STORE}") from error


async def store_if_there(url: str) -> Store | None:
    """The store, opened only to read; None if there is no store at this place yet."""
    try:
        return await connect_store(url, to_read=True)
    except CliError as error:
        if type(error.__cause__).__name__ == "StoreMissing":
            return None
        raise


async def start(service: ServerProcess, name: str, port_option: str, port: int, data_dir: Path | None = None) -> None:
    try:
        await service.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CliError(
                f"port {port} is in use. Stop the process that listens there, or change {port_option}."
            ) from error
        raise CliError(f"the {name} cannot start: {error}. Check --host, {port_option} and --data-dir.") from error
    except Exception as error:
        log.debug("a service could not start", service=name, exc_info=error)
        if data_dir and _in_use(error):
            raise CliError(_TAKEN.format(data_dir)) from error
        action = "Check the store and --data-dir" if data_dir else "Check the store"
        raise CliError(
            f"the {name} cannot start: {_sentence(error)} {action}; --log-level debug shows more."
        ) from error


def _in_use(error: Exception) -> bool:
    """Whether something is in use, by the name of its class: the client's package does not know servers' classes."""
    return type(error).__name__ in ("StoreInUse", "StorageLocked")


def _sentence(error: Exception) -> str:
    text = str(error) or "no reason was given"
    return text if text.endswith((".", "?", "!")) else f"{text}."


async def until_stopped(run: Callable[[AsyncExitStack], Awaitable[BeforeStop | None]]) -> None:
    """Start what `run` starts, wait for a signal, and stop it all in reverse order. A signal during the start ends that
    too. What `run` returns is done before anything is stopped; another signal ends it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        starting = asyncio.ensure_future(run(stack))
        stopped = asyncio.create_task(stop.wait())
        stack.callback(stopped.cancel)
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            before_stop = starting.result()
            tune_interpreter()
            await stopped
            if before_stop is not None:
                await _unless_hurried(before_stop, stop)
        else:
            starting.cancel()
            await asyncio.wait([starting])


async def _unless_hurried(before_stop: BeforeStop, stop: asyncio.Event) -> None:
    stop.clear()
    doing, hurried = asyncio.ensure_future(before_stop()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([doing, hurried], return_when=asyncio.FIRST_COMPLETED)
    finally:
        doing.cancel()
        hurried.cancel()
        await asyncio.wait([doing, hurried])


SWITCH_INTERVAL_S = 0.0005
YOUNG_OBJECTS = 50_000
REUSED_BYTES = 8 << 20
"""Blocks larger than this are returned to the system when they are freed."""
KEPT_BYTES = 32 << 20
"""The most free memory that is kept. Each thread that reads has memory of its own."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def tune_interpreter() -> None:
    """Tune the interpreter for a process that serves from now on.

    Search for reference cycles rarely, and never among the objects that exist already. Requests in progress are
    thousands of objects that outlive the collector's first two generations (700 and 7,000 objects) and are freed by
    their reference counts soon after. Counted as old objects, they would cause one full collection after another, each
    over all modules: up to half of the time of a request.

    Let other threads in soon. A thread that has sent, received or synced waits for the event loop's thread for up to a
    switch interval each time: with the default of 5 ms, that is longer than a group of writes takes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Reuse the memory of one answer for the next one.

    glibc returns blocks of this size to the kernel as soon as they are freed, and the kernel zeroes their pages for the
    next answer, one page fault after another. That takes longer than reading and checking a megabyte.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it; elsewhere nothing is wrong, only slower
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, REUSED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run the loop on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
