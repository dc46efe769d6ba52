"""A program that numbers the messages of its input itself, and is killed and started again, in `log`.

It does not know then which of them have arrived, and sends again from some message on that precedes all of these, with
a new client. What the client before it has still under way arrives meanwhile, or is sent again by it. So every message
is there once, where its sender was told, and those of a key are in their order (DESIGN §5.13).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

from metatxn.client import AsyncClient
from metatxn.wire.errors import MetatxnError
from tests.bounds import entry_bounds
from tests.simulation.client import parse_position
from tests.simulation.history import Outcome, Write
from tests.simulation.workloads.base import Workload
from tests.simulation.workloads.library import Told, User

KEYS = 5
AGAIN = 20
"""This many messages are sent again that have arrived, at most."""


class Importer(User):
    def __init__(self, workload: Workload, name: str, random: Random) -> None:
        super().__init__(workload, name, random)
        self._before: list[AsyncClient] = []
        """Its clients before this one, which nobody has closed."""
        self._input: list[tuple[Write, str | None]] = []
        self._next = 0
        self._open()

    def _open(self) -> None:
        (topic,) = self.workload.topics
        bounds = entry_bounds(self.workload.world.seed)
        self._producer = self.library.producer(topic, self.name, sequenced=True, **bounds)

    async def leave(self) -> None:
        for each in (*self._before, self.library):
            with suppress(MetatxnError):
                await each.close()

    async def act(self) -> None:
        if self.random.random() < 0.2:
            self._start_again()
        try:
            sent = [await self._send() for _ in range(self.random.choice((1, 3, 10)))]
            if self.random.random() < 0.8:
                await asyncio.gather(*sent)
        except MetatxnError as error:
            self._start_again()
            raise Told from error

    def _start_again(self) -> None:
        self._before.append(self.library)
        self.library = self._connect(f"{self.name}, life {len(self._before)}")
        self._open()
        missing = (number for number, (write, _) in enumerate(self._input) if write.outcome is not Outcome.OK)
        first = next(missing, len(self._input))
        self._next = self.random.randint(max(0, first - AGAIN), first)

    async def _send(self) -> asyncio.Future[str]:
        if self._next == len(self._input):
            self._input.append(self._new())
        write, key = self._input[self._next]
        value = {"id": write.id, "key": write.key, "amount": 0}
        sent = await self._producer.send(value, key=key, sequence=self._next)
        sent.add_done_callback(lambda sent: self._arrived(write, sent))
        self._next += 1
        return sent

    def _new(self) -> tuple[Write, str | None]:
        (topic,) = self.workload.topics
        key = self.random.choice((None, *(f"{self.name}/key-{number}" for number in range(KEYS))))
        write = self.note(topic, key or f"{self.name}/{len(self._input)}", 0, None, None)
        write.outcome = Outcome.UNKNOWN
        return write, key

    def _arrived(self, write: Write, sent: asyncio.Future[str]) -> None:
        if sent.cancelled() or sent.exception() is not None:
            return
        position = parse_position(sent.result())
        if write.outcome is not Outcome.OK:
            write.outcome, write.position, write.ended = Outcome.OK, position, self.workload.world.loop.time()
        elif position != write.position:
            self.history.broken.append(f"{write.id} lies at {write.position}, and was told to lie at {position}")
