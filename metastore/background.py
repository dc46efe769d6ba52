"""Work that goes on beside every call, and must not end unheard."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


def in_background(work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
    """A task for work that ends when it is cancelled. Whoever closes it gathers its exceptions, and may never ask.

    So an exception, which can only be a bug, goes to the event loop's exception handler at once: by default that is
    an error in the log, with the traceback.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        context = {"message": f"{task.get_name()} has died", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
