"""Work that runs beside the calls: its failure must not go unnoticed, and it must not retry without a pause."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine


def in_background(
    work: Coroutine[object, object, None], name: str, loop: asyncio.AbstractEventLoop | None = None
) -> asyncio.Task[None]:
    """A task for work that ends when it is cancelled. Its closer collects its exceptions, and may never do so.

    So an exception, which can only be a bug, goes to the event loop's exception handler at once: by default that is an
    error in the log, with the traceback. A caller who knows the running `loop` saves the system call that looks for it.
    """
    task = (loop or asyncio.get_running_loop()).create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        context = {"message": f"{task.get_name()} has died", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)


class Backoff:
    """Growing, jittered pauses between attempts, so that clients which failed together do not return together."""

    def __init__(self, first_s: float = 0.02, longest_s: float = 1.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.next_s = first_s

    async def pause(self) -> None:
        await asyncio.sleep(self.next_s * random.uniform(0.5, 1.0))
        self.next_s = min(self.next_s * 2, self._longest_s)

    def reset(self) -> None:
        self.next_s = self._first_s
