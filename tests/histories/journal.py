"""The lines of all who record a history, in one file, for anyone who waits for something in them."""

from __future__ import annotations

import asyncio
import json
from typing import IO

from tests.histories.calls import Outcome


class Journal:
    """`take` is the sink of a `Recorder`; lines of other processes may be given to it too."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.answers = 0
        self._more = asyncio.Event()
        self._trouble = asyncio.Event()

    def take(self, line: bytes) -> None:
        self._file.write(line)
        event = json.loads(line)["event"]
        if event == Outcome.OK:
            self.answers += 1
            self._more.set()
        elif event != "invoke":
            self._trouble.set()

    async def until(self, answers: int) -> None:
        while self.answers < answers:
            self._more.clear()
            await self._more.wait()

    async def trouble(self) -> None:
        """Wait until a call from now on fails, or is left in doubt."""
        self._trouble.clear()
        await self._trouble.wait()
