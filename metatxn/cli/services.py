"""Running the servers: one process, one event loop, until Ctrl-C or SIGTERM.

The client library never imports the servers. They and the store are found as entry points of `metatxn.services`.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import structlog

from metatxn.cli.options import CliError

_TAKEN = "the data directory {} is in use by another process. Stop that process, or give another --data-dir."
_CHECK_STORE = "Check that it is there and can be reached, or give another --store."

log = structlog.get_logger()


class Service(Protocol):
    @property
    def url(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Store(Protocol):
    async def close(self) -> None: ...


def load(name: str) -> Any:
    """The entry point `name` of `metatxn.services`."""
    for entry_point in entry_points(group="metatxn.services", name=name):
        try:
            return entry_point.load()
        except ModuleNotFoundError as error:
            raise CliError(
                f"this command needs {error.name}, which belongs to the server and is not installed. "
                "Install it with `pip install 'metatxn[server]'`."
            ) from error
    raise CliError(f"the server part {name!r} is not installed. Install the package metatxn again.")


async def open_store(url: str, data_dir: Path | None = None, *, to_read: bool = False) -> Store:
    """`data_dir` is where the store lies when nobody has named one by `--store`. With `to_read` nothing is changed,
    and another process may serve it."""
    try:
        opener: Callable[[str], Awaitable[Store]] = load("open_store_to_read" if to_read else "open_store")
        return await opener(url)
    except CliError:
        raise
    except ValueError as error:
        raise CliError(
            f"--store: {_sentence(error)} Give the URL of a store in one of its forms, see --help."
        ) from error
    except Exception as error:
        log.debug("the store did not open", exc_info=error)
        if data_dir and _in_use(error):
            raise CliError(_TAKEN.format(data_dir)) from error
        if _in_use(error):
            raise CliError(f"--store: {_sentence(error)}") from error  # it says what to do
        raise CliError(f"cannot open the store {url}: {_sentence(error)} {_CHECK_STORE}") from error


async def start(service: Service, name: str, port_option: str, port: int, data_dir: Path | None = None) -> None:
    try:
        await service.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CliError(f"port {port} is in use. Stop what listens there, or change {port_option}.") from error
        raise CliError(f"the {name} cannot start: {error}. Check --host, {port_option} and --data-dir.") from error
    except Exception as error:
        log.debug("a service did not start", service=name, exc_info=error)
        if data_dir and _in_use(error):
            raise CliError(_TAKEN.format(data_dir)) from error
        action = "Check the store and --data-dir" if data_dir else "Check the store"
        raise CliError(f"the {name} cannot start: {_sentence(error)} {action}; --log-level debug says more.") from error


def _in_use(error: Exception) -> bool:
    """By name: the client's package does not know the classes of the servers."""
    return type(error).__name__ in ("StoreInUse", "StorageLocked")


def _sentence(error: Exception) -> str:
    text = str(error) or "no reason was given"
    return text if text.endswith((".", "?", "!")) else f"{text}."


async def until_stopped(run: Callable[[AsyncExitStack], Awaitable[None]]) -> None:
    """Start what `run` starts, wait for a signal, and stop it in the reverse order. A signal ends the start too."""
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
            starting.result()
            tune_interpreter()
            await stopped
        else:
            starting.cancel()
            await asyncio.wait([starting])


SWITCH_INTERVAL_S = 0.0005
YOUNG_OBJECTS = 50_000
REUSED_BYTES = 8 << 20
"""Larger blocks are given back when they are freed."""
KEPT_BYTES = 32 << 20
"""What is kept at most of what is free; each thread that reads has memory of its own."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def tune_interpreter() -> None:
    """For a process that serves from now on.

    Look for cycles rarely, and never in what is there already. Requests under way are thousands of objects that outlive
    the collector's first two looks (700 and 7,000 objects apart) and are freed by their reference counts soon after. As
    old ones they bring about full collections, again and again, each over all modules: up to half of the time of a
    request.

    Let other threads in soon. One that has sent, received or synced waits for the event loop's thread up to a switch
    interval, each time: at the usual 5 ms, longer than a group of writes takes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Use the memory of one answer for the next one.

    glibc gives blocks of this size back to the kernel as soon as they are freed, and the kernel zeroes their pages for
    the next answer, one fault after another: that takes longer than to read a megabyte and to check it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it; without it nothing is wrong, only slower
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, REUSED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
